"""Index arithmetic that stays in Python integers for as long as every part is known.

An element of an array is named by one index per dimension. An index is an `int` (known when the
kernel is built), an `i64` LLVM value (known when it runs), a vector of `i32` or `i64` (one index
per lane of the block), or `LANE` for the lane dimension, whose position the surrounding lane block
supplies.

What is known of a run-time index, the least and the largest value it can have, travels with its
LLVM value: comparisons that it decides are decided while the kernel is built. So does the constant
in a sum: constants are added last, so that neighbours have the rest of their addresses in common.
What a basic block has computed already is not computed again.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeAlias
from weakref import WeakKeyDictionary

from llvmlite import ir

from fuselane.codegen.types import (
    integer_constant,
    is_vector,
    scalar_type,
    splat,
    vector_of,
    width_of,
)

I64: Final = ir.IntType(64)
MAX_I32: Final = (1 << 31) - 1
LANE: Final = None
_UNKNOWN: Final = (0, 0)

Index: TypeAlias = int | ir.Value
Element: TypeAlias = tuple[Index | None, ...]


def bounded(value: ir.Value, low: int, high: int) -> ir.Value:
    """Notes that a run-time index is never below `low` nor above `high`; returns it."""
    value.index_bounds = (low, high)
    return value


def bounds(index: Index) -> tuple[int, int] | None:
    """Returns the least and the largest value an index can have, None if that isn't known."""
    if isinstance(index, int):
        return index, index
    known: tuple[int, int] | None = getattr(index, "index_bounds", None)
    return known


def _within(value: ir.Value, low: int, high: int, *operands: Index) -> ir.Value:
    """Notes bounds of a value that was computed from operands, if theirs are known."""
    return value if any(bounds(o) is None for o in operands) else bounded(value, low, high)


def i64(value: Index) -> ir.Value:
    """Returns an index that all lanes share as an `i64` LLVM value."""
    return ir.Constant(I64, value) if isinstance(value, int) else value


def varies(index: Index | None) -> bool:
    """Returns whether an index is a vector: one per lane."""
    return isinstance(index, ir.Value) and is_vector(index)


def like(builder: ir.IRBuilder, value: Index, type_: ir.Type) -> ir.Value:
    """Returns the index as a value of `i64` or of a vector type as least as wide as its own."""
    if isinstance(value, int):
        return integer_constant(type_, value)
    if value.type == type_:
        return value
    if is_vector(value):
        return builder.sext(value, type_)
    scalar = scalar_type(type_)
    narrow = value if scalar == I64 else builder.trunc(value, scalar)
    return splat(builder, narrow, width_of(type_))


def _matched(builder: ir.IRBuilder, *values: Index) -> list[ir.Value]:
    """Returns indices as values of one type."""
    vectors = [value.type for value in values if not isinstance(value, int) and is_vector(value)]
    type_ = max(vectors, key=lambda vector: vector.element.width, default=I64)
    return [like(builder, value, type_) for value in values]


def split(index: Index) -> tuple[ir.Value | None, int]:
    """Returns an index that all lanes share as a run-time part, None if it has none, and an int."""
    if isinstance(index, int):
        return None, index
    parts: tuple[ir.Value, int] = getattr(index, "index_parts", (index, 0))
    return parts


def emit_once(
    builder: ir.IRBuilder, key: tuple[object, ...], emit: Callable[[], ir.Value]
) -> ir.Value:
    """Returns the value of a key, emitting it unless the basic block has it already."""
    known = known_values(builder.block)
    value = known.get(key)
    if value is None:
        value = known[key] = emit()
    return value


def known_values(block: ir.Block) -> dict[tuple[object, ...], ir.Value]:
    """Returns what a basic block has emitted, by key; the same object for blocks that continue."""
    known: dict[tuple[object, ...], ir.Value] | None = getattr(block, "index_values", None)
    if known is None:
        known = block.index_values = {}
    return known


def continue_block(before: ir.Block, behind: ir.Block) -> None:
    """Makes a basic block that is reached through another alone know what that one has emitted."""
    behind.index_values = known_values(before)


def add(builder: ir.IRBuilder, left: Index, right: Index) -> Index:
    """Returns left + right; no overflow is assumed."""
    if isinstance(left, int) and isinstance(right, int):
        return left + right
    if isinstance(right, int) and right == 0:
        return left
    if isinstance(left, int) and left == 0:
        return right
    if varies(left) or varies(right):
        return _sum(builder, left, right)
    (a, c), (b, d) = split(left), split(right)
    return _shifted(builder, _sum(builder, a, b) if a and b else a or b, c + d)


