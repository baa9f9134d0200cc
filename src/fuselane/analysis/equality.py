"""Values of several computations that are the same function of a loop's elements.

Every value gets a number; two have the same number if their opcodes, shapes, attributes, operands'
numbers and applied computations are equal, so that they are certainly equal.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Final, final

from fuselane.analysis.opcodes import ELEMENTWISE_OPCODES
from fuselane.hlo.computation import HloComputation
from fuselane.hlo.instruction import HloInstruction

_NOT_ATTRIBUTES: Final = (
    "name",
    "id",
    "opcode",
    "shape",
    "metadata",
    "operand_ids",
    "control_predecessor_ids",
    "called_computation_ids",
    "frontend_attributes",
    "backend_config",
)
_ELEMENTWISE_ATTRIBUTES: Final = frozenset({"compare", "reduce-precision"})


@final
class ElementNumbers:
    """Numbers of values made from the elements of tuples that stand for each other."""

    def __init__(self, tuples: Iterable[HloInstruction]) -> None:
        """Starts with parameters whose elements are the same, such as a loop's two."""
        self._tuples = frozenset(tuples)
        self._numbers: dict[HloInstruction, int] = {}
        self._keys: dict[Hashable, int] = {}
        self._computations: dict[HloComputation, Hashable] = {}

    def element(self, index: int) -> int:
        """Returns the number of an element."""
        return self._keys.setdefault(("element", index), len(self._keys))

    def is_element(self, value: HloInstruction, index: int) -> bool:
        """Whether a value is an element of one of the tuples."""
        return (
            value.opcode == "get-tuple-element"
            and value.tuple_index == index
            and value.operands[0] in self._tuples
        )

    def number(self, value: HloInstruction) -> int:
        """Returns the number of a value."""
        stack = [value]
        while stack:
            top = stack[-1]
            missing = [] if top in self._numbers else self._missing(top)
            if missing:
                stack.extend(missing)
                continue
            stack.pop()
            if top not in self._numbers:
                self._numbers[top] = self._keys.setdefault(self._key(top), len(self._keys))
        return self._numbers[value]

    def _missing(self, value: HloInstruction) -> list[HloInstruction]:
        return [o for o in value.operands if o not in self._numbers and o not in self._tuples]

    def _key(self, value: HloInstruction) -> Hashable:
        if value.opcode == "get-tuple-element" and value.operands[0] in self._tuples:
            return ("element", value.tuple_index)
        if value.opcode == "parameter":
            return ("parameter", value.computation, value.parameter_number)
        return (
            value.opcode,
            str(value.shape),
            _attributes(value),
            tuple(self._numbers.get(operand, -1) for operand in value.operands),
            tuple(map(self._describe, value.called_computations)),
        )

    def _describe(self, computation: HloComputation) -> Hashable:
        """Returns what is equal for computations that are."""
        known = self._computations.get(computation)
        if known is None:
            places = {instruction: n for n, instruction in enumerate(computation.instructions)}
            known = self._computations[computation] = (
                places[computation.root],
                *(
                    (
                        instruction.opcode,
                        str(instruction.shape),
                        _attributes(instruction),
                        tuple(places[operand] for operand in instruction.operands),
                        tuple(map(self._describe, instruction.called_computations)),
                    )
                    for instruction in computation.instructions
                ),
            )
        return known


def _attributes(value: HloInstruction) -> bytes:
    """Returns the attributes of an instruction that its result depends on."""
    if value.opcode in ELEMENTWISE_OPCODES and value.opcode not in _ELEMENTWISE_ATTRIBUTES:
        return b""
    proto = type(value.proto)()
    proto.CopyFrom(value.proto)
    for field in _NOT_ATTRIBUTES:
        proto.ClearField(field)
    return bytes(proto.SerializeToString(deterministic=True))
