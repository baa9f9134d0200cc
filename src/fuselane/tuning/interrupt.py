"""Ctrl-C that waits until it is asked for.

As an exception it would come in the middle of XLA's compiler, which makes another error of it or
ends the process, or of Python's garbage collection, which ignores it.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, final


@final
class Interrupt:
    """Whether Ctrl-C was pressed.

    Attributes:
        has_come: Whether it was, so far.
    """

    def __init__(self) -> None:
        self.has_come = False

    @contextmanager
    def awaited(self) -> Iterator[None]:
        """Notes the first Ctrl-C inside a `with` block; the second does what it does elsewhere.

        On threads other than the main one, and where Ctrl-C is ignored, nothing is changed.
        """
        usual = signal.getsignal(signal.SIGINT)
        if threading.current_thread() is not threading.main_thread() or not callable(usual):
            yield
            return

        def note(*_: Any) -> None:
            self.has_come = True
            signal.signal(signal.SIGINT, usual)

        signal.signal(signal.SIGINT, note)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, usual)