def _sum(builder: ir.IRBuilder, left: Index, right: Index) -> ir.Value:
    def emit() -> ir.Value:
        total = builder.add(*_matched(builder, left, right), flags=("nsw",))
        (a, b), (c, d) = bounds(left) or _UNKNOWN, bounds(right) or _UNKNOWN
        return _within(total, a + c, b + d, left, right)

    return emit_once(builder, ("add", _name(left), _name(right)), emit)


def _shifted(builder: ir.IRBuilder, base: ir.Value, constant: int) -> ir.Value:
    """Returns base + constant, and notes the two."""
    if constant == 0:
        return base
    total = _sum(builder, base, constant)
    total.index_parts = (base, constant)
    return total


def _name(index: Index) -> object:
    """Returns what tells an index from others: itself if it is known, else who it is."""
    return ("known", index) if isinstance(index, int) else id(index)


def subtract(builder: ir.IRBuilder, left: Index, right: Index) -> Index:
    """Returns left - right; no overflow is assumed."""
    if isinstance(right, int):
        return add(builder, left, -right)
    difference = builder.sub(*_matched(builder, left, right), flags=("nsw",))
    (a, b), (c, d) = bounds(left) or _UNKNOWN, bounds(right) or _UNKNOWN
    return _within(difference, a - d, b - c, left, right)


def multiply(builder: ir.IRBuilder, left: Index, factor: int) -> Index:
    """Returns left * factor; no overflow is assumed."""
    if isinstance(left, int):
        return left * factor
    if factor == 0:
        return 0
    if factor == 1:
        return left
    base, constant = split(left)
    return _shifted(builder, _product(builder, base, factor), constant * factor)


def _product(builder: ir.IRBuilder, left: ir.Value, factor: int) -> ir.Value:
    def emit() -> ir.Value:
        product = builder.mul(*_matched(builder, left, factor), flags=("nsw",))
        low, high = sorted(factor * bound for bound in bounds(left) or _UNKNOWN)
        return _within(product, low, high, left)

    return emit_once(builder, ("multiply", id(left), factor), emit)


def divide(builder: ir.IRBuilder, left: Index, divisor: int) -> tuple[Index, Index]:
    """Returns quotient and remainder of a non-negative index by a positive constant."""
    if isinstance(left, int):
        return divmod(left, divisor)
    if divisor == 1:
        return left, 0
    known = bounds(left)
    if known is not None and known[0] // divisor == known[1] // divisor:
        return known[0] // divisor, subtract(builder, left, known[0] // divisor * divisor)
    value, by = _matched(builder, left, divisor)
    quotient, remainder = builder.udiv(value, by), builder.urem(value, by)
    _quotients[quotient] = _remainders[remainder] = (value, divisor)
    return quotient, remainder


_Division = tuple[ir.Value, int]
_quotients: Final = WeakKeyDictionary[ir.Value, _Division]()
_remainders: Final = WeakKeyDictionary[ir.Value, _Division]()


def join(builder: ir.IRBuilder, quotient: Index, remainder: Index, divisor: int) -> Index:
    """Returns quotient * divisor + remainder; where `divide` made them, what it divided."""
    if isinstance(quotient, ir.Value) and isinstance(remainder, ir.Value):
        division = _quotients.get(quotient)
        if division is not None and division[1] == divisor:
            other = _remainders.get(remainder)
            if other is not None and other[0] is division[0] and other[1] == divisor:
                return division[0]
    return add(builder, multiply(builder, quotient, divisor), remainder)


def clamp(builder: ir.IRBuilder, value: Index, low: int, high: int) -> Index:
    """Returns the index held between two constants, as XLA clamps slice starts."""
    if low == high:
        return low
    if isinstance(value, int):
        return min(max(value, low), high)
    known = bounds(value)
    if known is not None and low <= known[0] and known[1] <= high:
        return value
    value, least, most = _matched(builder, value, low, high)
    at_least = builder.select(builder.icmp_signed("<", value, least), least, value)
    return builder.select(builder.icmp_signed(">", at_least, most), most, at_least)


def less(builder: ir.IRBuilder, left: Index, right: Index) -> bool | ir.Value:
    """Returns whether left < right (signed): a bool when known, else an `i1` or a vector."""
    known, other = bounds(left), bounds(right)
    if known is not None and other is not None:
        if known[1] < other[0]:
            return True
        if known[0] >= other[1]:
            return False
    return builder.icmp_signed("<", *_matched(builder, left, right))


