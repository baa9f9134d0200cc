"""Dots in the order of their operands' memory.

Operands stay as they lie, the dimension numbers are changed instead; the result is transposed where
its layout asks for it, which costs nothing (a view).

Example: with `%w = f32[64,4]{0,1} parameter(0)`

    %d = f32[8,64]{1,0} dot(%x, %w), lhs_contracting_dims={1}, rhs_contracting_dims={1}
 ->
    %w: f32[4,64];  %d = f32[8,64] dot(%x, %w), lhs_contracting_dims={1}, rhs_contracting_dims={0}

Numerics: as XLA:CPU's: sums of F16 and BF16 are kept in F32 and rounded once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from fuselane.analysis.dimension_rules import matching_dimensions
from fuselane.analysis.refusal import refuse
from fuselane.decisions import Reason
from fuselane.hlo.dots import DotDimensions
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.shape import PrimitiveType
from fuselane.lanes.builder import ComputationBuilder, array_shape
from fuselane.lanes.layout import Order, memory_order, relayout


def lower_dot(
    builder: ComputationBuilder, instruction: HloInstruction, operands: Sequence[HloInstruction]
) -> HloInstruction:
    """Lowers a dot.

    Raises:
        UnsupportedError: UNSUPPORTED_TYPE for booleans; UNSUPPORTED_OPCODE for a dot whose
            algorithm is prescribed.
    """
    element = instruction.shape.element_type
    if element is PrimitiveType.PRED:
        raise refuse(Reason.UNSUPPORTED_TYPE, instruction, type=element.lower)
    if instruction.proto.precision_config.algorithm:
        raise refuse(Reason.UNSUPPORTED_OPCODE, instruction, detail=" with a prescribed algorithm")
    logical = DotDimensions.of(instruction)
    left_order, right_order = (memory_order(o.shape) for o in instruction.operands)
    physical = _in_memory_order(logical, left_order, right_order)
    left, right = (operand.shape.dimensions for operand in operands)
    sizes = physical.result_sizes(left, right)
    result = builder.reshape(_emit(builder, instruction, operands, physical), sizes)
    source = _result_order(logical, left_order, right_order)
    return relayout(builder, result, source, memory_order(instruction.shape))


def _emit(
    builder: ComputationBuilder,
    instruction: HloInstruction,
    operands: Sequence[HloInstruction],
    numbers: DotDimensions,
) -> HloInstruction:
    """Emits a dot of what was reshaped before, where that only merged free dimensions, and of what
    was transposed before, where that lies better.

        dot(reshape(x), w), x f32[8,3,5], reshape f32[24,5]  ->  dot(x, w): f32[8,3,..]

    Merged, two dimensions could not be lanes and something else.
    """
    left = _before_merging(operands[0], numbers.left_batch, numbers.left_contracting)
    right = _before_merging(operands[1], numbers.right_batch, numbers.right_contracting)
    left, right = _before_transposing(left, right), _before_transposing(right, left)
    whole = DotDimensions.create(
        left_rank=left.source.shape.rank,
        right_rank=right.source.shape.rank,
        left_batch=left.batch,
        right_batch=right.batch,
        left_contracting=left.contracting,
        right_contracting=right.contracting,
    )
    sizes = whole.result_sizes(left.source.shape.dimensions, right.source.shape.dimensions)
    return builder.emit(
        "dot",
        array_shape(instruction.shape.element_type, sizes),
        (left.source, right.source),
        (("dot_dimension_numbers", whole),),
        origin=instruction,
    )


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class _Operand:
    """An operand of a dot and the numbers of its dimensions."""

    source: HloInstruction
    batch: tuple[int, ...]
    contracting: tuple[int, ...]

    def find_free(self) -> list[int]:
        """Returns the dimensions that are its own, in order."""
        taken = {*self.batch, *self.contracting}
        return [d for d in range(self.source.shape.rank) if d not in taken]

    def find_innermost(self) -> int | None:
        """Returns the dimension along which its neighbours in memory lie, None if there is one
        element only."""
        sizes = self.source.shape.dimensions
        return max((d for d, size in enumerate(sizes) if size > 1), default=None)


def _before_merging(
    operand: HloInstruction, batch: tuple[int, ...], contracting: tuple[int, ...]
) -> _Operand:
    """Returns what an operand was before it was reshaped; the operand itself if it must be."""
    if operand.opcode == "reshape":
        source = operand.operands[0]
        pairs = matching_dimensions(source.shape.dimensions, operand.shape.dimensions)
        position = {target: dimension for dimension, target in pairs}
        if all(d in position for d in (*batch, *contracting)):
            return _Operand(
                source=source,
                batch=tuple(position[d] for d in batch),
                contracting=tuple(position[d] for d in contracting),
            )
    return _Operand(source=operand, batch=batch, contracting=contracting)


def _before_transposing(operand: _Operand, other: _Operand) -> _Operand:
    """Returns what an operand was before it was transposed, if a dot reads that with vectors; the
    operand itself if it must be.

        transpose(%cache), cache f32[8,100,4,16] -> [8,4,16,100], sums over 16   ->   %cache

    Its neighbours in memory are what is summed over, in the other operand as well, or all that it
    has of its own.
    """
    if operand.source.opcode != "transpose":
        return operand
    source, order = operand.source.operands[0], operand.source.dimensions
    before = _Operand(
        source=source,
        batch=tuple(order[d] for d in operand.batch),
        contracting=tuple(order[d] for d in operand.contracting),
    )
    kept = [order[d] for d in operand.find_free()]
    innermost = before.find_innermost()
    if kept != sorted(kept) or innermost is None:
        return operand
    if innermost in kept:
        return before if all(source.shape.dimensions[d] == 1 for d in kept[:-1]) else operand
    if innermost not in before.contracting:
        return operand
    summed = before.contracting.index(innermost)
    return before if other.contracting[summed] == other.find_innermost() else operand


def _in_memory_order(logical: DotDimensions, left: Order, right: Order) -> DotDimensions:
    return DotDimensions.create(
        left_rank=len(left),
        right_rank=len(right),
        left_batch=tuple(left.index(d) for d in logical.left_batch),
        right_batch=tuple(right.index(d) for d in logical.right_batch),
        left_contracting=tuple(left.index(d) for d in logical.left_contracting),
        right_contracting=tuple(right.index(d) for d in logical.right_contracting),
    )


def _result_order(logical: DotDimensions, left: Order, right: Order) -> Order:
    """Returns the result's own dimensions in the order in which the lowered dot has them."""
    num_batch, num_left = len(logical.left_batch), len(logical.left_free)
    left_numbers = [logical.left_free.index(d) for d in left if d in logical.left_free]
    right_numbers = [logical.right_free.index(d) for d in right if d in logical.right_free]
    return (
        *range(num_batch),
        *(num_batch + n for n in left_numbers),
        *(num_batch + num_left + n for n in right_numbers),
    )
