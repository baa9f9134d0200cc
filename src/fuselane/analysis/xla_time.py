"""How long XLA:CPU takes for a loop: thunk by thunk, from the module as XLA leaves it.

XLA runs a loop's body as a sequence of thunks. Each costs its dispatch, which is most of it where
arrays are small, and the work inside. A fusion computes each element of its result from scratch:
what it broadcasts or gathers from is computed again for every use.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Final

from fuselane.analysis.cost import OPCODE_COST, UNKNOWN_TRIP_COUNT
from fuselane.analysis.machine_costs import MachineCosts
from fuselane.analysis.opcodes import ELEMENTWISE_OPCODES
from fuselane.analysis.while_loops import compute_trip_count
from fuselane.hlo.computation import HloComputation
from fuselane.hlo.instruction import HloInstruction

_FREE: Final = frozenset(
    {
        "after-all",
        "bitcast",
        "constant",
        "get-tuple-element",
        "opt-barrier",
        "parameter",
        "partition-id",
        "replica-id",
        "tuple",
    }
)
_LIBRARY: Final = frozenset({"convolution", "custom-call", "dot", "fft", "sort"})
_VECTOR_BITS: Final = 256
_MOVE_COST: Final = 1.0
_SCALAR_MOVE_COST: Final = 4.0
_UNKNOWN_COST: Final = 4.0


def estimate_step_us(loop: HloInstruction, costs: MachineCosts, *, is_compiled: bool) -> float:
    """Returns XLA's time for one iteration of a `while`, nested loops included, in microseconds.

    Args:
        loop: A `while` of the user's module, as XLA leaves it.
        costs: Those of the machine.
        is_compiled: Whether XLA compiles the whole loop into one function, without thunks.
    """
    return _Clock(costs, is_compiled).step(loop)


class _Clock:
    """Adds up the time of the thunks of computations."""

    def __init__(self, costs: MachineCosts, is_compiled: bool) -> None:
        self._costs = costs
        self._is_compiled = is_compiled

    def step(self, loop: HloInstruction) -> float:
        work = self._computation(loop.condition) + self._computation(loop.body)
        return work + (0 if self._is_compiled else self._costs.step_us)

    def _computation(self, computation: HloComputation) -> float:
        return sum(self._instruction(i) for i in computation.instructions)

    def _instruction(self, instruction: HloInstruction) -> float:
        opcode = instruction.opcode
        if opcode in _FREE:
            return 0.0
        if opcode == "while":
            return self._trip_count(instruction) * self.step(instruction)
        if opcode == "call":
            return self._computation(instruction.to_apply)
        if opcode == "conditional":
            branches = [self._computation(c) for c in instruction.called_computations]
            return self._costs.thunk_us + sum(branches) / len(branches)
        return self._thunk(instruction)

    @staticmethod
    def _trip_count(loop: HloInstruction) -> int:
        count = compute_trip_count(loop)
        return UNKNOWN_TRIP_COUNT if count is None else count

    def _thunk(self, instruction: HloInstruction) -> float:
        work = self._work(instruction)
        if self._is_compiled:
            return work
        dispatch = self._costs.thunk_us
        if instruction.opcode in _LIBRARY or instruction.fusion_kind == "kCustom":
            dispatch += self._costs.library_us
        tasks = _num_tasks(instruction)
        if tasks > 1:
            return dispatch + self._costs.task_us + work / tasks
        return dispatch + work

    def _work(self, instruction: HloInstruction) -> float:
        if instruction.opcode == "fusion":
            computation = instruction.called_computations[0]
            runs = count_runs(computation)
            return sum(self._run(i) * times for i, times in runs.items())
        return self._run(instruction) * _result_elements(instruction)

    def _run(self, instruction: HloInstruction) -> float:
        """Returns the time for one element of an instruction's result."""
        costs = self._costs
        opcode = instruction.opcode
        element = instruction.shape
        while element.is_tuple:
            element = element.tuple_shapes[0]
        share = max(element.element_type.bits, 8) / _VECTOR_BITS
        if self._is_compiled and element.num_elements <= _SCALAR_ELEMENTS:
            share = costs.xla_scalar_us / costs.xla_operation_us
        if opcode in ELEMENTWISE_OPCODES:
            return OPCODE_COST[opcode] * share * costs.xla_operation_us
        scalar = costs.xla_scalar_us
        match opcode:
            case "reduce" | "reduce-window":
                inner = instruction.operands[0].shape.num_elements / max(1, element.num_elements)
                applied = len(instruction.to_apply.instructions)
                return inner * applied * scalar
            case "dot":
                return _contracted(instruction) * share * costs.xla_operation_us
            case "sort":
                size = instruction.operands[0].shape.dimensions[instruction.dimensions[0]]
                return 10 * math.log2(size + 1) * scalar
            case "gather" | "scatter" | "dynamic-slice":
                return _SCALAR_MOVE_COST * scalar
            case "copy" | "broadcast" | "reshape" | "transpose" | "slice" | "concatenate" | "pad":
                return _MOVE_COST * share * costs.xla_operation_us
            case _ if opcode in _FREE or opcode in ("iota", "reverse"):
                return 0.0
        return _UNKNOWN_COST * scalar


