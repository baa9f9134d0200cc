"""What instructions compute, as numbers that stay: in other processes, after edits that move lines,
and however a module is fused.

    %f = fusion(%x), calls={ ROOT %a = sine(%p) }      4711, as %a outside of any fusion

A number stands for an opcode, its attributes and the numbers of its operands; for control flow and
custom calls, for the operands alone. So it names a kernel by a value it returns, or a value within
a kernel. Two instructions that compute the same have one number.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Final, final

from fuselane.hlo.attributes import attributes_of
from fuselane.hlo.computation import HloComputation
from fuselane.hlo.instruction import HloInstruction

_OPAQUE: Final = frozenset({"call", "conditional", "custom-call", "while"})
_BYTES: Final = 4
"""Of a number. Chance makes two of a thousand values equal once in ten thousand programs."""


def attributes(instruction: HloInstruction) -> bytes:
    """Returns all that an instruction is but its name, operands, callees and source."""
    own = attributes_of(instruction)
    return b"\0".join([instruction.opcode.encode(), str(instruction.shape).encode(), own])


@final
class Values:
    """Numbers of the values of one computation.

    Attributes:
        outputs: Of each instruction, the values it returns: several for kernels with several.
        members: Of each fusion, the values of the instructions in its body.
    """

    def __init__(self, computation: HloComputation, number: int) -> None:
        """Numbers everything.

        Args:
            computation: One that is run instruction by instruction.
            number: Tells it from others of its module.
        """
        self.outputs: dict[HloInstruction, tuple[int, ...]] = {}
        self.members: dict[HloInstruction, dict[HloInstruction, int]] = {}
        self._bodies: dict[HloComputation, bytes] = {}
        for instruction in computation.post_order():
            self.outputs[instruction] = self._visit(instruction, number)

    def _visit(self, instruction: HloInstruction, number: int) -> tuple[int, ...]:
        opcode = instruction.opcode
        if opcode == "parameter":
            return (_hash([b"parameter", str((number, instruction.parameter_number)).encode()]),)
        if opcode == "fusion" and instruction.fusion_kind != "kCustom":
            return self._visit_fusion(instruction)
        inputs = [value for operand in instruction.operands for value in self.outputs[operand]]
        if opcode == "get-tuple-element" and len(self.outputs[instruction.operands[0]]) > 1:
            return (inputs[instruction.tuple_index],)
        if opcode == "tuple":
            return tuple(inputs)
        return (self._number(instruction, inputs),)

    def _visit_fusion(self, fusion: HloInstruction) -> tuple[int, ...]:
        body = fusion.to_apply
        inside: dict[HloInstruction, int] = {}
        for parameter, operand in zip(body.parameters, fusion.operands, strict=True):
            inside[parameter] = self.outputs[operand][0]
        for member in body.post_order():
            if member.opcode != "parameter":
                inside[member] = self._number(member, [inside[o] for o in member.operands])
        self.members[fusion] = inside
        roots = body.root.operands if body.root.opcode == "tuple" else [body.root]
        return tuple(inside[root] for root in roots)

    def _number(self, instruction: HloInstruction, inputs: Iterable[int]) -> int:
        if instruction.opcode in _OPAQUE:
            own = [instruction.opcode.encode(), str(instruction.shape).encode()]
        else:
            callees = [self._digest(callee) for callee in instruction.called_computations]
            own = [attributes(instruction), *callees]
        return _hash([*own, *(value.to_bytes(_BYTES, "little") for value in inputs)])

    def _digest(self, body: HloComputation) -> bytes:
        """Returns what is equal for computations that compute the same from their parameters."""
        if body not in self._bodies:
            inside: dict[HloInstruction, int] = {}
            for member in body.post_order():
                inside[member] = self._number(member, [inside[o] for o in member.operands])
            self._bodies[body] = inside[body.root].to_bytes(_BYTES, "little")
        return self._bodies[body]


def _hash(parts: Iterable[bytes]) -> int:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)
    return int.from_bytes(digest.digest()[:_BYTES], "little")
