"""Rules for dynamic-slice and dynamic-update-slice, whose starts may be known only at run time."""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from fuselane.codegen import folding, indexing
from fuselane.codegen.arrays import Array, Memory, Scratch, Stored, View, choose, new_scratch
from fuselane.codegen.emitter import Elemental, Emitter
from fuselane.codegen.indexing import Element, Index, residual_size
from fuselane.codegen.liveness import overwritable
from fuselane.codegen.row_accesses import is_read_whole
from fuselane.codegen.rows import are_rows, load_rows
from fuselane.codegen.types import integer_constant, is_vector, vector_of, width_of
from fuselane.codegen.windows import window_position
from fuselane.errors import CodegenError
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.shape import PrimitiveType


def dynamic_slice(emitter: Emitter, instruction: HloInstruction) -> Elemental:
    """Returns the rule of a dynamic-slice.

    %s = f32[8,2] dynamic-slice(%x, %z, %i), dynamic_slice_sizes={8,2}

        s[lane, j] = x[lane, clamp(i) + j]     a load if x is in memory, selects if in registers
    """
    window = instruction.dynamic_slice_sizes
    starts = clamped_starts(emitter, instruction, 1, window)
    operand = emitter.addressable(emitter.array(instruction.operands[0]), starts)
    return lambda index: operand.get(emitter.place, indexing.shift(emitter.builder, index, starts))


def takes_rows(emitter: Emitter, instruction: HloInstruction) -> bool:
    """Whether a dynamic-slice takes whole runs out of memory, of more elements than registers hold
    and read all of them: these are turned round before they are read."""
    taken, *starts = map(emitter.array, instruction.operands)
    if not isinstance(taken, Memory) or any(start.lane is not None for start in starts):
        return False
    size = residual_size(instruction.shape.dimensions, taken.lane)
    is_long = size > emitter.max_unrolled and is_read_whole(instruction)
    return is_long and are_rows(taken, instruction.shape, emitter.place)


def take_rows(emitter: Emitter, instruction: HloInstruction) -> Scratch:
    """Emits such a dynamic-slice; see `codegen.rows`."""
    taken = emitter.array(instruction.operands[0])
    assert isinstance(taken, Memory), "rows are in memory"
    starts = clamped_starts(emitter, instruction, 1, instruction.dynamic_slice_sizes)
    rows = new_scratch(emitter.place, instruction.shape, taken.lane)
    load_rows(emitter.place, taken, rows, starts)
    return rows


def dynamic_update_slice(emitter: Emitter, instruction: HloInstruction) -> Array:
    """Emits a dynamic-update-slice and returns its result.

    %u = f32[9,8] dynamic-update-slice(%x, %y, %i, %z)

    A stream is written in place: `x[clamp(i), lanes] = y[0, lanes]`. Of few elements each one is a
    select: `u[k] = k == clamp(i) ? y[0] : x[k]`. Many are copied to scratch, and the window stored.

    Raises:
        CodegenError: if the program says in place and the array is not in memory.
    """
    target = emitter.array(instruction.operands[0])
    update = emitter.array(instruction.operands[1])
    starts = clamped_starts(emitter, instruction, 2, update.shape.dimensions)
    if instruction in emitter.program.mutable:
        if not isinstance(target, Stored):
            raise CodegenError(f"{instruction.name} updates an array that is not in memory.")
        emitter.store(target, update, starts)
        return target
    if target.size <= emitter.max_unrolled and not isinstance(target, Scratch):
        update = emitter.addressable(update, starts)
        element = _select_window(emitter, target, update, starts)
        lane = emitter.lane(instruction)
        return emitter.materialize(View(shape=instruction.shape, lane=lane, element=element))
    operand, lane = instruction.operands[0], emitter.lane(instruction)
    scratch = overwritable(emitter, operand, instruction, lane)
    emitter.store(scratch, update, starts)
    return scratch


def put_together(emitter: Emitter, instruction: HloInstruction) -> Elemental:
    """Returns the rule of a dynamic-update-slice that makes an array element by element, at a place
    that is known: `u[i, j] = y[i - 1, j - 1]` inside, `x[i, j]` outside."""
    target, update = (emitter.array(operand) for operand in instruction.operands[:2])
    starts = clamped_starts(emitter, instruction, 2, update.shape.dimensions)
    return _select_window(emitter, target, update, starts)


