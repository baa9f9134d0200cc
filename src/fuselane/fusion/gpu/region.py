"""What would be one kernel: an instruction, alone or with a producer computed inside of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import final

from fuselane.hlo.computation import HloComputation
from fuselane.hlo.instruction import HloInstruction

Opcodes = frozenset[str]


@final
class Region:
    """The instructions of a consumer and, optionally, of one of its operands.

    Members are the instructions of fused computations, parameters left out, or the instruction
    itself where it is no fusion. What a parameter stands for is looked up.

    Attributes:
        consumer: A fusion or any other instruction.
        producer: One of its operands, or None.
        opcodes: The members' opcodes: what is not among them need not be looked for.
    """

    __slots__ = ("_calls", "_lone", "consumer", "opcodes", "producer")

    def __init__(
        self,
        consumer: HloInstruction,
        producer: HloInstruction | None = None,
        opcodes: Opcodes | None = None,
    ) -> None:
        self.consumer = consumer
        self.producer = producer
        if opcodes is None:
            opcodes = opcodes_of(consumer)
            if producer is not None:
                opcodes |= opcodes_of(producer)
        self.opcodes = opcodes
        self._calls: dict[HloComputation, HloInstruction] = {}
        self._lone: set[HloInstruction] = set()
        for side in (consumer, producer):
            if side is not None and side.opcode == "fusion":
                self._calls[side.to_apply] = side
            elif side is not None:
                self._lone.add(side)

    def __contains__(self, node: HloInstruction) -> bool:
        return node in self._lone or node.computation in self._calls

    @property
    def roots(self) -> list[HloInstruction]:
        """Members whose values are the results; a tuple is looked through."""
        return roots_of(self.consumer)

    def members(self) -> Iterator[HloInstruction]:
        """Yields all members."""
        yield from self._lone
        for body in self._calls:
            yield from (i for i in body.instructions if i.opcode != "parameter")

    def inputs(self) -> Iterator[HloInstruction]:
        """Yields what is read, some of it more than once."""
        yield from (operand for operand in self.consumer.operands if operand is not self.producer)
        if self.producer is not None:
            yield from self.producer.operands

    def operands(self, member: HloInstruction) -> list[HloInstruction]:
        """Returns a member's operands: members, or instructions outside."""
        return [self._resolve(operand) for operand in member.operands]

    def users(self, member: HloInstruction) -> Iterator[HloInstruction]:
        """Yields the members that have a member as an operand."""
        if member not in self._lone:
            yield from member.users
        producer = self.producer
        if producer is None or member is not _value(producer):
            return
        if self.consumer.opcode != "fusion":
            yield self.consumer
            return
        places = zip(self.consumer.to_apply.parameters, self.consumer.operands, strict=True)
        for parameter, operand in places:
            if operand is producer:
                yield from parameter.users

    def _resolve(self, node: HloInstruction) -> HloInstruction:
        if node.opcode == "parameter" and node.computation in self._calls:
            node = self._calls[node.computation].operands[node.parameter_number]
        return _value(node) if node is self.producer else node


def roots_of(instruction: HloInstruction) -> list[HloInstruction]:
    """Returns the members whose values are the results; a tuple is looked through."""
    root = _value(instruction)
    return root.operands if root.opcode == "tuple" else [root]


def result_of(instruction: HloInstruction) -> HloInstruction:
    """Returns the member whose value is the result, which may be a tuple; what it reads may not be
    there yet."""
    return instruction.to_apply.peek_root() if instruction.opcode == "fusion" else instruction


def joined(of: Opcodes, into: Opcodes) -> Opcodes:
    """Returns the opcodes of what computes one inside of another: the other's own, if these are all
    there are."""
    return into if of <= into else into | of


def opcodes_of(instruction: HloInstruction) -> Opcodes:
    """Returns the opcodes of what a fusion computes, or that of another instruction."""
    if instruction.opcode != "fusion":
        return frozenset((instruction.opcode,))
    return instruction.to_apply.fact(_opcodes_in)


def _opcodes_in(body: HloComputation) -> Opcodes:
    return frozenset([member.opcode for member in body.instructions])


def is_custom(instruction: HloInstruction) -> bool:
    """Whether an instruction is a fusion that XLA has code of its own for."""
    return instruction.opcode == "fusion" and instruction.fusion_kind == "kCustom"


def _value(instruction: HloInstruction) -> HloInstruction:
    return instruction.to_apply.root if instruction.opcode == "fusion" else instruction
