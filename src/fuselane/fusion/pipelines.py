"""Pipelines of fusion passes: XLA's own by name, users' own as text.

xla-today-cpu
instruction-fusion{may-duplicate=false},instruction-fusion
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from fuselane.fusion.decision import FusionLog
from fuselane.fusion.instruction_fusion import InstructionFusion
from fuselane.fusion.priority_fusion import PriorityFusion
from fuselane.hlo.module import HloModule
from fuselane.hlo.verifier import verify


class FusionPass(Protocol):
    """A pass: a frozen value whose fields are its rules."""

    @property
    def name(self) -> str:
        """What pipelines and logs call it."""

    def run(self, module: HloModule, log: FusionLog) -> bool:
        """Changes a module, logs every decision and returns whether anything was fused."""


Pipeline = tuple[FusionPass, ...]

PIPELINES: Final[dict[str, Pipeline]] = {
    "none": (),
    "xla-today-cpu": (InstructionFusion(),),
    "xla-today-gpu": (PriorityFusion(),),
}
"""The named pipelines. `xla-today-gpu` lacks XLA's multi-output fusion so far."""


def run_pipeline(pipeline: Sequence[FusionPass], module: HloModule) -> FusionLog:
    """Runs passes one after the other, verifies the module after each, and returns their log.

    Raises:
        VerificationError: if a pass broke a rule of HLO.
    """
    log = FusionLog()
    for fusion_pass in pipeline:
        if fusion_pass.run(module, log):
            verify(module)
    return log
