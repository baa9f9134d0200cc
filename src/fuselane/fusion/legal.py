"""What XLA:CPU can compile as one kernel, whatever the rules of a strategy say.

A loop over the elements of the result computes what it holds element by element; several results
have to be of one shape. A product ends a kernel of its own, or one that adds to it. What is not of
this form is taken apart: several results of different shapes into a kernel each, all else into
single instructions; so is what would repeat its work without end.

Found by trying: XLA does not refuse what it can't compile here, but fails or crashes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, final

from fuselane.boundary import BoundaryReason
from fuselane.fusion.cpu_rules import can_be_output_fused
from fuselane.fusion.decision import FusionDecision, FusionLog, FusionStep, refuse
from fuselane.fusion.dissolve import inline, is_dissolvable
from fuselane.fusion.fuse import LOOP, OUTPUT
from fuselane.fusion.gpu.costs import compute_cost
from fuselane.fusion.opcodes import ELEMENTWISE, opcodes
from fuselane.fusion.rules import describe, reason_of
from fuselane.fusion.traversal import sequential_computations
from fuselane.hlo.computation import HloComputation
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.module import HloModule
from fuselane.hlo.transfer import clone_computation

NAME: Final = "xla-cpu"
"""What the log calls these rules."""

_IN_LOOPS: Final = ELEMENTWISE | opcodes(
    "bitcast bitcast-convert broadcast concatenate constant dynamic-slice dynamic-update-slice "
    "gather get-tuple-element iota map pad parameter reduce reduce-window reshape reverse slice "
    "transpose tuple"
)

_FREE: Final = frozenset({"constant", "get-tuple-element", "parameter", "tuple"})
_LOOPS: Final = frozenset({"reduce", "reduce-window"})
_MOST_REPETITIONS: Final = 1000
"""XLA's own fusions repeat some ten steps at most."""


@final
@dataclass(frozen=True, slots=True)
class Illegal:
    """What becomes of a fusion that XLA cannot compile.

    Attributes:
        decision: Why it cannot.
        in_parts: Whether each result gets a kernel of its own; else all instructions do.
    """

    decision: FusionDecision
    in_parts: bool


def make_legal(module: HloModule, log: FusionLog) -> None:
    """Takes apart the fusions of a module that XLA:CPU cannot compile, and logs each."""
    take_apart_illegal(module, log, NAME, _judge)


def take_apart_illegal(
    module: HloModule, log: FusionLog, name: str, judge: Callable[[HloInstruction], str | Illegal]
) -> None:
    """Takes apart the fusions of a module that are illegal, and logs each.

    Args:
        module: Changed in place.
        log: Gets a step per fusion that is taken apart.
        name: What the log calls the rules.
        judge: Returns the kind that XLA gives a fusion, or why there is none.
    """
    for computation in sequential_computations(module):
        apart = False
        for fusion in list(computation.instructions):
            if not is_dissolvable(fusion):
                continue
            verdict = judge(fusion)
            if isinstance(verdict, str):
                fusion.proto.fusion_kind = verdict
                continue
            log.append(
                FusionStep(
                    pass_name=name, producer="", consumer=fusion.name, decision=verdict.decision
                )
            )
            take_apart(module, computation, fusion, in_parts=verdict.in_parts)
            apart = True
        if apart:
            computation.remove_dead_instructions()
            computation.sort()
    module.remove_unused_computations()


def _judge(fusion: HloInstruction) -> str | Illegal:
    decision = check_fusion(fusion)
    if decision is not None:
        return Illegal(decision, in_parts=_is_all_loops(fusion))
    decision = check_repetitions(fusion)
    if decision is not None:
        return Illegal(decision, in_parts=False)
    return OUTPUT if _is_output_fusion(fusion) else LOOP


