"""What follows behind kernels, fused as XLA:CPU would have fused it.

    %k = (f32[8,16]) custom-call(%x)              %k = (f32[8,16]) custom-call(%x)
    %p = f32[8,16] get-tuple-element(%k)          %p = f32[8,16] get-tuple-element(%k)
    %s = f32[16] reduce(%p, %zero)          ->    %f = f32[16] fusion(%p, %zero), calls={ sqrt of
    %r = f32[16] sqrt(%s)                             the sums }

XLA:CPU compiles a kernel for each instruction it finds, which takes milliseconds even where it runs
for nanoseconds. At the time of its hook it has put all of its own into fusions, so that what stands
outside of them is ours.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Final, final

from fuselane.boundary import BoundaryReason
from fuselane.fusion.decision import FusionDecision, FusionLog, refuse
from fuselane.fusion.fuse import LOOP, Fuser
from fuselane.fusion.instruction_fusion import InstructionFusion
from fuselane.fusion.opcodes import ELEMENTWISE, opcodes
from fuselane.fusion.rules import CpuRules, Edge
from fuselane.fusion.traversal import sequential_computations
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.module import HloModule

_WRAPPED: Final = (ELEMENTWISE - {"copy", "stochastic-convert"}) | opcodes(
    "bitcast-convert broadcast dynamic-slice gather iota map pad reduce reduce-window reshape "
    "reverse scatter slice"
)
"""Opcodes that XLA:CPU's FusionWrapper puts into fusions of their own; others have kernels."""

_CONSUMERS: Final = _WRAPPED | {"bitcast", "fusion"}


def fuse_remainder(module: HloModule) -> None:
    """Fuses what stands outside of fusions in a module as XLA:CPU's hook shows it."""
    if any(map(_must_be_wrapped, _instructions(module))):
        InstructionFusion(rules=_RemainderRules()).run(module, FusionLog())
        wrap_lone_instructions(module)


def wrap_lone_instructions(module: HloModule) -> None:
    """Puts instructions that XLA:CPU compiles in fusions only into fusions of their own."""
    for computation in sequential_computations(module):
        fuser = Fuser(module, computation)
        wanted = [i for i in computation.instructions if _must_be_wrapped(i)]
        for instruction in wanted:
            fuser.wrap(instruction, LOOP)
        if wanted:
            fuser.finish()


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class _RemainderRules:
    """XLA:CPU's rules, for producers that no fusion holds yet."""

    rules: CpuRules = field(default_factory=CpuRules)
    refusal: ClassVar[FusionDecision] = refuse(BoundaryReason.NOT_FUSIBLE, "XLA has decided that.")

    def should_fuse(self, edge: Edge, *, may_duplicate: bool = True) -> FusionDecision:
        """Returns XLA:CPU's answer for an edge."""
        if edge.producer.opcode not in _WRAPPED or edge.consumer.opcode not in _CONSUMERS:
            return self.refusal
        return self.rules.should_fuse(edge, may_duplicate=may_duplicate)

    def kind(self, edge: Edge) -> str:
        """Returns the kind of the fusion an edge becomes."""
        return self.rules.kind(edge)


def _instructions(module: HloModule) -> list[HloInstruction]:
    return [i for c in sequential_computations(module) for i in c.instructions]


def _must_be_wrapped(instruction: HloInstruction) -> bool:
    return instruction.opcode in _WRAPPED
