"""Operations that move data along the dimensions of one lane, with the lanes in every position."""

from __future__ import annotations

from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.differential.harness import (
    Program,
    check,
    check_operations,
    linear_values,
    place_lanes,
)

LANES: Final = 83
STEPS: Final = 3


def along(axis: int) -> dict[str, Program]:
    """Returns operations on a value with six entries along the residual dimension `axis` and lanes
    along the other."""
    other = 1 - axis

    def slice_(x: jax.Array, start: int, limit: int, stride: int = 1) -> jax.Array:
        return lax.slice_in_dim(x, start, limit, stride, axis=axis)

    def pad(x: jax.Array, low: int, high: int, interior: int) -> jax.Array:
        sizes = [(0, 0, 0), (0, 0, 0)]
        sizes[axis] = (low, high, interior)
        return lax.pad(x, jnp.asarray(7, x.dtype), sizes)

    def split(x: jax.Array) -> jax.Array:
        shape = (2, 3, x.shape[other]) if axis == 0 else (x.shape[other], 2, 3)
        return lax.reshape(x, shape)

    def iota(x: jax.Array) -> jax.Array:
        return x + lax.broadcasted_iota(x.dtype, x.shape, axis)

    return {
        "slice": lambda x: slice_(x, 1, 5),
        "slice_strided": lambda x: slice_(x, 1, 6, 2),
        "slice_one": lambda x: slice_(x, 5, 6),
        "slice_empty": lambda x: slice_(x, 2, 2),
        "pad": lambda x: pad(x, 1, 2, 0),
        "pad_negative": lambda x: pad(x, -1, -2, 0),
        "pad_mixed": lambda x: pad(x, -2, 3, 0),
        "pad_interior": lambda x: pad(x, 1, 0, 2),
        "pad_interior_negative": lambda x: pad(x, -2, -3, 1),
        "reverse": lambda x: lax.rev(x, (axis,)),
        "concatenate": lambda x: lax.concatenate([x, -x, slice_(x, 0, 2)], axis),
        "roll": lambda x: jnp.roll(x, 2, axis),
        "repeat": lambda x: jnp.repeat(x, 2, axis),
        "tile": lambda x: jnp.tile(x, (2, 1) if axis == 0 else (1, 2)),
        "transpose": lambda x: lax.transpose(x, (1, 0)),
        "split": split,
        "split_and_transpose": lambda x: jnp.swapaxes(split(x), axis, axis + 1),
        "merge": lambda x: lax.reshape(jnp.swapaxes(split(x), axis, axis + 1), x.shape),
        "expand": lambda x: x[:, None] * jnp.ones((1, 2, 1), x.dtype),
        "broadcast": lambda x: lax.broadcast_in_dim(x, (3, *x.shape), (1, 2)),
        "outer": lambda x: jnp.expand_dims(x, axis) * jnp.expand_dims(x, axis + 1),
        "iota": iota,
        "iota_lanes": lambda x: x + lax.broadcasted_iota(x.dtype, x.shape, other),
        "index": lambda x: lax.index_in_dim(x, 2, axis, keepdims=False),
        "index_last": lambda x: lax.index_in_dim(x, -1, axis, keepdims=False),
        "stack": lambda x: jnp.stack([x, x + 1], axis),
        "difference": lambda x: slice_(x, 1, 6) - slice_(x, 0, 5),
        "squeeze": lambda x: lax.squeeze(slice_(x, 3, 4), (axis,)),
        "set": lambda x: x.at[(2,) if axis == 0 else (slice(None), 2)].set(9),
        "add_at": lambda x: x.at[(slice(1, 3),) if axis == 0 else (slice(None), slice(1, 3))].add(
            5
        ),
    }


@pytest.mark.parametrize("dtype", ["float32", "int8", "bool"])
@pytest.mark.parametrize("axis", [0, 1])
def test_along_residual_dimension(axis: int, dtype: str) -> None:
    operations = along(axis)
    if dtype == "bool":
        kept = ("slice_strided", "reverse", "transpose", "merge", "broadcast", "pad_interior")
        operations = {name: operations[name] for name in kept}
    shape = (STEPS, *place_lanes((6,), LANES, 1 - axis))
    check_operations(operations, (linear_values(shape) % 101).astype(dtype))


