"""Operations of random programs on what several elements of a lane make together: outer products,
contractions, stencils, scans by an associative function."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import jax
from jax import lax

from fuselane.fuzz.builder import COMPUTED, LARGEST, Builder, Operation
from fuselane.fuzz.kinds import (
    INTEGERS,
    Kind,
    Value,
    cast,
    chosen,
    fit,
    fits,
    is_complex,
    is_floating,
    limit,
    near,
    number,
    on_grid,
    resize,
    without_sign_of_zero,
)
from fuselane.fuzz.program import Step

CONTRACTIONS: Final = ("ka,kb->ab", "ak,kb->ab", "ak,bk->ab", "ka,bk->ab")
MAX_COLUMNS: Final = 17
"""Results a contraction has in either dimension, at most."""


def _plain(value: Value) -> Value:
    """Returns an exact value in a type whose sums of products of a few hundred are not rounded."""
    wide = ("int32", "int64", "float32", "float64")
    if value.kind is Kind.NEAR or value.dtype in wide:
        return value
    target = "float32" if is_floating(value.dtype) or is_complex(value.dtype) else "int32"
    return Value(cast(value.array, target))


def _partner(builder: Builder, wanted: int, value: Value, size: int | None = None) -> Value:
    """Returns a value with dimensions, of the kind and type of another, in a shape of its own, if
    possible one with so many elements in a dimension."""

    def accept(other: Value) -> bool:
        return bool(other.shape) and fits(other, value.kind, value.dtype)

    has_size = size is not None and any(
        accept(other) and size in other.shape for other in builder.values.values()
    )
    found = builder.pick(wanted, lambda v: accept(v) and (not has_size or size in v.shape))
    shape = found.shape or (3,)
    return fit(found if accept(found) else value, value.kind, value.dtype, shape)


def outer(builder: Builder, step: Step) -> Value:
    """Each element of a value with each of another, or each row with each."""
    left = _plain(builder.array(step.operands[0], COMPUTED))
    right = _partner(builder, step.operands[1], left)
    have_rows = len(left.shape) == len(right.shape) == 2 and left.shape[1] == right.shape[1]
    if have_rows and left.array.size * right.shape[0] <= LARGEST:
        first, second = left.array[:, None, :], right.array[None, :, :]
    else:
        count = max(LARGEST // left.array.size, 1)
        flat = resize(right.array, (min(right.array.size, count),))
        first, second = lax.expand_dims(left.array, (left.array.ndim,)), flat
    form = step.variant % 4
    if left.kind is Kind.NEAR:
        half, quarter = (number(x, left.dtype) for x in (0.5, 0.25))
        if form == 3 and not builder.smooth:
            return chosen(jax.numpy.maximum(first, second), Kind.NEAR, (left, right))
        joined = (first - second) * half if form % 2 else first * second * quarter
        return near(joined, left, right)
    if form == 0:
        return Value(first < second) if not is_complex(left.dtype) else Value(first == second)
    return Value(on_grid((first - second, first * second, first + second)[form - 1]))


def contract(builder: Builder, step: Step) -> Value:
    """A product of matrices or vectors, each over any of its dimensions."""
    left = _plain(builder.array(step.operands[0], COMPUTED))
    equation = CONTRACTIONS[step.variant % 4]
    left_matrix = _matrix(left.array, equation[:2])
    count = left_matrix.shape[equation.index("k")]
    right = _partner(builder, step.operands[1], left, count)
    right_matrix = _matrix(right.array, equation[3:5])
    place = equation.index("k", 3) - 3
    if right_matrix.shape[place] != count:
        shape = (count, 1) if place == 0 else (1, count)
        right_matrix = resize(right.array, shape)
    arrays = [_narrow(left_matrix, equation[:2]), _narrow(right_matrix, equation[3:5])]
    if left.kind is Kind.NEAR:
        scaled = arrays[0] * number(0.25 / count, left.dtype)
        made = jax.numpy.einsum(equation, scaled, arrays[1], preferred_element_type=left.dtype)
        return near(_squeezed(made), left, right, num_terms=count)
    if is_floating(left.dtype):
        arrays = [limit(array, 2) for array in arrays]
    made = jax.numpy.einsum(equation, *arrays, preferred_element_type=left.dtype)
    return Value(on_grid(without_sign_of_zero(_squeezed(made))))


def _matrix(array: jax.Array, names: str) -> jax.Array:
    """Returns an array with its first dimension, and all others as one; a vector along `k`."""
    if array.ndim == 1 and names.index("k") == 1:
        return lax.expand_dims(array, (0,))
    return lax.reshape(array, (array.shape[0], array.size // array.shape[0]))


def _narrow(matrix: jax.Array, names: str) -> jax.Array:
    """Returns a matrix with few enough rows or columns that are not contracted."""
    axis = 1 - names.index("k")
    size = min(matrix.shape[axis], MAX_COLUMNS)
    return lax.slice_in_dim(matrix, 0, size, axis=axis)


def _squeezed(array: jax.Array) -> jax.Array:
    """Returns an array without dimensions of one."""
    return lax.reshape(array, tuple(size for size in array.shape if size > 1))


def stencil(builder: Builder, step: Step) -> Value:
    """Each element with its neighbours, in one dimension or in two: around the edge, or with
    something else there."""
    value = builder.array(step.operands[0], COMPUTED)
    array = value.array if value.dtype != "bool" else cast(value.array, "int32")
    axis = step.operands[1] % array.ndim
    axes = {axis, (axis + 1) % array.ndim} if step.variant % 2 else {axis}
    around = [_shifted(array, a, by, step.variant // 2 % 3) for a in sorted(axes) for by in (1, -1)]
    if value.kind is Kind.NEAR:
        share = number(1 / (2 * len(around)), value.dtype)
        total = array * number(0.5, value.dtype)
        for neighbour in around:
            total = total - neighbour * share
        return near(total, value, num_terms=len(around))
    total = array
    for neighbour in around:
        total = total + neighbour
    return Value(on_grid(total))


def _shifted(array: jax.Array, axis: int, by: int, edge: int) -> jax.Array:
    """Returns an array moved by one place: rolled, with zeros from outside, or with what was at the
    edge."""
    if edge == 0:
        return jax.numpy.roll(array, by, axis)
    mode = "constant" if edge == 1 else "edge"
    widths = [(0, 0)] * array.ndim
    widths[axis] = (1, 0) if by > 0 else (0, 1)
    padded = jax.numpy.pad(array, widths, mode=mode)
    start = 0 if by > 0 else 1
    return lax.slice_in_dim(padded, start, start + array.shape[axis], axis=axis)


def associative_scan(builder: Builder, step: Step) -> Value:
    """What the elements up to each make together: sums, largest, linear functions one after
    another."""
    value = builder.array(step.operands[0], COMPUTED)
    axis = step.operands[1] % len(value.shape)
    reverse = step.operands[2] % 2 == 1
    size = value.shape[axis]
    if value.kind is Kind.NEAR:
        if step.variant % 2 and not builder.smooth:
            found = lax.associative_scan(lax.max, value.array, reverse=reverse, axis=axis)
            return chosen(found, Kind.NEAR, (value,))
        scaled = value.array * number(1 / size, value.dtype)
        return near(
            lax.associative_scan(lax.add, scaled, reverse=reverse, axis=axis), value, num_terms=size
        )
    array = value.array if value.dtype in INTEGERS else cast(value.array, "int32")
    if step.variant % 3:
        functions = (lax.add, lax.max, lax.bitwise_xor, lax.mul)
        function = functions[step.variant // 3 % 4]
        return Value(lax.associative_scan(function, array, reverse=reverse, axis=axis))
    pairs = (lax.bitwise_and(array, number(3, str(array.dtype))), array)
    found = lax.associative_scan(_after, pairs, reverse=reverse, axis=axis)
    return Value(found[step.variant // 3 % 2])


def _after(
    first: tuple[jax.Array, jax.Array], second: tuple[jax.Array, jax.Array]
) -> tuple[jax.Array, jax.Array]:
    """Returns the linear function of one behind another."""
    return lax.mul(second[0], first[0]), lax.add(lax.mul(second[0], first[1]), second[1])


MIXING: Final[Mapping[str, Operation]] = {
    "outer": outer,
    "contract": contract,
    "stencil": stencil,
    "associative-scan": associative_scan,
}
