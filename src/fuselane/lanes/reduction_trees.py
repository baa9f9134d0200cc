"""Reductions of everything, put together again.

XLA:CPU takes a reduction of an array to a scalar apart: into reductions of 32 elements each, after
a pad with the initial value where these don't fill the array, until little is left.

    %a = pred[64] reduce(reshape(pad(%p, false))), dimensions={1}, to_apply=or     %p: pred[2000]
    ROOT %b = pred[] reduce(%a, false), dimensions={0}, to_apply=or
->  ROOT %b = pred[] reduce(%p, false), dimensions={0}, to_apply=or

Done where the order of elements makes no difference: for integers and booleans, and for minima and
maxima. Sums and products of floats keep their stages where these round less: of halves, and of so
many elements that a vector's partial sums get long. Whoever emits a reduction of few is not kept
from making vectors of it by the pads in between.
Numerics: bitwise-equal, but for which of several NaNs a minimum or maximum is, and for the order in
which floats are summed or multiplied.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from fuselane.hlo.combiners import is_identity, match_combiner
from fuselane.hlo.computation import HloComputation
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.shape import PrimitiveType
from fuselane.lanes.builder import ComputationBuilder
from fuselane.lanes.layout import lower_reduce

_SELECTING: Final = frozenset({"maximum", "minimum"})
_WIDE_FLOATS: Final = frozenset({PrimitiveType.F32, PrimitiveType.F64})
_MAX_SUMMED: Final = 4096
"""Floats that are summed or multiplied in one stage."""


def lower_reduction(
    builder: ComputationBuilder,
    instruction: HloInstruction,
    operands: Sequence[HloInstruction],
    to_apply: HloComputation,
) -> HloInstruction | tuple[HloInstruction, ...]:
    """Lowers a reduce; where it is the last of a tree of them, the tree becomes one."""
    value = lower_reduce(builder, instruction, operands, to_apply)
    combiner = None if isinstance(value, tuple) else _match_in_any_order(value)
    if isinstance(value, tuple) or combiner is None or value.shape.dimensions:
        return value
    array, initial = value.operands
    start = _skip_to_start(array, combiner)
    if start is array or not start.shape.dimensions:
        return value if start is array else start
    if not _is_exact(start, combiner) and start.shape.num_elements > _MAX_SUMMED:
        return value
    dimensions = (("dimensions", tuple(range(start.shape.rank))),)
    return builder.emit(
        "reduce", value.shape, (start, initial), dimensions, origin=instruction, called=(to_apply,)
    )


def _skip_to_start(array: HloInstruction, combiner: str) -> HloInstruction:
    """Returns an array whose elements combine, in any order, to the same as those of another."""
    while True:
        match array.opcode:
            case "reshape" | "transpose":
                array = array.operands[0]
            case "pad" if is_identity(array.operands[1], combiner) and _only_adds(array):
                array = array.operands[0]
            case "reduce" if _match_in_any_order(array) == combiner:
                array = array.operands[0]
            case _:
                return array


def _only_adds(pad: HloInstruction) -> bool:
    return all(low >= 0 and high >= 0 for low, high, _ in pad.padding)


def _match_in_any_order(value: HloInstruction) -> str | None:
    """Returns the opcode by which a reduction combines elements, None where their order makes too
    much of a difference or the initial value does."""
    if value.opcode != "reduce" or not value.shape.is_array:
        return None
    combiner = match_combiner(value.to_apply)
    if combiner is None or not is_identity(value.operands[1], combiner):
        return None
    may_be_reordered = value.shape.element_type in _WIDE_FLOATS or _is_exact(value, combiner)
    return combiner if may_be_reordered else None


def _is_exact(value: HloInstruction, combiner: str) -> bool:
    """Whether elements of this type combine to the same in any order."""
    element = value.shape.element_type
    return not (element.is_floating or element.is_complex) or combiner in _SELECTING
