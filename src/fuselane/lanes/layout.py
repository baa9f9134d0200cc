"""From XLA's arrays with layouts to row-major arrays.

XLA gives an array logical dimensions and, apart from them, an order in memory. A region knows
row-major arrays only: each value becomes the array of its dimensions in the order they have in
memory, major to minor, so that every buffer is read as it lies. An opcode's dimension numbers
change with it; where two operands differ in order, one is transposed. What XLA calls a bitcast is
then a reshape, whatever the layouts.

Example: with `%p = f32[2048,4]{0,1} parameter(0)`,

    %b = f32[4,2048]{1,0} bitcast(%p)                 ->  %p: f32[4,2048]; %b is %p
    %s = f32[2048,1]{0,1} slice(%p), [0:2048],[1:2]   ->  %s = f32[1,2048] slice(%p), [1:2],[0:2048]
    %r = f32[2048]{0} reduce(%p), dimensions={1}      ->  %r = f32[2048] reduce(%p), dimensions={0}
"""

from __future__ import annotations

from collections.abc import Sequence

from fuselane.hlo.computation import HloComputation
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.shape import Shape
from fuselane.lanes.builder import ComputationBuilder, array_shape

Order = tuple[int, ...]
"""Logical dimension numbers as they lie in memory, major to minor."""


def memory_order(shape: Shape) -> Order:
    """Returns the dimensions of an array shape in the order they have in memory."""
    return shape.minor_to_major[::-1]


def physical_shape(shape: Shape) -> Shape:
    """Returns the row-major shape of the array as it lies in memory."""
    if shape.is_row_major:
        return array_shape(shape.element_type, shape.dimensions)
    return array_shape(shape.element_type, _permute(shape.dimensions, memory_order(shape)))


def relayout(
    builder: ComputationBuilder, value: HloInstruction, source: Order, target: Order
) -> HloInstruction:
    """Returns `value`, whose dimensions lie in `source` order, with them in `target` order."""
    if source == target:
        return value
    position = _inverse(source)
    return builder.transpose(value, tuple(position[d] for d in target))


def lower_elementwise(
    builder: ComputationBuilder,
    instruction: HloInstruction,
    operands: Sequence[HloInstruction],
) -> list[HloInstruction]:
    """Returns the operands of an elementwise opcode, all of the result's sizes and order."""
    order = instruction.shape.minor_to_major
    result = list(operands)
    for position, original in enumerate(instruction.operands):
        if original.shape.minor_to_major == order:
            continue
        target = memory_order(instruction.shape)
        if original.shape.dimensions:
            source = memory_order(original.shape)
            result[position] = relayout(builder, result[position], source, target)
        else:
            sizes = _permute(instruction.shape.dimensions, target)
            result[position] = builder.broadcast(result[position], sizes, ())
    return result


def lower_broadcast(
    builder: ComputationBuilder, instruction: HloInstruction, operands: Sequence[HloInstruction]
) -> HloInstruction:
    """Lowers a broadcast; its dimension numbers come out increasing."""
    target = memory_order(instruction.shape)
    position = _inverse(target)
    logical = instruction.dimensions
    dimensions = [position[logical[d]] for d in memory_order(instruction.operands[0].shape)]
    ascending = sorted(range(len(dimensions)), key=dimensions.__getitem__)
    operand = builder.transpose(operands[0], tuple(ascending))
    sizes = _permute(instruction.shape.dimensions, target)
    return builder.broadcast(operand, sizes, tuple(sorted(dimensions)), origin=instruction)


def lower_bitcast(
    builder: ComputationBuilder, instruction: HloInstruction, operands: Sequence[HloInstruction]
) -> HloInstruction:
    """Lowers a bitcast within one element type: same bytes, other dimensions."""
    sizes = physical_shape(instruction.shape).dimensions
    return builder.reshape(operands[0], sizes, origin=instruction)


def lower_copy(
    builder: ComputationBuilder, instruction: HloInstruction, operands: Sequence[HloInstruction]
) -> HloInstruction:
    """Lowers a copy: nothing, or a transpose where it changes the layout."""
    source = memory_order(instruction.operands[0].shape)
    return relayout(builder, operands[0], source, memory_order(instruction.shape))