_SCALAR_ELEMENTS: Final = 16


def _num_tasks(instruction: HloInstruction) -> int:
    """Returns into how many parts XLA splits a thunk, from what it has noted down."""
    try:
        config = json.loads(instruction.backend_config or b"{}")
        return math.prod(int(n) for n in config.get("outer_dimension_partitions", ()))
    except (ValueError, TypeError, AttributeError):
        return 1


def _result_elements(instruction: HloInstruction) -> int:
    if instruction.opcode == "dynamic-update-slice":
        return instruction.operands[1].shape.num_elements
    if instruction.opcode == "scatter":
        return instruction.operands[-1].shape.num_elements
    shape = instruction.shape
    return max((s.num_elements for s in shape.tuple_shapes), default=shape.num_elements)


def _contracted(dot: HloInstruction) -> float:
    left = dot.operands[0].shape.dimensions
    numbers = dot.proto.dot_dimension_numbers
    return float(math.prod(left[d] for d in numbers.lhs_contracting_dimensions))


def count_runs(computation: HloComputation) -> Mapping[HloInstruction, float]:
    """Returns how many elements of each instruction of a fusion are computed, again and again if
    need be.

    An element is shared by users that need it at the same place (elementwise ones), and computed
    once more by each that needs it elsewhere. What is broadcast along minor dimensions is computed
    once for all of them.
    """
    runs: dict[HloInstruction, float] = {}
    for instruction in reversed(computation.post_order()):
        if instruction is computation.root or instruction.opcode == "tuple":
            runs[instruction] = _result_elements(instruction)
            continue
        same_place, elsewhere = 0.0, 0.0
        for user in instruction.users:
            needed = _needed(user, instruction, runs[user])
            if user.opcode in ELEMENTWISE_OPCODES or user.opcode in ("tuple", "bitcast"):
                same_place = max(same_place, needed)
            else:
                elsewhere += needed
        runs[instruction] = same_place + elsewhere
    return runs


def _needed(user: HloInstruction, operand: HloInstruction, runs: float) -> float:
    """Returns how many elements of an operand are needed for some elements of a user."""
    match user.opcode:
        case "tuple":
            return operand.shape.num_elements
        case "broadcast":
            return min(runs, _broadcast_runs(user, operand))
        case "reduce" | "reduce-window":
            if operand not in user.operands[: len(user.operands) // 2]:
                return 1
            return runs * operand.shape.num_elements / max(1, _result_elements(user))
        case "concatenate":
            share = operand.shape.num_elements / max(1, user.shape.num_elements)
            return runs * share
        case "dynamic-update-slice":
            if operand is user.operands[0]:
                return 0
            return runs if operand is user.operands[1] else 1
        case "dynamic-slice" if operand is not user.operands[0]:
            return 1
    return runs


def _broadcast_runs(broadcast: HloInstruction, operand: HloInstruction) -> float:
    """Returns how often an operand is computed: anew for every position along the dimensions
    outside its minor-most one."""
    if operand.shape.num_elements == 1:
        return 1
    strides = broadcast.shape.strides
    innermost = min(strides[d] for d in broadcast.dimensions)
    return broadcast.shape.num_elements / max(1, innermost)
