"""Index arithmetic that stays in Python integers for as long as every part is known.

An element of an array is named by one index per dimension. An index is an `int` (known when the
kernel is built), an `i64` LLVM value (known when it runs), or `LANE` for the lane dimension, whose
position the surrounding lane block supplies.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, TypeAlias

from llvmlite import ir

I64: Final = ir.IntType(64)
LANE: Final = None

Index: TypeAlias = int | ir.Value
Element: TypeAlias = tuple[Index | None, ...]


def i64(value: Index) -> ir.Value:
    """Returns the index as an `i64` LLVM value."""
    return ir.Constant(I64, value) if isinstance(value, int) else value


def add(builder: ir.IRBuilder, left: Index, right: Index) -> Index:
    """Returns left + right; no overflow is assumed."""
    if isinstance(left, int) and isinstance(right, int):
        return left + right
    if isinstance(right, int) and right == 0:
        return left
    if isinstance(left, int) and left == 0:
        return right
    return builder.add(i64(left), i64(right), flags=("nsw",))


def subtract(builder: ir.IRBuilder, left: Index, right: Index) -> Index:
    """Returns left - right; no overflow is assumed."""
    if isinstance(left, int) and isinstance(right, int):
        return left - right
    if isinstance(right, int) and right == 0:
        return left
    return builder.sub(i64(left), i64(right), flags=("nsw",))


def multiply(builder: ir.IRBuilder, left: Index, factor: int) -> Index:
    """Returns left * factor; no overflow is assumed."""
    if isinstance(left, int):
        return left * factor
    if factor == 0:
        return 0
    return left if factor == 1 else builder.mul(left, i64(factor), flags=("nsw",))


def divide(builder: ir.IRBuilder, left: Index, divisor: int) -> tuple[Index, Index]:
    """Returns quotient and remainder of a non-negative index by a positive constant."""
    if isinstance(left, int):
        return divmod(left, divisor)
    if divisor == 1:
        return left, 0
    return builder.udiv(left, i64(divisor)), builder.urem(left, i64(divisor))


def clamp(builder: ir.IRBuilder, value: Index, low: int, high: int) -> Index:
    """Returns the index held between two constants, as XLA clamps slice starts."""
    if low == high:
        return low
    if isinstance(value, int):
        return min(max(value, low), high)
    at_least = builder.select(builder.icmp_signed("<", value, i64(low)), i64(low), value)
    return builder.select(builder.icmp_signed(">", at_least, i64(high)), i64(high), at_least)


def less(builder: ir.IRBuilder, left: Index, right: Index) -> bool | ir.Value:
    """Returns whether left < right (signed): a bool when known, else an `i1`."""
    if isinstance(left, int) and isinstance(right, int):
        return left < right
    return builder.icmp_signed("<", i64(left), i64(right))


def equal(builder: ir.IRBuilder, left: Index, right: Index) -> bool | ir.Value:
    """Returns whether the indices are equal: a bool when known, else an `i1`."""
    if isinstance(left, int) and isinstance(right, int):
        return left == right
    return builder.icmp_signed("==", i64(left), i64(right))


def both(builder: ir.IRBuilder, left: bool | ir.Value, right: bool | ir.Value) -> bool | ir.Value:
    """Returns the conjunction of two conditions, either of which may be known."""
    if isinstance(left, bool):
        return right if left else False
    if isinstance(right, bool):
        return left if right else False
    return builder.and_(left, right)


def flatten(builder: ir.IRBuilder, index: Sequence[Index], dimensions: Sequence[int]) -> Index:
    """Returns the row-major position of an index in an array of these dimensions."""
    position: Index = 0
    for coordinate, size in zip(index, dimensions, strict=True):
        position = add(builder, multiply(builder, position, size), coordinate)
    return position


def unflatten(
    builder: ir.IRBuilder, position: Index, dimensions: Sequence[int]
) -> tuple[Index, ...]:
    """Returns the index of a row-major position; the inverse of `flatten`."""
    index: list[Index] = []
    for size in reversed(dimensions[1:]):
        position, coordinate = divide(builder, position, size)
        index.append(coordinate)
    if dimensions:
        index.append(position)
    return tuple(reversed(index))


def without_lane(index: Element) -> tuple[Index, ...]:
    """Returns the index with the lane dimension left out."""
    return tuple(coordinate for coordinate in index if coordinate is not None)


def reshape(
    builder: ir.IRBuilder,
    index: Element,
    result: tuple[tuple[int, ...], int | None],
    operand: tuple[tuple[int, ...], int | None],
) -> Element:
    """Returns the operand's element that a row-major reshape puts at `index` of its result.

    Args:
        index: The element of the result.
        result: Dimensions and lane dimension of the result.
        operand: The same of the operand. The lane dimension, when there is one, must map to the
            operand's: as many elements in front of it and behind it on both sides.
    """
    result_dimensions, result_lane = result
    dimensions, lane = operand
    if result_lane is None or lane is None:
        known = without_lane(index)
        return unflatten(builder, flatten(builder, known, result_dimensions), dimensions)
    parts: list[Element] = []
    for section, shape_from, shape_to in (
        (index[:result_lane], result_dimensions[:result_lane], dimensions[:lane]),
        (index[result_lane + 1 :], result_dimensions[result_lane + 1 :], dimensions[lane + 1 :]),
    ):
        position = flatten(builder, without_lane(section), shape_from)
        parts.append(unflatten(builder, position, shape_to))
    return (*parts[0], LANE, *parts[1])


def residual_dimensions(dimensions: tuple[int, ...], lane: int | None) -> tuple[int, ...]:
    """Returns the dimensions of what one lane holds of an array."""
    return tuple(size for axis, size in enumerate(dimensions) if axis != lane)


def residual_size(dimensions: tuple[int, ...], lane: int | None) -> int:
    """Returns how many elements one lane holds of an array."""
    return math.prod(residual_dimensions(dimensions, lane))


def with_lane(index: Sequence[Index], lane: int | None) -> Element:
    """Returns the index with `LANE` put in at the lane dimension."""
    if lane is None:
        return tuple(index)
    return (*index[:lane], LANE, *index[lane:])