def clamped_starts(
    emitter: Emitter, instruction: HloInstruction, first: int, window: Sequence[int]
) -> list[Index]:
    """Returns the start indices of a dynamic slice, held within bounds as XLA holds them.

    Args:
        emitter: Where; the start indices have been emitted.
        instruction: A dynamic-slice or dynamic-update-slice.
        first: Operand number of the first start index.
        window: Size of the slice in every dimension.
    """
    sizes = instruction.operands[0].shape.dimensions
    starts: list[Index] = []
    for axis, (size, taken) in enumerate(zip(sizes, window, strict=True)):
        operand = instruction.operands[first + axis]
        if size == taken:
            starts.append(0)
            continue
        value = emitter.array(operand).get(emitter.place, ())
        starts.append(clamped_index(emitter, value, operand.shape.element_type, size - taken))
    return starts


def clamped_index(emitter: Emitter, value: ir.Value, element: PrimitiveType, limit: int) -> Index:
    """Returns a start index held between 0 and a limit, one for each lane if it is a vector."""
    if limit == 0:
        return 0
    known = folding.integer_value(value, element)
    if known is not None:
        return min(max(known, 0), limit)
    if is_vector(value):
        return _clamped_vector(emitter.builder, value, element, limit)
    wide = _to_index(emitter.builder, value, element)
    return indexing.clamp(emitter.builder, wide, 0, limit)


def bounded_index(
    emitter: Emitter, value: ir.Value, element: PrimitiveType, limit: int
) -> tuple[Index, bool | ir.Value]:
    """Returns a start index held between 0 and a limit, and whether it was there already."""
    known = folding.integer_value(value, element)
    if known is not None:
        return min(max(known, 0), limit), 0 <= known <= limit
    builder, largest = emitter.builder, (1 << element.bits - element.is_signed) - 1
    inside: bool | ir.Value = True
    if limit < largest:
        # Negative indices are large ones when they are read as unsigned.
        most = integer_constant(value.type, limit)
        inside = builder.icmp_unsigned("<=", value, most)
    elif element.is_signed:
        inside = builder.icmp_signed(">=", value, integer_constant(value.type, 0))
    return clamped_index(emitter, value, element, limit), inside


def _clamped_vector(
    builder: ir.IRBuilder, value: ir.Value, element: PrimitiveType, limit: int
) -> ir.Value:
    """Clamps before it changes the width, since the width may be too small for the index."""
    bits = element.bits
    largest = min(limit, (1 << bits - element.is_signed) - 1)
    most = integer_constant(value.type, largest)
    if element.is_signed:
        zero = integer_constant(value.type, 0)
        value = builder.select(builder.icmp_signed("<", value, zero), zero, value)
    value = builder.select(builder.icmp_unsigned(">", value, most), most, value)
    return index_vector(builder, value, bits, limit)


def index_vector(builder: ir.IRBuilder, value: ir.Value, bits: int, limit: int) -> ir.Value:
    """Returns indices of at most `limit`, as integers of so many bits, as an index of each lane."""
    wanted = 64 if limit > indexing.MAX_I32 else 32
    type_ = vector_of(ir.IntType(wanted), width_of(value))
    if bits == wanted:
        return value
    return builder.trunc(value, type_) if bits > wanted else builder.zext(value, type_)


def _to_index(builder: ir.IRBuilder, value: ir.Value, element: PrimitiveType) -> Index:
    """Returns a start index as `i64`; what doesn't fit becomes the largest."""
    if element is PrimitiveType.U64:
        largest = indexing.i64((1 << 63) - 1)
        is_larger = builder.icmp_signed("<", value, indexing.i64(0))
        return builder.select(is_larger, largest, value)
    if value.type.width == 64:
        return value
    extend = builder.sext if element.is_signed else builder.zext
    return extend(value, indexing.I64)


def _select_window(
    emitter: Emitter, target: Array, update: Array, starts: Sequence[Index]
) -> Elemental:
    place, window = emitter.place, update.shape.dimensions

    def element(index: Element) -> ir.Value:
        inside, at = window_position(emitter.builder, index, starts, window)
        if inside is False:
            return target.get(place, index)
        new = update.get(place, at)
        if inside is True:
            return new
        return choose(place, inside, new, target.get(place, index))

    return element
