"""Which of XLA:CPU's loops over the elements of a fusion LLVM makes no vectors of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fuselane.analysis.cost import OPCODE_COST
from fuselane.analysis.opcodes import ELEMENTWISE_OPCODES, UPDATING_OPCODES
from fuselane.hlo.computation import HloComputation
from fuselane.hlo.indexed import update_of
from fuselane.hlo.instruction import HloInstruction

_FUNCTIONS: Final = frozenset(
    {
        "erf",
        "exponential",
        "exponential-minus-one",
        "log",
        "log-plus-one",
        "logistic",
        "power",
        "rsqrt",
        "sqrt",
        "tanh",
    }
)
"""Opcodes that XLA itself writes out, as vectors."""

_NOT_LOADED: Final = ELEMENTWISE_OPCODES | {"broadcast", "constant", "iota"}
_UNROLLED_INSTRUCTIONS: Final = 300.0
_MIN_UNROLLED: Final = 9
_INSTRUCTIONS_PER_ELEMENT: Final = 3.0
_FUNCTION_INSTRUCTIONS: Final = 20.0
"""LLVM unrolls a loop over the minor-most dimension, inside of others, if that makes no more
instructions; of what it has unrolled it makes no vectors. An element is loaded, stored and counted;
functions have more instructions than they cost operations. Measured: a sum and a product, rows of
12 to 48, but not of 64."""

_BRANCHED_OPERATIONS: Final = (32, 12)
"""Of loops with more operations LLVM makes no vectors if they branch, to put parts together along
the minor-most dimension, say: without functions and with them. Measured: 24 operations on rows of
64 that are turned take 0.03 ns each, 48 take 0.3, as those of Philox in stacks of four do."""

_MAX_PARTS: Final = 16
"""Parts of so many, or fewer, count with all their operations."""


def is_scalar_code(body: HloComputation, runs: Mapping[HloInstruction, float]) -> bool:
    """Whether XLA's loops over a fusion's elements are not vectorised.

    Args:
        body: The fused computation.
        runs: How many elements of each instruction are computed.
    """
    root = find_written(body.root)
    if not root.shape.is_array or not root.shape.dimensions:
        return False
    elements = max(1, root.shape.num_elements)
    computed = [
        i for i, times in runs.items() if i.opcode in ELEMENTWISE_OPCODES and times >= elements
    ]
    num_functions = sum(i.opcode in _FUNCTIONS for i in computed)
    parts = (i for i, times in runs.items() if times * _MAX_PARTS >= elements)
    num_operations = sum(i.opcode in ELEMENTWISE_OPCODES for i in parts)
    is_long = num_operations > _BRANCHED_OPERATIONS[num_functions > 0]
    if is_long and any(map(_is_branching, runs)):
        return True
    instructions = sum(OPCODE_COST.get(i.opcode, 1) for i in computed)
    instructions += _INSTRUCTIONS_PER_ELEMENT + num_functions * _FUNCTION_INSTRUCTIONS
    loaded = {value for i in computed for value in i.operands}
    instructions += sum(value.opcode not in _NOT_LOADED for value in loaded)
    strides = root.shape.strides
    row = next(
        (n for n, s in zip(root.shape.dimensions, strides, strict=True) if s == 1 and n > 1), 1
    )
    is_inner = row < elements
    return is_inner and row >= _MIN_UNROLLED and row * instructions <= _UNROLLED_INSTRUCTIONS


def _is_branching(instruction: HloInstruction) -> bool:
    """Whether the minor-most dimension of what a fusion computes has several sources."""
    if not instruction.shape.is_array or not instruction.shape.dimensions:
        return False
    strides = instruction.shape.strides
    if instruction.opcode == "concatenate" and not holds_indices(instruction):
        (dimension,) = instruction.dimensions
        return strides[dimension] == 1
    return instruction.opcode == "dynamic-update-slice" and is_updated_anew(instruction)


def holds_indices(instruction: HloInstruction) -> bool:
    """Whether a value only tells gathers where to read, which take its parts one by one."""
    return bool(instruction.users) and all(
        holds_indices(user)
        if user.opcode in ("bitcast", "reshape")
        else user.opcode == "gather" and user.operands[0] is not instruction
        for user in instruction.users
    )


def find_written(root: HloInstruction) -> HloInstruction:
    """Returns what has as many elements as are written of a fusion's result: the update of what is
    updated in place, else the result."""
    while root.opcode == "bitcast":
        root = root.operands[0]
    return root if is_updated_anew(root) else update_of(root)


def is_updated_anew(instruction: HloInstruction) -> bool:
    """Whether an instruction of a fusion updates what the fusion computes itself."""
    return instruction.opcode in UPDATING_OPCODES and not is_parameter(instruction.operands[0])


def is_parameter(value: HloInstruction) -> bool:
    while value.opcode == "bitcast":
        value = value.operands[0]
    return value.opcode == "parameter"
