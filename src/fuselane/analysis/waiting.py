"""How long the steps of a loop wait for each other where XLA:CPU compiles it into one function.

Operations that need nothing of the last step begin before that is over. What bounds such a loop is
then how much there is to compute, or the longest chain of operations from what a step finds to what
it leaves behind:

    x = 3.9 * x * (1 - x)       a sum and a product, and x through memory: 4.5 ns, measured

A step writes to memory what the next one reads. Small arrays go through memory from fusion to
fusion, too: written as vectors and read as numbers, or the other way round, which takes longer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fuselane.analysis.machine_costs import MachineCosts
from fuselane.analysis.opcodes import ELEMENTWISE_OPCODES
from fuselane.hlo.computation import HloComputation
from fuselane.hlo.instruction import HloInstruction

_NUM_STEPS: Final = 3
IN_MEMORY: Final = 3.0
"""Scalar operations until a number is read that was written just before."""
_ARRAY_IN_MEMORY: Final = 6.0
FLOATING: Final = 2.2
"""Scalar operations until what cheap opcodes make of floats is there."""
_INTEGRAL: Final = 0.6
LATENCIES: Final[Mapping[str, float]] = {
    "atan2": 40.0,
    "cbrt": 40.0,
    "cosine": 26.0,
    "divide": 8.0,
    "dynamic-slice": 8.0,
    "erf": 28.0,
    "exponential": 26.0,
    "exponential-minus-one": 30.0,
    "gather": 8.0,
    "log": 34.0,
    "log-plus-one": 40.0,
    "logistic": 36.0,
    "power": 38.0,
    "remainder": 20.0,
    "rsqrt": 20.0,
    "sine": 26.0,
    "sqrt": 10.0,
    "tan": 40.0,
    "tanh": 26.0,
}
"""Scalar operations until what an opcode makes is there: measured on loops of one each."""


def estimate_chain_us(body: HloComputation, costs: MachineCosts) -> float:
    """Returns the time of a step of a loop in which operations only wait for others.

    Args:
        body: The loop's body, as XLA leaves it.
        costs: Those of the machine.
    """
    root = body.root
    if root.opcode != "tuple":
        return 0.0
    begin = dict.fromkeys(range(len(root.operands)), 0.0)
    ends = []
    for _ in range(_NUM_STEPS):
        done = _run(body, {0: begin})
        begin = {index: done[value] + IN_MEMORY for index, value in enumerate(root.operands)}
        ends.append(begin)
    first, last = ends[0], ends[-1]
    grown = max((last[index] - first[index] for index in last), default=0.0)
    return grown / (_NUM_STEPS - 1) * costs.xla_scalar_us


def _run(
    computation: HloComputation, arguments: Mapping[int, Mapping[int, float]]
) -> dict[HloInstruction, float]:
    """Returns when the instructions of a computation are done.

    Args:
        computation: A body, or what a fusion calls.
        arguments: By parameter and element of its tuple, when they are there.
    """
    done: dict[HloInstruction, float] = {}
    for number, parameter in enumerate(computation.parameters):
        done[parameter] = max(arguments[number].values(), default=0.0)
    for instruction in computation.instructions:
        opcode, operands = instruction.opcode, instruction.operands
        if opcode == "parameter":
            continue
        if opcode == "get-tuple-element" and operands[0].opcode == "parameter":
            number = operands[0].parameter_number
            done[instruction] = arguments[number].get(instruction.tuple_index, 0.0)
            continue
        starts = [done.get(value, 0.0) for value in operands]
        if opcode == "fusion":
            called = instruction.called_computations[0]
            inner = _run(called, {n: {0: start} for n, start in enumerate(starts)})
            done[instruction] = inner[called.root] + _passing(instruction)
        else:
            done[instruction] = max(starts, default=0.0) + _latency(instruction)
    return done


def _passing(thunk: HloInstruction) -> float:
    """Returns after how many scalar operations a result is read again, but for single numbers."""
    is_array = thunk.shape.is_array and thunk.shape.num_elements > 1
    return _ARRAY_IN_MEMORY if is_array else 0.0


def _latency(instruction: HloInstruction) -> float:
    """Returns after how many scalar operations an element of a result is there."""
    opcode, shape = instruction.opcode, instruction.shape
    if not shape.is_array:
        return 0.0
    if opcode in ELEMENTWISE_OPCODES and not shape.element_type.is_floating:
        return _INTEGRAL
    if opcode in LATENCIES:
        return LATENCIES[opcode]
    return FLOATING if opcode in ELEMENTWISE_OPCODES and opcode != "select" else 0.0
