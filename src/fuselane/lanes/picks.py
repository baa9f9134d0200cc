"""A few lanes taken out of all, as a sum in which the other lanes have no share.

    %o = s32[1] slice(%x), slice={[3:4]}        ->  %p = pred[2048] compare(iota, 3), direction=EQ
                                                    %o = s32[2048,1] select(%p, %x, 0)

Floats are taken out as their bits, as sums would lose denormals and the sign of zero:

    %o = f32[1] slice(%x), slice={[3:4]}        ->  %b = u32[2048] bitcast-convert(%x)
                                                    %s = u32[1] slice(%b), slice={[3:4]}
                                                    %o = f32[1] bitcast-convert(%s)

Numerics: bitwise-equal; but what is only added to a sum the loop carries stays a float.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from fuselane.analysis.leaving import PICKING_OPCODES, LaneReduction
from fuselane.hlo.combiners import identity
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.shape import PrimitiveType
from fuselane.lanes.builder import ComputationBuilder, array_shape


def pick_bits(builder: ComputationBuilder, leaving: LaneReduction) -> LaneReduction:
    """Has a slice of floats take their bits, for all that uses it; leaves others as they are.

    Args:
        builder: Adds to the body that the slice is in.
        leaving: A reduction over lanes, perhaps a slice.
    """
    pick = leaving.reduction.root
    element = pick.shape.element_type
    if pick.opcode not in PICKING_OPCODES or not element.is_floating or _is_summed(pick):
        return leaving
    bits = PrimitiveType[f"U{8 * element.dtype.itemsize}"]

    def reinterpret(value: HloInstruction, kind: PrimitiveType) -> HloInstruction:
        shape = array_shape(kind, value.shape.dimensions)
        return builder.emit("bitcast-convert", shape, (value,), origin=pick)

    source, *starts = pick.operands
    source = reinterpret(source, bits)
    taken = pick.clone((source, *starts), shape=array_shape(bits, pick.shape.dimensions))
    builder.computation.add(taken)
    pick.replace_all_uses_with(reinterpret(taken, element))
    reduction = replace(
        leaving.reduction, root=taken, members=(taken,), source=source, combiner="or"
    )
    return replace(leaving, reduction=reduction)


def _is_summed(pick: HloInstruction) -> bool:
    """Whether a value is only added to or subtracted from what the loop carries."""
    return all(
        user.opcode in ("add", "subtract")
        and user.operands[0 if user.operands[1] is value else 1].opcode == "get-tuple-element"
        and user.operands.count(value) == 1
        for value, user in _uses(pick)
    )


def _uses(value: HloInstruction) -> Iterator[tuple[HloInstruction, HloInstruction]]:
    """Yields the uses of a value, whatever its shape: what is used, and its user."""
    for user in value.users:
        if user.opcode in ("bitcast", "reshape"):
            yield from _uses(user)
        else:
            yield value, user


def emit_picked(
    builder: ComputationBuilder, leaving: LaneReduction, num_lanes: int
) -> HloInstruction:
    """Returns the lanes' shares of a slice, lanes first: a lane's own value where it is taken."""
    pick, (lane,) = leaving.reduction.root, leaving.lanes
    value = _without_rest(builder, pick, lane)
    rank = value.shape.rank
    sizes = (num_lanes, *pick.shape.dimensions)
    others = [d for d in range(rank) if d != lane]
    value = builder.transpose(value, (lane, *others))
    value = builder.broadcast(value, sizes, (0, *(d + 1 for d in others)))
    numbers = builder.iota(array_shape(PrimitiveType.S32, sizes), 0, origin=pick)
    is_taken = builder.compare("EQ", numbers, _places(builder, pick, lane, sizes), origin=pick)
    neutral = identity(leaving.reduction.combiner, value.shape.element_type)
    rest = builder.fill(neutral, value.shape, pick)
    return builder.emit("select", value.shape, (is_taken, value, rest), origin=pick)


def _without_rest(builder: ComputationBuilder, pick: HloInstruction, lane: int) -> HloInstruction:
    """Returns a slice's operand, with all lanes, but of its other dimensions what it takes."""
    source = pick.operands[0]
    sizes, kept = source.shape.dimensions, list(pick.shape.dimensions)
    kept[lane] = sizes[lane]
    if tuple(kept) == sizes:
        return source
    if pick.opcode == "slice":
        ranges = list(pick.slice_ranges)
        ranges[lane] = (0, sizes[lane], 1)
        return builder.slice(source, ranges, origin=pick)
    starts = list(pick.operands[1:])
    starts[lane] = builder.scalar(0, starts[lane].shape.element_type, pick)
    return builder.dynamic_slice(source, starts, tuple(kept), origin=pick)


def _places(
    builder: ComputationBuilder, pick: HloInstruction, lane: int, sizes: tuple[int, ...]
) -> HloInstruction:
    """Returns which lanes a slice takes, along dimension `lane + 1` of `sizes`."""
    count, shape = pick.shape.dimensions[lane], array_shape(PrimitiveType.S32, sizes)
    if pick.opcode == "slice":
        first, step = pick.slice_starts[lane], pick.slice_strides[lane]
        return _row(builder, first + step * np.arange(count), lane + 1, sizes, pick)
    start = pick.operands[1 + lane]
    kind = start.shape.element_type
    last = pick.operands[0].shape.dimensions[lane] - count
    bounds = [builder.scalar(bound, kind, pick) for bound in (0, last)]
    start = builder.emit("clamp", start.shape, (bounds[0], start, bounds[1]), origin=pick)
    start = builder.convert(start, PrimitiveType.S32, origin=pick)
    start = builder.broadcast(start, sizes, ())
    row = _row(builder, np.arange(count), lane + 1, sizes, pick)
    return builder.emit("add", shape, (start, row), origin=pick)


def _row(
    builder: ComputationBuilder,
    values: np.ndarray[tuple[int], np.dtype[np.int64]],
    dimension: int,
    sizes: tuple[int, ...],
    origin: HloInstruction,
) -> HloInstruction:
    shape = array_shape(PrimitiveType.S32, values.shape)
    row = builder.constant(shape, values, origin)
    return builder.broadcast(row, sizes, (dimension,))
