"""Loops in loops, loops in sequence, and loops whose trip count is only known at run time."""

from __future__ import annotations

from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.differential.comparison import CLOSE
from tests.differential.harness import check, linear_values

LANES: Final = 37


def halve(x: jax.Array) -> jax.Array:
    return x * 0.5 + 1


def test_known_bounds() -> None:
    def program(state: jax.Array) -> Any:
        def step(x: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
            x = lax.fori_loop(0, 4, lambda i, y: y * 3 + i, x)
            return lax.fori_loop(2, 9, lambda i, y: y ^ (y >> i), x), x

        return lax.scan(step, state, length=3)

    check(program, linear_values((LANES,), "int32"))


def test_bounds_given_as_arguments() -> None:
    def program(state: jax.Array, low: jax.Array, high: jax.Array) -> Any:
        def step(x: jax.Array, _: None) -> tuple[jax.Array, None]:
            return lax.fori_loop(low, high, lambda i, y: y * 3 + i, x), None

        return lax.scan(step, state, length=3)

    for low, high in ((0, 5), (3, 4), (4, 4), (5, 2), (-2, 1)):
        check(program, linear_values((LANES,), "int32"), np.int32(low), np.int32(high))


def test_bounds_that_depend_on_the_step() -> None:
    def program(state: jax.Array, counts: jax.Array) -> Any:
        def step(x: jax.Array, inputs: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, Any]:
            i, count = inputs
            x = lax.fori_loop(0, i, lambda j, y: y + i * j, x)
            return lax.fori_loop(0, count, lambda j, y: y * 2 + j, x), x

        return lax.scan(step, state, (jnp.arange(5), counts))

    counts = np.array([2, 0, -3, 1, 4], np.int32)
    check(program, linear_values((LANES,), "int32"), counts)


def test_outer_loop_with_bound_given_as_argument() -> None:
    def program(state: jax.Array, count: jax.Array) -> Any:
        return lax.fori_loop(0, count, lambda i, x: x * 3 + i, state)

    for count in (0, 1, 7, -1):
        check(program, linear_values((LANES,), "int32"), np.int32(count))


def test_while_loop_with_uniform_condition() -> None:
    """Runs until a uniform value that is computed in the body reaches its end."""

    def program(state: jax.Array, start: jax.Array) -> Any:
        def is_running(carry: tuple[jax.Array, jax.Array, jax.Array]) -> jax.Array:
            return (carry[1] != 1) & (carry[2] < 50)

        def body(carry: tuple[jax.Array, jax.Array, jax.Array]) -> Any:
            x, number, steps = carry
            number = jnp.where(number % 2 == 0, number // 2, 3 * number + 1)
            return x * 2 + number, number, steps + 1

        return lax.while_loop(is_running, body, (state, start, jnp.int32(0)))

    for start in (1, 2, 7, 27):
        check(program, linear_values((LANES,), "int32"), np.int32(start))


def test_while_loop_with_floating_condition() -> None:
    def program(state: jax.Array, limit: jax.Array) -> Any:
        def body(carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            return halve(carry[0]), carry[1] * 2

        return lax.while_loop(lambda carry: carry[1] < limit, body, (state, jnp.float32(0.75)))

    for limit in (0.5, 3.0, 100.0, np.nan):
        check(program, linear_values((LANES,)), np.float32(limit))


def test_scan_in_scan() -> None:
    """The inner scan reads a stream of the outer one and stacks its own results."""

    def program(state: jax.Array, rows: jax.Array) -> Any:
        def inner(x: jax.Array, row: jax.Array) -> tuple[jax.Array, jax.Array]:
            return x * 2 + row, x - row

        def outer(x: jax.Array, block: jax.Array) -> tuple[jax.Array, Any]:
            x, stacked = lax.scan(inner, x, block)
            return x % 1001, (stacked, stacked.sum(0))

        return lax.scan(outer, state, rows)

    check(program, linear_values((LANES,), "int32"), linear_values((3, 4, LANES), "int32"))


def test_three_levels() -> None:
    def program(state: jax.Array) -> Any:
        def level(depth: int, x: jax.Array, i: jax.Array) -> jax.Array:
            if depth == 0:
                return (x * 5 + i) % 4099
            return lax.fori_loop(0, 3, lambda j, y: level(depth - 1, y, j + i), x)

        return lax.scan(lambda x, i: (level(2, x, i), x), state, jnp.arange(3))

    check(program, linear_values((LANES,), "int32"))


def test_inner_loop_with_large_output() -> None:
    """The inner loop writes into rows of an array that the outer loop carries."""

    def program(table: jax.Array) -> Any:
        def inner(j: jax.Array, carry: tuple[jax.Array, jax.Array, jax.Array]) -> Any:
            values, x, i = carry
            return values.at[i * 10 + j].set(x), x * 3 + j, i

        def outer(i: jax.Array, carry: tuple[jax.Array, jax.Array]) -> Any:
            values, x, _ = lax.fori_loop(0, 10, inner, (*carry, i))
            return values, x

        return lax.fori_loop(0, 8, outer, (table, jnp.arange(LANES, dtype=jnp.int32)))

    check(program, np.zeros((80, LANES), np.int32))


def test_inner_loop_of_uniform_values() -> None:
    """The inner loop computes a scalar that the lanes share."""

    def program(state: jax.Array) -> Any:
        def step(x: jax.Array, i: jax.Array) -> tuple[jax.Array, jax.Array]:
            power = lax.fori_loop(0, i + 1, lambda _, y: (y * 7 + 3) % 101, i)
            return x + power, x * power

        return lax.scan(step, state, jnp.arange(6))

    check(program, linear_values((LANES,), "int32"))


def test_loops_in_sequence() -> None:
    """Two loops of different lanes, one after the other, with a mixing step between them."""

    def program(state: jax.Array) -> Any:
        x, first = lax.scan(lambda x, i: (x * 3 + i, x), state, jnp.arange(4))
        y = jnp.cumsum(x)[:17] - x[::-1][:17]
        y, second = lax.scan(lambda y, i: (y ^ (y << i), y), y, jnp.arange(5))
        return x, y, first, second

    check(program, linear_values((LANES,), "int32"))


def test_loop_inside_a_loop_that_is_kept() -> None:
    """The outer loop sorts, which mixes lanes; the inner one has its own chance."""

    def program(state: jax.Array) -> Any:
        def outer(x: jax.Array, _: None) -> tuple[jax.Array, None]:
            x = lax.fori_loop(0, 40, lambda i, y: (y * 5 + i) % 1009, x)
            return jnp.sort(x), None

        return lax.scan(outer, state, length=3)

    check(program, linear_values((300,), "int32"), fused=None)


def test_loop_after_loop_of_same_values() -> None:
    """Reverse and forward passes over stored results, as smoothing does."""

    def program(rows: jax.Array) -> Any:
        def forward(x: jax.Array, row: jax.Array) -> tuple[jax.Array, jax.Array]:
            x = 0.5 * x + row
            return x, x

        def backward(x: jax.Array, row: jax.Array) -> tuple[jax.Array, jax.Array]:
            x = 0.25 * x + row
            return x, x * row

        start = jnp.zeros(rows.shape[1:])
        _, filtered = lax.scan(forward, start, rows)
        return lax.scan(backward, start, filtered, reverse=True)

    check(program, linear_values((9, LANES)) % 8, tolerance=CLOSE)


@pytest.mark.parametrize("unroll", [2, 3, 10])
def test_unrolled_scan(unroll: int) -> None:
    def program(state: jax.Array, rows: jax.Array) -> Any:
        return lax.scan(lambda x, r: (x * 3 + r, x ^ r), state, rows, unroll=unroll)

    check(program, linear_values((LANES,), "int32"), linear_values((20, LANES), "int32"))
