"""Modules that XLA compiles alone in this process, whether Fuselane is on or not.

They are known by name, as XLA calls hooks on threads of its own: a module of the same name that
another thread compiles in that moment is left to XLA, too. Up to JAX 0.10 the pass that calls them
could be left out of one compilation; since 0.11 it has another name in each.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

from fuselane.later import Later

if TYPE_CHECKING:
    from fuselane.hlo import proto
else:
    proto = Later("fuselane.hlo.proto")

_lock = threading.Lock()
_names: list[str] = []


@contextlib.contextmanager
def compiled_alone(name: str) -> Iterator[None]:
    """Leaves modules of a name to XLA inside a `with` block."""
    with _lock:
        _names.append(name)
    try:
        yield
    finally:
        with _lock:
            _names.remove(name)


def is_compiled_alone(module: bytes) -> bool:
    """Whether a serialized module is one that XLA compiles alone."""
    return bool(_names) and proto.HloModuleProto.FromString(module).name in _names
