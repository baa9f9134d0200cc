"""What a fused module computes where, in terms that do not depend on names or numbers of HLO.

Two strategies applied to one module are compared by the edges of their kernels: which value is
computed inside the kernel that needs it, and which is read from memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final

from fuselane.fusion.traversal import sequential_computations
from fuselane.hlo.attributes import work_of
from fuselane.hlo.computation import HloComputation
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.module import HloModule

_OWN_NAME: Final = frozenset({"while", "conditional", "call", "custom-call", "rng"})
"""Opcodes that no strategy changes, known by their name."""

_NO_WORK: Final = frozenset({"constant", "parameter", "tuple", "get-tuple-element"})


@final
@dataclass(frozen=True, slots=True)
class Edge:
    """A producer and a consumer in a kernel.

    Attributes:
        output: The value the kernel writes for the sake of which both are computed in it.
        producer: Value of the producer.
        consumer: Value of the consumer.
        is_fused: Whether the kernel computes the producer; if not, it reads it from memory.
    """

    output: int
    producer: int
    consumer: int
    is_fused: bool


@final
class Values:
    """Numbers for values: equal for two instructions, of any module, that compute the same."""

    def __init__(self) -> None:
        self._numbers: dict[object, int] = {}
        self.names: dict[int, str] = {}
        """A value's opcode and the name of the first instruction seen to compute it."""

    def number(self, key: object, instruction: HloInstruction) -> int:
        """Returns the number of what `key` describes."""
        number = self._numbers.setdefault(key, len(self._numbers))
        self.names.setdefault(number, f"{instruction.opcode} {instruction.name}")
        return number


def find_edges(module: HloModule, values: Values) -> tuple[set[Edge], set[frozenset[int]]]:
    """Returns the edges of all kernels of a module, and the outputs of those with several."""
    edges: set[Edge] = set()
    siblings: set[frozenset[int]] = set()
    for computation in sequential_computations(module):
        _Kernels(computation, values, edges, siblings).walk()
    return edges, siblings


@final
class _Kernels:
    """The kernels of one computation."""

    def __init__(
        self,
        computation: HloComputation,
        values: Values,
        edges: set[Edge],
        siblings: set[frozenset[int]],
    ) -> None:
        self.computation = computation
        self.values = values
        self.edges = edges
        self.siblings = siblings
        self.known: dict[HloInstruction, tuple[int, ...]] = {}
        """The values of an instruction, several for a fusion with several outputs."""
        self.is_work: dict[int, bool] = {}

    def walk(self) -> None:
        for instruction in self.computation.post_order():
            if instruction.opcode == "fusion" and instruction.fusion_kind != "kCustom":
                self._visit_fusion(instruction)
                continue
            number = self._number_outside(instruction)
            self.known[instruction] = (number,)
            for operand in instruction.operands:
                if len(self.known[operand]) == 1:
                    self._note(number, self.known[operand][0], number, instruction, is_fused=False)

    def _visit_fusion(self, fusion: HloInstruction) -> None:
        body = fusion.to_apply
        inside: dict[HloInstruction, int] = {}
        for operand, parameter in zip(fusion.operands, body.parameters, strict=True):
            inside[parameter] = self.known[operand][0]
        for member in body.post_order():
            if member.opcode != "parameter":
                inside[member] = self._number(member, [inside[o] for o in member.operands])
                self.is_work[inside[member]] = member.opcode not in _NO_WORK
        roots = body.root.operands if body.root.opcode == "tuple" else [body.root]
        outputs = tuple(inside[root] for root in roots)
        self.known[fusion] = outputs
        if len(outputs) > 1:
            self.siblings.add(frozenset(outputs))
        for root in roots:
            stack, seen = [root], {root}
            while stack:
                member = stack.pop()
                for operand in member.operands:
                    is_fused = operand.opcode != "parameter"
                    self._note(
                        inside[root], inside[operand], inside[member], member, is_fused=is_fused
                    )
                    if is_fused and operand not in seen:
                        seen.add(operand)
                        stack.append(operand)

    def _note(
        self,
        output: int,
        producer: int,
        consumer: int,
        instruction: HloInstruction,
        *,
        is_fused: bool,
    ) -> None:
        if self.is_work.get(producer) and instruction.opcode not in _NO_WORK:
            self.edges.add(Edge(output, producer, consumer, is_fused))

    def _number_outside(self, instruction: HloInstruction) -> int:
        opcode = instruction.opcode
        if opcode == "get-tuple-element":
            source = instruction.operands[0]
            if len(self.known[source]) > 1:
                return self.known[source][instruction.tuple_index]
        if opcode == "bitcast" and instruction.shape == instruction.operands[0].shape:
            return self.known[instruction.operands[0]][0]
        if opcode == "parameter":
            key: object = (self.computation.name, instruction.parameter_number)
            number = self.values.number(key, instruction)
        elif opcode in _OWN_NAME or opcode == "fusion":
            number = self.values.number((self.computation.name, instruction.name), instruction)
        else:
            operands = [n for operand in instruction.operands for n in self.known[operand]]
            number = self._number(instruction, operands)
        self.is_work[number] = opcode not in _NO_WORK
        return number

    def _number(self, instruction: HloInstruction, operands: list[int]) -> int:
        opcode, *work = work_of(instruction)
        if opcode == "reshape":  # which does nothing either, where layouts are known
            opcode = "bitcast"
        return self.values.number((opcode, *work, *operands), instruction)
