"""dynamic-slice and dynamic-update-slice at indices that are the same for all lanes."""

from __future__ import annotations

from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.differential.harness import check, linear_values, place_lanes

LANES: Final = 19
STARTS: Final = np.array([0, 3, 7, 8, 100, -1, -8, -100, 2**31 - 1, -(2**31)], np.int32)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("size", [1, 3, 8])
def test_slice_of_invariant(axis: int, size: int) -> None:
    """A table per lane, read at starts that are clamped where they lie outside."""

    def program(table: jax.Array, starts: jax.Array) -> Any:
        def step(total: jax.Array, start: jax.Array) -> tuple[jax.Array, jax.Array]:
            part = lax.dynamic_slice_in_dim(table, start, size, axis)
            return total + part.sum(axis), part

        return lax.scan(step, jnp.zeros(LANES, jnp.int32), starts)

    check(program, linear_values(place_lanes((8,), LANES, 1 - axis), "int32"), STARTS)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("size", [1, 3, 8])
def test_update_of_state(axis: int, size: int) -> None:
    def program(state: jax.Array, starts: jax.Array) -> Any:
        def step(x: jax.Array, start: jax.Array) -> tuple[jax.Array, jax.Array]:
            part = lax.slice_in_dim(x, 8 - size, 8, axis=axis)
            x = lax.dynamic_update_slice_in_dim(x, part * 2 + 1, start, axis)
            return x, x.sum(axis)

        return lax.scan(step, state, starts)

    check(program, linear_values(place_lanes((8,), LANES, 1 - axis), "int32"), STARTS)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "uint16", "int64", "uint32", "uint64"])
def test_types_of_indices(dtype: str) -> None:
    """Start indices of every integer type, the largest values of unsigned ones included."""
    limits = np.iinfo(dtype)
    starts = np.array([0, 2, 5, 6, limits.max, limits.max // 2 + 1, limits.min], dtype)

    def program(table: jax.Array, starts: jax.Array) -> Any:
        def step(x: jax.Array, start: jax.Array) -> tuple[jax.Array, jax.Array]:
            # A start of lax.dynamic_slice is not shifted by its sign, unlike one of `x[i]`.
            row = lax.dynamic_slice(table, (start, jnp.zeros_like(start)), (1, LANES))
            x = lax.dynamic_update_slice(x, row, (start, jnp.zeros_like(start)))
            return x + 1, row

        return lax.scan(step, table, starts)

    check(program, linear_values((6, LANES)), starts, x64=dtype.endswith("64"))


def test_index_that_is_computed() -> None:
    """Indices from the step's number, from a carried counter and from uniform data."""

    def program(table: jax.Array, jumps: jax.Array) -> Any:
        def step(carry: tuple[jax.Array, jax.Array], i: jax.Array) -> tuple[Any, Any]:
            total, position = carry
            position = (position + jumps[i % 5]) % 7
            row = table[position] + table[(i * 3) % 7] * 2 + table[-1]
            return (total + row, position), row[None] * 3

        return lax.scan(step, (jnp.zeros(LANES), jnp.int32(1)), jnp.arange(9))

    check(program, linear_values((7, LANES)), np.array([1, 3, 0, 6, 2], np.int32))


def test_delay_line() -> None:
    """A small ring buffer per lane: read at one place, written at another."""

    def program(buffer: jax.Array, rows: jax.Array) -> Any:
        def step(carry: tuple[jax.Array, jax.Array], row: jax.Array) -> tuple[Any, Any]:
            ring, i = carry
            delayed = ring[i % 5]
            ring = ring.at[i % 5].set(row + delayed * 0.5)
            return (ring, i + 1), delayed

        return lax.scan(step, (buffer, jnp.int32(3)), rows)

    check(program, linear_values((5, LANES)), linear_values((12, LANES)))


def test_two_dynamic_dimensions() -> None:
    """A slice whose start is dynamic along two residual dimensions, with the lanes between them."""

    def program(table: jax.Array, starts: jax.Array) -> Any:
        def step(x: jax.Array, start: jax.Array) -> tuple[jax.Array, jax.Array]:
            part = lax.dynamic_slice(x, (start[0], 0, start[1]), (2, LANES, 3))
            x = lax.dynamic_update_slice(x, part * 2, (start[1], 0, start[0]))
            return x, part

        return lax.scan(step, table, starts)

    starts = np.array([[0, 0], [1, 2], [3, 3], [-1, 5], [2, 9]], np.int32)
    check(program, linear_values((4, LANES, 5), "int32"), starts)


def test_history_of_large_state() -> None:
    """An array per lane too large for registers, written at one index and read at earlier ones."""

    def program(history: jax.Array) -> Any:
        def body(i: jax.Array, x: jax.Array) -> jax.Array:
            return x.at[i].set(x[i - 1] * 2 + x[i - 2])

        return lax.fori_loop(2, 90, body, history)

    history = np.zeros((90, LANES), np.int32)
    history[:2] = linear_values((2, LANES), "int32")
    check(program, history)


def test_in_place_update_of_what_is_read() -> None:
    """Each row of a large array is read and overwritten within one step, last row first."""

    def program(values: jax.Array) -> Any:
        def body(i: jax.Array, x: jax.Array) -> jax.Array:
            row = 99 - i
            return x.at[row].multiply(3).at[row].add(i)

        return lax.fori_loop(0, 100, body, values)

    check(program, linear_values((100, LANES), "int32"))


def test_read_of_what_was_overwritten() -> None:
    """The old row is needed after the write: a hazard for an update in place."""

    def program(values: jax.Array) -> Any:
        def step(x: jax.Array, i: jax.Array) -> tuple[jax.Array, Any]:
            changed = x.at[i].set(x[i] + 1)
            return changed, (x[i], changed[i], x[(i + 1) % 80] + changed[(i + 2) % 80])

        return lax.scan(step, values, jnp.arange(80))

    check(program, linear_values((80, LANES), "int32"), fused=None)


def test_update_that_does_not_fill_the_row() -> None:
    """Parts of rows of a large array of results are written, the rest keeps its first values."""

    def program(values: jax.Array) -> Any:
        def body(i: jax.Array, x: jax.Array) -> jax.Array:
            part = jnp.full((1, LANES, 2), i)
            return lax.dynamic_update_slice(x, part, (i, 0, i % 3))

        return lax.fori_loop(0, 30, body, values)

    check(program, linear_values((40, LANES, 4), "int32"))
