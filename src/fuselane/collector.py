"""Python's collector of cyclic garbage, put off while hundreds of thousands of objects are made.

Compiling a module or making a report creates objects that live until it is done and refer to each
other. Meanwhile collections find nothing, but go through all of them, and now and then through
everything JAX holds besides, which takes as long as making a report, or compiling a small loop.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, final


@final
class _Pause:
    """How many blocks want it, and whether the collector was on before the first of them."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.num_blocks = 0
        self.was_enabled = False


_pause: Final = _Pause()


@contextmanager
def paused() -> Iterator[None]:
    """Collects no cyclic garbage inside a `with` block, on any thread, if it was collected before.

    Blocks may be nested, and overlap on several threads. What is left goes with the next collection
    after the last of them.
    """
    with _pause.lock:
        if _pause.num_blocks == 0:
            _pause.was_enabled = gc.isenabled()
            gc.disable()
        _pause.num_blocks += 1
    try:
        yield
    finally:
        with _pause.lock:
            _pause.num_blocks -= 1
            if _pause.num_blocks == 0 and _pause.was_enabled:
                gc.enable()
