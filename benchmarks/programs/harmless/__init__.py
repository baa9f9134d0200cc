"""Programs that plain XLA runs well, by kind: Fuselane must not make one of them slower.

Sizes: `lanes` is whatever a program has many of, `steps` how often its loop runs, if it has one.
"""

from __future__ import annotations

from typing import Final

from programs.harmless import (
    calls,
    compiling,
    large_loops,
    layers,
    models,
    no_loops,
    small_loops,
)
from programs.program import Program

_ROOMS: Final = (large_loops, layers, small_loops, no_loops, models, compiling, calls)

PROGRAMS: Final[tuple[Program, ...]] = tuple(p for room in _ROOMS for p in room.PROGRAMS)
CATEGORIES: Final[tuple[str, ...]] = tuple(room.CATEGORY for room in _ROOMS)
