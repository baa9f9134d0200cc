"""What XLA takes out of a loop's body but leaves in its condition is one value again.

    %e = exponential(%p)
    %w = while(tuple(%x, %p, %e))        body:       select(%x > %e, ..)
                                         condition:  any(%x > exponential(%p))

In the loops that `vmap` makes, both ask the same, which nobody sees any more. Where no step changes
%p and %e, what makes the same of %p inside the loop is %e.

Numerics: the condition goes by the value that the body goes by.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from fuselane.analysis.while_loops import get_known_trip_count
from fuselane.hlo.instruction import HloInstruction
from fuselane.lanes.builder import ComputationBuilder

_MAX_MADE: Final = 256
_MAX_TABLE: Final = 4096
"""Instructions of which such a value is made, and elements of a constant among them, at most."""

_GIVEN: Final = frozenset({"get-tuple-element", "parameter"})
_LOOPS: Final = frozenset({"conditional", "while"})

Make = Callable[[HloInstruction, Sequence[HloInstruction]], HloInstruction | None]
"""Emits an instruction anew, given its operands; None where that is not possible."""


def may_repeat_conditions(loop: HloInstruction) -> bool:
    """Whether a loop of the user's module, or one inside, may end by the data of its lanes."""
    inside = (i for i in loop.body.instructions if i.opcode == "while")
    return any(get_known_trip_count(each) is None for each in (loop, *inside))


def make_again(
    value: HloInstruction,
    known: Mapping[HloInstruction, HloInstruction],
    make: Make,
    meaning: Callable[[HloInstruction], HloInstruction] | None = None,
) -> HloInstruction | None:
    """Returns a value made anew of others, None if it is made of more than these.

    Args:
        value: What to make; not taken from the known ones itself.
        known: Values -> what stands for them.
        make: Emits one instruction.
        meaning: Says what a parameter or an element is made of, if that is known; else itself.
    """
    made: dict[HloInstruction, HloInstruction | None] = {}

    def visit(source: HloInstruction) -> HloInstruction | None:
        if source is not value and source in known:
            return known[source]
        if source in made:
            return made[source]
        made[source] = None
        is_table = source.opcode == "constant" and source.shape.num_elements > _MAX_TABLE
        if is_table or source.opcode in _LOOPS or len(made) > _MAX_MADE:
            return None
        if source.opcode in _GIVEN:
            meant = source if meaning is None else meaning(source)
            made[source] = None if meant is source else visit(meant)
            return made[source]
        operands = []
        for operand in source.operands:
            emitted = visit(operand)
            if emitted is None:
                return None
            operands.append(emitted)
        made[source] = make(source, operands)
        return made[source]

    return visit(value)


def hand_on(
    builder: ComputationBuilder,
    inner: ComputationBuilder,
    elements: Mapping[HloInstruction, HloInstruction],
) -> None:
    """Teaches the builder of a loop's body or condition what its elements are made of.

    Args:
        builder: Emits around the loop.
        inner: Emits in it.
        elements: Of those that no step changes, initial values -> the elements.
    """

    def make(source: HloInstruction, operands: Sequence[HloInstruction]) -> HloInstruction:
        return inner.emit_again(source, operands, builder)

    for initial, element in elements.items():
        made = make_again(initial, elements, make, builder.meaning)
        if made is not None:
            inner.learn(element, made)
