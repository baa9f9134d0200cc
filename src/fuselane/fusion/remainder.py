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

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Final, final

from fuselane.analysis.small_calls import is_small_call
from fuselane.boundary import BoundaryReason
from fuselane.fusion.cpu_rules import CpuRules, is_loop_fusible_on_cpu
from fuselane.fusion.decision import FusionDecision, FusionLog, refuse
from fuselane.fusion.fuse import LOOP, Fuser
from fuselane.fusion.instruction_fusion import InstructionFusion, fuse_instructions
from fuselane.fusion.opcodes import ELEMENTWISE, opcodes
from fuselane.fusion.rules import Edge
from fuselane.fusion.traversal import sequential_computations
from fuselane.hlo.computation import HloComputation, reachable_computations
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.module import HloModule

_WRAPPED: Final = (ELEMENTWISE - {"copy", "stochastic-convert"}) | opcodes(
    "bitcast-convert broadcast dynamic-slice gather iota map pad reduce reduce-window reshape "
    "reverse scatter slice"
)
"""Opcodes that XLA:CPU's FusionWrapper puts into fusions of their own; others have kernels."""

_CONSUMERS: Final = _WRAPPED | {"bitcast", "fusion"}


def fuse_remainder(module: HloModule) -> None:
    """Fuses what stands outside of fusions in a module as XLA:CPU's hook shows it.

    What XLA compiles into one function is left as it is.
    """
    computations = sequential_computations(module)
    instructions = [i for c in computations for i in c.instructions]
    functions = {c for i in instructions if is_small_call(i) for c in i.called_computations}
    functions.update(reachable_computations(functions))
    ours = [c for c in computations if c not in functions]
    if any(_must_be_wrapped(i) for c in ours for i in c.instructions):
        fuse_instructions(InstructionFusion(rules=_RemainderRules()), module, FusionLog(), ours)
        wrap_lone_instructions(module, ours)


def wrap_lone_instructions(
    module: HloModule, computations: Sequence[HloComputation] | None = None
) -> None:
    """Puts instructions that XLA:CPU compiles in fusions only into fusions of their own.

    In some computations of the module that run one instruction after the other, by default in all.
    """
    for computation in sequential_computations(module) if computations is None else computations:
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
        if edge.consumer.opcode == "fusion" and _is_wrapper(edge.consumer):
            return self.refusal
        return self.rules.should_fuse(edge, may_duplicate=may_duplicate)

    def kind(self, edge: Edge) -> str:
        """Returns the kind of the fusion an edge becomes."""
        return self.rules.kind(edge)


def _is_wrapper(fusion: HloInstruction) -> bool:
    """Whether a fusion was made to hold an instruction that has no loop form, so that nothing can
    be computed inside of it: a scatter's kernel changes what is in memory already."""
    root = fusion.to_apply.root
    return root.opcode != "tuple" and not is_loop_fusible_on_cpu(root)


def _must_be_wrapped(instruction: HloInstruction) -> bool:
    return instruction.opcode in _WRAPPED