def equal(builder: ir.IRBuilder, left: Index, right: Index) -> bool | ir.Value:
    """Returns whether the indices are equal: a bool when known, else an `i1` or a vector."""
    known, other = bounds(left), bounds(right)
    if known is not None and other is not None:
        if known == other and known[0] == known[1]:
            return True
        if known[1] < other[0] or known[0] > other[1]:
            return False
    return builder.icmp_signed("==", *_matched(builder, left, right))


def both(builder: ir.IRBuilder, left: bool | ir.Value, right: bool | ir.Value) -> bool | ir.Value:
    """Returns the conjunction of two conditions, either of which may be known."""
    if isinstance(left, bool):
        return right if left else False
    if isinstance(right, bool):
        return left if right else False
    if is_vector(left) != is_vector(right):
        width = width_of(left) or width_of(right)
        left, right = (x if is_vector(x) else splat(builder, x, width) for x in (left, right))
    return builder.and_(left, right)


def flatten(builder: ir.IRBuilder, index: Sequence[Index], dimensions: Sequence[int]) -> Index:
    """Returns the row-major position of an index in an array of these dimensions.

    Vectors of `i32` become `i64` where the array has more elements than `i32` can count.
    """
    if math.prod(dimensions) > MAX_I32:
        index = [widened(builder, coordinate) for coordinate in index]
    position: Index = 0
    for coordinate, size in zip(index, dimensions, strict=True):
        if isinstance(coordinate, int) and isinstance(position, int):  # as most are
            position = position * size + coordinate
        else:
            position = join(builder, position, coordinate, size)
    return position


def widened(builder: ir.IRBuilder, index: Index) -> Index:
    """Returns the index with vectors as vectors of `i64`."""
    if isinstance(index, int) or not is_vector(index):
        return index
    return like(builder, index, vector_of(I64, width_of(index)))


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


def shift(builder: ir.IRBuilder, index: Element, starts: Sequence[Index]) -> Element:
    """Returns the index in a whole array of an index in a window of it."""
    return tuple(
        LANE if at is None else add(builder, at, start)
        for at, start in zip(index, starts, strict=True)
    )


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
        return _reshape(builder, without_lane(index), result_dimensions, dimensions)
    parts: list[Element] = []
    for section, shape_from, shape_to in (
        (index[:result_lane], result_dimensions[:result_lane], dimensions[:lane]),
        (index[result_lane + 1 :], result_dimensions[result_lane + 1 :], dimensions[lane + 1 :]),
    ):
        parts.append(_reshape(builder, without_lane(section), shape_from, shape_to))
    return (*parts[0], LANE, *parts[1])


def _reshape(
    builder: ir.IRBuilder, index: Sequence[Index], sizes: Sequence[int], wanted: Sequence[int]
) -> tuple[Index, ...]:
    """Returns the index, in dimensions of the wanted sizes, of the same row-major position; where
    only dimensions of size 1 come or go, nothing is worked out for it."""
    long = [(at, size) for at, size in zip(index, sizes, strict=True) if size != 1]
    if [size for _, size in long] != [size for size in wanted if size != 1]:
        return unflatten(builder, flatten(builder, index, sizes), wanted)
    remaining = iter(long)
    return tuple(0 if size == 1 else next(remaining)[0] for size in wanted)


def residual_dimensions(dimensions: tuple[int, ...], lane: int | None) -> tuple[int, ...]:
    """Returns the dimensions of what one lane holds of an array."""
    return dimensions if lane is None else (*dimensions[:lane], *dimensions[lane + 1 :])


def residual_size(dimensions: tuple[int, ...], lane: int | None) -> int:
    """Returns how many elements one lane holds of an array."""
    return math.prod(residual_dimensions(dimensions, lane))


def all_indices(dimensions: tuple[int, ...], lane: int | None) -> Iterable[Element]:
    """Returns the indices of all elements that one lane holds of an array, in row-major order."""
    axes: list[Sequence[int | None]] = [range(size) for size in dimensions]
    if lane is not None:
        axes[lane] = (LANE,)
    return itertools.product(*axes)


def with_lane(index: Sequence[Index], lane: int | None) -> Element:
    """Returns the index with `LANE` put in at the lane dimension."""
    if lane is None:
        return tuple(index)
    return (*index[:lane], LANE, *index[lane:])
