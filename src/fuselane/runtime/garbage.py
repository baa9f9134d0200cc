"""Python's garbage collector, put off while a module is compiled.

Compiling makes many objects that live until it is done and refer to each other, instructions and
their users. Meanwhile collections find nothing, but go through all of them, and now and then
through everything JAX holds besides, which takes longer than compiling a small loop.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, final


@final
class _Pause:
    """How many compilations want it, and whether the collector was on before the first of them."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.num_compilations = 0
        self.was_enabled = False


_pause: Final = _Pause()


@contextmanager
def not_collected() -> Iterator[None]:
    """Keeps the collector off inside a `with` block, in all threads; it may be nested."""
    with _pause.lock:
        if _pause.num_compilations == 0:
            _pause.was_enabled = gc.isenabled()
            gc.disable()
        _pause.num_compilations += 1
    try:
        yield
    finally:
        with _pause.lock:
            _pause.num_compilations -= 1
            if _pause.num_compilations == 0 and _pause.was_enabled:
                gc.enable()
