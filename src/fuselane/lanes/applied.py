"""Computations of scalars: in normal form, and applied to whole arrays element by element.

    %m = f32[8] map(%x, %y), to_apply={multiply(p0, add(p1, 1))}
->  %a = add(%y, broadcast(1));  %m = multiply(%x, %a)

Numerics: bitwise-equal.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from fuselane.analysis.opcodes import ELEMENTWISE_OPCODES
from fuselane.analysis.refusal import refuse
from fuselane.decisions import Reason
from fuselane.hlo.computation import HloComputation
from fuselane.hlo.instruction import HloInstruction
from fuselane.lanes.admission import Admission
from fuselane.lanes.builder import ComputationBuilder, array_shape, elementwise_attributes
from fuselane.lanes.layout import memory_order, relayout
from fuselane.lanes.values import Inline, leaves_of


def normal_applied(
    applying: HloInstruction, admission: Admission, inline: Inline
) -> HloComputation:
    """Returns what an instruction applies in normal form: elementwise opcodes on scalars.

    Args:
        applying: A reduce, a sort, .. of the user's module.
        admission: Checks the types.
        inline: How to emit what it applies.
    Raises:
        UnsupportedError: if that holds anything else.
    """
    (original,) = applying.called_computations
    builder = ComputationBuilder(original.name)
    parameters = [
        builder.parameter(i, admission.check_shape(p, p.shape), p)
        for i, p in enumerate(original.parameters)
    ]
    value = inline(original, parameters, builder)
    root = value if isinstance(value, HloInstruction) else builder.make_tuple(leaves_of(value))
    result = builder.finish(root)
    for instruction in result.instructions:
        if instruction.opcode not in ELEMENTWISE_OPCODES | {"parameter", "constant", "tuple"}:
            raise refuse(
                Reason.UNSUPPORTED_OPCODE,
                applying,
                detail=f" where its computation holds `{instruction.opcode}`",
            )
    return result


def identify(applied: HloComputation) -> Hashable:
    """Returns what computations in normal form have in common if they compute the same."""
    numbers = {each: number for number, each in enumerate(applied.instructions)}
    return numbers[applied.root], *(
        (
            each.opcode,
            each.proto.parameter_number,
            id(each.shape),
            elementwise_attributes(each),
            each.proto.literal.SerializeToString(deterministic=True),
            *(numbers[operand] for operand in each.operands),
        )
        for each in applied.instructions
    )


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
