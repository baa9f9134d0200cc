"""Sorts, and what XLA has instead of one, in row-major order.

    (%v, %i) = custom-call(%x), custom_call_target="TopK"       %x: f32[8,9], %v: f32[8,3]
->  (%s, %j) = sort(%x, iota), dimensions={1}, is_stable=true
    %v = slice(%s), [0:8], [0:3]      %i = slice(%j), [0:8], [0:3]

Comparators of JAX map both of their values to a key, by many instructions, and compare the keys, of
several arrays perhaps those of each. A sorting network compares an element many times; so its key
is computed once and sorted along:

    %s = sort(%x), to_apply={compare(f(left), f(right)), direction=LT}
->  %k = f(%x);  (_, %s) = sort(%k, %x), to_apply={compare(left.0, right.0), direction=LT}

Numerics: bitwise-equal. XLA:CPU's TopK gives equal values in the order of their indices.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Final, TypeAlias

import numpy as np

from fuselane.hlo.computation import HloComputation
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.shape import Shape
from fuselane.lanes.applied import apply_to_arrays
from fuselane.lanes.builder import ComputationBuilder, array_shape
from fuselane.lanes.layout import memory_order, relayout

TOP_K_TARGET: Final = "TopK"

_GIVEN: Final = frozenset({"constant", "parameter"})

_Key: TypeAlias = tuple[HloInstruction, HloInstruction]
"""The same function of a left and of a right element."""


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
    keys = _find_keys(to_apply)
    sides = [array for array in arrays for _ in ("left", "right")]
    made = [apply_to_arrays(builder, left, sides) for left, _ in keys]
    comparator = _compare_keys(to_apply, keys) if keys else to_apply
    return _emit(builder, [*made, *arrays], dimension, comparator, origin)[len(keys) :]


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


def _find_keys(comparator: HloComputation) -> list[_Key]:
    """Returns the values that a comparator compares, if those of both sides are the same function
    and more than an element."""
    keys: list[_Key] = []
    taken: set[HloInstruction] = set()
    for instruction in comparator.instructions:
        if instruction.opcode != "compare":
            continue
        one, other = instruction.operands
        for left, right in ((one, other), (other, one)):
            is_new = taken.isdisjoint((left, right))
            if is_new and left.opcode not in _GIVEN and _is_mirrored(left, right):
                keys.append((left, right))
                taken.update((left, right))
    return keys


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


def _compare_keys(comparator: HloComputation, keys: Sequence[_Key]) -> HloComputation:
    """Returns a comparator that is given keys, in front of what is sorted, and does not make them.

    Args:
        comparator: The one that makes them.
        keys: Of both sides, values in it.
    """
    builder = ComputationBuilder("compare_keys")
    values: dict[HloInstruction, HloInstruction] = {}
    for value in (*itertools.chain.from_iterable(keys), *comparator.parameters):
        values[value] = builder.parameter(len(values), value.shape, None)
    for instruction in comparator.post_order():
        if instruction not in values and all(o in values for o in instruction.operands):
            operands = [values[operand] for operand in instruction.operands]
            values[instruction] = builder.computation.add(instruction.clone(operands))
    builder.computation.root = values[comparator.root]
    builder.computation.remove_dead_instructions()
    return builder.computation


# TopK.


def _with_more_parameters(comparator: HloComputation, payload: HloInstruction) -> HloComputation:
    """Returns a comparator of two values that also takes two elements of a payload, unused, which
    it may do already."""
    builder = ComputationBuilder(comparator.name)
    values: dict[HloInstruction, HloInstruction] = {}
    scalar = array_shape(payload.shape.element_type, ())
    for instruction in comparator.instructions:
        operands = [values[operand] for operand in instruction.operands]
        values[instruction] = builder.computation.add(instruction.clone(operands))
    for number in range(len(comparator.parameters), 4):
        builder.parameter(number, scalar, None)
    builder.computation.root = values[comparator.root]
    return builder.computation
