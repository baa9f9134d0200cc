"""Instruction fusion as XLA:GPU did it until 2024: `instruction_fusion` by `ClassicRules`.

    %s = f32[8,64] exponential(%x)           %f = f32[8] fusion(%x, %zero), kind=kInput
    %r = f32[8] reduce(%s, %zero)    ->      (computes exponential and reduce)

XLA runs it twice, first without repeating any work.

Source: xla/service/gpu/instruction_fusion.cc.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, final

from fuselane.fusion.decision import FusionLog
from fuselane.fusion.gpu.classic import ClassicRules
from fuselane.fusion.instruction_fusion import fuse_instructions
from fuselane.hlo.module import HloModule


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class GpuInstructionFusion:
    """Fuses single producers into consumers.

    Attributes:
        may_duplicate: Producers with several users may be computed several times.
        rules: Which.
    """

    name: ClassVar[str] = "gpu-instruction-fusion"
    may_duplicate: bool = True
    rules: ClassicRules = field(default_factory=ClassicRules)

    def run(self, module: HloModule, log: FusionLog) -> bool:
        """Fuses what the rules allow; returns whether anything was."""
        return fuse_instructions(self, module, log)
