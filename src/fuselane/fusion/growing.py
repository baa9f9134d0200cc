"""What instruction fusion has to know about a fusion it makes larger, kept up to date as it grows.

Source: xla/service/fusion_node_indexing_evaluation.cc.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, final

from fuselane.fusion.reuse import fusion_reuses, reuses_operand
from fuselane.hlo.computation import HloComputation
from fuselane.hlo.instruction import HloInstruction

if TYPE_CHECKING:
    from fuselane.fusion.gpu.candidates import Candidate

RECOMPUTED_INDICES: Final = frozenset(
    {"concatenate", "dot", "dynamic-update-slice", "pad", "reduce", "reduce-window"}
)
"""Opcodes whose code cannot be shared between two places that need the same element."""

_NOTHING: Final[tuple[frozenset[HloInstruction], int]] = frozenset(), 0

HEAVY: Final = frozenset({"copy", "reduce", "reduce-window", "transpose"})
"""Opcodes whose number and kind limit what a kernel may hold."""


def heavy_members(instruction: HloInstruction) -> list[HloInstruction]:
    """Returns what a fusion computes that is heavy; another instruction itself, if it is."""
    if instruction.opcode == "fusion":
        return instruction.to_apply.fact(_heavy_in)
    return [instruction] if instruction.opcode in HEAVY else []


def _heavy_in(body: HloComputation) -> list[HloInstruction]:
    return [member for member in body.instructions if member.opcode in HEAVY]


@final
class GrowingFusion:
    """A fusion: which operands it reads repeatedly, and how often the code of each is emitted.

    A fusion's code is emitted from its root: an instruction once for each distinct index vector it
    is asked for. An operand is asked for the indices its user was asked for if the user has its
    shape or is a transpose; any other user computes new ones.

    Each is found out when first asked about.

    Attributes:
        fusion: The fusion instruction.
        candidate: How rules of GPUs see it, if they looked since it last grew.
    """

    def __init__(self, fusion: HloInstruction) -> None:
        self.fusion = fusion
        self.candidate: Candidate | None = None
        self._heavy: list[HloInstruction] | None = None
        self._reused: dict[HloInstruction, bool] | None = None
        self._asking: dict[HloInstruction, tuple[frozenset[HloInstruction], int]] = {}
        """For members and operands of the fusion: what asks for their elements with new indices,
        and how often all that stands in the code."""
        self._emissions: dict[HloInstruction, int] = {}
        """Empty until asked for."""

    def _look(self) -> None:
        """Counts how often the code of each member stands in the fusion's."""
        if self._emissions:
            return
        body = self.fusion.to_apply
        self._asking[body.root] = frozenset((self.fusion,)), 1
        self._emissions[self.fusion] = 1
        for member in reversed(body.post_order()):
            if member.opcode != "parameter" and member in self._asking:
                self._count(member, map(self._outside, member.operands))

    @property
    def heavy(self) -> list[HloInstruction]:
        """Its members that reduce, transpose or copy."""
        if self._heavy is None:
            self._heavy = heavy_members(self.fusion).copy()
        return self._heavy

    @property
    def reused(self) -> dict[HloInstruction, bool]:
        """Its operands; True for those that are read several times per element."""
        if self._reused is None:
            self._reused = fusion_reuses(self.fusion)
        return self._reused

    @property
    def num_reduces(self) -> int:
        """Reductions in it."""
        return sum(member.opcode == "reduce" for member in self.heavy)

    @property
    def members(self) -> Iterator[tuple[HloInstruction, int]]:
        """What is computed in it, and how often the code of each stands in its own."""
        self._look()
        return ((i, n) for i, n in self._emissions.items() if i is not self.fusion)

    def emissions(self, operand: HloInstruction) -> int:
        """Returns how often an operand's code would be emitted if it were part of the fusion."""
        self._look()
        return self._asking.get(operand, _NOTHING)[1]

    def absorb(
        self, producer: HloInstruction, member: HloInstruction, read: Sequence[HloInstruction]
    ) -> None:
        """Takes note that an operand became a member.

        Args:
            producer: The former operand.
            member: Its copy in the fusion's body.
            read: What the producer reads, all of which are operands now.
        """
        self.candidate = None
        if self._heavy is not None and member.opcode in HEAVY:
            self._heavy.append(member)
        if self._reused is not None:
            is_reused = self._reused.pop(producer, False)
            for index, operand in enumerate(read):
                state = is_reused or reuses_operand(member, index)
                self._reused[operand] = self._reused.get(operand, False) or state
        if self._emissions:
            self._asking[member] = self._asking.pop(producer, _NOTHING)
            self._count(member, read)

    def _count(self, member: HloInstruction, read: Iterable[HloInstruction]) -> None:
        """Counts a member's emissions and passes its indices on to what it reads, parameters
        replaced by the fusion's operands."""
        asking, emissions = self._asking, self._emissions
        above = asking[member]
        emissions[member] = above[1]
        for operand in read:
            new = above
            if member.opcode != "transpose" and not _has_same_sizes(operand, member):
                new = frozenset((member,)), above[1]
            known = asking.get(operand)
            if known is None:
                asking[operand] = new
            elif known is not new:
                users = known[0] | new[0]
                asking[operand] = users, sum([emissions[user] for user in users])

    def _outside(self, operand: HloInstruction) -> HloInstruction:
        if operand.opcode == "parameter":
            return self.fusion.operands[operand.parameter_number]
        return operand


def count_uses(instruction: HloInstruction) -> int:
    """Returns an instruction's users, fusions replaced by what uses its value in them."""
    return sum(
        len(user.to_apply.parameters[user.operands.index(instruction)].users)
        if user.opcode == "fusion"
        else 1
        for user in instruction.users
    )


def _has_same_sizes(left: HloInstruction, right: HloInstruction) -> bool:
    """Whether two shapes are equal, their element types aside."""
    a, b = left.shape, right.shape
    return a is b or (
        a.dimensions == b.dimensions
        and a.minor_to_major == b.minor_to_major
        and a.is_tuple == b.is_tuple
        and len(a.tuple_shapes) == len(b.tuple_shapes)
    )
