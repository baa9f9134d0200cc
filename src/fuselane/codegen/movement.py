"""Rules for instructions that only move data: which operand element a result element is.

None of them computes or stores anything by itself; each reads its operand at another index, which
is worked out while the kernel is built where the index is known.
"""

from __future__ import annotations

from llvmlite import ir

from fuselane.codegen import indexing
from fuselane.codegen.arrays import Place, choose
from fuselane.codegen.elemental import emit_elemental
from fuselane.codegen.emitter import Elemental, Emitter
from fuselane.codegen.indexing import LANE, Element, Index
from fuselane.codegen.memory import lane_numbers
from fuselane.codegen.types import constant, scalar_type, splat
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.shape import PrimitiveType


def broadcast(emitter: Emitter, instruction: HloInstruction) -> Elemental:
    """`%b = f32[8,3,4] broadcast(%x), dimensions={0,2}`: `b[lane, j, k] = x[lane, k]`."""
    operand = emitter.array(instruction.operands[0])
    axes = instruction.dimensions
    return lambda index: operand.get(emitter.place, tuple(index[axis] for axis in axes))


def reshape(emitter: Emitter, instruction: HloInstruction) -> Elemental:
    """`%r = f32[8,3,2] reshape(%x)`, x f32[8,6]: `r[lane, j, k] = x[lane, 2 * j + k]`."""
    operand = emitter.array(instruction.operands[0])
    result = (instruction.shape.dimensions, emitter.lane(instruction))
    source = (operand.shape.dimensions, operand.lane)

    def element(index: Element) -> ir.Value:
        at = indexing.reshape(emitter.builder, index, result, source)
        return operand.get(emitter.place, at)

    return element


def transpose(emitter: Emitter, instruction: HloInstruction) -> Elemental:
    """`%t = f32[3,8] transpose(%x), dimensions={1,0}`: `t[j, lane] = x[lane, j]`."""
    operand = emitter.array(instruction.operands[0])
    permutation = instruction.dimensions

    def element(index: Element) -> ir.Value:
        at = dict(zip(permutation, index, strict=True))
        return operand.get(emitter.place, tuple(at[axis] for axis in range(len(index))))

    return element


def slice(emitter: Emitter, instruction: HloInstruction) -> Elemental:
    """`%s = f32[8,2] slice(%x), slice={[0:8], [1:5:2]}`: `s[lane, j] = x[lane, 1 + 2 * j]`."""
    operand = emitter.array(instruction.operands[0])
    starts, strides = instruction.slice_starts, instruction.slice_strides

    def at(axis: int, coordinate: Index | None) -> Index | None:
        if coordinate is None:
            return LANE
        scaled = indexing.multiply(emitter.builder, coordinate, strides[axis])
        return indexing.add(emitter.builder, scaled, starts[axis])

    return lambda index: operand.get(emitter.place, tuple(at(*item) for item in enumerate(index)))


def reverse(emitter: Emitter, instruction: HloInstruction) -> Elemental:
    """`%r = f32[8,3] reverse(%x), dimensions={1}`: `r[lane, j] = x[lane, 2 - j]`."""
    operand = emitter.array(instruction.operands[0])
    sizes, reversed_axes = operand.shape.dimensions, instruction.dimensions

    def at(axis: int, coordinate: Index | None) -> Index | None:
        if coordinate is None or axis not in reversed_axes:
            return coordinate
        return indexing.subtract(emitter.builder, sizes[axis] - 1, coordinate)

    return lambda index: operand.get(emitter.place, tuple(at(*item) for item in enumerate(index)))


def concatenate(emitter: Emitter, instruction: HloInstruction) -> Elemental:
    """`%c = f32[8,5] concatenate(%x, %y), dimensions={1}`, x f32[8,2].

    `c[lane, 0] = x[lane, 0]`, `c[lane, 2] = y[lane, 0]`; at an index known only at run time both
    are read, within their bounds, and one is selected.
    """
    arrays = [emitter.array(operand) for operand in instruction.operands]
    (axis,) = instruction.dimensions
    sizes = [array.shape.dimensions[axis] for array in arrays]
    builder, place = emitter.builder, emitter.place

    def element(index: Element) -> ir.Value:
        result: ir.Value | None = None
        start = 0
        for array, size in zip(arrays, sizes, strict=True):
            offset = indexing.subtract(builder, index[axis], start)
            start += size
            is_here = indexing.less(builder, offset, size)
            if is_here is False or size == 0:
                continue
            at = indexing.clamp(builder, offset, 0, size - 1)
            value = array.get(place, (*index[:axis], at, *index[axis + 1 :]))
            if result is not None:
                value = choose(place, indexing.less(builder, -1, offset), value, result)
            result = value
            if is_here is True:
                break
        assert result is not None
        return result

    return element


def pad(emitter: Emitter, instruction: HloInstruction) -> Elemental:
    """`%p = f32[8,6] pad(%x, %v), padding=0_0x1_2_1`, x f32[8,2]: `v x0 v x1 v v`.

    At an index known only at run time x is read within its bounds, and it or v selected.
    """
    operand = emitter.array(instruction.operands[0])
    filler = emitter.array(instruction.operands[1])
    builder, place = emitter.builder, emitter.place

    def element(index: Element) -> ir.Value:
        inside: bool | ir.Value = True
        position: list[Index | None] = []
        sizes = operand.shape.dimensions
        for at, size, (low, _, interior) in zip(index, sizes, instruction.padding, strict=True):
            if at is None:
                position.append(LANE)
                continue
            offset = indexing.subtract(builder, at, low)
            lower = indexing.less(builder, -1, offset)
            quotient, rest = _divide_signed(builder, offset, interior + 1)
            upper = indexing.less(builder, quotient, size)
            whole = indexing.equal(builder, rest, 0)
            for condition in (lower, upper, whole):
                inside = indexing.both(builder, inside, condition)
            position.append(indexing.clamp(builder, quotient, 0, max(size - 1, 0)))
        outside = filler.get(place, ())
        if inside is False or 0 in sizes:
            return outside
        value = operand.get(place, tuple(position))
        if inside is True:
            return value
        return choose(place, inside, value, outside)

    return element


def _divide_signed(builder: ir.IRBuilder, value: Index, divisor: int) -> tuple[Index, Index]:
    if isinstance(value, int) or divisor == 1:
        return indexing.divide(builder, value, divisor)
    by = indexing.like(builder, divisor, value.type)
    return builder.sdiv(value, by), builder.srem(value, by)


def iota(emitter: Emitter, instruction: HloInstruction) -> Elemental:
    """`%i = s32[8,3] iota(), iota_dimension=1`: `i[lane, j] = j`; along the lanes, the lane."""
    (axis,) = instruction.dimensions
    element_type = instruction.shape.element_type
    builder = emitter.builder

    def element(index: Element) -> ir.Value:
        at = index[axis]
        if at is None:
            return _lane_index(emitter.place, element_type)
        if isinstance(at, int):
            return constant(element_type, at)
        return _convert_index(builder, at, element_type)

    return element


def _lane_index(place: Place, element_type: PrimitiveType) -> ir.Value:
    width = place.block.width
    first = splat(place.builder, place.block.offset, width)
    lanes = place.builder.add(first, lane_numbers(width))
    return _convert_index(place.builder, lanes, element_type)


def _convert_index(builder: ir.IRBuilder, value: ir.Value, element_type: PrimitiveType) -> ir.Value:
    source = PrimitiveType.S64 if scalar_type(value) == indexing.I64 else PrimitiveType.S32
    return emit_elemental(builder, "convert", [value], [source], element_type)
