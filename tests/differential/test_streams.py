"""Streams: arrays read and written one row a step, forward and reverse."""

from __future__ import annotations

from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.differential.comparison import CLOSE
from tests.differential.harness import check, linear_values
from tests.differential.values import DTYPES, needs_x64, sample

LANES: Final = 29


def add(x: jax.Array, row: jax.Array) -> tuple[jax.Array, jax.Array]:
    return x + row, x * 2 - row


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("steps", [2, 7, 100])
def test_in_and_out(steps: int, reverse: bool) -> None:
    def program(state: jax.Array, rows: jax.Array) -> Any:
        return lax.scan(add, state, rows, reverse=reverse)

    check(program, linear_values((LANES,), "int32"), linear_values((steps, LANES), "int32"))


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype(dtype: str) -> None:
    """More steps than fit into registers, so that the results must be streamed out."""

    def program(rows: jax.Array) -> Any:
        def step(last: jax.Array, row: jax.Array) -> tuple[jax.Array, Any]:
            return row, (last, jnp.where(last == row, last, row))

        return lax.scan(step, rows[0], rows)

    check(program, sample(dtype, (80, LANES)), x64=needs_x64(dtype))


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint16", "float16", "bfloat16"])
@pytest.mark.parametrize("lanes", [33, 100, 777])
def test_narrow_rows_that_end_within_a_vector(dtype: str, lanes: int) -> None:
    """Whole vectors are loaded as they are, the last one's lanes by masks."""

    def program(rows: jax.Array, keep: jax.Array) -> Any:
        def step(state: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
            state = jnp.where(keep, jnp.maximum(state, x), x)
            return state, state > x

        return lax.scan(step, jnp.zeros(lanes, dtype), rows)

    rows = (linear_values((9, lanes), "int32") * 7 % 5).astype(dtype)
    check(program, rows, np.arange(lanes) % 3 > 0)


def test_multiple_results_of_different_shapes() -> None:
    def program(state: jax.Array, rows: jax.Array) -> Any:
        def step(x: jax.Array, inputs: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, Any]:
            row, i = inputs
            x = x + row
            outputs = {
                "whole": x,
                "scalar": i * 2,
                "column": x[:, 0],
                "flag": x > 5,
                "doubled": jnp.concatenate([x, x], 1),
                "transposed": x.T,
                "constant": jnp.ones(3),
            }
            return x, outputs

        return lax.scan(step, state, (rows, jnp.arange(70)))

    check(program, linear_values((LANES, 3), "int32"), linear_values((70, LANES, 3), "int32"))


@pytest.mark.parametrize("in_axis", [0, 1, 2])
@pytest.mark.parametrize("out_axis", [0, 1, 2])
def test_lanes_at_every_place(in_axis: int, out_axis: int) -> None:
    """`vmap` puts the lanes of streams [steps, 3] wherever it is told to."""

    def rollout(start: jax.Array, rows: jax.Array) -> jax.Array:
        def step(x: jax.Array, row: jax.Array) -> tuple[jax.Array, jax.Array]:
            x = x * 2 + row
            return x % 1009, x[::-1]

        return lax.scan(step, start, rows)[1]

    program = jax.vmap(rollout, in_axes=(None, in_axis), out_axes=out_axis)
    shape = [70, 3]
    shape.insert(in_axis, LANES)
    check(program, np.arange(3, dtype=np.int32), linear_values(shape, "int32"))


def test_uniform_stream() -> None:
    """One scalar and one small vector a step, the same for all lanes."""

    def program(state: jax.Array, scalars: jax.Array, vectors: jax.Array) -> Any:
        def step(x: jax.Array, inputs: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            scalar, vector = inputs
            return x * scalar + vector[0], x[None] - vector[:, None]

        return lax.scan(step, state, (scalars, vectors))

    check(
        program,
        linear_values((LANES,)),
        np.array([1, 0, -2, 0.5, 3] * 20, np.float32),
        linear_values((100, 2)) % 9,
        tolerance=CLOSE,
    )


def test_same_stream_read_at_several_places() -> None:
    """Each step reads its own row, the next one and the one at the mirrored place."""

    def program(rows: jax.Array) -> Any:
        def step(x: jax.Array, i: jax.Array) -> tuple[jax.Array, jax.Array]:
            window = lax.dynamic_slice_in_dim(rows, i, 3, 0)
            return x + window.sum(0), window[1] - rows[89 - i]

        return lax.scan(step, jnp.zeros(LANES, jnp.int32), jnp.arange(90))

    check(program, linear_values((90, LANES), "int32"))


def test_stream_of_large_rows() -> None:
    def program(rows: jax.Array) -> Any:
        def step(x: jax.Array, row: jax.Array) -> tuple[jax.Array, jax.Array]:
            return jnp.maximum(x, row) - 1, row[:, ::3]

        return lax.scan(step, rows[0], rows)

    check(program, (linear_values((5, LANES, 80), "int32") * 7919) % 1013)


def test_results_written_into_a_given_array() -> None:
    """Only every other row is written; the others keep what the caller put there."""

    def program(out: jax.Array, state: jax.Array) -> Any:
        def body(i: jax.Array, carry: tuple[jax.Array, jax.Array]) -> Any:
            values, x = carry
            return values.at[2 * i].set(x), x * 3 + 1

        return lax.fori_loop(0, 40, body, (out, state))

    check(program, linear_values((90, LANES), "int32"), linear_values((LANES,), "int32"))


def test_rows_written_more_than_once() -> None:
    def program(out: jax.Array, places: jax.Array) -> Any:
        def step(values: jax.Array, inputs: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
            place, i = inputs
            return values.at[place].set(jnp.full(LANES, i)), None

        return lax.scan(step, out, (places, jnp.arange(len(places))))[0]

    places = np.array([3, 5, 3, 120, -1, 0, 5, 99, 200, 99], np.int32)
    check(program, linear_values((100, LANES), "int32"), places)


def test_two_writes_a_step() -> None:
    def program(state: jax.Array) -> Any:
        def body(i: jax.Array, carry: tuple[jax.Array, jax.Array]) -> Any:
            values, x = carry
            values = values.at[i].set(x)
            return values.at[99 - i].set(-x), x + 1

        return lax.fori_loop(0, 70, body, (jnp.zeros((100, LANES), jnp.int32), state))

    check(program, linear_values((LANES,), "int32"))


def test_result_that_is_also_carried() -> None:
    """The stacked value is the new state itself, and the old one is stacked too."""

    def program(state: jax.Array) -> Any:
        def step(x: jax.Array, _: None) -> tuple[jax.Array, Any]:
            y = x * 3 + 1
            return y, (x, y, y)

        return lax.scan(step, state, length=75)

    check(program, linear_values((LANES,), "int32"))


def test_cumulative_operations_over_time() -> None:
    """jnp.cumsum over a leading axis by a loop, with 64-bit sums."""

    def program(rows: jax.Array) -> Any:
        def step(total: jax.Array, row: jax.Array) -> tuple[jax.Array, jax.Array]:
            total = total + row.astype(jnp.int64)
            return total, total

        return lax.scan(step, jnp.zeros(LANES, jnp.int64), rows)

    check(program, sample("int32", (90, LANES)), x64=True)


def test_a_row_chosen_by_part_of_what_is_known() -> None:
    """Work that few lanes need asks for a slice, in another sweep over the tile than made it."""

    def repeated(x: jax.Array) -> jax.Array:
        return jnp.concatenate([x, x], axis=1)[:, :13].reshape(9, 1, 13)

    def step(x: jax.Array, row: jax.Array) -> tuple[jax.Array, jax.Array]:
        rest = lax.rem(x, x)
        small = jnp.clip((rest & 7).astype(jnp.float32), -2.0, 2.0)
        small = jnp.where(jnp.isnan(small), 1.0, small)
        return rest, jnp.where(repeated(x != 0), row, repeated(small))

    def program(x: jax.Array, rows: jax.Array) -> Any:
        return lax.scan(step, x, rows)

    x = np.arange(-45, 45, dtype=np.int32).reshape(9, 10)
    rows = np.linspace(-1, 1, 2 * 9 * 13, dtype=np.float32).reshape(2, 9, 1, 13)
    check(program, x, rows)


@pytest.mark.parametrize("dtype", [np.float32, np.complex64, np.int8, np.bool_])
def test_rows_of_a_constant_too_large_for_code(dtype: Any) -> None:
    data = (100 * np.cos(np.arange(50 * 256 * 6))).reshape(50, 256, 6).astype(dtype)

    def program(x: jax.Array) -> Any:
        def step(x: jax.Array, row: jax.Array) -> tuple[jax.Array, jax.Array]:
            number = row.astype(jnp.float32) if dtype is not np.complex64 else row.real - row.imag
            return 0.5 * x + number, x

        return lax.scan(step, x, jnp.asarray(data))

    check(program, linear_values((256, 6), "float32"), tolerance=CLOSE)
