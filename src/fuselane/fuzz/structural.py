"""Operations of random programs that move, reduce, contract and sort, by HLO opcode."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Final

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fuselane.fuzz.builder import COMPUTED, EXACT, LARGEST, Builder, Operation
from fuselane.fuzz.kinds import (
    INTEGERS,
    Kind,
    Value,
    cast,
    chosen,
    fit,
    full,
    is_complex,
    is_floating,
    limit,
    near,
    number,
    on_grid,
    resize,
    to_near,
    without_denormals,
    without_nan,
    without_sign_of_zero,
)
from fuselane.fuzz.program import NUMBER, Step

SORTABLE: Final = frozenset({Kind.EXACT, Kind.SPECIAL})


def _moved(move: Callable[[jax.Array, int, Step], jax.Array]) -> Operation:
    """An operation that moves data along a dimension of any value."""

    def apply(builder: Builder, step: Step) -> Value:
        value = builder.array(step.operands[0])
        axis = step.operands[1] % len(value.shape)
        array = move(value.array, axis, step)
        return value.moved(array) if 0 < array.size <= LARGEST else value

    return apply


def _slice(array: jax.Array, axis: int, step: Step) -> jax.Array:
    size = array.shape[axis]
    start = step.operands[2] % size
    if step.variant % 4 == 3:
        return lax.index_in_dim(array, start, axis, keepdims=False)
    return lax.slice_in_dim(array, start, size, 1 + step.variant % 4, axis)


def _pad(array: jax.Array, axis: int, step: Step) -> jax.Array:
    forms = ((1, -1, 1), (2, 3, 0), (-1, 5, 0), (0, 1, 2))
    form = forms[step.variant % len(forms)]
    padding = [(0, 0, 0)] * array.ndim
    padding[axis] = form if array.shape[axis] > 1 else (2, 3, 0)
    return lax.pad(array, number(0, str(array.dtype)), padding)


def _concatenate(array: jax.Array, axis: int, step: Step) -> jax.Array:
    size = array.shape[axis]
    first = lax.slice_in_dim(array, 0, 1 + step.operands[2] % size, axis=axis)
    if step.variant % 2:  # a rotation
        return lax.concatenate(
            [lax.slice_in_dim(array, first.shape[axis], size, axis=axis), first], axis
        )
    return lax.concatenate([array, first], axis)


def _reshape(array: jax.Array, axis: int, step: Step) -> jax.Array:
    if step.variant % 3 == 0:
        return lax.expand_dims(array, (axis,))
    for factor in (3, 2, 5, 7):
        if array.ndim == 1 and array.size % factor == 0 and array.size > factor:
            return lax.reshape(array, (factor, array.size // factor))
    return lax.reshape(array, (array.size,))


def _broadcast(array: jax.Array, axis: int, step: Step) -> jax.Array:
    times = 2 + step.variant % 2
    if array.ndim > 2:
        return array
    shape = (*array.shape[:axis], times, *array.shape[axis:])
    return lax.broadcast_in_dim(array, shape, [d for d in range(array.ndim + 1) if d != axis])


def broadcast(builder: Builder, step: Step) -> Value:
    """A value repeated along a new dimension."""
    value = builder.pick(step.operands[0])
    if value.shape:
        return _moved(_broadcast)(builder, step)
    return value.moved(lax.broadcast(value.array, ((3,), (7,), (2, 3), (65,))[step.variant % 4]))


def constant(builder: Builder, step: Step) -> Value:
    """A number or a small vector."""
    dtype = builder.exact(step.operands[0]).dtype
    first = step.operands[1]
    numbers: object = first if step.variant % 2 else (5, first, 0)
    return Value(cast(jnp.asarray(np.asarray(numbers, np.int32)), dtype))


def iota(builder: Builder, step: Step) -> Value:
    """The numbers from 0."""
    dtype = builder.exact(step.operands[0]).dtype
    return Value(cast(lax.iota(np.int32, (3, 7, 65, 1)[step.variant % 4]), dtype))


def reduce(builder: Builder, step: Step) -> Value:
    """Reduces a value along one dimension or all."""
    value = builder.array(step.operands[0], {*COMPUTED, Kind.SPECIAL})
    rank = len(value.shape)
    axes = (step.operands[1] % rank,) if step.operands[1] % 3 else tuple(range(rank))
    count = math.prod(value.shape[axis] for axis in axes)
    array = value.array
    if value.kind is Kind.SPECIAL:
        extreme = (lax.reduce_max, lax.reduce_min)[step.variant % 2]
        # XLA:CPU loses a NaN in some reductions.
        return Value(extreme(without_denormals(without_nan(array)), axes), Kind.DONE)
    if value.kind is Kind.NEAR:
        if step.variant % 3 and not builder.smooth:
            extreme = (lax.reduce_max, lax.reduce_min)[step.variant % 2]
            return chosen(extreme(array, axes), Kind.NEAR, (value,))
        share = number(1 / count, value.dtype)
        return near(_sum(array * share, axes), value, num_terms=count)
    if value.dtype == "bool":
        return Value((lax.reduce_or, lax.reduce_and, lax.reduce_xor)[step.variant % 3](array, axes))
    if is_complex(value.dtype):
        return Value(on_grid(_sum(array, axes)))
    if step.variant % 7 >= 5:
        return Value((lax.argmax, lax.argmin)[step.variant % 2](array, axes[0], np.int32))
    if is_floating(value.dtype):
        # More of the short types would be rounded.
        form = step.variant % (3 if count < 100 else 2)
        if form == 2:
            return Value(on_grid(_sum(limit(array, 1), axes)))
        return Value((lax.reduce_max, lax.reduce_min)[form](without_nan(array), axes))
    integers = (
        *(_sum, lax.reduce_max, lax.reduce_min, lax.reduce_xor),
        *(lax.reduce_or, lax.reduce_and, lax.reduce_prod),
    )
    return Value(integers[step.variant // 7 % len(integers)](array, axes))


def _sum(array: jax.Array, axes: tuple[int, ...]) -> jax.Array:
    return lax.reduce_sum(array, axes)


def dot(builder: Builder, step: Step) -> Value:
    """A matrix times a vector or matrix; the matrix is shared by all lanes or not."""
    value = builder.array(step.operands[0], COMPUTED)
    rows = (3, 7, 17, 1)[step.operands[1] % 4]
    vector = resize(value.array, (value.array.size,))
    count = value.array.size
    shared = np.arange(rows * count).reshape(rows, count) % 5 - 2
    if value.kind is Kind.NEAR or (step.variant % 3 == 0 and is_floating(value.dtype)):
        operand = to_near(value._replace(array=vector))
        dtype = operand.dtype
        if step.variant % 2:
            matrix = Value(jnp.asarray((shared / (2 * count)).astype(dtype)), Kind.NEAR)
        else:
            other = builder.pick(step.operands[2], lambda v: v.kind in COMPUTED)
            matrix = fit(other, Kind.NEAR, dtype, (rows, count))
            matrix = matrix.moved(matrix.array * number(0.25 / count, dtype))
        result = "float32" if step.variant // 2 % 2 and dtype != "float64" else dtype
        array = lax.dot(matrix.array, operand.array, preferred_element_type=result)
        return near(array, operand, matrix, num_terms=count)
    dtype = value.dtype if value.dtype in ("int32", "float64", "int64") else "float32"
    vector = limit(cast(vector, dtype), 2) if is_floating(dtype) else cast(vector, dtype)
    if step.variant % 2:
        array = lax.dot(jnp.asarray(shared.astype(dtype)), vector)
    else:
        found = fit(builder.exact(step.operands[2]), Kind.EXACT, dtype, (rows, count)).array
        array = lax.dot(limit(found, 2) if is_floating(dtype) else found, vector)
    return Value(on_grid(without_sign_of_zero(array)))


def sort(builder: Builder, step: Step) -> Value:
    """Sorts along a dimension: values, pairs, places."""
    if step.variant % 4 == 0:
        value = builder.array(step.operands[0], COMPUTED)
        if not is_complex(value.dtype):
            return value.moved(lax.sort(value.array, dimension=step.operands[1] % len(value.shape)))
    value = builder.array(step.operands[0], SORTABLE)
    axis = step.operands[1] % len(value.shape)
    keys = lax.real(value.array) if is_complex(value.dtype) else value.array
    if value.kind is Kind.SPECIAL:
        keys = without_denormals(keys)
    if step.variant % 2:
        places = lax.broadcasted_iota(np.int32, keys.shape, axis)
        return Value(lax.sort((keys, places), dimension=axis, num_keys=1)[1])
    if value.kind is Kind.EXACT and step.operands[2] % 2:
        first = fit(builder.exact(step.operands[2]), Kind.EXACT, "int8", keys.shape).array
        return Value(lax.sort((first, keys), dimension=axis, num_keys=2)[1])
    other = builder.pick(step.operands[2])
    moved = resize(other.array, keys.shape)
    if step.variant // 4 % 2:
        first = fit(builder.exact(step.operands[1]), Kind.EXACT, "uint8", keys.shape).array
        count = 1 + step.variant // 8 % 2
        return other.moved(lax.sort((first, keys, moved), dimension=axis, num_keys=count)[2])
    return other.moved(lax.sort((keys, moved), dimension=axis, num_keys=1)[1])


def top_k(builder: Builder, step: Step) -> Value:
    """The largest along the last dimension, or where they are."""
    value = builder.array(step.operands[0], EXACT)
    keys = cast(value.array, "float32" if step.variant % 2 else "int32")
    count = 1 + step.operands[1] % keys.shape[-1]
    return Value(lax.top_k(keys, count)[step.variant // 2 % 2])


def reduce_window(builder: Builder, step: Step) -> Value:
    """Cumulative and windowed reductions."""
    value = builder.array(step.operands[0], COMPUTED)
    axis = step.operands[1] % len(value.shape)
    size = value.shape[axis]
    reverse = step.operands[2] % 2 == 0
    if value.kind is Kind.NEAR:
        if step.variant % 2 and not builder.smooth:
            return chosen(lax.cummax(value.array, axis, reverse), Kind.NEAR, (value,))
        share = number(1 / size, value.dtype)
        return near(lax.cumsum(value.array * share, axis, reverse), value, num_terms=size)
    array = value.array if value.dtype in INTEGERS else cast(value.array, "int32")
    if step.variant % 3:
        cumulative = (lax.cumsum, lax.cummax, lax.cummin, lax.cumprod)[step.variant // 3 % 4]
        return Value(cumulative(array, axis, reverse))
    window, strides = [1] * array.ndim, [1] * array.ndim
    window[axis] = min(3, size)
    strides[axis] = 1 + step.operands[2] % 2
    padding = ("SAME", "VALID")[step.variant // 3 % 2]
    zero = jnp.zeros((), array.dtype)
    return Value(lax.reduce_window(array, zero, lax.add, window, strides, padding))


def factorisation(builder: Builder, step: Step) -> Value:
    """Cholesky's factor of a small, well-conditioned matrix, or the solution of a triangular
    system."""
    size = 2 + step.operands[1] % 3
    found = builder.pick(step.operands[0], lambda value: value.kind in COMPUTED)
    dtype = "float64" if found.dtype == "float64" else "float32"
    value = fit(found, Kind.NEAR, dtype, (size, size))
    half = value.array * number(0.125 / size, dtype)
    matrix = jnp.eye(size, dtype=dtype) + half + half.T
    if step.variant % 2:
        return near(number(0.5, dtype) * lax.linalg.cholesky(matrix), value)
    right = fit(builder.like(step.operands[2], value), Kind.NEAR, dtype, (size, 1))
    solved = lax.linalg.triangular_solve(matrix, right.array, left_side=True, lower=True)
    return near(number(0.25, dtype) * solved, value, right)


def convolution(builder: Builder, step: Step) -> Value:
    """A convolution along one dimension with few weights, which differ from lane to lane or not."""
    channels, taps = 1 + step.operands[1] % 2, 1 + step.operands[2] % 3
    found = builder.pick(step.operands[0], lambda value: value.kind in COMPUTED)
    dtype = "float64" if found.dtype == "float64" else "float32"
    image = fit(found, Kind.NEAR, dtype, (1, channels, (5, 8, 3)[step.variant % 3]))
    other = builder.pick(step.operands[2], lambda value: value.kind in COMPUTED)
    weights = fit(other, Kind.NEAR, dtype, (channels, channels, taps))
    share = weights.array * number(0.25 / (channels * taps), dtype)
    padding = ("SAME", "VALID")[step.variant // 3 % 2]
    array = lax.conv_general_dilated(image.array, share, (1 + step.operands[1] // 2 % 2,), padding)
    return near(array, image, weights, num_terms=channels * taps)


def random_bits(builder: Builder, step: Step) -> Value:
    """Random bits of this step, which only some lanes may need."""
    key = jax.random.fold_in(jax.random.key(step.operands[0]), builder.values[NUMBER].array)
    value = builder.exact(step.operands[1])
    bits = Value(jax.random.bits(key, value.shape, np.uint32))
    if step.variant % 2:
        return bits
    flags = fit(builder.exact(step.operands[2]), Kind.EXACT, "int32", value.shape).array
    rare = lax.eq(lax.bitwise_and(flags, full(7, flags)), full(step.variant % 8, flags))
    return Value(lax.select(rare, cast(bits.array, value.dtype), value.array))


STRUCTURAL: Final[Mapping[str, Operation]] = {
    "reverse": _moved(lambda array, axis, step: lax.rev(array, (axis,))),
    "slice": _moved(_slice),
    "pad": _moved(_pad),
    "concatenate": _moved(_concatenate),
    "transpose": _moved(lambda array, axis, step: lax.transpose(array, range(array.ndim)[::-1])),
    "reshape": _moved(_reshape),
    "broadcast": broadcast,
    "constant": constant,
    "iota": iota,
    "reduce": reduce,
    "dot": dot,
    "sort": sort,
    "custom-call": top_k,
    "reduce-window": reduce_window,
    "convolution": convolution,
    "factorisation": factorisation,
    "random-bits": random_bits,
}
