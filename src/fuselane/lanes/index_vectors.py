"""Index vectors that XLA has computed in front of a loop.

Index vectors of gathers and scatters that never change are moved out of a loop, and so is what
says which lane they belong to:

    %v = s32[8,2] concatenate(%lanes, %x), dimensions={1}       %lanes = s32[8,1] iota(..)
    %w = while(.., %v, ..)

The loop gets `%x` instead, and puts the vector together itself, so that everyone can see what its
first part is. Where `%x` is constant XLA has folded all of it into one constant of numbers, which
is taken apart again. Where `%x` is computed of constants, as the indices of `x.at[[0, -1]]` are
with one compare and one select for each lane, its numbers are known, and the loop has those.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from fuselane.hlo.instruction import HloInstruction
from fuselane.lanes.builder import ComputationBuilder, array_shape
from fuselane.lanes.constants import MAX_CONSTANT_ELEMENTS, is_constant, transplant
from fuselane.lanes.known import known_elements
from fuselane.lanes.values import Value, array_of

_MAX_PARTS: Final = 8
_MAX_WORKED_OUT: Final = 1 << 22
"""Numbers of one part, those of all lanes together."""


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
    return builder.concatenate(operands, vector.dimensions[0], origin=vector)


def is_folded_vector(instruction: HloInstruction) -> bool:
    """Whether an instruction of the user's module is a constant that may hold index vectors."""
    shape = instruction.shape
    return (
        instruction.opcode == "constant"
        and shape.rank > 1
        and shape.is_row_major
        and shape.element_type.is_integral
        and 1 < shape.dimensions[-1] <= _MAX_PARTS
    )


def take_apart(constant: HloInstruction, builder: ComputationBuilder) -> HloInstruction | None:
    """Returns a constant as a concatenate of iotas and numbers; None if it is more than that."""
    values = constant.literal
    parts = [
        _emit_numbers(values[..., place : place + 1], constant, builder)
        for place in range(values.shape[-1])
    ]
    found = [part for part in parts if part is not None]
    if len(found) < len(parts):
        return None
    return builder.concatenate(found, values.ndim - 1, origin=constant)


def work_out(vector: HloInstruction, builder: ComputationBuilder) -> HloInstruction:
    """Returns a concatenate whose parts are constants where their numbers are known."""
    if vector.opcode != "concatenate":
        return vector
    parts = [_work_out_part(part, builder) for part in vector.operands]
    if all(part is before for part, before in zip(parts, vector.operands, strict=True)):
        return vector
    return builder.concatenate(parts, vector.dimensions[0], origin=vector)


def _work_out_part(part: HloInstruction, builder: ComputationBuilder) -> HloInstruction:
    if is_constant(part) or part.shape.num_elements > _MAX_WORKED_OUT:
        return part
    known = known_elements(part)
    if known is None or not known.mask.all():
        return part
    return _emit_numbers(known.values, part, builder) or part


def _emit_numbers(
    values: np.ndarray, origin: HloInstruction, builder: ComputationBuilder
) -> HloInstruction | None:
    """Returns an iota or a small constant broadcast, if these are the values."""
    element = origin.shape.element_type
    axes = [a for a in range(values.ndim) if not np.all(values == values.take([0], axis=a))]
    different = values[tuple(slice(None) if a in axes else 0 for a in range(values.ndim))]
    if len(axes) == 1 and np.array_equal(different, np.arange(different.size)):
        return builder.iota(array_shape(element, values.shape), axes[0])
    if different.size > MAX_CONSTANT_ELEMENTS:
        return None
    constant = builder.constant(array_shape(element, different.shape), different, origin)
    return builder.broadcast(constant, values.shape, tuple(axes))
