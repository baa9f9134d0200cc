"""A computation of scalars, applied to whole arrays element by element.

    %m = f32[8] map(%x, %y), to_apply={multiply(p0, add(p1, 1))}
->  %a = add(%y, broadcast(1));  %m = multiply(%x, %a)

Numerics: bitwise-equal.
"""

from __future__ import annotations

from collections.abc import Sequence

from fuselane.hlo.computation import HloComputation
from fuselane.hlo.instruction import HloInstruction
from fuselane.lanes.builder import ComputationBuilder, array_shape, elementwise_attributes
from fuselane.lanes.layout import memory_order, relayout


def apply_to_arrays(
    builder: ComputationBuilder, root: HloInstruction, arrays: Sequence[HloInstruction]
) -> HloInstruction:
    """Returns a scalar of an applied computation for every element of arrays of one shape.

    Args:
        builder: Where.
        root: A scalar made of parameters, constants and elementwise opcodes.
        arrays: What each of the computation's parameters stands for.
    """
    sizes = arrays[0].shape.dimensions
    values: dict[HloInstruction, HloInstruction] = {}

    def visit(instruction: HloInstruction) -> HloInstruction:
        if instruction not in values:
            values[instruction] = apply(instruction)
        return values[instruction]

    def apply(instruction: HloInstruction) -> HloInstruction:
        if instruction.opcode == "parameter":
            return arrays[instruction.parameter_number]
        if instruction.opcode == "constant":
            literal = instruction.proto.literal
            scalar = builder.constant(instruction.shape, literal, instruction)
            return builder.broadcast(scalar, sizes, ())
        operands = [visit(operand) for operand in instruction.operands]
        shape = array_shape(instruction.shape.element_type, sizes)
        return builder.emit(
            instruction.opcode, shape, operands, elementwise_attributes(instruction)
        )

    return visit(root)


def lower_map(
    builder: ComputationBuilder,
    instruction: HloInstruction,
    operands: Sequence[HloInstruction],
    to_apply: HloComputation,
) -> HloInstruction:
    """Lowers a map in the order of its result."""
    target = memory_order(instruction.shape)
    arrays = [
        relayout(builder, operand, memory_order(original.shape), target)
        for original, operand in zip(instruction.operands, operands, strict=True)
    ]
    return apply_to_arrays(builder, to_apply.root, arrays)
