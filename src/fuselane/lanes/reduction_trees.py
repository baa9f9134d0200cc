"""Reductions in stages, put together again.

XLA:CPU takes a large reduction apart: into reductions of 32 elements each, after a pad with the
initial value where these don't fill the array, until little is left.

    %a = pred[64] reduce(reshape(pad(%p, false))), dimensions={1}, to_apply=or     %p: pred[2000]
    ROOT %b = pred[] reduce(%a, false), dimensions={0}, to_apply=or
->  ROOT %b = pred[] reduce(%p, false), dimensions={0}, to_apply=or

So are those that keep dimensions, s32[25,131] to s32[25]. Stages of 32 elements are few enough to
be unrolled, one in the other: the whole array would be written out.

Done where the order of elements makes no difference: for integers and booleans, and for minima and
maxima. Sums and products of floats keep their stages where these round less: of halves, of so many
elements that a vector's partial sums get long, and where dimensions are kept. Whoever emits a
reduction of few is not kept from making vectors of it by the pads in between; without lanes, those
between stages that keep dimensions have to go as well.
Numerics: bitwise-equal, but for which of several NaNs a minimum or maximum is, and for the order in
which floats are summed or multiplied.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from fuselane.analysis.leaving import Reduction, find_reductions
from fuselane.hlo.combiners import is_identity, match_combiner
from fuselane.hlo.computation import HloComputation, reachable_computations
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.shape import WIDE_FLOATS
from fuselane.lanes.builder import ComputationBuilder
from fuselane.lanes.layout import lower_reduce

_SELECTING: Final = frozenset({"maximum", "minimum"})
_MAX_SUMMED: Final = 4096
"""Floats that are summed or multiplied in one stage."""

_MAX_IN_TURN: Final = 1024
"""The same where they may be so one after the other, as columns are, and lose digits."""


def lower_reduction(
    builder: ComputationBuilder,
    instruction: HloInstruction,
    operands: Sequence[HloInstruction],
    to_apply: HloComputation,
) -> HloInstruction | tuple[HloInstruction, ...]:
    """Lowers a reduce; where it is the last of a tree of them, the tree becomes one."""
    value = lower_reduce(builder, instruction, operands, to_apply)
    combiner = None if isinstance(value, tuple) else _match_in_any_order(value)
    if isinstance(value, tuple) or combiner is None:
        return value
    array, initial = value.operands
    start, reduced = _skip_to_start(array, frozenset(value.dimensions), combiner)
    if start is array or not reduced:
        return value if start is array else start
    is_small = not value.shape.dimensions and start.shape.num_elements <= _MAX_SUMMED
    if not (is_small or _is_exact(start, combiner)):
        return value
    dimensions = tuple(sorted(reduced))
    return builder.reduce((start, initial), dimensions, to_apply, origin=instruction)


def find_padded(region: HloComputation) -> list[Reduction]:
    """Returns what is still reduced in stages that it does not fill, and need not be."""
    return [
        reduction
        for computation in reachable_computations([region])
        for reduction in find_reductions(computation)
        if any(member.opcode == "pad" for member in reduction.members) and _may_be_one(reduction)
    ]


def _may_be_one(reduction: Reduction) -> bool:
    combiner = _match_in_any_order(reduction.root)
    if combiner is None:
        return False
    num_combined = math.prod(reduction.source.shape.dimensions[d] for d in reduction.dimensions)
    return num_combined <= _MAX_IN_TURN or _is_exact(reduction.root, combiner)


def _skip_to_start(
    array: HloInstruction, reduced: frozenset[int], combiner: str
) -> tuple[HloInstruction, frozenset[int]]:
    """Returns an array, and dimensions along which its elements combine, in any order, to the same
    as those of another along others. The dimensions that are kept are the same, in their order."""
    while True:
        before = _find_reduced(array, reduced, combiner)
        if before is None:
            return array, reduced
        array, reduced = array.operands[0], before


def _find_reduced(
    array: HloInstruction, reduced: frozenset[int], combiner: str
) -> frozenset[int] | None:
    """Returns the dimensions of an array's operand that combine to what some of the array's do;
    None if there are none, or the array is more than its operand in another form."""
    operand = array.operands[0] if array.operands else array
    kept = [d for d in range(array.shape.rank) if d not in reduced]
    match array.opcode:
        case "reshape":
            return match_reshape(operand.shape.dimensions, array.shape.dimensions, reduced)
        case "transpose":
            places = [array.dimensions[d] for d in kept]
            is_in_order = places == sorted(places)
            return frozenset(array.dimensions[d] for d in reduced) if is_in_order else None
        case "pad" if is_identity(array.operands[1], combiner) and _only_adds(array):
            return reduced if all(not any(array.padding[d]) for d in kept) else None
        case "reduce" if _match_in_any_order(array) == combiner:
            left = [d for d in range(operand.shape.rank) if d not in array.dimensions]
            return frozenset([*array.dimensions, *(left[d] for d in reduced)])
        case _:
            return None


def match_reshape(
    before: Sequence[int], after: Sequence[int], reduced: frozenset[int]
) -> frozenset[int] | None:
    """Returns the dimensions of a reshape's operand that make up some of its result's, all others
    being the others; None if there is no such set.

    From [30,1000] to [30,8,125], dimensions 1 and 2 are made up by 1, 2 alone by none.
    """
    kept = [d for d in range(len(after)) if d not in reduced]
    if not kept:
        return frozenset(range(len(before)))
    if 0 in after or any(after[d] == 1 for d in kept):
        return None
    found = {d for d, size in enumerate(before) if size == 1}
    sources = iter([d for d in range(len(before)) if d not in found])
    taken: list[int] = []
    group: list[int] = []
    for d in [d for d, size in enumerate(after) if size > 1]:
        group.append(d)
        num_elements = math.prod(after[g] for g in group)
        while math.prod(before[s] for s in taken) < num_elements:
            taken.append(next(sources))
        if math.prod(before[s] for s in taken) > num_elements:
            continue
        left = [after[g] for g in group if g not in reduced]
        if left and left != [before[s] for s in taken]:
            return None
        found.update(() if left else taken)
        taken, group = [], []
    return frozenset(found)


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
    may_be_reordered = value.shape.element_type in WIDE_FLOATS or _is_exact(value, combiner)
    return combiner if may_be_reordered else None


def _is_exact(value: HloInstruction, combiner: str) -> bool:
    """Whether elements of this type combine to the same in any order."""
    element = value.shape.element_type
    return not (element.is_floating or element.is_complex) or combiner in _SELECTING
