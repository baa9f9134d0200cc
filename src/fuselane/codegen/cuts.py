"""Where loops over an array's elements are cut, so that each loop takes one way through its rules.

    %c = f32[8,20] concatenate(%x, %y), dimensions={1}       x f32[8,1]
    %s = f32[8,20] add(%c, %z)

An element of `s` is made of one of `x` or one of `y`. In one loop over all 20 both would be read
and one selected; the loop is cut at 1 instead. Cuts pass through whatever is computed element by
element.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from fuselane.analysis.opcodes import ELEMENTWISE_OPCODES
from fuselane.codegen.arrays import Array, View
from fuselane.codegen.in_place import known_starts
from fuselane.hlo.instruction import HloInstruction

Cuts = dict[int, set[int]]
"""Dimension of an array -> first indices of the parts behind a cut."""

MAX_PARTS: Final = 16
"""The most loop nests that one becomes."""


def cuts_of(instruction: HloInstruction, operands: Sequence[Array]) -> Cuts:
    """Returns where a loop over an instruction's elements is cut; nowhere if into too many parts.

    Args:
        instruction: What is computed element by element.
        operands: What its operands stand for.
    """
    cuts = _all_cuts(instruction, operands)
    return cuts if _num_parts(cuts) <= MAX_PARTS else {}


def has_too_many_parts(instruction: HloInstruction, operands: Sequence[Array]) -> bool:
    """Returns whether a loop over an instruction's elements would be cut into too many parts."""
    return _num_parts(_all_cuts(instruction, operands)) > MAX_PARTS


def is_cut(array: Array) -> bool:
    """Returns whether a loop over an array's elements is cut."""
    return any(_cuts(array).values())


def _all_cuts(instruction: HloInstruction, operands: Sequence[Array]) -> Cuts:
    opcode = "elementwise" if instruction.opcode in ELEMENTWISE_OPCODES else instruction.opcode
    rule = _RULES.get(opcode)
    cuts = {} if rule is None else rule(instruction, [_cuts(array) for array in operands])
    shape = instruction.shape
    sizes = shape.tuple_shapes[0].dimensions if shape.is_tuple else shape.dimensions
    return {
        axis: {place for place in places if 0 < place < sizes[axis]}
        for axis, places in cuts.items()
    }


def _num_parts(cuts: Cuts) -> int:
    return math.prod(len(places) + 1 for places in cuts.values())


def per_dimension(array: Array) -> list[Sequence[int]]:
    """Returns the cuts of an array for each dimension of what one lane holds."""
    return in_lane(_cuts(array), len(array.shape.dimensions), array.lane)


def in_lane(cuts: Cuts, rank: int, lane: int | None) -> list[Sequence[int]]:
    """Returns cuts for each dimension of what one lane holds of an array."""
    return [sorted(cuts.get(axis, ())) for axis in range(rank) if axis != lane]


def cuts_along(array: Array, axis: int) -> set[int]:
    """Returns the cuts of an array along one of its dimensions."""
    return _cuts(array).get(axis, set())


def _cuts(array: Array) -> Cuts:
    return array.cuts if isinstance(array, View) else {}


def _elementwise(_: HloInstruction, operands: Sequence[Cuts]) -> Cuts:
    result: Cuts = {}
    for cuts in operands:
        for axis, places in cuts.items():
            result.setdefault(axis, set()).update(places)
    return result


def _concatenate(instruction: HloInstruction, operands: Sequence[Cuts]) -> Cuts:
    (axis,) = instruction.dimensions
    result = _elementwise(
        instruction, [{a: c for a, c in o.items() if a != axis} for o in operands]
    )
    along = result[axis] = set()
    start = 0
    for operand, cuts in zip(instruction.operands, operands, strict=True):
        along.add(start)
        along.update(start + place for place in cuts.get(axis, ()))
        start += operand.shape.dimensions[axis]
    return result


def _update(instruction: HloInstruction, operands: Sequence[Cuts]) -> Cuts:
    result = _elementwise(instruction, operands[:1])
    starts, sizes = known_starts(instruction), instruction.operands[1].shape.dimensions
    assert starts is not None, "others are not made element by element"
    for axis, (start, size) in enumerate(zip(starts, sizes, strict=True)):
        places = {0, size, *operands[1].get(axis, ())}
        result.setdefault(axis, set()).update(start + place for place in places)
    return result


def _pad(instruction: HloInstruction, operands: Sequence[Cuts]) -> Cuts:
    result: Cuts = {}
    sizes = instruction.operands[0].shape.dimensions
    for axis, (low, _, interior) in enumerate(instruction.padding):
        if interior == 0:
            places = {0, sizes[axis], *operands[0].get(axis, ())}
            result[axis] = {low + place for place in places}
    return result


def _slice(instruction: HloInstruction, operands: Sequence[Cuts]) -> Cuts:
    starts, strides = instruction.slice_starts, instruction.slice_strides
    return {
        axis: {-(-(place - starts[axis]) // strides[axis]) for place in places}
        for axis, places in operands[0].items()
    }


def _reverse(instruction: HloInstruction, operands: Sequence[Cuts]) -> Cuts:
    sizes, reversed_axes = instruction.shape.dimensions, instruction.dimensions
    return {
        axis: {sizes[axis] - place for place in places} if axis in reversed_axes else places
        for axis, places in operands[0].items()
    }


def _transpose(instruction: HloInstruction, operands: Sequence[Cuts]) -> Cuts:
    return {
        axis: operands[0][source]
        for axis, source in enumerate(instruction.dimensions)
        if source in operands[0]
    }


def _reshape(instruction: HloInstruction, operands: Sequence[Cuts]) -> Cuts:
    """Dimensions of size 1 come and go; whatever else is reshaped is in one loop."""
    long, before = (
        [axis for axis, size in enumerate(shape.dimensions) if size > 1]
        for shape in (instruction.shape, instruction.operands[0].shape)
    )
    sizes, others = instruction.shape.dimensions, instruction.operands[0].shape.dimensions
    if [sizes[axis] for axis in long] != [others[axis] for axis in before]:
        return {}
    return {
        axis: operands[0][source]
        for axis, source in zip(long, before, strict=True)
        if source in operands[0]
    }


def _broadcast(instruction: HloInstruction, operands: Sequence[Cuts]) -> Cuts:
    return {instruction.dimensions[axis]: places for axis, places in operands[0].items()}


def _reduce(instruction: HloInstruction, operands: Sequence[Cuts]) -> Cuts:
    rank = len(instruction.operands[0].shape.dimensions)
    kept = [axis for axis in range(rank) if axis not in instruction.dimensions]
    return {
        axis: set().union(*(cuts.get(source, ()) for cuts in operands))
        for axis, source in enumerate(kept)
    }


_RULES: Final[Mapping[str, Callable[[HloInstruction, Sequence[Cuts]], Cuts]]] = {
    "broadcast": _broadcast,
    "concatenate": _concatenate,
    "dynamic-update-slice": _update,
    "elementwise": _elementwise,
    "pad": _pad,
    "reduce": _reduce,
    "reshape": _reshape,
    "reverse": _reverse,
    "slice": _slice,
    "transpose": _transpose,
}
