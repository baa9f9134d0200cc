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
from fuselane.lanes.builder import ComputationBuilder, array_shape


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
            of_each = _emit(builder, end, end.operands[0], first.dimensions)
            left = [d for d in range(end.operands[0].shape.rank) if d not in first.dimensions]
            rest = tuple(n for n, d in enumerate(left) if d in end.dimensions)
            end.replace_all_uses_with(_emit(builder, end, of_each, rest))
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


def _emit(
    builder: ComputationBuilder,
    end: HloInstruction,
    operand: HloInstruction,
    dimensions: tuple[int, ...],
) -> HloInstruction:
    sizes = operand.shape.dimensions
    kept = tuple(size for d, size in enumerate(sizes) if d not in dimensions)
    return builder.emit(
        "reduce",
        array_shape(end.shape.element_type, kept),
        (operand, end.operands[1]),
        (("dimensions", dimensions),),
        origin=end,
        called=(end.to_apply,),
    )
