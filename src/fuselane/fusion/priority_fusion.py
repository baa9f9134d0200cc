"""Priority fusion: XLA:GPU's strategy since 2024, the gain of fusing a producer into all its users.

    priority = launch + time(P) + sum over users C of (time(C) - time(C with P inside))

The producer of the highest priority is fused into all of its users, which changes the priorities of
what they read; and so on while any is not negative. Bitcasts come first, and scalar constants last.

Source: xla/backends/gpu/transforms/priority_fusion.cc of 2026. Does not handle: Triton fusions,
which stay as they are.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import ClassVar, Final, final

from fuselane.boundary import BoundaryReason
from fuselane.fusion.decision import FusionDecision, FusionLog, allow, refuse
from fuselane.fusion.fuse import LOOP, Fuser
from fuselane.fusion.gpu.costs import fuse_cost
from fuselane.fusion.gpu.durations import LAUNCH, TICKS_PER_US
from fuselane.fusion.gpu.emitters import Emitter
from fuselane.fusion.gpu.kernel import Kernel, places_in
from fuselane.fusion.gpu.kernel_cost import KernelCost
from fuselane.fusion.gpu.model import PerformanceModel
from fuselane.fusion.gpu.plans import Plan
from fuselane.fusion.gpu.region import Opcodes, joined
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

_ID_BITS: Final = 64
_ID: Final = (1 << _ID_BITS) - 1

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
        self.priority: dict[HloInstruction, int] = {}
        self.heap: list[int] = []
        """Negated ranks: priorities, and which instruction has it, the last one first. Some are of
        before a priority fell."""
        self.highest: dict[HloInstruction, int] = {}
        """The highest priority by which an instruction is in the heap."""
        self.producers: dict[int, HloInstruction] = {}
        """Instructions by id."""
        self.changed = False

    def run(self) -> bool:
        order = xla_post_order(self.computation)
        for instruction in order:
            self._weigh(self.model.kernel(instruction))
        for instruction in filter(_may_be_fused, order):
            self._price(instruction)
        while self.heap:
            rank = -heapq.heappop(self.heap)
            producer = self.producers[rank & _ID]
            priority = self.priority.get(producer)
            self.highest.pop(producer, None)
            if priority is None:
                continue
            if priority < rank >> _ID_BITS:
                self._enqueue(producer, priority)
            else:
                self._fuse_into_users(producer, self.priority.pop(producer))
        grown = self._fuse_constants()
        self.fuser.make_bodies(self.model.may_share)
        for fusion in grown:  # its cost is of before
            self.model.forget(fusion)
        self.model.leave_costs()
        if self.changed:
            self.fuser.finish()
        return self.changed

    # Priorities.

    def _price(
        self,
        producer: HloInstruction,
        new: Sequence[Kernel] = (),
        lost: int = 0,
        *,
        has_grown: bool = False,
        are_open: bool = False,
    ) -> None:
        """Puts a producer into the queue where its gain belongs, or takes it out.

        Args:
            producer: What may be computed in all its users, by its opcode.
            new: Those that changed, if any; nothing is known of them.
            lost: What its gain was larger by for users that changed or are gone.
            has_grown: Whether it changed itself.
            are_open: Whether all `new` ones are open, see `Kernel`.
        """
        before = self.priority.pop(producer, None)
        if not producer.users:
            return
        if is_free_bitcast(producer):
            priority = _FIRST
        else:
            model = self.model
            of = model.kernel(producer)
            if not new or before is None:
                users = model.kernels(producer.users)
                if not self._can_fuse(of, users):
                    return
                time = of.time or model.time_of(of)
                priority = LAUNCH + time.total + model.ticks_won(of, users)
            else:
                is_fusible = not has_grown and (
                    (are_open and of.is_light and not producer.is_root)
                    or self._can_fuse(of, new, are_all=False)
                )
                if not is_fusible and not self._can_fuse(of, model.kernels(producer.users)):
                    return
                priority = before - lost + model.ticks_won(of, new)
            if priority < 0:
                self.log.note(self.options.name, producer, None, _refuse_slower(producer, priority))
                return
        self.priority[producer] = priority
        if priority > self.highest.get(producer, -1):
            self._enqueue(producer, priority)

    def _enqueue(self, producer: HloInstruction, priority: int) -> None:
        self.highest[producer] = priority
        self.producers[producer.id] = producer
        heapq.heappush(self.heap, -(priority << _ID_BITS | producer.id))

    def _can_fuse(self, of: Kernel, users: Sequence[Kernel], *, are_all: bool = True) -> bool:
        """Whether a producer can be fused into users of it, but for bitcasts, of which one is none.
        If these are all of its users, a refusal is noted."""
        producer, is_read = of.instruction, False
        if of.is_light and all(map(_is_open, users)) and not producer.is_root:
            return True
        for into in users:
            if is_free_bitcast(into.instruction):
                continue
            is_read = True
            refusal = self._refusal(of, into)
            if refusal is not None:
                if are_all:
                    self.log.note(self.options.name, producer, into.instruction, refusal)
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

    def _weigh(self, kernel: Kernel) -> None:
        """Finds out whether a kernel is light, or open to such."""
        model, rules = self.model, self.rules
        takes_plain = kernel.is_plain or rules.takes_plain(
            kernel.instruction, kernel.opcodes, model.demands_of(kernel)
        )
        if takes_plain and rules.is_light(kernel.width, model.cost_of(kernel)):
            kernel.is_open, kernel.is_light = True, kernel.is_plain

    def _refusal(self, of: Kernel, into: Kernel) -> FusionDecision | None:
        """Returns why a producer cannot be fused into a user, if so."""
        producer, user = of.instruction, into.instruction
        model, rules = self.model, self.rules
        if of.is_plain and into.is_plain and not self.computation.has_root(producer):
            costs = of.cost or model.cost_of(of), into.cost or model.cost_of(into)
            return rules.check_size(producer, user, *costs, places_in(into)[producer])
        if producer not in into.refusals:
            into.refusals[producer] = self._find_refusal(of, into)
        return into.refusals[producer]

    def _find_refusal(self, of: Kernel, into: Kernel) -> FusionDecision | None:
        producer, user, model = of.instruction, into.instruction, self.model
        refusal = check_pair(producer, user)
        if refusal is not None:
            return refusal
        costs = of.cost or model.cost_of(of), into.cost or model.cost_of(into)
        demands = model.demands_of(of), model.demands_of(into)
        emitters = model.plan_of(of).emission.emitter, model.plan_of(into, of).emission.emitter
        opcodes = joined(of.opcodes, into.opcodes)
        return self.rules.check(producer, user, opcodes, costs, demands, emitters)

    # Fusing.

    def _fuse_into_users(self, producer: HloInstruction, priority: int) -> None:
        model, users = self.model, producer.users.copy()
        of = model.kernel(producer)
        if priority == _FIRST:
            users = [user for user in users if self._refusal(of, model.kernel(user)) is None]
        if not users:
            return
        decision = _worth(producer, priority)
        cost_of, demands_of = model.cost_of(of), model.demands_of(of)
        lost: dict[HloInstruction, int] = {}
        """What gains of operands were larger by for all that changes now."""
        _lose(of, lost)
        grown: dict[HloInstruction, int] = {}
        """What kernels took that grow, of which gains are not told anew for all users."""
        new: dict[HloInstruction, tuple[KernelCost, Opcodes, Plan | None, Demands]] = {}
        for user in users:
            if is_free_bitcast(user):
                continue
            into = model.kernel(user)
            demands = model.demands_of(into).plus(demands_of)
            cost, places = fuse_cost(producer, user, cost_of, model.cost_of(into))
            plan, fused_plan = model.plan_of(into), model.plan_of(into, of)
            _lose(into, lost)
            fusion = self._fuse(producer, user, decision, fused_plan.emission.emitter)
            cost.settle([places[operand] for operand in fusion.operands])
            opcodes = joined(of.opcodes, into.opcodes)
            kept: Plan | None = None
            if fusion is user:
                kept = _kept_plan(of, fusion, plan, fused_plan, opcodes)
            new[fusion] = cost, opcodes, kept, demands
            if fusion is not user:
                self.priority.pop(user, None)
            elif into.time is not None:
                grown[user] = into.time.total
        for gone in users if producer.users else [producer, *users]:
            model.forget(gone)
        updates: dict[HloInstruction, list[Kernel]] = {}
        are_open = True
        for fusion, (cost, opcodes, kept, demands) in new.items():
            kernel = model.learn(fusion, cost, opcodes, kept, demands)
            self._weigh(kernel)
            are_open = are_open and kernel.is_open
            for operand in fusion.operands:
                if operand in updates:
                    updates[operand].append(kernel)
                elif _may_be_fused(operand):
                    updates[operand] = [kernel]
        for instruction in dict.fromkeys([*new, *updates]):
            changed, less = updates.get(instruction, ()), lost.get(instruction, 0)
            if changed and instruction in grown:
                less += grown[instruction] - model.time(instruction).total
            has_grown = instruction in new
            self._price(instruction, changed, less, has_grown=has_grown, are_open=are_open)

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

    def _fuse_constants(self) -> list[HloInstruction]:
        """Fuses scalar constants into all their users; returns the fusions."""
        grown: list[HloInstruction] = []
        constants = [i for i in xla_post_order(self.computation) if is_small_constant(i)]
        for constant in constants:
            for user in list(constant.users):
                if check_pair(constant, user) is None and check_scatter(constant, user) is None:
                    detail = f"`{constant.name}` is a constant of one element."
                    emitter = self.model.plan(user, constant).emission.emitter
                    grown.append(self._fuse(constant, user, allow(detail), emitter))
        return grown


_is_open: Final = attrgetter("is_open")


def _lose(user: Kernel, lost: dict[HloInstruction, int]) -> None:
    """Adds up what a user that changes contributed to the gains of its operands."""
    for operand, won in user.won.items():
        if won:
            lost[operand] = lost.get(operand, 0) + won


def _kept_plan(
    of: Kernel, fusion: HloInstruction, before: Plan, fused: Plan, opcodes: Opcodes
) -> Plan | None:
    """Returns the plan of a fusion that grew, if it follows from what it was before and with the
    producer inside."""
    if fused is before:
        return before
    return fused.of_fusion(fusion, opcodes) if before.is_kept and not of.is_shaping else None


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
