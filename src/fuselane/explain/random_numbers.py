"""Which instructions make random bits.

XLA has opcodes and library calls for them; JAX's own generator is ordinary integer arithmetic,
told by the functions of `jax.random` in the names it leaves.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from fuselane.hlo.instruction import HloInstruction

_OPCODES: Final = frozenset({"rng", "rng-bit-generator", "rng-get-and-update-state"})
_TARGETS: Final = re.compile(r"threefry|philox|rng", re.IGNORECASE)
_FUNCTIONS: Final = (
    "bernoulli|beta|bits|categorical|cauchy|choice|dirichlet|exponential|gamma|gumbel|laplace"
    "|logistic|normal|normal_real|permutation|poisson|randint|shuffle|truncated_normal|uniform"
)
_NAMES: Final = re.compile(
    rf"threefry|iota_2x32_shape|random_(bits|split|fold_in|seed|unwrap|wrap)"
    rf"|jit\(_?({_FUNCTIONS})\)"
)
_NO_WORK: Final = frozenset({"parameter", "constant", "tuple", "get-tuple-element", "broadcast"})
_MIN_SHARE: Final = 0.6
"""Of a kernel's instructions: with fewer it also does something else."""


def is_random(instruction: HloInstruction) -> bool:
    """Whether an instruction is a step in making random numbers."""
    target = instruction.custom_call_target if instruction.opcode == "custom-call" else ""
    return is_random_name(instruction.opcode, instruction.metadata.op_name, target)


def is_random_name(opcode: str, op_name: str, target: str = "") -> bool:
    """Whether an instruction of this opcode, JAX's name and, if it is a call, the callee's is a
    step in making random numbers."""
    if opcode in _OPCODES:
        return True
    if opcode == "custom-call" and _TARGETS.search(target):
        return True
    return bool(_NAMES.search(op_name))


def makes_random_numbers(kernel: HloInstruction) -> bool:
    """Whether random numbers are what a kernel or a loop is for."""
    if not kernel.called_computations:
        return is_random(kernel)
    members = [i for i in _members(kernel) if i.opcode not in _NO_WORK]
    return bool(members) and sum(map(is_random, members)) >= _MIN_SHARE * len(members)


def _members(instruction: HloInstruction) -> Iterable[HloInstruction]:
    for computation in instruction.called_computations:
        for member in computation.instructions:
            yield member
            yield from _members(member)
