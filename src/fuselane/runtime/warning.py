"""Warnings to the user: each one once per process, and never an exception in the wrong place."""

from __future__ import annotations

import logging
import threading
import warnings
from typing import final

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
    try:
        warnings.warn(message, FuselaneWarning, stacklevel=3)
    except FuselaneWarning:
        _logger.warning(message)


def forget_warnings() -> None:
    """Lets every warning be given again; for tests."""
    with _lock:
        _said.clear()
