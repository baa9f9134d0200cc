"""Horizontal input fusion: reductions that feed the same instruction become one kernel.

    %a = f32[8] fusion(%x), kind=kInput      %f = (f32[8], f32[8]) fusion(%x, %y), kind=kInput
    %b = f32[8] fusion(%y), kind=kInput  ->  %c = add(get-tuple-element(%f), ...)
    %c = f32[8] add(%a, %b)

Only where reductions have an emitter of their own.

Source: xla/service/gpu/horizontal_input_fusion.cc of 2023.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, final

from fuselane.fusion.decision import FusionLog, allow
from fuselane.fusion.fuse import INPUT, Fuser
from fuselane.fusion.gpu.candidates import Candidate
from fuselane.fusion.gpu.outputs import check_loop_shapes
from fuselane.fusion.gpu.rules import GpuRules
from fuselane.fusion.horizontal import check_feeder, feeders
from fuselane.fusion.traversal import sequential_computations, xla_post_order
from fuselane.hlo.computation import HloComputation
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.module import HloModule


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class HorizontalInputFusion:
    """Fuses reductions that feed the same instruction.

    Attributes:
        rules: What a kernel may hold.
    """

    name: ClassVar[str] = "horizontal-input-fusion"
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
        options: HorizontalInputFusion,
        module: HloModule,
        computation: HloComputation,
        log: FusionLog,
    ) -> None:
        self.options = options
        self.rules = options.rules
        self.fuser = Fuser(module, computation)
        self.log = log
        self.order = xla_post_order(computation)
        self.candidates: dict[HloInstruction, Candidate] = {}

    def run(self) -> bool:
        changed = False
        for consumer in self.order:
            changed |= self._fuse_feeders(consumer)
        if changed:
            self.fuser.finish()
        return changed

    def _fuse_feeders(self, consumer: HloInstruction) -> bool:
        reductions = []
        for feeder in feeders(consumer):
            candidate = self._candidate(feeder)
            if not candidate.is_reduction or feeder.shape.is_tuple:
                continue
            refusal = check_feeder(feeder, consumer)
            if refusal is None:
                reductions.append(candidate)
            else:
                self.log.note(self.options.name, feeder, consumer, refusal)
        reductions.sort(key=_order_of)
        changed = False
        anchor: Candidate | None = None
        for reduction in reductions:
            fusion = None if anchor is None else self._fuse(anchor, reduction, consumer)
            changed |= fusion is not None
            anchor = fusion or reduction
        return changed

    def _fuse(
        self, anchor: Candidate, other: Candidate, consumer: HloInstruction
    ) -> Candidate | None:
        """Returns what two reductions became, None if they stay two."""
        decision = (
            check_loop_shapes(anchor, other)
            or self.rules.check_heavy([*anchor.heavy, *other.heavy])
            or self.rules.check_operands(anchor.instruction, other.instruction, is_vertical=False)
            or allow(f"`{anchor.name}` and `{other.name}` both feed `{consumer.name}`.")
        )
        if not decision.can_fuse:
            self.log.note(self.options.name, anchor, other, decision)
            return None
        fusion = self.fuser.fuse_siblings(anchor.instruction, other.instruction, INPUT)
        self.log.note(self.options.name, anchor, other, decision, fusion)
        for changed in (anchor, other):
            self.candidates.pop(changed.instruction, None)
        return self._candidate(fusion)

    def _candidate(self, instruction: HloInstruction) -> Candidate:
        if instruction not in self.candidates:
            tiled = self.rules.tiled_emitters
            self.candidates[instruction] = Candidate(instruction, tiled=tiled)
        return self.candidates[instruction]


def _order_of(candidate: Candidate) -> tuple[str, int]:
    """Kernels of one shape come together, small ones first."""
    instruction = candidate.instruction
    size = len(instruction.to_apply.instructions) if instruction.opcode == "fusion" else 1
    return str(candidate.hero.operands[0].shape), size
