"""Programs as users write them, by category."""

from __future__ import annotations

from typing import Final

from programs import (
    bystanders,
    crowds,
    environments,
    fractals,
    gradients,
    harmless,
    libraries,
    loop_free,
    mcmc,
    monte_carlo,
    ode,
    recurrent,
    scalar,
    shapes,
)
from programs.program import Program

_ROOMS: Final = (
    environments,
    monte_carlo,
    ode,
    fractals,
    mcmc,
    recurrent,
    gradients,
    scalar,
    shapes,
    crowds,
    libraries,
    bystanders,
)

PROGRAMS: Final[tuple[Program, ...]] = tuple(p for room in _ROOMS for p in room.PROGRAMS)
CATEGORIES: Final[tuple[str, ...]] = tuple(room.CATEGORY for room in _ROOMS)


def find_program(name: str) -> Program:
    """Returns a program of the suite, one of those that need no help, or one without loops.

    Raises:
        KeyError: if there is none of that name.
    """
    known = PROGRAMS + harmless.PROGRAMS + loop_free.PROGRAMS
    return {program.name: program for program in known}[name]
