"""Priority fusion: XLA:GPU's strategy since 2024, the gain of fusing a producer into all its users.

    priority = launch + time(P) + sum over users C of (time(C) - time(C with P inside))

The producer of the highest priority is fused into all of its users, which changes the priorities of
what they read; and so on while any is not negative. Bitcasts come first, and scalar constants last.

Source: xla/backends/gpu/transforms/priority_fusion.cc of 2026. Does not handle: Triton fusions,
which stay as they are.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Final, final

from fuselane.boundary import BoundaryReason
from fuselane.fusion.decision import FusionDecision, FusionLog, allow, refuse
from fuselane.fusion.fuse import LOOP, Fuser
from fuselane.fusion.gpu.costs import fuse_cost
from fuselane.fusion.gpu.emitters import Emitter
from fuselane.fusion.gpu.kernel_cost import KernelCost
from fuselane.fusion.gpu.model import (
    LAUNCH,
    TICKS_PER_US,
    Kernel,
    PerformanceModel,
    places_in,
)
from fuselane.fusion.gpu.plans import Plan
from fuselane.fusion.gpu.region import Opcodes
from fuselane.fusion.gpu.rules import (
    Demands,
    GpuRules,
    check_pair,
    check_scatter,
    is_free_bitcast,
    is_small_constant,
)
from fuselane.fusion.opcodes import ELEMENTWISE, is_fusible
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
class _Pair:
    """What is known of one edge.

    Attributes:
        into: What is known of the user.
        refusal: Why it is refused; None if it is not.
        plan: How it would be made, if that was looked at.
        won: Ticks of the user's that its own kernel takes longer than the one with the producer
            inside; None until asked for.
    """

    __slots__ = ("into", "plan", "refusal", "won")

    def __init__(self, into: Kernel, refusal: FusionDecision | None, plan: Plan | None) -> None:
        self.into = into
        self.refusal = refusal
        self.plan = plan
        self.won: int | None = None


_Pairs = dict[HloInstruction, _Pair]


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
        self.pairs: dict[HloInstruction, _Pairs] = {}
        """By producer and user; dropped when either changes."""
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
        self.fuser.make_bodies(self.model.may_share)
        self.model.leave_costs()
        self._fuse_constants()
        if self.changed:
            self.fuser.finish()
        return self.changed

    # Priorities.

    def _price(
        self, producer: HloInstruction, new: Sequence[HloInstruction] = (), removed: int = 0
    ) -> None:
        """Puts a producer into the queue where its gain belongs, or takes it out.

        Args:
            producer: What may be computed in all its users.
            new: Those that changed, if any.
            removed: What they contributed, with the producer's own time.
        """
        before = self.priority.pop(producer, None)
        if not producer.users or not _may_be_fused(producer):
            return
        if is_free_bitcast(producer):
            priority = _FIRST
        else:
            of, known = self.model.kernel(producer), self.pairs.get(producer)
            pairs = self.pairs[producer] = {} if known is None else known
            is_new = not new or before is None
            users = producer.users if is_new or known is None else new  # the others don't refuse
            if not self._can_fuse(of, pairs, users):
                return
            if is_new or before is None:
                priority = LAUNCH + self._gain(of, pairs, producer.users)
            else:
                priority = before - removed + self._gain(of, pairs, new)
            if priority < 0:
                self.log.note(self.options.name, producer, None, _refuse_slower(producer, priority))
                return
        self.priority[producer] = priority
        if priority != before:
            heapq.heappush(self.heap, (-priority, -producer.id, id(producer), producer))

    def _can_fuse(self, of: Kernel, pairs: _Pairs, users: Sequence[HloInstruction]) -> bool:
        """Whether a producer can be fused into users of it but bitcasts, of which one is none."""
        producer = of.instruction
        is_read = False
        for user in users:
            if user.opcode == "bitcast" and is_free_bitcast(user):
                continue
            is_read = True
            pair = pairs.get(user)
            refusal = (self._pair(of, user, pairs) if pair is None else pair).refusal
            if refusal is not None:
                if users is not producer.users:  # the first of all is to be noted
                    return self._can_fuse(of, pairs, producer.users)
                self.log.note(self.options.name, producer, user, refusal)
                return False
        if not is_read:
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
        return is_read

    def _gain(self, of: Kernel, pairs: _Pairs, users: Sequence[HloInstruction]) -> int:
        """Returns the ticks won, launches aside, by fusing a producer into users of it."""
        won = (of.time or self.model.time_of(of)).total
        for user in users:
            pair = pairs.get(user)
            if pair is None:
                pair = self._pair(of, user, pairs)
            won += self._won(of, pair) if pair.won is None else pair.won
        return won

    def _won(self, of: Kernel, pair: _Pair) -> int:
        model, into = self.model, pair.into
        ticks = model.fused_ticks(of, into, pair.plan or model.plan_of(into, of))
        pair.won = (into.time or model.time_of(into)).total - ticks
        return pair.won

    def _pair(self, of: Kernel, user: HloInstruction, pairs: _Pairs) -> _Pair:
        """Looks at a pair that is not known yet."""
        producer, into, model = of.instruction, self.model.kernel(user), self.model
        refusal: FusionDecision | None
        plan: Plan | None = None
        if of.is_plain and into.is_plain and not self.computation.has_root(producer):
            plan = model.plan_of(into, of)
            costs = of.cost or model.cost_of(of), into.cost or model.cost_of(into)
            place = (into.places or places_in(into))[producer]
            refusal = self.rules.check_size(producer, user, *costs, place)
        else:
            refusal = check_pair(producer, user)
            if refusal is None:
                plan = model.plan_of(into, of)
                costs = of.cost or model.cost_of(of), into.cost or model.cost_of(into)
                demands = model.demands_of(of), model.demands_of(into)
                emitters = model.plan_of(of).emission.emitter, plan.emission.emitter
                opcodes = of.opcodes | into.opcodes
                refusal = self.rules.check(producer, user, opcodes, costs, demands, emitters)
        pair = pairs[user] = _Pair(into, refusal, plan)
        return pair

    # Fusing.

    def _fuse_into_users(self, producer: HloInstruction, priority: int) -> None:
        model, users = self.model, producer.users.copy()
        of = model.kernel(producer)
        if priority == _FIRST:
            pairs = self.pairs.setdefault(producer, {})
            users = [
                user
                for user in users
                if (pairs.get(user) or self._pair(of, user, pairs)).refusal is None
            ]
        if not users:
            return
        decision, known = _worth(producer, priority), self.pairs.get(producer, {})
        cost_of, demands_of = model.cost_of(of), model.demands_of(of)
        updates: dict[HloInstruction, list[HloInstruction]] = {}
        new: dict[HloInstruction, tuple[KernelCost, Opcodes, Plan | None, Demands]] = {}
        for user in users:
            if is_free_bitcast(user):
                continue
            into = model.kernel(user)
            demands = model.demands_of(into).plus(demands_of)
            cost, places = fuse_cost(producer, user, cost_of, model.cost_of(into))
            plan, pair = model.plan_of(into), known.get(user)
            fused_plan = (pair and pair.plan) or model.plan_of(into, of)
            fusion = self._fuse(producer, user, decision, fused_plan.emission.emitter)
            cost.settle([places[operand] for operand in fusion.operands])
            opcodes = into.opcodes if of.opcodes <= into.opcodes else into.opcodes | of.opcodes
            kept: Plan | None = None
            if fusion is user and fused_plan is plan:
                kept = plan
            elif fusion is user and plan.is_kept and not of.is_shaping:
                kept = fused_plan.of_fusion(fusion, opcodes)
            new[fusion] = cost, opcodes, kept, demands
            if fusion is not user:
                self.priority.pop(user, None)
                updates.pop(user, None)
            for operand in fusion.operands:
                if operand in updates:
                    updates[operand].append(fusion)
                elif _may_be_fused(operand):
                    updates[operand] = [fusion]
        gone = [*users, producer]
        removed = {
            operand: self._share(operand, gone)
            for operand in updates
            if operand in self.priority and not is_free_bitcast(operand)
        }
        if not producer.users:
            self._forget(producer)
        for user in users:
            self._forget(user)
        for fusion, (cost, opcodes, kept, demands) in new.items():
            model.learn(fusion, cost, opcodes, kept, demands)
        for instruction in dict.fromkeys([*new, *updates]):
            self._price(instruction, updates.get(instruction, ()), removed.get(instruction, 0))

    def _share(self, producer: HloInstruction, users: Iterable[HloInstruction]) -> int:
        """Returns what users contributed to a producer's gain, with its own time."""
        share = self.model.time(producer).total
        known = self.pairs.get(producer, {})
        for user in users:
            if user in known:
                share += known[user].won or 0
        return share

    def _fuse(
        self,
        producer: HloInstruction,
        user: HloInstruction,
        decision: FusionDecision,
        emitter: Emitter,
    ) -> HloInstruction:
        kind = emitter.fusion_kind if self.rules.tiled_emitters else LOOP
        fusion = self.fuser.merge(producer, user, kind)
        if fusion is not user:
            for reader in fusion.users:
                self.model.exchange_operand(reader, user, fusion)
        self.log.note(self.options.name, producer, user, decision, fusion)
        self.changed = True
        return fusion

    def _forget(self, instruction: HloInstruction) -> None:
        """Drops what is known of an instruction that changed or is gone."""
        self.model.forget(instruction)
        self.pairs.pop(instruction, None)
        for operand in instruction.operands:
            pairs = self.pairs.get(operand)
            if pairs is not None:
                pairs.pop(instruction, None)

    def _fuse_constants(self) -> None:
        constants = [i for i in xla_post_order(self.computation) if is_small_constant(i)]
        for constant in constants:
            for user in list(constant.users):
                if check_pair(constant, user) is None and check_scatter(constant, user) is None:
                    detail = f"`{constant.name}` is a constant of one element."
                    emitter = self.model.plan(user, constant).emission.emitter
                    self._fuse(constant, user, allow(detail), emitter)


def _may_be_fused(instruction: HloInstruction) -> bool:
    """Whether an instruction is a producer at all."""
    opcode = instruction.opcode
    if opcode in ELEMENTWISE or opcode == "fusion":
        return True
    return opcode not in _NOT_PRODUCERS and is_fusible(instruction)


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
