"""Instruction fusion: single producers into their consumers, uses before definitions.

    %p = f32[8] sine(%x)                     %f = f32[8] fusion(%x, %y), kind=kLoop
    %c = f32[8] add(%p, %y)          ->      (computes sine and add)

From the back of the post order, each instruction asks for its operands, latest first, until the
rules refuse them all. A producer other kernels need as well stays for them and is computed twice,
if the rules allow it and it is not in the do-not-duplicate set: what reads more than it makes may
be duplicated only if it can be fused into all users on all paths.

Source: xla/service/instruction_fusion.cc.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import ClassVar, Final, Protocol, final

from fuselane.boundary import BoundaryReason
from fuselane.fusion.cpu_rules import CpuRules
from fuselane.fusion.decision import FusionDecision, FusionLog, refuse
from fuselane.fusion.fuse import Fuser
from fuselane.fusion.growing import GrowingFusion
from fuselane.fusion.opcodes import is_fusible
from fuselane.fusion.rules import Edge
from fuselane.fusion.traversal import sequential_computations, xla_post_order
from fuselane.fusion.unduplicable import find_unduplicable
from fuselane.hlo.computation import HloComputation
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.module import HloModule

_MAY_CHANGE: Final = (BoundaryReason.BUDGET, BoundaryReason.IN_PLACE)
"""Refusals that may not hold any more once the consumer has grown."""


class EdgeRules(Protocol):
    """A target's rules."""

    def should_fuse(self, edge: Edge, *, may_duplicate: bool = True) -> FusionDecision:
        """Returns whether the producer may become part of the consumer."""

    def kind(self, edge: Edge) -> str:
        """Returns the kind of the fusion an edge becomes."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class InstructionFusion:
    """Fuses single producers into consumers.

    Does not handle: several outputs, merging of fusions.

    Attributes:
        may_duplicate: Producers with several users may be computed several times.
        rules: The target's rules for one edge.
    """

    name: ClassVar[str] = "instruction-fusion"
    may_duplicate: bool = True
    rules: EdgeRules = field(default_factory=CpuRules)

    def run(self, module: HloModule, log: FusionLog) -> bool:
        """Fuses what the rules allow; returns whether anything was."""
        return fuse_instructions(self, module, log)


class SingleProducers(Protocol):
    """What a pass says that fuses single producers into consumers."""

    @property
    def name(self) -> str:
        """The pass's."""

    @property
    def may_duplicate(self) -> bool:
        """Whether producers with several users may be computed several times."""

    @property
    def rules(self) -> EdgeRules:
        """The target's."""


def fuse_instructions(
    options: SingleProducers,
    module: HloModule,
    log: FusionLog,
    computations: Sequence[HloComputation] | None = None,
) -> bool:
    """Fuses single producers into consumers as the rules allow; returns whether any was.

    In some computations of the module that run one instruction after the other, by default in all.
    """
    if computations is None:
        computations = sequential_computations(module)
    changed = [_Walk(options, module, c, log).run() for c in computations]
    return any(changed)


