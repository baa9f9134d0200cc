"""Which results one kernel can have: those made by the same loop.

Source: xla/service/gpu/gpu_fusible.cc (ShapesCompatibleForMultiOutputFusion) and
xla/backends/gpu/transforms/multi_output_fusion.cc.
"""

from __future__ import annotations

from typing import Final

from fuselane.boundary import BoundaryReason
from fuselane.fusion.decision import FusionDecision, refuse
from fuselane.fusion.gpu.candidates import Candidate
from fuselane.fusion.opcodes import leaf_shapes
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.shape import Shape

_SMALL_BYTES: Final = 1024
"""Different slices of less than this may be read by one kernel."""


def check_loop_shapes(left: Candidate, right: Candidate) -> FusionDecision | None:
    """Refuses two kernels that need different loops.

    A loop runs over what a reduction or tiled transpose reads, and else over the result. Loops
    that only name the same elements differently are alike where there are tiled emitters.
    """
    if left.may_have_heroes or right.may_have_heroes:
        reductions = left.reduction, right.reduction
        transposes = left.transposition, right.transposition
        if all(reductions) and reductions[0] != reductions[1]:
            return _refuse(left, right, "tiled reductions with different shapes")
        if all(transposes) and transposes[0] != transposes[1]:
            return _refuse(left, right, "tiled transposes with different shapes")
        if any(reductions) and any(transposes):
            return _refuse(left, right, "MOF-fusion of a transpose and a reduction")
    if _are_alike(left.loop_shape, right.loop_shape, or_reshaped=left.tiled):
        return None
    return _refuse(left, right, "different loop shapes")


def check_slices(
    parent: HloInstruction, first: Candidate, second: Candidate
) -> FusionDecision | None:
    """Refuses siblings that read slices of their parent without a common element."""
    if parent.shape.is_tuple or parent.shape.byte_size < _SMALL_BYTES:
        return None
    other = _unique_slice(parent, second.instruction)
    one = other and _unique_slice(parent, first.instruction)
    if one is None or other is None:
        return None
    overlaps = all(
        one.slice_starts[d] < other.slice_limits[d] and other.slice_starts[d] < one.slice_limits[d]
        for d in range(parent.shape.rank)
    )
    if overlaps:
        return None
    return refuse(
        BoundaryReason.LOOP_SHAPES,
        f"`{first.name}` and `{second.name}` read different parts of `{parent.name}`.",
        xla="slices are non-overlapping",
    )


def check_updates(first: Candidate, second: Candidate) -> FusionDecision | None:
    """Refuses siblings of which one updates a slice in place."""
    for side in (first, second):
        if side.has_updates:
            return refuse(
                BoundaryReason.IN_PLACE,
                f"`{side.name}` updates a slice in place.",
                xla="multiple DUSs",
            )
    return None


def _are_alike(left: Shape, right: Shape, *, or_reshaped: bool) -> bool:
    if left is right:
        return True
    if left.is_tuple or right.is_tuple:
        left_leaves, right_leaves = leaf_shapes(left), leaf_shapes(right)
        return len(left_leaves) == len(right_leaves) and all(
            _are_equal(a, b) for a, b in zip(left_leaves, right_leaves, strict=True)
        )
    if _are_equal(left, right):
        return True
    if not or_reshaped or left.num_elements != right.num_elements:
        return False
    return (left.is_row_major and right.is_row_major) or _in_memory(left) == _in_memory(right)


def _are_equal(left: Shape, right: Shape) -> bool:
    return left.dimensions == right.dimensions and left.minor_to_major == right.minor_to_major


def _in_memory(shape: Shape) -> list[int]:
    """Returns the sizes other than one, major to minor."""
    sizes = [shape.dimensions[d] for d in reversed(shape.minor_to_major)]
    return [size for size in sizes if size != 1]


def _unique_slice(parent: HloInstruction, sibling: HloInstruction) -> HloInstruction | None:
    """Returns the slice that is all a sibling reads of its parent, if that is so."""
    if sibling.opcode == "slice":
        return sibling
    if sibling.opcode != "fusion" or sibling.operands.count(parent) != 1:
        return None
    parameter = sibling.to_apply.parameters[sibling.operands.index(parent)]
    if len(parameter.users) != 1 or parameter.users[0].opcode != "slice":
        return None
    return parameter.users[0]


def _refuse(left: Candidate, right: Candidate, xla: str) -> FusionDecision:
    shapes = left.loop_shape, right.loop_shape
    return refuse(
        BoundaryReason.LOOP_SHAPES,
        f"`{left.name}` {_work(left)} and `{right.name}` {_work(right)}.",
        xla=xla,
        elements=shapes[0].num_elements if shapes[0].is_array else 0,
        other_elements=shapes[1].num_elements if shapes[1].is_array else 0,
    )


def _work(candidate: Candidate) -> str:
    """Returns what the loop of a kernel does, as part of a sentence."""
    shape, dimensions = candidate.loop_shape, list(candidate.hero.dimensions)
    if candidate.reduction is not None:
        return f"reduces {shape} along {dimensions}"
    if candidate.transposition is not None:
        return f"transposes {shape} by {dimensions}"
    return f"runs over {shape}"
