"""When two lane programs are one kernel: they compute the same in the same way.

    for w in weights: x = scan(step, x, w)        as many loops, and one identity

Layers of a model are loops of one form over arrays of their own, and most programs are compiled
again, by the next process. To write a kernel down takes as long as LLVM takes with it, so kernels
are known by what they are made from. What a program reads, where in the user's module it stands and
what its instructions are called make no kernel of its own.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable, Mapping
from typing import Final, final

from fuselane.hlo.attributes import Works
from fuselane.hlo.computation import HloComputation, reachable_computations
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.shape import Shape
from fuselane.lanes.program import LaneProgram

_ELSEWHERE: Final = frozenset(
    {"cost", "inputs", "invariants", "name", "obstacle", "operands", "rival", "site"}
)
"""Fields of a program and its epilogue that are of the user's module, or that no code goes by."""


def identity_of(program: LaneProgram) -> str:
    """Returns 64 hex digits: equal ones, in all processes, for programs that are one kernel if they
    are planned alike."""
    roots = [program.region]
    if program.epilogue is not None:
        roots.append(program.epilogue.computation)
    text = repr(_Places(roots).describe(program))
    return hashlib.sha256(text.encode()).hexdigest()


@final
class _Places:
    """Instructions and computations by their places, which is what identities know them by."""

    def __init__(self, roots: Iterable[HloComputation]) -> None:
        self._computations: dict[HloComputation, int] = {}
        self._instructions: dict[HloInstruction, int] = {}
        self._works = Works()
        self._steps: list[object] = []
        for computation in reachable_computations(roots):
            for instruction in computation.instructions:
                self._instructions[instruction] = len(self._instructions)
            self._steps += map(self._step, computation.instructions)
            self._steps.append(self._instructions[computation.root])
            self._computations[computation] = len(self._computations)

    def _step(self, instruction: HloInstruction) -> object:
        return (
            instruction.opcode,
            instruction.shape,
            self._works.attributes(instruction),
            instruction.parameter_number,
            [self._instructions[operand] for operand in instruction.operands],
            [self._instructions[other] for other in instruction.control_predecessors],
            [self._computations[callee] for callee in instruction.called_computations],
        )

    def describe(self, program: LaneProgram) -> object:
        """Returns all that the code of a program goes by."""
        return self._steps, self._fields(program)

    def _fields(self, value: object) -> object:
        fields = dataclasses.fields(value)  # type: ignore[arg-type]
        return [
            (field.name, self._of(getattr(value, field.name)))
            for field in fields
            if field.name not in _ELSEWHERE
        ]

    def _of(self, value: object) -> object:
        """Returns a value whose text is the same for what is the same to code."""
        match value:
            case HloInstruction():
                return self._instructions.get(value, "dead")
            case HloComputation():
                return self._computations.get(value, "dead")
            case Mapping():
                return [(self._of(key), self._of(item)) for key, item in value.items()]
            case frozenset():
                return sorted(map(repr, map(self._of, value)))
            case tuple():
                return list(map(self._of, value))
            case Shape():
                return value
            case _ if dataclasses.is_dataclass(value):
                return self._fields(value)
            case _:
                return value
