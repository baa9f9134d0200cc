"""What is done once in a process, whichever thread asks for it first."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable


def once(function: Callable[[], None]) -> Callable[[], None]:
    """Makes a function do its work at the first call that succeeds; other calls wait for it."""
    lock, done = threading.Lock(), functools.cache(function)

    @functools.wraps(function)
    def run() -> None:
        with lock:
            done()

    return run
