"""How long the compiler may work: a deadline that whatever may take long asks for.

Nothing can stop Python code from outside without leaving it half done. So every place that work of
all kinds goes through (an instruction read or made, an instruction of LLVM emitted) asks whether
the time is over. Each thread has a deadline of its own, as each compiles a module of its own.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, final

from fuselane.errors import OutOfTimeError


@final
class _Deadline(threading.local):
    at_s: float = math.inf


_deadline: Final = _Deadline()


@contextmanager
def until(at_s: float) -> Iterator[None]:
    """Sets the deadline of this thread inside a `with` block.

    Args:
        at_s: On the clock of `time.monotonic`.
    """
    before = _deadline.at_s
    _deadline.at_s = min(at_s, before)
    try:
        yield
    finally:
        _deadline.at_s = before


def remaining_s() -> float:
    """Returns how many seconds this thread has left; infinity without a deadline."""
    return _deadline.at_s - time.monotonic()


def check() -> None:
    """Does nothing while there is time.

    Raises:
        OutOfTimeError: when the deadline has passed.
    """
    if time.monotonic() > _deadline.at_s:
        raise OutOfTimeError("The time to compile is over.")