def check_repetitions(fusion: HloInstruction) -> FusionDecision | None:
    """Returns how often a fusion computes again what loops in it ask for, if that is out of all
    proportion: a chain of reductions, each of which reads all of the one before, takes the product
    of their steps, which may be years."""
    members = [i for i in fusion.to_apply.instructions if i.opcode not in _FREE]
    if sum(member.opcode in _LOOPS for member in members) < 2:
        return None
    once = sum(compute_cost(member).flops for member in members)
    try:
        ratio = compute_cost(fusion).flops / max(once, 1.0)
    except OverflowError:  # more than f32 holds
        ratio = math.inf
    if ratio <= _MOST_REPETITIONS:
        return None
    return refuse(
        BoundaryReason.DUPLICATION,
        f"`{fusion.name}` would take {ratio:.2g} times the operations of all it computes, as loops"
        " in it repeat others.",
        ratio=ratio,
        limit=_MOST_REPETITIONS,
    )


def check_fusion(fusion: HloInstruction) -> FusionDecision | None:
    """Returns why XLA:CPU cannot compile a fusion as it is, None if it can."""
    body = fusion.to_apply
    if _is_output_fusion(fusion):
        return None
    for member in body.instructions:
        if member.opcode == "tuple" and not member.is_root:
            return _refuse(member, "holds a tuple")
        if member.opcode in _IN_LOOPS or _is_end(member, body):
            continue
        return _refuse(member, f"holds {describe(member)},")
    if body.root.opcode == "tuple":
        for result in body.root.operands:
            if result.shape.is_tuple:
                return _refuse(result, f"returns {describe(result)}, which makes several arrays,")
        dimensions = [root.shape.dimensions for root in body.root.operands]
        if len(set(dimensions)) > 1:
            sizes = " and ".join(str(list(sizes)) for sizes in dict.fromkeys(dimensions))
            return refuse(
                BoundaryReason.LOOP_SHAPES,
                f"`{fusion.name}` would compute results of the shapes {sizes} in one loop.",
            )
    return None


def _is_end(member: HloInstruction, body: HloComputation) -> bool:
    """Whether an instruction may stand at the end of a kernel, and does."""
    if not member.is_root:
        return False
    if member.opcode == "scatter":
        return all(operand.opcode == "parameter" for operand in member.operands)
    return member.opcode == "dot" and member.shape.rank <= 1


def _is_output_fusion(fusion: HloInstruction) -> bool:
    root = fusion.to_apply.root
    return any(can_be_output_fused(operand, root) for operand in root.operands)


def _refuse(member: HloInstruction, what: str) -> FusionDecision:
    reason = reason_of(member)
    return refuse(reason, f"XLA:CPU has no kernel that {what} with others.")


def _is_all_loops(fusion: HloInstruction) -> bool:
    return all(member.opcode in _IN_LOOPS for member in fusion.to_apply.instructions)


def take_apart(
    module: HloModule, computation: HloComputation, fusion: HloInstruction, *, in_parts: bool
) -> None:
    """Replaces a fusion by one for each of its results, if `in_parts` and it has several, or else
    by single instructions."""
    users = list(fusion.users)
    is_tuple = fusion.to_apply.root.opcode == "tuple"
    if not (in_parts and is_tuple) or any(user.opcode != "get-tuple-element" for user in users):
        inline(module, computation, fusion)
        return
    for element in users:
        part = computation.add(_part(module, fusion, element))
        fusion.copy_control_edges_to(part)
        element.replace_all_uses_with(part)
        element.replace_operands([])
    fusion.drop_control_edges()


def _part(module: HloModule, fusion: HloInstruction, element: HloInstruction) -> HloInstruction:
    """Returns a fusion that computes one result of another."""
    body = clone_computation(fusion.to_apply)
    body.root = body.root.operands[element.tuple_index]
    body.remove_dead_instructions()
    operands: list[HloInstruction] = []
    for parameter, operand in zip(list(body.parameters), fusion.operands, strict=True):
        if parameter.users or parameter.is_root:
            parameter.parameter_number = len(operands)
            operands.append(operand)
        else:
            body.remove(parameter)
    module.add(body)
    return HloInstruction.create(
        "fusion",
        element.shape,
        operands,
        name=fusion.name,
        called_computations=[body],
        fusion_kind=LOOP,
        metadata=body.root.metadata,
    )
