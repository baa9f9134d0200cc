"""Sorts, and what XLA has instead of one, in row-major order.

    (%v, %i) = custom-call(%x), custom_call_target="TopK"       %x: f32[8,9], %v: f32[8,3]
->  (%s, %j) = sort(%x, iota), dimensions={1}, is_stable=true
    %v = slice(%s), [0:8], [0:3]      %i = slice(%j), [0:8], [0:3]

Comparators of JAX map both of their values to a key, by many instructions, and compare the keys. A
sorting network compares an element many times; so its key is computed once and sorted along:

    %s = sort(%x), to_apply={compare(f(left), f(right)), direction=LT}
->  %k = f(%x);  (_, %s) = sort(%k, %x), to_apply={compare(left.0, right.0), direction=LT}

Numerics: bitwise-equal. XLA:CPU's TopK gives equal values in the order of their indices.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from fuselane.hlo.computation import HloComputation
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.shape import PrimitiveType, Shape
from fuselane.lanes.applied import apply_to_arrays
from fuselane.lanes.builder import ComputationBuilder, array_shape, elementwise_attributes
from fuselane.lanes.layout import memory_order, relayout

TOP_K_TARGET: Final = "TopK"


def lower_sort(
    builder: ComputationBuilder,
    instruction: HloInstruction,
    operands: Sequence[HloInstruction],
    to_apply: HloComputation,
) -> HloInstruction | tuple[HloInstruction, ...]:
    """Lowers a sort of one array, or of several by the same order, to the order of its first."""
    order = memory_order(instruction.operands[0].shape)
    arrays = [
        relayout(builder, operand, memory_order(original.shape), order)
        for original, operand in zip(instruction.operands, operands, strict=True)
    ]
    results = _sort(builder, arrays, order.index(instruction.dimensions[0]), to_apply, instruction)
    if not instruction.shape.is_tuple:
        return relayout(builder, results[0], order, memory_order(instruction.shape))
    return tuple(
        relayout(builder, result, order, memory_order(shape))
        for result, shape in zip(results, instruction.shape.tuple_shapes, strict=True)
    )


def lower_top_k(
    builder: ComputationBuilder,
    instruction: HloInstruction,
    operands: Sequence[HloInstruction],
    to_apply: HloComputation,
) -> tuple[HloInstruction, ...]:
    """Lowers a TopK custom call along its operand's last dimension.

    Args:
        builder: Where.
        instruction: The custom call; its results are values and s32 indices.
        operands: The array.
        to_apply: Whether the first of two values comes before the second.
    """
    shape = instruction.operands[0].shape
    logical = tuple(range(shape.rank))
    values = relayout(builder, operands[0], memory_order(shape), logical)
    last = shape.rank - 1
    index_type = instruction.shape.tuple_shapes[1].element_type
    iota = builder.iota(array_shape(index_type, values.shape.dimensions), last, origin=instruction)
    comparator = _with_more_parameters(to_apply, iota)
    results = _sort(builder, [values, iota], last, comparator, instruction)
    wanted = instruction.shape.tuple_shapes
    leading = tuple((0, size, 1) for size in wanted[0].dimensions)
    return tuple(
        relayout(builder, builder.slice(result, leading), logical, memory_order(shape))
        for result, shape in zip(results, wanted, strict=True)
    )


def _sort(
    builder: ComputationBuilder,
    arrays: Sequence[HloInstruction],
    dimension: int,
    to_apply: HloComputation,
    origin: HloInstruction,
) -> list[HloInstruction]:
    key = _key_function(to_apply)
    if key is not None and key.opcode != "parameter":
        keys = apply_to_arrays(builder, key, [a for a in arrays for _ in ("left", "right")])
        comparator = _compare_first(keys, arrays, to_apply.root)
        return _emit(builder, [keys, *arrays], dimension, comparator, origin)[1:]
    return _emit(builder, arrays, dimension, to_apply, origin)


def _emit(
    builder: ComputationBuilder,
    arrays: Sequence[HloInstruction],
    dimension: int,
    to_apply: HloComputation,
    origin: HloInstruction,
) -> list[HloInstruction]:
    shapes = [array.shape for array in arrays]
    attributes = (("dimensions", (dimension,)), ("is_stable", True))
    shape = shapes[0] if len(shapes) == 1 else Shape.tuple_of(shapes)
    value = builder.emit("sort", shape, arrays, attributes, origin=origin, called=(to_apply,))
    return builder.elements(value)


# Keys.


def _key_function(comparator: HloComputation) -> HloInstruction | None:
    """Returns the left key of a comparator that compares the same function of both sides."""
    root = comparator.root
    if root.opcode != "compare" or root.comparison_direction not in ("LT", "GT"):
        return None
    left, right = root.operands
    return left if _is_mirrored(left, right) else None


def _is_mirrored(left: HloInstruction, right: HloInstruction) -> bool:
    """Whether two values of a comparator are the same function, of left and right elements."""
    if left.opcode == right.opcode == "parameter":
        number = left.parameter_number
        return number % 2 == 0 and right.parameter_number == number + 1
    if left.opcode == right.opcode == "constant":
        return left is right or bool(np.array_equal(_bits(left), _bits(right)))
    return (
        left.opcode == right.opcode
        and left.shape == right.shape
        and len(left.operands) == len(right.operands)
        and _attributes(left) == _attributes(right)
        and all(map(_is_mirrored, left.operands, right.operands))
    )


def _bits(value: HloInstruction) -> np.ndarray:
    return np.frombuffer(np.ascontiguousarray(value.literal).tobytes(), np.uint8)


def _attributes(instruction: HloInstruction) -> tuple[object, ...]:
    proto = instruction.proto
    return (
        proto.comparison_direction,
        instruction.comparison_type,
        proto.exponent_bits,
        proto.mantissa_bits,
    )


def _compare_first(
    keys: HloInstruction, arrays: Sequence[HloInstruction], root: HloInstruction
) -> HloComputation:
    """Returns the comparator that compares two keys as `root` does, and ignores what is sorted."""
    builder = ComputationBuilder("compare_keys")
    types = [array.shape.element_type for array in (keys, *arrays) for _ in range(2)]
    parameters = [
        builder.parameter(number, array_shape(element_type, ()), None)
        for number, element_type in enumerate(types)
    ]
    builder.computation.root = builder.emit(
        "compare",
        array_shape(PrimitiveType.PRED, ()),
        parameters[:2],
        elementwise_attributes(root),
    )
    return builder.computation


# TopK.


def _with_more_parameters(comparator: HloComputation, payload: HloInstruction) -> HloComputation:
    """Returns a comparator of two values that also takes two elements of a payload, unused."""
    builder = ComputationBuilder(comparator.name)
    values: dict[HloInstruction, HloInstruction] = {}
    scalar = array_shape(payload.shape.element_type, ())
    for instruction in comparator.instructions:
        operands = [values[operand] for operand in instruction.operands]
        values[instruction] = builder.computation.add(instruction.clone(operands))
    for number in (2, 3):
        builder.parameter(number, scalar, None)
    builder.computation.root = values[comparator.root]
    return builder.computation
