"""Fusion merger: a loop fusion into all of its users, or into none.

    %f = f32[8] fusion(%x), kind=kLoop       %g = f32[8] fusion(%x), kind=kLoop
    %g = f32[8] fusion(%f), kind=kLoop  ->   %h = f32[8] fusion(%x), kind=kLoop
    %h = f32[8] fusion(%f), kind=kLoop       (both compute what %f did)

Until 2022-11 a merge had to keep the bytes that kernels transfer about the same; the paper
"Operator Fusion in XLA" describes that form. Later a model of a GPU's time decided (`priced`).

Source: xla/service/gpu/fusion_merger.cc of 2021, 2023 and 2024.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Final, final

from fuselane.boundary import BoundaryReason
from fuselane.fusion.decision import FusionDecision, FusionLog, allow, refuse
from fuselane.fusion.fuse import LOOP, Fuser
from fuselane.fusion.gpu.candidates import Candidate
from fuselane.fusion.gpu.classic import ClassicRules, kind_of
from fuselane.fusion.gpu.costs import fuse_cost
from fuselane.fusion.gpu.model import PerformanceModel
from fuselane.fusion.gpu.model_2024 import model_of
from fuselane.fusion.gpu.region import joined
from fuselane.fusion.growing import HEAVY, RECOMPUTED_INDICES, GrowingFusion
from fuselane.fusion.in_place import members
from fuselane.fusion.opcodes import leaf_shapes
from fuselane.fusion.reuse import reuses_operand
from fuselane.fusion.rules import check_control_edges, reason_of
from fuselane.fusion.traversal import sequential_computations, xla_post_order
from fuselane.gpu import GPUS, GpuDescription
from fuselane.hlo.computation import HloComputation
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.module import HloModule

_SLICES: Final = frozenset({"slice", "dynamic-slice"})


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class FusionMerger:
    """Merges loop fusions into all of their users.

    Attributes:
        priced: A model of the GPU's time decides, as since 2022-11; else the bytes transferred do.
        max_bytes_ratio: Bytes transferred after a merge over those before, at most.
        max_expensive_ratio: The same where expensive work would be done for more than
            `max_consumers` users.
        min_expensive_bytes: And only if more than this is transferred before.
        max_uncoalesced: Share of a fusion's elements that may be transposed on the way into a
            reduction; less than this. Only asked if `priced`.
        model_year: The model is that of 2022 and 2023, or, from 2024 on, of 2024. Only if `priced`.
        gpu: What kernels are priced for.
        rules: What a kernel may hold.
    """

    name: ClassVar[str] = "fusion-merger"
    priced: bool = False
    model_year: int = 2023
    max_bytes_ratio: float = 1.1
    max_expensive_ratio: float = 0.3
    min_expensive_bytes: int = 1024
    max_uncoalesced: float = 0.5
    gpu: GpuDescription = GPUS["h100"]
    rules: ClassicRules = field(default_factory=ClassicRules)

    def run(self, module: HloModule, log: FusionLog) -> bool:
        """Merges what is worth it; returns whether anything was."""
        computations = sequential_computations(module)
        changed = [_Walk(self, module, c, log).run() for c in computations]
        return any(changed)


@final
class _Walk:
    """One computation on its way through the pass."""

    def __init__(
        self, options: FusionMerger, module: HloModule, computation: HloComputation, log: FusionLog
    ) -> None:
        self.options = options
        self.rules = options.rules
        self.computation = computation
        self.fuser = Fuser(module, computation)
        self.log = log
        self.model = PerformanceModel(options.gpu)
        self.candidates: dict[HloInstruction, Candidate] = {}
        self.growing: dict[HloInstruction, GrowingFusion] = {}
        self.grown: set[HloInstruction] = set()
        """Fusions whose operations were summed up merge by merge, and rounded."""

    def run(self) -> bool:
        changed = False
        for producer in xla_post_order(self.computation):
            if producer.opcode == "fusion":
                changed |= self._merge(producer)
        if changed:
            self.fuser.make_bodies(self.model.may_share)
            self.model.leave_costs()
            self.fuser.finish()
        return changed

    def _merge(self, producer: HloInstruction) -> bool:
        users = list(producer.users)
        user, decision = self._decide(producer, users)
        if not decision.can_fuse:
            self.log.note(self.options.name, producer, user, decision)
            return False
        for user in users:
            fusion = self._fuse(producer, user)
            self.log.note(self.options.name, producer, user, decision, fusion)
            self.candidates.pop(fusion, None)
            self.growing.pop(fusion, None)
            if fusion is user:
                continue
            for reader in fusion.users:  # what is known of them names `user` as an operand
                self.growing.pop(reader, None)
                self.model.forget_operands(reader)
        return True

    def _fuse(self, producer: HloInstruction, user: HloInstruction) -> HloInstruction:
        kind = kind_of(self._candidate(user))
        if not self.options.priced:
            return self.fuser.fuse(producer, user, kind)[0]
        model = self.model
        of, into = model.kernel(producer), model.kernel(user)
        opcodes = joined(of.opcodes, into.opcodes)
        cost, places = fuse_cost(producer, user, model.cost_of(of), model.cost_of(into))
        fusion = self.fuser.merge(producer, user, kind)
        cost.settle([places[operand] for operand in fusion.operands])
        model.forget(user)
        model.learn(fusion, cost, opcodes)
        if not cost.is_exact:
            self.grown.add(fusion)
        return fusion

    def _decide(
        self, producer: HloInstruction, users: Sequence[HloInstruction]
    ) -> tuple[HloInstruction | None, FusionDecision]:
        """Returns whether all users are to take a producer in; if not, perhaps which user not."""
        refusal = _check_producer(producer)
        if refusal is not None:
            return None, refusal
        for user in users:
            refusal = self._check_user(producer, user)
            if refusal is not None:
                return user, refusal
        price = self._price if self.options.priced else self._weigh
        return None, price(producer, users)

    def _check_user(self, producer: HloInstruction, user: HloInstruction) -> FusionDecision | None:
        if user.opcode == "bitcast":
            detail = f"`{user.name}` is a bitcast, which needs no kernel."
            return refuse(BoundaryReason.NOT_FUSIBLE, detail, xla="not fusing into a bitcast")
        of, into = self._candidate(producer), self._candidate(user)
        return (
            check_control_edges(producer)
            or self.rules.check_pair(of, into)
            or (self._check_coalescing(of, into) if self.options.priced else None)
            or self.rules.check_budget(of, into)
            or (self._check_size if self.options.priced else self._check_code)(producer, user)
        )

    # The first form: bytes transferred.

    def _weigh(self, producer: HloInstruction, users: Sequence[HloInstruction]) -> FusionDecision:
        """Returns whether a merge keeps the bytes in bounds and repeats no expensive work."""
        options = self.options
        read, written = bytes_read(producer), producer.shape.byte_size
        now = read + written * (len(users) + 1)
        merged = read * len(users)
        ratio = merged / now if now else 0.0
        numbers = {"bytes": now, "bytes_merged": merged, "users": len(users)}
        if ratio > options.max_bytes_ratio:
            return refuse(
                BoundaryReason.SLOWER,
                f"Merged into {len(users)} users, `{producer.name}` would read and write"
                f" {ratio:.2f} times the bytes.",
                xla="merged-to-current-bytes ratio is too high",
                limit=options.max_bytes_ratio,
                **numbers,
            )
        expensive = [m for m in members(producer) if self.rules.is_expensive(m)]
        if expensive:
            reused = [user for user in users if self._growing_reuses(user, producer)]
            if reused:
                return refuse(
                    BoundaryReason.OPERAND_REUSE,
                    f"`{reused[0].name}` reads elements of `{producer.name}`, with the expensive"
                    f" {expensive[0].opcode} in it, several times.",
                    xla="fusion has expensive instructions, and a user reuses its elements",
                    **numbers,
                )
            is_small = ratio < options.max_expensive_ratio and now > options.min_expensive_bytes
            if len(users) > self.rules.max_consumers and not is_small:
                return refuse(
                    BoundaryReason.EXPENSIVE_DUPLICATION,
                    f"The expensive {expensive[0].opcode} in `{producer.name}` would be computed"
                    f" for each of its {len(users)} users.",
                    xla="fusion has expensive instructions",
                    limit=self.rules.max_consumers,
                    **numbers,
                )
        return allow(
            f"Merged into {len(users)} users, `{producer.name}` reads and writes {ratio:.2f} times"
            " the bytes.",
            **numbers,
        )

    def _check_code(self, producer: HloInstruction, user: HloInstruction) -> FusionDecision | None:
        """Refuses a user whose code would hold that of the producer's members too often."""
        if user.opcode != "fusion":
            return None
        times = self._growing(user).emissions(producer)
        for member, count in self._growing(producer).members:
            places, limit = count * times, self.rules.max_duplication
            if member.opcode in RECOMPUTED_INDICES:
                places, limit = max(places, len(member.users)), self.rules.max_consumers
            if places > limit:
                is_concatenate = member.opcode == "concatenate"
                return refuse(
                    BoundaryReason.CONCATENATE_USERS
                    if is_concatenate
                    else BoundaryReason.CODE_DUPLICATION,
                    f"The code of `{member.name}`, a {member.opcode}, would stand {places} times in"
                    f" `{user.name}`, more than {limit}.",
                    xla="fusion would lead to too much code duplication",
                    emissions=places,
                    limit=limit,
                )
        return None

    def _growing_reuses(self, user: HloInstruction, producer: HloInstruction) -> bool:
        if user.opcode != "fusion":
            return any(
                reuses_operand(user, index)
                for index, operand in enumerate(user.operands)
                if operand is producer
            )
        return self._growing(user).reused.get(producer, False)

    # The second form: time.

    def _price(self, producer: HloInstruction, users: Sequence[HloInstruction]) -> FusionDecision:
        if producer in self.grown:  # summed up as in one piece
            self.model.forget(producer)
        times = model_of(self.options.model_year)(producer, users, self.model)
        unfused_us, fused_us = times.unfused * 1e6, times.fused * 1e6
        numbers = {"unfused_us": unfused_us, "fused_us": fused_us, "users": len(users)}
        if times.fused > times.unfused:
            return refuse(
                BoundaryReason.SLOWER,
                f"`{producer.name}` takes {unfused_us:.2f} us alone and {fused_us:.2f} us in its"
                f" {len(users)} users.",
                xla="will execute slower if fused",
                **numbers,
            )
        return allow(
            f"`{producer.name}` takes {fused_us:.2f} us in its {len(users)} users and"
            f" {unfused_us:.2f} us alone.",
            **numbers,
        )

    def _check_coalescing(self, of: Candidate, into: Candidate) -> FusionDecision | None:
        if not of.is_transposing or not into.is_reduction:
            return None
        moved = sum(
            member.shape.num_elements
            for member in of.heavy
            if member.opcode in ("copy", "transpose")
        )
        share = moved / max(of.instruction.shape.num_elements, 1)
        if share < self.options.max_uncoalesced:
            return None
        return refuse(
            BoundaryReason.LAYOUT,
            f"`{of.name}` transposes {share:.0%} of what the reduction `{into.name}` reads.",
            xla="fusing it would make accesses mostly uncoalesced",
            share=share,
            limit=self.options.max_uncoalesced,
        )

    def _check_size(self, producer: HloInstruction, user: HloInstruction) -> FusionDecision | None:
        costs = self.model.cost(producer), self.model.cost(user)
        return self.rules.limits.check_code(producer, user, *costs)

    # What is known of instructions.

    def _candidate(self, instruction: HloInstruction) -> Candidate:
        if instruction not in self.candidates:
            is_light = self.options.priced and HEAVY.isdisjoint(self.model.opcodes(instruction))
            heavy = () if is_light else None
            self.candidates[instruction] = self.rules.candidate(instruction, heavy)
        return self.candidates[instruction]

    def _growing(self, fusion: HloInstruction) -> GrowingFusion:
        if fusion not in self.growing:
            self.growing[fusion] = GrowingFusion(fusion)
        return self.growing[fusion]


def bytes_read(fusion: HloInstruction) -> int:
    """Returns how many bytes a fusion reads: of an operand that is only sliced, the slices'."""
    total = 0
    parameters = fusion.to_apply.parameters
    for operand, parameter in zip(fusion.operands, parameters, strict=True):
        users = parameter.users
        if all(user.opcode in _SLICES and user.operands[0] is parameter for user in users):
            total += sum(user.shape.byte_size for user in users)
        else:
            total += sum(leaf.byte_size for leaf in leaf_shapes(operand.shape))
    return total


def _check_producer(producer: HloInstruction) -> FusionDecision | None:
    if producer.is_root:
        detail = f"`{producer.name}` is the result of its computation."
        return refuse(BoundaryReason.EXIT, detail, xla="output of the root")
    if not producer.users:
        detail = f"Nothing reads `{producer.name}`."
        return refuse(BoundaryReason.EXIT, detail, xla="fusion has no users")
    if producer.fusion_kind != LOOP:
        detail = f"`{producer.name}` is no loop but of kind {producer.fusion_kind}."
        return refuse(reason_of(producer), detail, xla="not a loop fusion")
    return None
