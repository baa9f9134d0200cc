"""Which reasons for a boundary look alike: families, each with a colour in all faces."""

from __future__ import annotations

import enum
from typing import Final, final

from fuselane.boundary import BoundaryReason


@final
class Family(enum.Enum):
    """A family of reasons: what people call it, and its colour on dark and on light ground."""

    LOOP = ("loops and branches", "#6cb2ff", "#1f6fd0")
    RANDOM = ("random numbers", "#c79bff", "#8250df")
    CALL = ("libraries and calls", "#f0b94b", "#a86500")
    DUPLICATION = ("repeated work", "#ff8d7a", "#cf3f2e")
    SHAPE = ("shapes and reductions", "#4fd1c5", "#0f7f78")
    MEMORY = ("copies and layout", "#8fd16f", "#3f8624")
    LIMIT = ("limits and prices", "#e59ac8", "#b03a82")
    FUSELANE = ("Fuselane", "#7ee0a1", "#1a7f4b")
    EDGE = ("edges of the program", "#8b949e", "#7d8590")
    UNKNOWN = ("unknown", "#ff4fd8", "#c4009a")

    def __init__(self, label: str, on_dark: str, on_light: str) -> None:
        self.label = label
        self.on_dark = on_dark
        self.on_light = on_light


_MEMBERS: Final = {
    Family.LOOP: (BoundaryReason.LOOP_CONTROL, BoundaryReason.CONDITIONAL),
    Family.RANDOM: (BoundaryReason.RANDOM_NUMBERS,),
    Family.CALL: (
        BoundaryReason.LIBRARY_CALL,
        BoundaryReason.CUSTOM_CALL,
        BoundaryReason.COLLECTIVE,
        BoundaryReason.SIDE_EFFECT,
        BoundaryReason.SORT,
    ),
    Family.DUPLICATION: (
        BoundaryReason.CONCATENATE_USERS,
        BoundaryReason.EXPENSIVE_DUPLICATION,
        BoundaryReason.DUPLICATION,
        BoundaryReason.CODE_DUPLICATION,
        BoundaryReason.OPERAND_REUSE,
        BoundaryReason.REDUCTION_REUSE,
    ),
    Family.SHAPE: (
        BoundaryReason.REDUCTION_INTO_REDUCTION,
        BoundaryReason.LOOP_SHAPES,
        BoundaryReason.MULTI_OUTPUT,
    ),
    Family.MEMORY: (BoundaryReason.LAYOUT, BoundaryReason.COPY, BoundaryReason.IN_PLACE),
    Family.LIMIT: (BoundaryReason.BUDGET, BoundaryReason.NOT_FUSIBLE, BoundaryReason.SLOWER),
    Family.FUSELANE: (BoundaryReason.FUSELANE_KERNEL,),
    Family.EDGE: (
        BoundaryReason.ENTRY,
        BoundaryReason.EXIT,
        BoundaryReason.TUPLE,
        BoundaryReason.CONSTANT,
    ),
    Family.UNKNOWN: (BoundaryReason.UNKNOWN,),
}

FAMILIES: Final = {reason: family for family, group in _MEMBERS.items() for reason in group}
"""The family of each reason."""
