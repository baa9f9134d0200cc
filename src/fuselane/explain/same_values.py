"""Which instruction of an earlier stage computes what one of the final module computes.

Fusing copies instructions and gives them new names, and every iteration of an unrolled loop has the
same names but for a number. What stays is the value: an operation on values, down to the parameters
of loops' bodies and of the program. Copies are looked through, as XLA adds them later.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, Final, final

from fuselane.fusion.traversal import sequential_computations
from fuselane.hlo.attributes import work_of
from fuselane.hlo.computation import HloComputation
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.module import HloModule

_OWN_NAME: Final = frozenset({"custom-call", "rng"})
"""Opcodes whose instructions are known by their names."""

_OWN_CALLEES: Final = frozenset({"while", "conditional"})
"""Those known by the names of what they run; XLA may move them into calls under new ones."""

_Numbers = dict[HloInstruction, int]


@final
class SameValues:
    """The values of two modules, each numbered when first asked for.

    Args:
        final: The final module.
        earlier: The module it was before, or None if that is not known.
    """

    def __init__(self, final: HloModule, earlier: HloModule | None) -> None:
        self._final = final
        self._earlier = earlier
        self._known: dict[object, int] = {}
        self._elements: dict[int, list[int]] = {}
        """Of tuples that are put together in the module."""

    def former(self, instruction: HloInstruction) -> HloInstruction | None:
        """Returns what computed an instruction's value in the earlier module, or None.

        Args:
            instruction: Of the final module, a member of a fusion or not.
        """
        number = self._numbers.get(instruction)
        return None if number is None else self._by_number.get(number)

    def are_same(self, one: HloInstruction, other: HloInstruction) -> bool:
        """Whether two instructions of the final module have the same value."""
        return self._numbers[one] == self._numbers[other]

    @cached_property
    def _numbers(self) -> _Numbers:
        return self._number(self._final)

    @cached_property
    def _by_number(self) -> dict[int, HloInstruction]:
        numbers = {} if self._earlier is None else self._number(self._earlier)
        return {number: i for i, number in reversed(numbers.items()) if i.opcode != "copy"}

    def _number(self, module: HloModule) -> _Numbers:
        numbers: _Numbers = {}
        for computation in sequential_computations(module):
            parameters = [
                self._get(computation.name, p.parameter_number) for p in computation.parameters
            ]
            self._visit(computation, parameters, numbers)
        return numbers

    def _visit(
        self, computation: HloComputation, parameters: Sequence[int], numbers: _Numbers
    ) -> None:
        for instruction in computation.post_order():
            operands = [numbers[operand] for operand in instruction.operands]
            match instruction.opcode:
                case "parameter":
                    number = parameters[instruction.parameter_number]
                case "copy":
                    number = operands[0]
                case "tuple":
                    number = self._get("tuple", *operands)
                    self._elements[number] = operands
                case "get-tuple-element" if operands[0] in self._elements:
                    number = self._elements[operands[0]][instruction.tuple_index]
                case "fusion" | "call":
                    self._visit(instruction.to_apply, operands, numbers)
                    number = numbers[instruction.to_apply.root]
                case opcode if opcode in _OWN_NAME:
                    number = self._get(opcode, instruction.name)
                case opcode if opcode in _OWN_CALLEES:
                    callees = (callee.name for callee in instruction.called_computations)
                    number = self._get(opcode, *callees)
                case _:
                    number = self._get(*work_of(instruction), *operands)
            numbers[instruction] = number

    def _get(self, *key: Any) -> int:
        return self._known.setdefault(key, len(self._known))
