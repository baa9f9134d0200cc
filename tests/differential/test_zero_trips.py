"""Kernels inside of loops that stay with XLA, and that are called for no step at all at times."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.differential.harness import check

TRIPS = [0, 0, 3, 0, 1, 0, 0, 5, 0]


def check_inner(program: Any, *arguments: Any, **options: Any) -> None:
    """Checks a program whose outer loop is XLA's, and whose inner one is a kernel."""
    report = check(program, *arguments, fused=None, options={"min_gain": 0.0, **options})
    assert report.loops[-1].fused, report  # equal decisions, as on the outer one, are told once


def numbers(*shape: int) -> Any:
    return np.random.default_rng(0).integers(-50, 50, shape).astype(np.int32)


def tell(x: jax.Array) -> None:
    jax.debug.callback(lambda _: None, x.ravel()[0])


@pytest.mark.parametrize("shape", [(1000,), (33, 5), (5, 33), (2, 3)])
@pytest.mark.parametrize("threads", [1, 2])
def test_states_streams_and_what_all_lanes_share(shape: tuple[int, ...], threads: int) -> None:
    def program(x: jax.Array) -> Any:
        def step(state: Any, trips: Any) -> Any:
            x, count, rows = state
            tell(x)

            def advance(i: Any, state: Any) -> Any:
                x, count, rows = state
                x = x * 3 % 101 + count
                return x, count * 2 + 1, rows.at[i].set(x)

            x, count, rows = lax.fori_loop(0, trips, advance, (x + 1, count, rows))
            return (x, count, rows), (x, count)

        return lax.scan(step, (x, 7, jnp.zeros((5, *x.shape), jnp.int32)), jnp.array(TRIPS))

    check_inner(program, numbers(*shape), threads=threads, tile_lanes=16)


def test_what_the_loop_begins_with_is_needed_afterwards() -> None:
    """Its state cannot lie where its results are to be."""

    def program(x: jax.Array) -> Any:
        def step(x: jax.Array, trips: Any) -> Any:
            tell(x)
            y = lax.fori_loop(0, trips, lambda i, y: y * 3 % 101 + i, x)
            return x + y, x - y

        return lax.scan(step, x, jnp.array(TRIPS))

    check_inner(program, numbers(100))


def test_a_state_that_begins_anew() -> None:
    def program(x: jax.Array) -> Any:
        def step(x: jax.Array, trips: Any) -> Any:
            tell(x)
            start = (x, jnp.zeros_like(x), jnp.full_like(x, 5))
            x, total, other = lax.fori_loop(
                0, trips, lambda i, s: (s[0] * 3 % 101 + i, s[1] + s[0], s[2] - s[1]), start
            )
            return x, total + other

        return lax.scan(step, x, jnp.array(TRIPS))

    check_inner(program, numbers(100))


def test_without_lanes() -> None:
    def program(x: jax.Array) -> Any:
        def step(x: jax.Array, trips: Any) -> Any:
            tell(x)
            x, y = lax.fori_loop(
                0, trips, lambda i, s: (s[0] * 3 % 101 + i, s[1] + s[0]), (x, x[::-1])
            )
            return x, y

        return lax.scan(step, x, jnp.array(TRIPS))

    check_inner(program, numbers(3))


def test_a_condition_of_its_own() -> None:
    """A loop ends when a shared number says so, in a table that all lanes read."""

    def program(x: jax.Array, table: jax.Array) -> Any:
        def step(x: jax.Array, start: Any) -> Any:
            tell(x)
            x, end = lax.while_loop(
                lambda s: table[s[1]] > 0, lambda s: (s[0] * 3 % 101, s[1] + 1), (x + 1, start)
            )
            return x, end

        return lax.scan(step, x, jnp.arange(9))

    check_inner(program, numbers(100), jnp.array([0, 1, 1, 0, 0, 1, 0, 1, 1, 0]))


def test_lanes_that_add_up() -> None:
    """What only leaves the loop is made anew by each call."""

    def program(x: jax.Array) -> Any:
        def step(x: jax.Array, trips: Any) -> Any:
            tell(x)
            x, total = lax.fori_loop(
                0, trips, lambda i, s: (s[0] * 3 % 101 + i, s[1] + s[0].sum()), (x, jnp.int32(11))
            )
            return x, total

        return lax.scan(step, x, jnp.array(TRIPS))

    check_inner(program, numbers(100), threads=2, tile_lanes=16)
