"""What a condition asks of all lanes together is asked of each lane first, as in the body.

XLA makes one of two reductions, where the first serves nothing but the second:

    body:       %lane = reduce(%p, or), dimensions={1}      condition:  %any = reduce(%p), {0,1}
    ->                                                      condition:  %lane = reduce(%p), {1}
                                                                        %any = reduce(%lane), {0}

In the body the first is there, to keep what is done as it is. Only if both ask the same can anybody
tell that lanes may stop one by one.

Numerics: bitwise-equal; these are booleans.
"""

from __future__ import annotations

from fuselane.analysis.loop_ends import find_ends
from fuselane.hlo.computation import HloComputation
from fuselane.hlo.instruction import HloInstruction
from fuselane.lanes.builder import ComputationBuilder


def take_apart(condition: HloComputation, body: HloComputation) -> None:
    """Takes the reductions apart that a loop's condition goes by, as its body has them.

    Args:
        condition: In normal form; changed in place.
        body: In normal form.
    """
    ends = find_ends(condition)
    for end in [value for value in condition.instructions if value in ends]:
        first = _find_first(end, body)
        if first is not None:
            builder = ComputationBuilder.extending(condition)
            operand, initial = end.operands
            of_each = builder.reduce((operand, initial), first.dimensions, end.to_apply, origin=end)
            left = [d for d in range(operand.shape.rank) if d not in first.dimensions]
            rest = tuple(n for n, d in enumerate(left) if d in end.dimensions)
            of_all = builder.reduce((of_each, initial), rest, end.to_apply, origin=end)
            end.replace_all_uses_with(of_all)
            condition.remove_dead_instructions()
            condition.sort()


def _find_first(end: HloInstruction, body: HloComputation) -> HloInstruction | None:
    """Returns a reduction of a body that does part of what one of the condition does."""
    for value in body.instructions:
        if (
            value.opcode == "reduce"
            and value.shape.is_array
            and value.to_apply is end.to_apply
            and value.operands[0].shape == end.operands[0].shape
            and value.operands[0].opcode == end.operands[0].opcode
            and set(value.dimensions) < set(end.dimensions)
        ):
            return value
    return None
