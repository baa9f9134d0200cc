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
from typing import ClassVar, Final, final

from fuselane.fusion.decision import FusionLog
from fuselane.fusion.traversal import sequential_computations
from fuselane.hlo.attributes import Works
from fuselane.hlo.computation import HloComputation
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.module import HloModule

_KEPT: Final = frozenset({"parameter", "rng"})


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
    opcodes = [member.opcode for member in body.instructions]
    if len(set(opcodes)) == len(opcodes):
        return False
    root = body.root
    alike: dict[object, list[HloInstruction]] = {}
    first: dict[HloInstruction, HloInstruction] = {}
    """For members that repeat another: which."""
    for member in body.post_order():
        if member.opcode in _KEPT or member.control_predecessors or member.control_successors:
            continue
        operands = member.operands
        if first:
            operands = [first.get(operand, operand) for operand in operands]
        key = (member.opcode, *operands) if operands else works.of(member)
        others = alike.get(key)
        if others is None:
            alike[key] = [member]
            continue
        for other in others:
            if _do_the_same(other, member, works):
                if member is not root:
                    first[member] = other
                break
        else:
            others.append(member)
    if first:
        body.replace_all(first)
        body.remove_dead_instructions()
    return bool(first)


def _do_the_same(one: HloInstruction, other: HloInstruction, works: Works) -> bool:
    """Whether two instructions with equal operands have equal results."""
    if one.shape is not other.shape and one.shape != other.shape:
        return False
    is_copy = one.is_copy_of(other) and one.called_computations == other.called_computations
    return is_copy or works.of(one) == works.of(other)