def lower_transpose(
    builder: ComputationBuilder, instruction: HloInstruction, operands: Sequence[HloInstruction]
) -> HloInstruction:
    """Lowers a transpose; often nothing is left of it."""
    position = _inverse(memory_order(instruction.operands[0].shape))
    logical = instruction.dimensions
    permutation = tuple(position[logical[d]] for d in memory_order(instruction.shape))
    return builder.transpose(operands[0], permutation, origin=instruction)


def lower_reshape(
    builder: ComputationBuilder, instruction: HloInstruction, operands: Sequence[HloInstruction]
) -> HloInstruction:
    """Lowers a reshape, which goes by logical order."""
    shape = instruction.operands[0].shape
    logical = relayout(builder, operands[0], memory_order(shape), tuple(range(shape.rank)))
    sizes = instruction.shape.dimensions
    reshaped = builder.reshape(logical, sizes, origin=instruction)
    return relayout(builder, reshaped, tuple(range(len(sizes))), memory_order(instruction.shape))


def lower_iota(
    builder: ComputationBuilder, instruction: HloInstruction, operands: Sequence[HloInstruction]
) -> HloInstruction:
    """Lowers an iota."""
    shape = physical_shape(instruction.shape)
    dimension = memory_order(instruction.shape).index(instruction.dimensions[0])
    return builder.iota(shape, dimension, origin=instruction)


def lower_constant(
    builder: ComputationBuilder, instruction: HloInstruction, operands: Sequence[HloInstruction]
) -> HloInstruction:
    """Lowers a constant; one with another layout is written anew."""
    shape = physical_shape(instruction.shape)
    written = Shape.from_proto(instruction.origin.literal.shape)
    if instruction.shape.is_row_major and written.is_row_major:
        return builder.constant_again(instruction, shape)
    values = instruction.literal.transpose(memory_order(instruction.shape))
    return builder.constant(shape, values, instruction)


def lower_concatenate(
    builder: ComputationBuilder, instruction: HloInstruction, operands: Sequence[HloInstruction]
) -> HloInstruction:
    """Lowers a concatenate in the order of its result."""
    target = memory_order(instruction.shape)
    values = [
        relayout(builder, operand, memory_order(original.shape), target)
        for original, operand in zip(instruction.operands, operands, strict=True)
    ]
    return builder.concatenate(values, target.index(instruction.dimensions[0]), origin=instruction)


def lower_slice(
    builder: ComputationBuilder, instruction: HloInstruction, operands: Sequence[HloInstruction]
) -> HloInstruction:
    """Lowers a slice in the order of its operand."""
    order = memory_order(instruction.operands[0].shape)
    attributes = (("slice_dimensions", _permute(instruction.slice_ranges, order)),)
    return _in_operand_order(builder, "slice", instruction, operands, attributes)


def lower_pad(
    builder: ComputationBuilder, instruction: HloInstruction, operands: Sequence[HloInstruction]
) -> HloInstruction:
    """Lowers a pad in the order of its operand."""
    order = memory_order(instruction.operands[0].shape)
    attributes = (("padding_config", _permute(instruction.padding, order)),)
    return _in_operand_order(builder, "pad", instruction, operands, attributes)


def lower_reverse(
    builder: ComputationBuilder, instruction: HloInstruction, operands: Sequence[HloInstruction]
) -> HloInstruction:
    """Lowers a reverse in the order of its operand; dimensions of size one stay out of it."""
    position = _inverse(memory_order(instruction.operands[0].shape))
    sizes = instruction.shape.dimensions
    dimensions = tuple(sorted(position[d] for d in instruction.dimensions if sizes[d] > 1))
    attributes = (("dimensions", dimensions),)
    return _in_operand_order(builder, "reverse", instruction, operands, attributes)


