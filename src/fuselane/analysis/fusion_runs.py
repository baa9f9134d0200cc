"""How many elements of each instruction a fusion of XLA's computes, again and again if need be.

A fusion computes each element of its result from scratch: what it broadcasts, slices or gathers
from is computed again for every use elsewhere. What is updated in place counts by its update.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from fuselane.analysis.opcodes import COMPLEX_OPCODES, ELEMENTWISE_OPCODES
from fuselane.analysis.scalar_code import (
    find_written,
    is_parameter,
    is_updated_anew,
)
from fuselane.hlo.computation import HloComputation
from fuselane.hlo.indexed import indexed, update_of
from fuselane.hlo.instruction import HloInstruction

_SAME_PLACE: Final = ELEMENTWISE_OPCODES | COMPLEX_OPCODES | {"bitcast", "copy", "reshape", "tuple"}


def count_runs(computation: HloComputation) -> Mapping[HloInstruction, float]:
    """Returns how many elements of each instruction of a fusion are computed, again and again if
    need be; users first.

    An element is shared by users that need it at the same place (elementwise ones), and computed
    once more by each that needs it elsewhere. What is broadcast along minor dimensions is computed
    once for all of them.
    """
    runs: dict[HloInstruction, float] = {}
    for instruction in reversed(computation.post_order()):
        if instruction is computation.root or instruction.opcode == "tuple":
            is_anew = is_updated_anew(instruction)
            elements = instruction.shape.num_elements if is_anew else result_elements(instruction)
            runs[instruction] = elements
            continue
        same_place, elsewhere = 0.0, 0.0
        for user in instruction.users:
            needed = _needed(user, instruction, runs[user])
            if user.opcode in _SAME_PLACE:
                same_place = max(same_place, needed)
            else:
                elsewhere += needed
        runs[instruction] = same_place + elsewhere
    return runs


def _needed(user: HloInstruction, operand: HloInstruction, runs: float) -> float:
    """Returns how many elements of an operand are computed for some elements of a user."""
    match user.opcode:
        case "tuple":
            return operand.shape.num_elements
        case "broadcast":
            return min(runs, _broadcast_runs(user, operand))
        case "reduce" | "reduce-window":
            if operand not in user.operands[: len(user.operands) // 2]:
                return 1
            return runs * operand.shape.num_elements / max(1, result_elements(user))
        case "concatenate":
            return runs * operand.shape.num_elements / max(1, user.shape.num_elements)
        case "dynamic-update-slice" | "scatter" if operand is user.operands[0]:
            return 0 if is_parameter(operand) else runs
        case "dynamic-update-slice" if operand is not user.operands[1]:
            return 1
        case "dynamic-slice" if operand is not user.operands[0]:
            return 1
        case "gather" if operand is not user.operands[0]:
            return runs / window_run(user)
    return runs


def _broadcast_runs(broadcast: HloInstruction, operand: HloInstruction) -> float:
    """Returns how often an operand is computed: anew for every position along the dimensions
    outside its minor-most one."""
    if operand.shape.num_elements == 1:
        return 1
    strides = broadcast.shape.strides
    innermost = min(strides[d] for d in broadcast.dimensions)
    return broadcast.shape.num_elements / max(1, innermost)


def window_run(gather: HloInstruction) -> int:
    """Returns how many neighbours in a gather's result come from one window."""
    where = indexed(gather)
    minor = gather.shape.rank - 1
    return math.prod(where.window_sizes) if minor in where.window_positions else 1


def result_bytes(instruction: HloInstruction) -> int:
    """Returns how many bytes of its result an instruction writes."""
    return _in_place(instruction).shape.byte_size


def result_elements(instruction: HloInstruction) -> int:
    """Returns how many elements of its result, or of its largest one, an instruction computes."""
    shape = _in_place(instruction).shape
    return max((s.num_elements for s in shape.tuple_shapes), default=shape.num_elements)


def _in_place(instruction: HloInstruction) -> HloInstruction:
    """Returns what decides how much of a result is written: the update of an update in place."""
    if instruction.opcode == "fusion":
        return find_written(instruction.called_computations[0].root)
    return update_of(instruction)
