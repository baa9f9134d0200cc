"""Priority fusion: XLA:GPU's strategy since 2024, the gain of fusing a producer into all its users.

    priority = launch + time(P) + sum over users C of (time(C) - time(C with P inside))

The producer of the highest priority is fused into all of its users, which changes the priorities of
what they read; and so on while any is not negative. Bitcasts come first, and scalar constants last.

Source: xla/backends/gpu/transforms/priority_fusion.cc of 2026, by `xla_fusion_facts.md` section
3.2. Does not handle: Triton fusions, which stay as they are.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Final, final

from fuselane.boundary import BoundaryReason
from fuselane.fusion.decision import FusionDecision, FusionLog, allow, refuse
from fuselane.fusion.fuse import LOOP, Fuser
from fuselane.fusion.gpu.costs import KernelCost, fuse_cost
from fuselane.fusion.gpu.model import LAUNCH, TICKS_PER_US, PerformanceModel, Plan
from fuselane.fusion.gpu.region import Opcodes
from fuselane.fusion.gpu.rules import (
    Demands,
    GpuRules,
    check_pair,
    check_scatter,
    demands_of,
    is_free_bitcast,
    is_small_constant,
    is_unguarded,
)
from fuselane.fusion.opcodes import is_fusible
from fuselane.fusion.traversal import sequential_computations, xla_post_order
from fuselane.gpu import GPUS, GpuDescription
from fuselane.hlo.computation import HloComputation
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.module import HloModule

_FIRST: Final = 1 << 62
"""Priority of bitcasts, in ticks."""

_NOT_PRODUCERS: Final = frozenset({"parameter", "tuple", "get-tuple-element", "constant"})


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class PriorityFusion:
    """Fuses producers into all their users, by falling gain.

    Attributes:
        gpu: What kernels are priced for.
        rules: What a kernel may hold.
    """

    name: ClassVar[str] = "priority-fusion"
    gpu: GpuDescription = GPUS["h100"]
    rules: GpuRules = field(default_factory=GpuRules)

    def run(self, module: HloModule, log: FusionLog) -> bool:
        """Fuses what is worth it; returns whether anything was."""
        computations = sequential_computations(module)
        changed = [_Queue(self, module, c, log).run() for c in computations]
        return any(changed)


@final
@dataclass(slots=True)
class _Update:
    """How the users of a producer changed: the new ones, and what those gone contributed."""

    users: list[HloInstruction] = field(default_factory=list)
    removed: int = 0


@final
@dataclass(slots=True)
class _Pair:
    """What is known of one edge: whether it is refused, how it would be made, and the time once
    asked for."""

    refusal: FusionDecision | None
    plan: Plan | None = None
    ticks: int | None = None
    """Of the user with the producer inside."""


@final
class _Queue:
    """One computation on its way through the pass.

    Gains are kept as XLA keeps them, as sums to which the edges that are new are added and from
    which those that are gone are taken. An edge whose user did not change keeps its old share
    even where its producer grew, and that share stays for good once the producer did grow.
    """

    def __init__(
        self,
        options: PriorityFusion,
        module: HloModule,
        computation: HloComputation,
        log: FusionLog,
    ) -> None:
        self.options = options
        self.rules = options.rules
        self.computation = computation
        self.fuser = Fuser(module, computation)
        self.log = log
        self.model = PerformanceModel(options.gpu)
        self.pairs: dict[HloInstruction, dict[HloInstruction, _Pair]] = {}
        """By producer and user; dropped when either changes."""
        self.demands: dict[HloInstruction, Demands] = {}
        self.priority: dict[HloInstruction, int] = {}
        self.heap: list[tuple[int, int, int, HloInstruction]] = []
        self.changed = False

    def run(self) -> bool:
        for instruction in xla_post_order(self.computation):
            self._price(instruction)
        while self.heap:
            priority, _, _, producer = heapq.heappop(self.heap)
            if self.priority.get(producer) == -priority:
                self._fuse_into_users(producer, self.priority.pop(producer))
        self._fuse_constants()
        if self.changed:
            self.fuser.finish()
        return self.changed

    # Priorities.

    def _price(self, producer: HloInstruction, update: _Update | None = None) -> None:
        """Puts a producer into the queue where its gain belongs, or takes it out."""
        before = self.priority.pop(producer, None)
        if not producer.users or producer.opcode in _NOT_PRODUCERS or not is_fusible(producer):
            return
        if is_free_bitcast(producer):
            priority: int | None = _FIRST
        elif not self._can_fuse(producer):
            priority = None
        elif update is None or before is None:
            priority = LAUNCH + self._gain(producer, producer.users)
        else:
            priority = before - update.removed + self._gain(producer, update.users)
        if priority is None:
            return
        if priority < 0:
            self.log.note(self.options.name, producer, None, _refuse_slower(producer, priority))
            return
        self.priority[producer] = priority
        heapq.heappush(self.heap, (-priority, -producer.id, id(producer), producer))

    def _can_fuse(self, producer: HloInstruction) -> bool:
        """Whether a producer can be fused into all its users but bitcasts, of which one is none."""
        known = self.pairs.setdefault(producer, {})
        num_users = 0
        for user in producer.users:
            if user.opcode == "bitcast" and is_free_bitcast(user):
                continue
            num_users += 1
            refusal = (known.get(user) or self._pair(producer, user)).refusal
            if refusal is not None:
                self.log.note(self.options.name, producer, user, refusal)
                return False
        if not num_users:
            self.log.note(
                self.options.name,
                producer,
                None,
                refuse(
                    BoundaryReason.NOT_FUSIBLE,
                    f"`{producer.name}` is only read through bitcasts.",
                    xla="not fusing because there are only bitcast users",
                ),
            )
        return num_users > 0

    def _gain(self, producer: HloInstruction, users: Sequence[HloInstruction]) -> int:
        """Returns the ticks won, launches aside, by fusing a producer into users of it."""
        won = self.model.time(producer).total
        for user in users:
            won += self.model.time(user).total - self._fused_ticks(producer, user)
        return won

    def _fused_ticks(self, producer: HloInstruction, user: HloInstruction) -> int:
        pair = self._pair(producer, user)
        if pair.ticks is None:
            plan = pair.plan or self.model.plan(user, producer)
            pair.ticks = self.model.fused_ticks(producer, user, plan)
        return pair.ticks

    def _pair(self, producer: HloInstruction, user: HloInstruction) -> _Pair:
        known = self.pairs.setdefault(producer, {})
        pair = known.get(user)
        if pair is None:
            pair = known[user] = self._examine(producer, user)
        return pair

    def _examine(self, producer: HloInstruction, user: HloInstruction) -> _Pair:
        refusal = check_pair(producer, user)
        if refusal is not None:
            return _Pair(refusal)
        plan = self.model.plan(user, producer)
        costs = self.model.cost(producer), self.model.cost(user)
        if is_unguarded(self.model.opcodes(producer)) and is_unguarded(self.model.opcodes(user)):
            return _Pair(self.rules.check_plain(producer, user, *costs), plan)
        demands = self._demands_of(producer), self._demands_of(user)
        return _Pair(self.rules.check(producer, user, costs, demands, plan.emission), plan)

    def _demands_of(self, instruction: HloInstruction) -> Demands:
        demands = self.demands.get(instruction)
        if demands is None:
            demands = self.demands[instruction] = demands_of(self.model.plan(instruction).region)
        return demands

    # Fusing.

    def _fuse_into_users(self, producer: HloInstruction, priority: int) -> None:
        users = [
            user
            for user in producer.users
            if priority != _FIRST or self._pair(producer, user).refusal is None
        ]
        if not users:
            return
        decision = _worth(producer, priority)
        updates: dict[HloInstruction, _Update] = {}
        new: dict[HloInstruction, tuple[KernelCost, Opcodes, Plan | None]] = {}
        for user in users:
            if is_free_bitcast(user):
                continue
            opcodes = self.model.opcodes(user) | self.model.opcodes(producer)
            cost, places = fuse_cost(producer, user, self.model.cost(user))
            plan = self.model.plan(user)
            stays = self.model.plan(user, producer) is plan
            fusion = self._fuse(producer, user, decision)
            cost.settle([places[operand] for operand in fusion.operands])
            new[fusion] = cost, opcodes, plan if stays and fusion is user else None
            if fusion is not user:
                self.priority.pop(user, None)
                updates.pop(user, None)
            for operand in fusion.operands:
                if operand.opcode not in _NOT_PRODUCERS and is_fusible(operand):
                    updates.setdefault(operand, _Update()).users.append(fusion)
        for operand, update in updates.items():
            if operand in self.priority and not is_free_bitcast(operand):
                update.removed = self._share(operand, [*users, producer])
        if not producer.users:
            self._forget(producer)
        for user in users:
            self._forget(user)
        for fusion, known in new.items():
            self.model.learn(fusion, *known)
        for instruction in dict.fromkeys([*new, *updates]):
            self._price(instruction, updates.get(instruction))

    def _share(self, producer: HloInstruction, users: Sequence[HloInstruction]) -> int:
        """Returns what users contributed to a producer's gain, with its own time."""
        share = self.model.time(producer).total
        known = self.pairs.get(producer, {})
        for user in users:
            pair = known.get(user)
            if pair is not None and pair.ticks is not None:
                share += self.model.time(user).total - pair.ticks
        return share

    def _fuse(
        self, producer: HloInstruction, user: HloInstruction, decision: FusionDecision
    ) -> HloInstruction:
        kind = LOOP
        if self.rules.tiled_emitters:
            pair = self.pairs.get(producer, {}).get(user)
            plan = (pair and pair.plan) or self.model.plan(user, producer)
            kind = plan.emission.emitter.fusion_kind
        fusion, _ = self.fuser.fuse(producer, user, kind)
        if fusion is not user:
            for reader in fusion.users:
                self.model.forget_operands(reader)
        self.log.note(self.options.name, producer, user, decision, fusion)
        self.changed = True
        return fusion

    def _forget(self, instruction: HloInstruction) -> None:
        """Drops what is known of an instruction that changed or is gone."""
        self.model.forget(instruction)
        self.demands.pop(instruction, None)
        self.pairs.pop(instruction, None)
        for operand in instruction.operands:
            self.pairs.get(operand, {}).pop(instruction, None)

    def _fuse_constants(self) -> None:
        constants = [i for i in xla_post_order(self.computation) if is_small_constant(i)]
        for constant in constants:
            for user in list(constant.users):
                if check_pair(constant, user) is None and check_scatter(constant, user) is None:
                    detail = f"`{constant.name}` is a constant of one element."
                    self._fuse(constant, user, allow(detail))


def _refuse_slower(producer: HloInstruction, gain: int) -> FusionDecision:
    gain_us = gain / TICKS_PER_US
    users = len(producer.users)
    detail = (
        f"Computing `{producer.name}` in its {users} users would take {-gain_us:.2f} us longer."
    )
    return refuse(BoundaryReason.SLOWER, detail, users=users, gain_us=gain_us)


def _worth(producer: HloInstruction, priority: int) -> FusionDecision:
    """Returns a yes with what is gained by fusing a producer into all its users."""
    if priority == _FIRST:
        return allow(f"`{producer.name}` is a bitcast, which costs nothing in a kernel.")
    gain_us = priority / TICKS_PER_US
    detail = f"Computing `{producer.name}` in all kernels that read it saves {gain_us:.2f} us."
    return allow(detail, gain_us=gain_us)