def lower_dynamic_slice(
    builder: ComputationBuilder, instruction: HloInstruction, operands: Sequence[HloInstruction]
) -> HloInstruction:
    """Lowers a dynamic-slice in the order of its operand."""
    order = memory_order(instruction.operands[0].shape)
    values = [operands[0], *_permute(operands[1:], order)]
    attributes = (("dynamic_slice_sizes", _permute(instruction.dynamic_slice_sizes, order)),)
    return _in_operand_order(builder, "dynamic-slice", instruction, values, attributes)


def lower_dynamic_update_slice(
    builder: ComputationBuilder, instruction: HloInstruction, operands: Sequence[HloInstruction]
) -> HloInstruction:
    """Lowers a dynamic-update-slice in the order of the array it updates."""
    order = memory_order(instruction.operands[0].shape)
    update = relayout(builder, operands[1], memory_order(instruction.operands[1].shape), order)
    values = [operands[0], update, *_permute(operands[2:], order)]
    return _in_operand_order(builder, "dynamic-update-slice", instruction, values, ())


def lower_reduce(
    builder: ComputationBuilder,
    instruction: HloInstruction,
    operands: Sequence[HloInstruction],
    to_apply: HloComputation,
) -> HloInstruction | tuple[HloInstruction, ...]:
    """Lowers a reduce of one array, or of several at once, in the order of its first operand."""
    count = len(operands) // 2
    order = memory_order(instruction.operands[0].shape)
    arrays = [
        relayout(builder, operand, memory_order(original.shape), order)
        for original, operand in zip(instruction.operands[:count], operands, strict=False)
    ]
    reduced = instruction.dimensions
    dimensions = tuple(sorted(order.index(d) for d in reduced))
    values = [*arrays, *operands[count:]]
    value = builder.reduce(values, dimensions, to_apply, origin=instruction)
    source = _reduced_order(order, reduced)
    if not instruction.shape.is_tuple:
        return relayout(builder, value, source, memory_order(instruction.shape))
    return tuple(
        relayout(builder, element, source, memory_order(shape))
        for element, shape in zip(
            builder.elements(value), instruction.shape.tuple_shapes, strict=True
        )
    )


def _in_operand_order(
    builder: ComputationBuilder,
    opcode: str,
    instruction: HloInstruction,
    operands: Sequence[HloInstruction],
    attributes: tuple[tuple[str, tuple[object, ...]], ...],
) -> HloInstruction:
    """Emits `opcode` with its first operand's order, then gives the result the order it should
    have.

    Where it changes nothing, as a slice of everything does, no instruction is emitted.
    """
    shape = instruction.operands[0].shape
    order = memory_order(shape)
    if _changes_nothing(opcode, instruction, attributes):
        value = operands[1] if opcode == "dynamic-update-slice" else operands[0]
    else:
        sizes = _permute(instruction.shape.dimensions, order)
        result = array_shape(instruction.shape.element_type, sizes)
        value = builder.emit(opcode, result, operands, attributes, origin=instruction)
    return relayout(builder, value, order, memory_order(instruction.shape))


def _changes_nothing(
    opcode: str,
    instruction: HloInstruction,
    attributes: tuple[tuple[str, tuple[object, ...]], ...],
) -> bool:
    sizes = instruction.operands[0].shape.dimensions
    if opcode == "dynamic-update-slice":
        return instruction.operands[1].shape.dimensions == sizes
    if opcode == "reverse":
        return not attributes[0][1]
    if opcode == "pad":
        return not any(any(edges) for edges in instruction.padding)
    return instruction.shape.dimensions == sizes


def _reduced_order(order: Order, reduced: Sequence[int]) -> Order:
    """Returns the memory order of a reduce's result, in terms of the result's own dimensions."""
    kept = sorted(d for d in order if d not in reduced)
    return tuple(kept.index(d) for d in order if d not in reduced)


def _permute(values: Sequence[int] | Sequence[object], order: Order) -> tuple:  # type: ignore[type-arg]
    return tuple(values[d] for d in order)


def _inverse(order: Order) -> list[int]:
    inverse = [0] * len(order)
    for position, dimension in enumerate(order):
        inverse[dimension] = position
    return inverse
