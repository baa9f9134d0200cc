"""What would be one kernel: an instruction, alone or with a producer computed inside of it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import final

from fuselane.hlo.instruction import HloInstruction


@final
class Region:
    """The instructions of a consumer and, optionally, of one of its operands.

    Members are the instructions of fused computations, parameters left out, or the instruction
    itself where it is no fusion. What a parameter stands for is looked up.

    Attributes:
        consumer: A fusion or any other instruction.
        producer: One of its operands, or None.
        roots: Members whose values are the results; a tuple is looked through.
    """

    def __init__(self, consumer: HloInstruction, producer: HloInstruction | None = None) -> None:
        self.consumer = consumer
        self.producer = producer
        root = _value(consumer)
        self.roots = root.operands if root.opcode == "tuple" else [root]
        sides = (consumer,) if producer is None else (consumer, producer)
        self._calls = {s.to_apply: s for s in sides if s.opcode == "fusion"}
        self._lone = {s for s in sides if s.opcode != "fusion"}

    def __contains__(self, node: HloInstruction) -> bool:
        return node in self._lone or node.computation in self._calls

    @cached_property
    def opcodes(self) -> set[str]:
        """The members' opcodes: what is not among them need not be looked for."""
        return {o for side in (self.consumer, self.producer) if side for o in opcodes_of(side)}

    def members(self) -> Iterator[HloInstruction]:
        """Yields all members."""
        yield from self._lone
        for body in self._calls:
            yield from (i for i in body.instructions if i.opcode != "parameter")

    def operands(self, member: HloInstruction) -> list[HloInstruction]:
        """Returns a member's operands: members, or instructions outside."""
        return [self._resolve(operand) for operand in member.operands]

    def _resolve(self, node: HloInstruction) -> HloInstruction:
        if node.opcode == "parameter" and node.computation in self._calls:
            node = self._calls[node.computation].operands[node.parameter_number]
        return _value(node) if node is self.producer else node


def opcodes_of(instruction: HloInstruction) -> set[str]:
    """Returns the opcodes of what a fusion computes, or that of another instruction."""
    if instruction.opcode != "fusion":
        return {instruction.opcode}
    return {member.opcode for member in instruction.to_apply.instructions}


def _value(instruction: HloInstruction) -> HloInstruction:
    return instruction.to_apply.root if instruction.opcode == "fusion" else instruction
