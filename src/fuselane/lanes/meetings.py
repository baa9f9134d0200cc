"""Reductions over lanes that meet in every step, each made one instruction.

    %p = f32[63,32] reshape(pad(%x, 0))                     %x: f32[2000], the lanes
    %s = f32[63] reduce(%p, 0), dimensions={1}, to_apply=add
    %t = f32[] reduce(%s, %init), dimensions={0}, to_apply=add
->  %t = f32[] reduce(%x, %init), dimensions={0}, to_apply=add

Numerics: the order in which values are combined changes.
"""

from __future__ import annotations

from collections.abc import Iterable

from fuselane.analysis.leaving import Reduction
from fuselane.hlo.instruction import HloInstruction
from fuselane.lanes.builder import array_shape


def join_stages(reductions: Iterable[Reduction]) -> None:
    """Replaces reductions of several stages, in place, by one `reduce` each."""
    for reduction in reductions:
        root, source = reduction.root, reduction.source
        computation = root.computation
        assert computation is not None, "instructions of a region are in a computation"
        kept = (
            size for d, size in enumerate(source.shape.dimensions) if d not in reduction.dimensions
        )
        shape = array_shape(root.shape.element_type, tuple(kept))
        value = HloInstruction.create(
            "reduce",
            shape,
            (source, root.operands[1]),
            name=root.name,
            dimensions=sorted(reduction.dimensions),
            called_computations=root.called_computations,
            metadata=root.metadata,
        )
        computation.add(value, before=root)
        if shape.dimensions != root.shape.dimensions:
            reshaped = HloInstruction.create("reshape", root.shape, (value,), name=root.name)
            value = computation.add(reshaped, before=root)
        root.replace_all_uses_with(value)
        computation.remove_dead_instructions()
