"""What XLA:GPU can compile as one kernel, whatever the rules of a strategy say.

One loop, reduction or tiled transpose computes all results of a kernel, each thread those that
belong to its element of the loop: so the loop has to be the same for all. What is not of this form
is taken apart: several results into a kernel each, all else into single instructions.

Found by trying: XLA does not refuse what it can't compile here, but fails or crashes.
"""

from __future__ import annotations

from typing import Final

from fuselane.boundary import BoundaryReason
from fuselane.fusion.decision import FusionDecision, FusionLog, refuse
from fuselane.fusion.gpu.emitters import Emission, Emitter, choose_emitter, is_real_reduction_hero
from fuselane.fusion.gpu.region import Region
from fuselane.fusion.gpu.shapes import reduction_form, tiled_transpose
from fuselane.fusion.legal import Illegal, take_apart_illegal
from fuselane.fusion.opcodes import ELEMENTWISE, opcodes
from fuselane.fusion.rules import describe, reason_of
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.module import HloModule
from fuselane.hlo.shape import Shape

NAME: Final = "xla-gpu"
"""What the log calls these rules."""

_MEMBERS: Final = ELEMENTWISE | opcodes(
    "bitcast bitcast-convert broadcast concatenate constant convolution dot dynamic-slice "
    "dynamic-update-slice gather get-tuple-element iota map pad parameter reduce reduce-window "
    "reshape reverse slice transpose"
)


def make_legal_on_gpu(module: HloModule, log: FusionLog, *, has_xlas: bool = False) -> None:
    """Takes apart the fusions of a module that XLA:GPU cannot compile, and logs each.

    The others get the kind that XLA gives those that its emitter for them makes.

    Args:
        module: Changed in place.
        log: What passes have fused; gets a step per fusion that is taken apart.
        has_xlas: Whether fusions that no pass made are XLA's own, which it compiles.
    """
    made = {step.fusion for step in log}

    def judge(fusion: HloInstruction) -> str | Illegal:
        return fusion.fusion_kind if has_xlas and fusion.name not in made else _judge(fusion)

    take_apart_illegal(module, log, NAME, judge)


def _judge(fusion: HloInstruction) -> str | Illegal:
    emission = choose_emitter(Region(fusion))
    decision = _check_members(fusion) or _check_results(fusion, emission)
    if decision is not None:
        return Illegal(decision, in_parts=decision.reason is BoundaryReason.LOOP_SHAPES)
    return emission.emitter.fusion_kind


def _check_members(fusion: HloInstruction) -> FusionDecision | None:
    """Refuses members that XLA:GPU has no code for within a kernel."""
    body = fusion.to_apply
    for member in body.instructions:
        if member.opcode in _MEMBERS:
            continue
        if member.is_root and member.opcode in ("scatter", "tuple"):
            continue
        return refuse(
            reason_of(member),
            f"XLA:GPU has no kernel that holds {describe(member)}, with others.",
        )
    return None


def _check_results(fusion: HloInstruction, emission: Emission) -> FusionDecision | None:
    """Refuses several results that one loop does not compute."""
    if len(emission.roots) == 1 or _is_one_loop(emission):
        return None
    sizes = [str(list(root.shape.dimensions)) for root in emission.roots]
    return refuse(
        BoundaryReason.LOOP_SHAPES,
        f"`{fusion.name}` would compute results of the shapes {' and '.join(dict.fromkeys(sizes))}"
        f" in one {emission.emitter.value}.",
    )


def _is_one_loop(emission: Emission) -> bool:
    """Whether all results of a kernel belong to elements of one loop, one by one."""
    if any(not root.shape.is_array and root.opcode != "reduce" for root in emission.roots):
        return False
    forms: set[object] = set()
    loops: list[Shape] = []
    for root, hero in zip(emission.roots, emission.heroes, strict=True):
        if emission.emitter is Emitter.REDUCTION and is_real_reduction_hero(root, hero):
            forms.add(reduction_form(hero))
            loops.append(hero.operands[0].shape)
        elif emission.emitter is Emitter.TRANSPOSE and tiled_transpose(hero) is not None:
            forms.add(tiled_transpose(hero))
            loops.append(hero.operands[0].shape)
        elif root.shape.is_array:
            loops.append(root.shape)
        else:  # a reduction of several arrays, each result a loop of one thread
            return False
    return len(forms) <= 1 and all(_are_alike(loops[0], other) for other in loops[1:])


def _are_alike(left: Shape, right: Shape) -> bool:
    """Whether elements of two arrays have the same places in memory, as far as one can tell."""
    if left.dimensions == right.dimensions and left.minor_to_major == right.minor_to_major:
        return True
    are_plain = left.is_row_major and right.is_row_major
    return are_plain and left.num_elements == right.num_elements
