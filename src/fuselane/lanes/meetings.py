"""Reductions over lanes that meet in every step, each made one instruction.

    %p = f32[63,32] reshape(pad(%x, 0))                     %x: f32[2000], the lanes
    %s = f32[63] reduce(%p, 0), dimensions={1}, to_apply=add
    %t = f32[] reduce(%s, %init), dimensions={0}, to_apply=add
->  %t = f32[] reduce(%x, %init), dimensions={0}, to_apply=add

    %d = f32[3] dot(%x, %y), lhs_contracting_dims={0}, rhs_contracting_dims={0}      %y: f32[2000,3]
->  %p = f32[2000,3] multiply(broadcast(%x), %y)
    %d = f32[3] reduce(%p, 0), dimensions={0}, to_apply=add

Numerics: the order in which values are combined changes, and products of a dot are rounded.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fuselane.analysis.leaving import Reduction
from fuselane.hlo.computation import HloComputation
from fuselane.hlo.dots import DotDimensions
from fuselane.hlo.instruction import HloInstruction
from fuselane.lanes.builder import ComputationBuilder, array_shape


def join_stages(reductions: Iterable[Reduction]) -> None:
    """Replaces reductions of several stages, and dots, in place, by one `reduce` each."""
    for reduction in reductions:
        root, source = reduction.root, reduction.source
        computation = root.computation
        assert computation is not None, "instructions of a region are in a computation"
        if root.opcode == "dot":
            root.replace_all_uses_with(_sum_of_products(root, computation))
            computation.remove_dead_instructions()
            computation.sort()
            continue
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


def _sum_of_products(dot: HloInstruction, computation: HloComputation) -> HloInstruction:
    """Adds what a dot is, product by product, to its computation, and returns the sums."""
    numbers, element = DotDimensions.of(dot), dot.shape.element_type
    left, right = dot.operands
    kept, rank = dot.shape.dimensions, dot.shape.rank
    summed = tuple(left.shape.dimensions[d] for d in numbers.left_contracting)
    shape = array_shape(element, (*kept, *summed))
    places = tuple(range(rank, rank + len(summed)))
    builder = ComputationBuilder.extending(computation)

    def spread(operand: HloInstruction, own: Sequence[int], at: Iterable[int]) -> HloInstruction:
        where = dict(zip(own, at, strict=True))
        dimensions = tuple(where[d] for d in range(operand.shape.rank))
        return builder.emit(
            "broadcast", shape, (operand,), (("dimensions", dimensions),), origin=dot
        )

    # What the result keeps of its operands: batches, then the left one's own, then the right one's.
    num_paired = len(numbers.left_batch)
    num_left = num_paired + len(numbers.left_free)
    of_left = (*numbers.left_batch, *numbers.left_free, *numbers.left_contracting)
    of_right = (*numbers.right_batch, *numbers.right_free, *numbers.right_contracting)
    factors = (
        spread(left, of_left, (*range(num_left), *places)),
        spread(right, of_right, (*range(num_paired), *range(num_left, rank), *places)),
    )
    products = builder.emit("multiply", shape, factors, origin=dot)
    return builder.fold("add", products, places, dot)
