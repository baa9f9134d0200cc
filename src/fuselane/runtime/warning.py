"""Warnings to the user: each one once per process, and never an exception in the wrong place.

They point at the line of the user's that made JAX compile, not at the place in here that gave up.
XLA compiles on threads of its own, so that line is looked for on the thread that waits for it.
"""

from __future__ import annotations

import logging
import sys
import threading
import warnings
from collections.abc import Iterator
from types import FrameType
from typing import final

from jax._src import compiler
from jax._src.source_info_util import is_user_filename

from fuselane.config import is_own_file

_logger = logging.getLogger("fuselane")


@final
class FuselaneWarning(UserWarning):
    """Something did not work; the program runs on without it."""


_said: set[str] = set()
_lock = threading.Lock()


def warn_once(message: str) -> None:
    """Warns with a sentence unless this process has already been warned with the same one.

    Does not raise, not even when the user turned warnings into errors: most callers stand between
    XLA and Python, where an exception would end the user's compilation.
    """
    with _lock:
        if message in _said:
            return
        _said.add(message)
    frame = _find_user() or sys._getframe(1)
    try:
        warnings.warn_explicit(
            message,
            FuselaneWarning,
            frame.f_code.co_filename,
            frame.f_lineno,
            module=frame.f_globals.get("__name__"),
            registry=frame.f_globals.setdefault("__warningregistry__", {}),
        )
    except FuselaneWarning:
        _logger.warning(message)


def _find_user() -> FrameType | None:
    """Returns the user's code that called what led here; None if there is none, or if several
    threads wait for XLA's compiler, which does not tell whom it works for."""
    own = _first_of_user(sys._getframe(1))
    if own is not None:
        return own
    stacks = sys._current_frames().values()
    waiting = [frame for frame in stacks if any(map(_is_compiling, _outwards(frame)))]
    return _first_of_user(waiting[0]) if len(waiting) == 1 else None


def _first_of_user(frame: FrameType) -> FrameType | None:
    return next(filter(_is_of_user, _outwards(frame)), None)


def _is_of_user(frame: FrameType) -> bool:
    """Whether code is none of ours, JAX's, Python's, or what libraries told JAX to be theirs."""
    file = frame.f_code.co_filename
    is_frozen = file.startswith("<frozen ")
    return is_user_filename(file) and not is_own_file(file) and not is_frozen


def _is_compiling(frame: FrameType) -> bool:
    return frame.f_code.co_filename == compiler.__file__


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    """Yields a frame, and those that called it."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def forget_warnings() -> None:
    """Lets every warning be given again; for tests."""
    with _lock:
        _said.clear()