@final
class _Walk:
    """One computation on its way through the pass."""

    def __init__(
        self,
        options: SingleProducers,
        module: HloModule,
        computation: HloComputation,
        log: FusionLog,
    ) -> None:
        self.options = options
        self.fuser = Fuser(module, computation)
        self.log = log
        self.growing: dict[HloInstruction, GrowingFusion] = {}
        self.queue: list[HloInstruction | None] = list(xla_post_order(computation))
        self.position = {i: at for at, i in enumerate(self.queue) if i is not None}
        """Of what has yet to ask for its operands."""
        self.kept: set[HloInstruction] = set()
        if options.may_duplicate:
            order = [i for i in self.queue if i is not None]
            self.kept = find_unduplicable(order, self._would_fuse)

    def run(self) -> bool:
        changed = False
        while self.queue:
            consumer = self.queue.pop()
            if consumer is None:
                continue
            del self.position[consumer]
            if is_fusible(consumer):
                changed |= self._fuse_into(consumer)
        if changed:
            self.fuser.finish()
        return changed

    def _fuse_into(self, consumer: HloInstruction) -> bool:
        """Fuses operands, the latest first, until all that are left are refused; returns whether
        any was fused.

        Only consumers that are done with this come behind one in the queue, so that the positions
        of operands stay as they are. An answer stays what it was until the consumer has grown, and
        most do after that, unless the producer has gained or lost users; what the consumer took in
        was one.
        """
        fusion: HloInstruction | None = None
        position, name = self.position, self.options.name
        growing = self._growing(consumer)
        waiting = self._waiting(consumer)
        pending = {producer for _, _, producer in waiting}
        refused: dict[HloInstruction, int] = {}
        """How many users a producer had when the consumer could not have it."""
        later: list[HloInstruction] = []
        while waiting:
            _, place, producer = heappop(waiting)
            pending.discard(producer)
            if not is_fusible(producer) or refused.get(producer) == len(producer.users):
                continue
            index = -place if fusion is None else consumer.operands.index(producer)
            edge = Edge(producer, consumer, index, growing)
            decision = self._decide(edge)
            if not decision.can_fuse:
                self.log.note(name, producer, consumer, decision)
                if decision.reason in _MAY_CHANGE:
                    later.append(producer)
                else:
                    refused[producer] = len(producer.users)
                continue
            grown, read = self._fuse(edge)
            self.log.note(name, producer, consumer, decision, grown)
            if fusion is None:  # which may have another object than it had, and fewer operands
                if grown is not consumer:
                    refused.clear()
                consumer, growing, waiting = grown, self._growing(grown), self._waiting(grown)
                pending = {producer for _, _, producer in waiting}
            else:
                for operand in (*later, *read):
                    if operand in position and operand not in pending:
                        pending.add(operand)
                        heappush(waiting, (-position[operand], 0, operand))
            fusion = grown
            later.clear()
        return fusion is not None

    def _waiting(self, consumer: HloInstruction) -> list[tuple[int, int, HloInstruction]]:
        """Returns a heap of the operands that may be asked for, the latest first."""
        position = self.position
        operands = enumerate(consumer.operands)
        return sorted((-position[o], -index, o) for index, o in operands if o in position)

    def _decide(self, edge: Edge) -> FusionDecision:
        if edge.producer in self.kept:
            return refuse(
                BoundaryReason.DUPLICATION,
                f"`{edge.producer.name}` reads more than it makes and cannot be fused into all of"
                f" its {len(edge.producer.users)} users on all paths.",
                xla="operand can not be duplicated",
                users=len(edge.producer.users),
            )
        return self._ask_rules(edge)

    def _ask_rules(self, edge: Edge) -> FusionDecision:
        return self.options.rules.should_fuse(edge, may_duplicate=self.options.may_duplicate)

    def _fuse(self, edge: Edge) -> tuple[HloInstruction, list[HloInstruction]]:
        """Returns the fusion, and what the producer reads."""
        producer, kind = edge.producer, self.options.rules.kind(edge)
        fusion, growing, read = edge.consumer, edge.growing, producer.operands.copy()
        if growing is None:
            fusion = self.fuser.wrap(fusion, kind)
            growing = self._growing(fusion)
        fusion, member = self.fuser.take_in(producer, fusion, kind)
        if growing is not None:
            growing.absorb(producer, member, read)
        if not producer.users:
            self.kept.discard(producer)
            self.queue[self.position.pop(producer)] = None
        return fusion, read

    def _growing(self, consumer: HloInstruction) -> GrowingFusion | None:
        if consumer.opcode != "fusion":
            return None
        if consumer not in self.growing:
            self.growing[consumer] = GrowingFusion(consumer)
        return self.growing[consumer]

    def _would_fuse(self, consumer: HloInstruction, index: int) -> bool:
        edge = Edge(consumer.operands[index], consumer, index, self._growing(consumer))
        return self._ask_rules(edge).can_fuse
