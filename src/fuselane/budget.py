"""How long the compiler may work: a deadline that whatever may take long asks for.

Nothing can stop Python code from outside without leaving it half done. So every place that work of
all kinds goes through (an instruction read or made, an instruction of LLVM emitted) asks whether
the time is over. Each thread has a deadline of its own, as each compiles a module of its own. What
counts is the processor's time: on a busy machine all takes longer, XLA's part as well.
"""

from __future__ import annotations

import math
import threading
import time
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final, final

from fuselane.errors import OutOfTimeError


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Deadline:
    """When a thread's time is over.

    Attributes:
        processor_s: On the clock of `time.thread_time`.
        earliest_s: On that of `time.monotonic`, which is read in a tenth of the time: not before.
    """

    processor_s: float
    earliest_s: float

    @staticmethod
    def after(seconds: float) -> Deadline:
        """Returns the deadline for so many seconds of this thread's work from now on."""
        return Deadline(
            processor_s=time.thread_time() + seconds, earliest_s=time.monotonic() + seconds
        )


_NEVER: Final = Deadline(processor_s=math.inf, earliest_s=math.inf)


@final
class _Current(threading.local):
    deadline: Deadline = _NEVER


_current: Final = _Current()


@final
class _Until:
    """A `with` block with a deadline; a class, as each loop that is looked at enters several."""

    __slots__ = ("_before", "_deadline")

    def __init__(self, deadline: Deadline) -> None:
        self._deadline = deadline

    def __enter__(self) -> None:
        self._before = _current.deadline
        if self._deadline.processor_s < self._before.processor_s:
            _current.deadline = self._deadline

    def __exit__(self, *_: object) -> None:
        _current.deadline = self._before


def until(deadline: Deadline) -> AbstractContextManager[None]:
    """Sets the deadline of this thread inside a `with` block, if it has no earlier one."""
    return _Until(deadline)


def remaining_s() -> float:
    """Returns how many seconds of work this thread has left; infinity without a deadline."""
    return _current.deadline.processor_s - time.thread_time()


def check() -> None:
    """Does nothing while there is time.

    Raises:
        OutOfTimeError: when the deadline has passed.
    """
    if time.monotonic() > _current.deadline.earliest_s and remaining_s() < 0:
        raise OutOfTimeError("The time to compile is over.")
