"""Common subexpressions of kernels: what one computes twice, it computes once.

    %s = sine(%x)                            %s = sine(%x)
    %t = sine(%x)                    ->      ROOT %a = add(%s, %s)
    ROOT %a = add(%s, %t)

Kernels that were merged often hold copies of one producer. As in XLA's pipelines, only the insides
of fusions are looked at.

Source: xla/service/hlo_cse.cc with only_fusion_computations.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from fuselane.fusion.decision import FusionLog
from fuselane.fusion.repetitions import Computed, is_tidy, itself
from fuselane.fusion.traversal import sequential_computations
from fuselane.hlo.attributes import Works
from fuselane.hlo.computation import HloComputation
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.module import HloModule


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class FusionCse:
    """Removes repeated work from fusions; decides nothing, so logs nothing."""

    name: ClassVar[str] = "fusion-cse"

    def run(self, module: HloModule, log: FusionLog) -> bool:
        """Returns whether anything was removed."""
        changed, works = False, Works()
        for computation in sequential_computations(module):
            for instruction in computation.instructions:
                if instruction.opcode == "fusion" and not instruction.to_apply.fact(_is_done):
                    changed |= _remove_repetitions(instruction.to_apply, works)
                    instruction.to_apply.forget_facts()  # costs may count repetitions
                    instruction.to_apply.remember(_is_done, True)
        return changed


def _is_done(body: HloComputation) -> bool:
    """Whether a body was looked at; until it is edited, the answer is remembered."""
    return False


def _remove_repetitions(body: HloComputation, works: Works) -> bool:
    if body.fact(is_tidy):
        return False
    root, computed = body.root, Computed(works)
    first: dict[HloInstruction, HloInstruction] = {}
    """For members that repeat another: which."""
    for member in body.post_order():
        if member.opcode == "parameter" or member.control_predecessors or member.control_successors:
            continue
        operands = member.operands
        if first:
            operands = [first.get(operand, operand) for operand in operands]
        value = computed.find(member, operands, itself)
        if value is not member and member is not root:
            first[member] = value
    if first:
        body.replace_all(first)
        body.remove_dead_instructions()
    return bool(first)
