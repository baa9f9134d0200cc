"""Values made from nothing: constants, iotas, what is broadcast or reshaped from them, and sums and
products of integers among these, as `arange(1, 5)` is.

They are made anew where they are needed instead of being passed into a loop.
"""

from __future__ import annotations

from typing import Final

from fuselane.hlo.instruction import HloInstruction
from fuselane.lanes.builder import ComputationBuilder

_CHEAP_OPCODES: Final = frozenset({"iota", "broadcast", "copy", "bitcast", "reshape", "convert"})
_INTEGER_OPCODES: Final = frozenset({"add", "concatenate", "multiply", "subtract"})
_MAX_CHEAP_INSTRUCTIONS: Final = 8
MAX_CONSTANT_ELEMENTS: Final = 64
"""Larger constants in front of a loop, and larger tables of integers, are passed in rather than
made part of the kernel."""


def is_cheap(instruction: HloInstruction) -> bool:
    """Whether a value is made from nothing by a few instructions: constants, iotas, broadcasts."""
    count = _count_cheap(instruction)
    return count is not None and count <= _MAX_CHEAP_INSTRUCTIONS


def _count_cheap(instruction: HloInstruction) -> int | None:
    """Returns how many instructions make a value, or None if they are not all cheap."""
    opcode = instruction.opcode
    total = 1
    if opcode == "fusion":
        inner = instruction.to_apply.instructions
        if not all(i.opcode == "parameter" or _is_cheap_itself(i) for i in inner):
            return None
        total = len(inner)
    elif not _is_cheap_itself(instruction):
        return None
    for operand in instruction.operands:
        count = _count_cheap(operand)
        if count is None:
            return None
        total += count
    return total


def _is_cheap_itself(instruction: HloInstruction) -> bool:
    if instruction.opcode == "constant":
        return instruction.shape.num_elements <= MAX_CONSTANT_ELEMENTS
    is_cheap = instruction.opcode in _CHEAP_OPCODES and instruction.shape.is_array
    return is_cheap or _is_of_integers(instruction)


def _is_of_integers(instruction: HloInstruction) -> bool:
    """Whether a value is a few sums or products of integers; floats might be contracted."""
    if instruction.opcode not in _INTEGER_OPCODES:
        return False
    shape = instruction.shape
    return shape.element_type.is_integral and shape.num_elements <= MAX_CONSTANT_ELEMENTS


def is_constant(value: HloInstruction) -> bool:
    """Whether a value is a small constant, or made of one, so that a body can have its own."""
    if value.opcode in ("broadcast", "reshape", "convert"):
        return is_constant(value.operands[0])
    if _is_of_integers(value):
        return all(map(is_constant, value.operands))
    return value.opcode == "iota" or (
        value.opcode == "constant" and value.shape.num_elements <= MAX_CONSTANT_ELEMENTS
    )


def transplant(value: HloInstruction, builder: ComputationBuilder) -> HloInstruction:
    """Returns the same constant value in another computation."""
    if value.opcode == "constant":
        return builder.constant_again(value, value.shape)
    operands = [transplant(operand, builder) for operand in value.operands]
    dimensions = (("dimensions", value.dimensions),) if value.dimensions else ()
    return builder.emit(value.opcode, value.shape, operands, dimensions, origin=value)
