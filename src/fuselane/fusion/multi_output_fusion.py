"""Multi-output fusion: kernels with several results, so that work is done and data read once.

    %a = f32[8] fusion(%x)                   %f = (f32[8], f32[8]) fusion(%x)
    %b = f32[8] fusion(%x)           ->      (siblings, which both read %x)

    %p = f32[8] exponential(%x)              %f = (f32[8], f32[8]) fusion(%x)
    %c = f32[8] reduce(%p, ...)      ->      (a producer and a consumer; %q reads
    %q = f32[8] fusion(%p)                    what the producer made from %f)

From uses to definitions, each instruction's users are fused with each other, and then it itself is
fused with the user best suited.

Source: xla/backends/gpu/transforms/multi_output_fusion.cc and xla/service/gpu/gpu_fusible.cc of
2026; fields tell earlier years.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Final, final

from fuselane.boundary import BoundaryReason
from fuselane.fusion.decision import FusionDecision, FusionLog, allow, refuse
from fuselane.fusion.fuse import INPUT, LOOP, Fuser
from fuselane.fusion.gpu.candidates import Candidate
from fuselane.fusion.gpu.costs import fuse_cost
from fuselane.fusion.gpu.durations import LAUNCH, TICKS_PER_US
from fuselane.fusion.gpu.model import PerformanceModel
from fuselane.fusion.gpu.model_2024 import YEAR, model_of
from fuselane.fusion.gpu.outputs import check_loop_shapes, check_slices, check_updates
from fuselane.fusion.gpu.rules import GpuRules
from fuselane.fusion.in_place import in_place_operands
from fuselane.fusion.opcodes import is_effective_scalar, is_elementwise, is_fusible
from fuselane.fusion.rules import describe, reason_of
from fuselane.fusion.traversal import Reachability, sequential_computations, xla_post_order
from fuselane.gpu import GPUS, GpuDescription
from fuselane.hlo.computation import HloComputation
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.module import HloModule

_NO_PARENTS: Final = frozenset({"constant", "tuple"})


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class MultiOutputFusion:
    """Fuses siblings, and producers with consumers without taking them from others.

    Attributes:
        scalar_parents: Siblings may be those that only share a single number, as until 2024.
        disjoint_slices: Siblings may be those that read different slices of an array, as until
            2023-07.
        priced: A producer and a consumer become one kernel only if its code is not too large and a
            model of the GPU's time does not speak against it, as since 2022-11.
        model_year: The model is that of 2022 and 2023, of 2024, or, later, today's.
        gpu: What kernels are priced for.
        rules: What a kernel may hold.
    """

    name: ClassVar[str] = "multi-output-fusion"
    scalar_parents: bool = False
    disjoint_slices: bool = False
    priced: bool = True
    model_year: int = 2026
    gpu: GpuDescription = GPUS["h100"]
    rules: GpuRules = field(default_factory=GpuRules)

    def run(self, module: HloModule, log: FusionLog) -> bool:
        """Fuses what the rules allow; returns whether anything was."""
        computations = sequential_computations(module)
        changed = [_Walk(self, module, c, log).run() for c in computations]
        return any(changed)


@final
class _Walk:
    """One computation on its way through the pass."""

    def __init__(
        self,
        options: MultiOutputFusion,
        module: HloModule,
        computation: HloComputation,
        log: FusionLog,
    ) -> None:
        self.options = options
        self.rules = options.rules
        self.fuser = Fuser(module, computation)
        self.log = log
        self.model = PerformanceModel(options.gpu)
        self.order = xla_post_order(computation)
        self.reachability = Reachability(self.order)
        self.candidates: dict[HloInstruction, Candidate] = {}

    def run(self) -> bool:
        changed = False
        for parent in reversed(self.order):
            if parent.opcode in _NO_PARENTS or self._candidate(parent).is_custom:
                continue
            changed |= self._fuse_users(parent)
            changed |= self._fuse_with_user(parent)
        if changed:
            self.model.leave_costs()
            self.fuser.finish()
        return changed

    # Siblings.

    def _fuse_users(self, parent: HloInstruction) -> bool:
        """Fuses the users of an instruction with each other."""
        if len(parent.users) < 2 or self._is_free_to_read(parent):
            return False
        users = [self._candidate(user) for user in parent.users]
        siblings = [user for user in users if _check_root(user) is None]
        siblings.sort(key=_rank, reverse=True)
        position, changed = 0, False
        while position < len(siblings) and siblings[position].is_fusion:
            changed |= self._fuse_later_ones(parent, siblings, position)
            position += 1
        return changed

    def _fuse_later_ones(
        self, parent: HloInstruction, siblings: list[Candidate], position: int
    ) -> bool:
        """Fuses one of several siblings with those that come after it, which it replaces."""
        first, changed = siblings[position], False
        for second in siblings[position + 1 :]:
            decision = self._check_siblings(parent, first, second)
            fusion = self._merge(first, second) if decision.can_fuse else None
            self.log.note(self.options.name, first, second, decision, fusion)
            if fusion is not None:
                changed = True
                siblings.remove(second)
                siblings[position] = first = self._candidate(fusion)
        return changed

    def _is_free_to_read(self, parent: HloInstruction) -> bool:
        if self.options.scalar_parents:
            return False
        return is_effective_scalar(parent.shape)

    def _check_siblings(
        self, parent: HloInstruction, first: Candidate, second: Candidate
    ) -> FusionDecision:
        refusal = (
            self._check_connected(first, second)
            or check_loop_shapes(first, second)
            or (None if self.options.disjoint_slices else check_slices(parent, first, second))
            or check_updates(first, second)
            or self._check_budget(first, second)
        )
        return refusal or allow(f"`{first.name}` and `{second.name}` both read `{parent.name}`.")

    def _check_connected(self, first: Candidate, second: Candidate) -> FusionDecision | None:
        if not self.reachability.are_connected(first.instruction, second.instruction):
            return None
        return refuse(
            BoundaryReason.MULTI_OUTPUT,
            f"One of `{first.name}` and `{second.name}` needs the other's result.",
            xla="the consumers are connected",
        )

    # A producer and a consumer.

    def _fuse_with_user(self, producer: HloInstruction) -> bool:
        """Fuses an instruction with one of its users, and keeps its result for the others."""
        users = producer.users
        if not users or (len(users) == 1 and not self._candidate(users[0]).is_multi_output):
            return False
        of = self._candidate(producer)
        refusal = _check_producer(of)
        if refusal is not None:
            self.log.note(self.options.name, of, None, refusal)
            return False
        best: tuple[Candidate, FusionDecision] | None = None
        for user in users:
            into = self._candidate(user)
            decision = self._check_consumer(of, into)
            if not decision.can_fuse:
                self.log.note(self.options.name, of, into, decision)
            elif best is None or _rank(into) > _rank(best[0]):
                best = into, decision
        if best is None:
            return False
        self.log.note(self.options.name, of, *best, self._merge(best[0], of))
        return True

    def _check_consumer(self, of: Candidate, into: Candidate) -> FusionDecision:
        refusal = (
            _check_root(into)
            or check_loop_shapes(of, into)
            or self._check_cycle(of, into)
            or self._check_budget(of, into)
        )
        if refusal is not None:
            return refusal
        if not self.options.priced:
            return allow(f"One kernel computes `{of.name}` and `{into.name}`.")
        return self._check_code(of, into) or self._price(of, into)

    def _check_code(self, of: Candidate, into: Candidate) -> FusionDecision | None:
        producer, consumer = of.instruction, into.instruction
        costs = self.model.cost(producer), self.model.cost(consumer)
        return self.rules.check_code(producer, consumer, *costs)

    def _check_cycle(self, of: Candidate, into: Candidate) -> FusionDecision | None:
        producer = of.instruction
        for operand in into.instruction.operands:
            if operand is not producer and self.reachability.is_reachable(producer, operand):
                return refuse(
                    BoundaryReason.MULTI_OUTPUT,
                    f"`{into.name}` also reads `{operand.name}`, which needs `{of.name}` first.",
                    xla="would introduce a cycle when fused",
                )
        return None

    def _price(self, of: Candidate, into: Candidate) -> FusionDecision:
        """Returns whether one kernel with two results takes no longer than two kernels."""
        unfused_us, fused_us = self._times_us(of.instruction, into.instruction)
        numbers = {"unfused_us": unfused_us, "fused_us": fused_us}
        if fused_us > unfused_us:
            return refuse(
                BoundaryReason.SLOWER,
                f"One kernel for `{of.name}` and `{into.name}` takes {fused_us:.2f} us, two"
                f" {unfused_us:.2f} us.",
                xla="will execute slower if fused",
                **numbers,
            )
        return allow(
            f"One kernel for `{of.name}` and `{into.name}` takes {fused_us:.2f} us, two"
            f" {unfused_us:.2f} us.",
            **numbers,
        )

    def _times_us(self, producer: HloInstruction, consumer: HloInstruction) -> tuple[float, float]:
        model = self.model
        if self.options.model_year <= YEAR:
            compute_times = model_of(self.options.model_year)
            times = compute_times(producer, [consumer], model, is_multi_output=True)
            return times.unfused * 1e6, times.fused * 1e6
        unfused = 2 * LAUNCH + model.time(producer).total + model.time(consumer).total
        of, into = model.kernel(producer), model.kernel(consumer)
        plan = model.plan_of(into, of)
        fused = LAUNCH + model.fused_ticks(of, into, plan, is_multi_output=True)
        return unfused / TICKS_PER_US, fused / TICKS_PER_US

    # Both.

    def _check_budget(self, left: Candidate, right: Candidate) -> FusionDecision | None:
        heavy = [*left.heavy, *right.heavy]
        return self.rules.check_heavy(heavy) or self.rules.check_operands(
            left.instruction, right.instruction, is_vertical=False
        )

    def _merge(self, into: Candidate, other: Candidate) -> HloInstruction:
        """Makes one kernel of two, and returns it."""
        first, second = into.instruction, other.instruction
        kind = INPUT if into.is_input_fusible or other.is_input_fusible else LOOP
        has_control_edges = second.control_predecessors or second.control_successors
        is_returned = second.users != [first] or bool(has_control_edges)
        costs = self.model.cost(second), self.model.cost(first)
        cost, places = fuse_cost(second, first, *costs, is_returned=is_returned)
        opcodes = self.model.opcodes(first) | self.model.opcodes(second)
        if is_returned:
            opcodes |= {"tuple"}
            fusion = self.fuser.fuse_multi_output(second, first, kind)
        else:
            fusion, _ = self.fuser.fuse(second, first, kind)
        self.reachability.merge(first, second, fusion)
        for changed in (first, second, fusion):
            self.candidates.pop(changed, None)
            self.model.forget(changed)
        if into.is_fusion and not other.heavy:
            tiled = self.rules.tiled_emitters
            self.candidates[fusion] = Candidate(fusion, tiled=tiled, heavy=into.heavy)
        if cost.is_exact:  # else it is summed up in one piece, when asked for
            cost.settle([places[operand] for operand in fusion.operands])
            self.model.learn(fusion, cost, opcodes)
        for reader in fusion.users:
            self.model.forget_operands(reader)
        return fusion

    def _candidate(self, instruction: HloInstruction) -> Candidate:
        if instruction not in self.candidates:
            tiled = self.rules.tiled_emitters
            self.candidates[instruction] = Candidate(instruction, tiled=tiled)
        return self.candidates[instruction]


def _rank(candidate: Candidate) -> int:
    """Returns how gladly others are fused into a candidate."""
    if candidate.is_multi_output:
        return 2
    return 1 if candidate.instruction.opcode == "fusion" else 0


def _check_root(candidate: Candidate) -> FusionDecision | None:
    """Refuses what cannot make one of several results of a kernel."""
    instruction = candidate.instruction
    if candidate.is_multi_output and not _has_only_elements(instruction):
        return refuse(
            BoundaryReason.TUPLE,
            f"The results of `{candidate.name}` are read as a tuple.",
            xla="not eligible as a multi-output fusion root",
        )
    if any(r.shape.is_tuple and not candidate.is_unnested(r) for r in candidate.roots):
        return refuse(
            BoundaryReason.LOOP_SHAPES,
            f"`{candidate.name}` reduces several arrays at once, element by element.",
            xla="not eligible as a multi-output fusion root",
        )
    is_loop = instruction.opcode == "fusion" and instruction.fusion_kind == LOOP
    is_simple = instruction.opcode != "fusion" and is_elementwise(instruction)
    if (
        is_fusible(instruction)
        and not candidate.is_custom
        and (is_loop or is_simple or candidate.is_reduction or candidate.is_transpose)
    ):
        return None
    return refuse(
        reason_of(instruction),
        f"{describe(instruction)}, cannot be one of several results.",
        xla="not eligible as a multi-output fusion root",
    )


def _has_only_elements(instruction: HloInstruction) -> bool:
    """Whether all readers of a tuple take an element of it."""
    if instruction.is_root:
        return False
    return all(user.opcode == "get-tuple-element" for user in instruction.users)


def _check_producer(of: Candidate) -> FusionDecision | None:
    """Refuses what no consumer can compute for others as well."""
    if of.is_multi_output:
        detail = f"`{of.name}` has {len(of.instruction.shape.tuple_shapes)} results already."
        return refuse(BoundaryReason.MULTI_OUTPUT, detail, xla="producer is a multi-output fusion")
    if in_place_operands(of.instruction):
        detail = f"`{of.name}` updates an operand in place."
        return refuse(BoundaryReason.IN_PLACE, detail, xla="In-place operations are present")
    if not of.is_loop_producer(or_unnested=True):
        return refuse(
            reason_of(of.instruction),
            f"No loop can compute {describe(of.instruction)}, on the way.",
            xla="producer is not loop-fusible",
        )
    if of.is_transposing:
        detail = f"`{of.name}` moves elements to other places of memory."
        return refuse(BoundaryReason.LAYOUT, detail, xla="producer is physically transposing")
    return None
