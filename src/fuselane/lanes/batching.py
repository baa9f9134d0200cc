"""Instructions for many positions at once: the same work on arrays with one more dimension in
front.

    %m = f32[4] multiply(%s, %c)          for 50 steps, %s of all of them being f32[50,4]:
    %b = f32[50,4] broadcast(%c), dimensions={1}
    %m = f32[50,4] multiply(%s, %b)

Numerics: bitwise-equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from fuselane.analysis.opcodes import ELEMENTWISE_OPCODES
from fuselane.hlo.instruction import HloInstruction
from fuselane.lanes.builder import (
    Attributes,
    ComputationBuilder,
    array_shape,
    elementwise_attributes,
)

_BATCHED_OPCODES: Final = ELEMENTWISE_OPCODES | {
    "broadcast",
    "concatenate",
    "pad",
    "reduce",
    "reshape",
    "reverse",
    "slice",
    "transpose",
}


def can_batch(instruction: HloInstruction) -> bool:
    """Whether `emit_batched` knows an instruction."""
    return instruction.opcode in _BATCHED_OPCODES and instruction.shape.is_array


def emit_batched(
    builder: ComputationBuilder,
    instruction: HloInstruction,
    operands: Sequence[HloInstruction],
    size: int,
) -> HloInstruction:
    """Emits what an instruction does for `size` positions at once.

    Args:
        builder: Where.
        instruction: An instruction that `can_batch`.
        operands: What its operands became: of their own shape where they are the same for all
            positions, else with one more dimension in front.
        size: Size of the new dimension.
    """
    opcode, sizes = instruction.opcode, instruction.shape.dimensions
    element = instruction.shape.element_type
    if opcode in ELEMENTWISE_OPCODES:
        values = [
            lift(builder, operand, sizes, size, is_batched=_is_batched(operand, original))
            for operand, original in zip(operands, instruction.operands, strict=True)
        ]
        attributes = elementwise_attributes(instruction)
        shape = array_shape(element, (size, *sizes))
        return builder.emit(opcode, shape, values, attributes, origin=instruction)
    count = len(operands) if opcode == "concatenate" else 1
    arrays = [
        lift(
            builder,
            operand,
            original.shape.dimensions,
            size,
            is_batched=_is_batched(operand, original),
        )
        for operand, original in zip(operands[:count], instruction.operands, strict=False)
    ]
    if opcode == "reshape":
        return builder.reshape(arrays[0], (size, *sizes), origin=instruction)
    if opcode == "broadcast":
        dimensions = (0, *(d + 1 for d in instruction.dimensions))
        return builder.broadcast(arrays[0], (size, *sizes), dimensions, origin=instruction)
    if opcode == "transpose":
        permutation = (0, *(d + 1 for d in instruction.dimensions))
        return builder.transpose(arrays[0], permutation, origin=instruction)
    return builder.emit(
        opcode,
        array_shape(element, (size, *sizes)),
        [*arrays, *operands[count:]],
        _attributes(instruction, size),
        origin=instruction,
        called=tuple(instruction.called_computations),
    )


def lift(
    builder: ComputationBuilder,
    value: HloInstruction,
    sizes: tuple[int, ...],
    size: int,
    *,
    is_batched: bool = False,
) -> HloInstruction:
    """Returns a value, or a scalar standing for an array of `sizes`, with a dimension in front."""
    whole = (size, *sizes)
    if is_batched:
        rank = value.shape.rank
        dimensions = tuple(range(rank)) if rank == len(whole) else (0,)
        return builder.broadcast(value, whole, dimensions)
    rank = value.shape.rank
    return builder.broadcast(value, whole, tuple(range(1, rank + 1)))


def _is_batched(operand: HloInstruction, original: HloInstruction) -> bool:
    return operand.shape.rank == original.shape.rank + 1


def _attributes(instruction: HloInstruction, size: int) -> Attributes:
    match instruction.opcode:
        case "slice":
            return (("slice_dimensions", ((0, size, 1), *instruction.slice_ranges)),)
        case "pad":
            return (("padding_config", ((0, 0, 0), *instruction.padding)),)
    return (("dimensions", tuple(d + 1 for d in instruction.dimensions)),)
