"""Index vectors that XLA has computed in front of a loop.

Index vectors of gathers and scatters that never change are moved out of a loop, and so is what
says which lane they belong to:

    %v = s32[8,2] concatenate(%lanes, %x), dimensions={1}       %lanes = s32[8,1] iota(..)
    %w = while(.., %v, ..)

The loop gets `%x` instead, and puts the vector together itself, so that everyone can see what its
first part is.
"""

from __future__ import annotations

from fuselane.hlo.instruction import HloInstruction
from fuselane.lanes.builder import ComputationBuilder
from fuselane.lanes.constants import is_constant, transplant
from fuselane.lanes.values import Value, array_of


def is_index_vector(instruction: HloInstruction) -> bool:
    """Whether an instruction of the user's module, perhaps a fusion, joins an iota and others."""
    while instruction.opcode == "fusion":
        instruction = instruction.to_apply.root
    return (
        instruction.opcode == "concatenate"
        and instruction.shape.element_type.is_integral
        and any(_is_iota(operand) for operand in instruction.operands)
    )


def _is_iota(instruction: HloInstruction) -> bool:
    while instruction.opcode in ("bitcast", "broadcast", "convert", "copy", "reshape"):
        instruction = instruction.operands[0]
    return instruction.opcode == "iota"


def variable_parts(value: Value) -> tuple[HloInstruction, ...] | None:
    """Returns the parts of a concatenate that a loop can't make by itself; None if that is all."""
    if not isinstance(value, HloInstruction) or value.opcode != "concatenate":
        return None
    parts = tuple(part for part in value.operands if not is_constant(part))
    return parts if len(parts) < len(value.operands) else None


def put_together(
    vector: HloInstruction, parts: Value, builder: ComputationBuilder
) -> HloInstruction:
    """Returns a concatenate in another computation, given its variable parts there."""
    assert isinstance(parts, tuple), "what a concatenate is made of is held as a tuple"
    remaining = iter(parts)
    operands = [
        transplant(part, builder) if is_constant(part) else array_of(next(remaining))
        for part in vector.operands
    ]
    dimensions = (("dimensions", vector.dimensions),)
    return builder.emit("concatenate", vector.shape, operands, dimensions, origin=vector)
