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
    sizes = (
        *(left[d] for d in physical.left_batch),
        *(left[d] for d in physical.left_free),
        *(right[d] for d in physical.right_free),
    )
    result = builder.emit(
        "dot",
        array_shape(element, sizes),
        operands,
        (("dot_dimension_numbers", physical),),
        origin=instruction,
    )
    source = _result_order(logical, left_order, right_order)
    return relayout(builder, result, source, memory_order(instruction.shape))


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
