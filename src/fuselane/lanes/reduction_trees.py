"""Reductions of everything, put together again.

XLA:CPU takes a reduction of an array to a scalar apart: into reductions of 32 elements each, after
a pad with the initial value where these don't fill the array, until little is left.

    %a = pred[64] reduce(reshape(pad(%p, false))), dimensions={1}, to_apply=or     %p: pred[2000]
    ROOT %b = pred[] reduce(%a, false), dimensions={0}, to_apply=or
->  ROOT %b = pred[] reduce(%p, false), dimensions={0}, to_apply=or

Done for `or` and `and`, where the order of elements makes no difference.
Numerics: bitwise-equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from fuselane.hlo.computation import HloComputation
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.shape import PrimitiveType
from fuselane.lanes.builder import ComputationBuilder
from fuselane.lanes.layout import lower_reduce

_IDENTITIES: Final = {"or": False, "and": True}


def lower_reduction(
    builder: ComputationBuilder,
    instruction: HloInstruction,
    operands: Sequence[HloInstruction],
    to_apply: HloComputation,
) -> HloInstruction | tuple[HloInstruction, ...]:
    """Lowers a reduce; where it is the last of a tree of them, the tree becomes one."""
    value = lower_reduce(builder, instruction, operands, to_apply)
    if isinstance(value, tuple) or value.shape.dimensions or not _is_boolean(value):
        return value
    array, initial = value.operands
    start = _skip_to_start(array, value)
    if start is array or not start.shape.dimensions:
        return value if start is array else start
    dimensions = (("dimensions", tuple(range(start.shape.rank))),)
    return builder.emit(
        "reduce", value.shape, (start, initial), dimensions, origin=instruction, called=(to_apply,)
    )


def _skip_to_start(array: HloInstruction, reduction: HloInstruction) -> HloInstruction:
    """Returns an array of which `reduction`, in any order, makes the same as of another."""
    while True:
        match array.opcode:
            case "reshape" | "transpose":
                array = array.operands[0]
            case "pad" if _is_identity(array.operands[1], reduction) and _only_adds(array):
                array = array.operands[0]
            case "reduce" if _is_boolean(array) and _opcode(array) == _opcode(reduction):
                array = array.operands[0]
            case _:
                return array


def _only_adds(pad: HloInstruction) -> bool:
    return all(low >= 0 and high >= 0 for low, high, _ in pad.padding)


def _is_boolean(value: HloInstruction) -> bool:
    """Whether a value is a reduction by `or` or `and` that starts from nothing."""
    if value.opcode != "reduce" or value.shape.element_type is not PrimitiveType.PRED:
        return False
    kinds = [operand.opcode for operand in value.to_apply.root.operands]
    return (
        _opcode(value) in _IDENTITIES
        and kinds == ["parameter"] * 2
        and _is_identity(value.operands[1], value)
    )


def _opcode(reduction: HloInstruction) -> str:
    return reduction.to_apply.root.opcode


def _is_identity(value: HloInstruction, reduction: HloInstruction) -> bool:
    wanted = _IDENTITIES.get(_opcode(reduction))
    return value.opcode == "constant" and bool(np.all(value.literal == wanted))