@pytest.mark.parametrize("axis", [0, 1, 2, 3])
def test_lanes_among_three_residual_dimensions(axis: int) -> None:
    """State [2, 3, 4] per lane: reversed, transposed, sliced and put together again in a carried
    value."""

    def per_lane(x: jax.Array) -> jax.Array:
        turned = jnp.transpose(x[::-1], (1, 0, 2))
        swapped = jnp.concatenate([turned[1:], turned[:1]], axis=0)
        return jnp.transpose(swapped, (1, 0, 2)) * 2 + x.reshape(2, 4, 3).swapaxes(1, 2)

    def program(x: jax.Array) -> Any:
        body = jax.vmap(per_lane, in_axes=axis, out_axes=axis)
        part = jax.vmap(lambda state: state[..., :1], in_axes=axis, out_axes=axis)
        return lax.scan(lambda state, _: (body(state) % 1001, part(state)), x, length=4)

    check(program, linear_values(place_lanes((2, 3, 4), LANES, axis), "int32"))


def test_lanes_that_change_their_position() -> None:
    """The lanes of the state are minor, those of the streams and results are in front."""

    def step(state: jax.Array, row: jax.Array) -> tuple[jax.Array, Any]:
        moved = state + row.T
        return moved, (moved.T, row[:, ::-1], moved[1])

    def program(state: jax.Array, rows: jax.Array) -> Any:
        return lax.scan(step, state, rows)

    check(program, linear_values((4, LANES)), linear_values((STEPS, LANES, 4)))


def test_transposed_carry() -> None:
    """A carry whose two dimensions of equal size swap places each step mixes lanes; results must be
    right."""

    def program(state: jax.Array) -> Any:
        return lax.fori_loop(0, 4, lambda i, x: x.T + i, state)

    check(program, linear_values((20, 20)), fused=None)


def test_constants_of_every_shape() -> None:
    """Constants along the lanes, along the residual dimension, along both, splats and scalars."""
    along_lanes = linear_values((LANES,)) * 0.5
    along_residual = np.array([1.0, -2.0, np.inf, 0.0], np.float32)
    along_both = linear_values((4, LANES)) % 7
    flags = along_both > 3

    def step(state: jax.Array, _: None) -> tuple[jax.Array, Any]:
        shifted = state + along_lanes + along_both
        outputs = (shifted * along_residual[:, None], shifted.astype(np.int32) & 5)
        return jnp.where(flags, shifted, state * 0.5) + 1, outputs

    def program(state: jax.Array) -> Any:
        return lax.scan(step, state, length=3)

    check(program, linear_values((4, LANES)))


@pytest.mark.parametrize("dtype", ["int32", "uint8", "float32", "int64", "float16"])
def test_iota_and_lane_index(dtype: str) -> None:
    """Values that depend on the lane's number only."""

    def program(state: jax.Array) -> Any:
        def step(x: jax.Array, i: jax.Array) -> tuple[jax.Array, jax.Array]:
            number = lax.iota(dtype, x.shape[0])
            return x + number, (number > i.astype(dtype))

        return lax.scan(step, state, jnp.arange(5))

    check(program, np.zeros(33, dtype), x64=dtype == "int64")


def test_large_state_per_lane() -> None:
    """Some hundred values per lane: more than fits into registers."""

    def program(state: jax.Array, weights: jax.Array) -> Any:
        def step(x: jax.Array, weight: jax.Array) -> tuple[jax.Array, jax.Array]:
            shifted = jnp.concatenate([x[:, 1:], x[:, :1]], axis=1)
            return jnp.maximum(shifted - weight, x * 0.5), jnp.sum(x, axis=1)

        return lax.scan(step, state, weights)

    state = (linear_values((19, 100)) % 64).astype(np.float32)
    check(program, state, np.arange(6, dtype=np.float32))


def test_size_one_dimensions() -> None:
    """Dimensions of size one, added, dropped and broadcast, around the lanes."""

    def program(state: jax.Array) -> Any:
        def step(x: jax.Array, _: None) -> tuple[jax.Array, Any]:
            flat = x.reshape(LANES)
            again = flat.reshape(1, LANES, 1, 1)
            return again[:, :, 0] + x, (again * jnp.ones((1, 1, 3, 1)), flat[None, :, None])

        return lax.scan(step, state, length=3)

    check(program, linear_values((1, LANES, 1)))
