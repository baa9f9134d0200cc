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

from collections.abc import Iterable

import numpy as np

from fuselane.analysis.leaving import Reduction
from fuselane.hlo.computation import HloComputation
from fuselane.hlo.dots import DotDimensions
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.literal import numpy_to_literal
from fuselane.lanes.builder import array_shape
from fuselane.lanes.late import combining_computation


def join_stages(reductions: Iterable[Reduction]) -> None:
    """Replaces reductions of several stages, and dots, in place, by one `reduce` each."""
    for reduction in reductions:
        root, source = reduction.root, reduction.source
        computation = root.computation
        assert computation is not None, "instructions of a region are in a computation"
        if root.opcode == "dot":
            root.replace_all_uses_with(_sum_of_products(root, computation))
            computation.remove_dead_instructions()
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
    """Adds what a dot is, product by product, in front of it, and returns the sums."""
    numbers, element = DotDimensions.of(dot), dot.shape.element_type
    left, right = dot.operands
    kept = dot.shape.dimensions
    summed = [left.shape.dimensions[d] for d in numbers.left_contracting]
    all_sizes = array_shape(element, (*kept, *summed))
    num_batch, num_left = len(numbers.left_batch), len(numbers.left_free)
    places = range(len(kept), len(kept) + len(summed))

    def spread(
        operand: HloInstruction,
        groups: Iterable[tuple[Iterable[int], Iterable[int]]],
    ) -> HloInstruction:
        where = {d: place for own, target in groups for d, place in zip(own, target, strict=True)}
        value = HloInstruction.create(
            "broadcast",
            all_sizes,
            (operand,),
            name=dot.name,
            dimensions=[where[d] for d in range(operand.shape.rank)],
        )
        return computation.add(value, before=dot)

    batch = range(num_batch)
    factors = (
        spread(
            left,
            [
                (numbers.left_batch, batch),
                (numbers.left_free, range(num_batch, num_batch + num_left)),
                (numbers.left_contracting, places),
            ],
        ),
        spread(
            right,
            [
                (numbers.right_batch, batch),
                (numbers.right_free, range(num_batch + num_left, len(kept))),
                (numbers.right_contracting, places),
            ],
        ),
    )
    products = computation.add(
        HloInstruction.create("multiply", all_sizes, factors, name=dot.name, metadata=dot.metadata),
        before=dot,
    )
    scalar = array_shape(element, ())
    zero = computation.add(
        HloInstruction.create(
            "constant",
            scalar,
            name=dot.name,
            literal=numpy_to_literal(np.zeros((), element.dtype), scalar),
        ),
        before=dot,
    )
    sums = HloInstruction.create(
        "reduce",
        array_shape(element, kept),
        (products, zero),
        name=dot.name,
        dimensions=list(places),
        called_computations=[combining_computation("add", element)],
        metadata=dot.metadata,
    )
    return computation.add(sums, before=dot)
