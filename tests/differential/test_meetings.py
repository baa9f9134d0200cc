"""Loops that go on with what all lanes have together: sums, extremes, `any` fed back each step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.differential.comparison import CLOSE, assert_same_results
from tests.differential.harness import check, linear_values, run_fused
from tests.differential.values import NumpyArray

SIZES: Final = (16, 37, 100, 1500)


def scan(step: Callable[[jax.Array, jax.Array], Any], steps: int = 7) -> Callable[..., Any]:
    return lambda x: lax.scan(lambda x, t: (step(x, t), x), x, jnp.arange(steps))


def numbers(shape: tuple[int, ...]) -> NumpyArray:
    return np.random.default_rng(0).integers(-1000, 1000, shape).astype(np.int32)


STEPS: Final[dict[str, Callable[[jax.Array, jax.Array], jax.Array]]] = {
    "sum": lambda x, t: x * 3 + jnp.sum(x) + t,
    "maximum": lambda x, t: jnp.where(x == jnp.max(x), -x, x + t),
    "minimum": lambda x, t: jnp.where(x == jnp.min(x), 100 - x, x ^ t),
    "any": lambda x, t: jnp.where(jnp.any(x > 900), x // 2, x * 3),
    "all": lambda x, t: jnp.where(jnp.all(x % 7 != t), x * 2, x - 1),
    "one_after_another": lambda x, t: x - jnp.max(x + jnp.sum(x) % 17) // 3,
    "nothing_else": lambda x, t: jnp.full_like(x, jnp.sum(x - t)),
    "several_at_once": lambda x, t: x * jnp.min(x) + jnp.max(x) - jnp.sum(x * x),
}


@pytest.mark.parametrize(
    ("name", "lanes"),
    [
        (name, lanes)
        for number, name in enumerate(STEPS)
        for lanes in (SIZES[::2] if number % 2 else SIZES[1::2])
    ],
)
def test_fed_back(name: str, lanes: int) -> None:
    report = check(scan(STEPS[name]), numbers((lanes,)))
    assert [loop.lanes for loop in report.loops] == [lanes]


@pytest.mark.parametrize("lanes", SIZES)
def test_reductions_that_do_not_start_from_nothing(lanes: int) -> None:
    """XLA starts each part of a large reduction from the initial value again; so do we."""
    step = scan(lambda x, t: x + lax.reduce(x, jnp.int32(5), lax.add, (0,)))
    check(step, numbers((lanes,)), fused=None)


@pytest.mark.parametrize(
    "options",
    [{"vector_bits": 128}, {"unroll": 4}, {"unroll": 1, "tile_lanes": 32}, {"threads": 1}],
    ids=str,
)
def test_in_every_layout(options: dict[str, Any]) -> None:
    program = scan(STEPS["one_after_another"])
    expected = jax.jit(program)(numbers((259,)))
    assert_same_results(expected, run_fused(program, numbers((259,)), options=options))


def test_arrays_per_lane_reduced_over_lanes_only() -> None:
    check(scan(lambda x, t: x * 3 - jnp.sum(x, axis=0)), numbers((100, 3)))


def test_arrays_per_lane_reduced_over_everything() -> None:
    check(scan(lambda x, t: x * 3 - jnp.max(x)), numbers((100, 3)))


@pytest.mark.parametrize("lanes", [40, 100])
def test_what_lanes_met_for_is_sorted_and_searched(lanes: int) -> None:
    """A sort and an argmax of sums over lanes, both of two arrays at once: all lanes share them."""

    def step(x: jax.Array, t: jax.Array) -> jax.Array:
        fitness = x.sum(1)
        best = fitness.argmax()
        order = jnp.argsort(fitness)
        return jnp.where(x[best] > x, x[best] - t, x[order] + 1)

    check(scan(step), numbers((8, lanes)))


def test_lanes_in_the_minor_dimension() -> None:
    check(scan(lambda x, t: x * 3 - jnp.sum(x, axis=1, keepdims=True)), numbers((3, 100)))


def test_floats() -> None:
    def normalise(x: jax.Array, t: jax.Array) -> jax.Array:
        centred = x - jnp.mean(x)
        return centred / jnp.sqrt(jnp.mean(centred * centred) + 1e-3) + 0.5

    check(scan(normalise), linear_values((100,)), tolerance=CLOSE)


def test_the_condition_goes_by_all_lanes() -> None:
    def program(x: jax.Array) -> Any:
        def body(carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            return carry[0] * 2 + 1, carry[1] + 1

        return lax.while_loop(lambda c: jnp.max(c[0]) < 10_000, body, (x, jnp.int32(0)))

    for lanes in SIZES:
        check(program, np.arange(lanes, dtype=np.int32))


def test_lanes_that_meet_leave_a_sum() -> None:
    """The condition asks all lanes; what they add up is not needed before the end."""

    def program(x: jax.Array, y: jax.Array) -> Any:
        def goes_on(c: Any) -> jax.Array:
            return (c[0] < 9) & (jnp.sum(c[1]) % 3 != 1)

        def step(c: Any) -> Any:
            i, x, y, seed, total = c
            return i + 1, jnp.zeros_like(x) + seed, y * 0 + seed * 3, seed * 77 + 5, total + y.sum()

        return lax.while_loop(goes_on, step, (0, x, y, 3, 0))

    x = np.arange(240, dtype=np.int32).reshape(40, 2, 3)
    check(program, x, np.arange(40, dtype=np.int32))


def test_lanes_wait_for_each_other_in_the_condition() -> None:
    def program(x: jax.Array) -> Any:
        def body(carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            return carry[0] * 2 + 1, carry[1] + 1

        return lax.while_loop(lambda c: jnp.any(c[0] < 10_000), body, (x, jnp.int32(0)))

    check(program, np.arange(100, dtype=np.int32))


def test_loop_inside_that_starts_where_any_lane_needs_it() -> None:
    """As solvers do that keep the last stage of a step for the next one, if none is rejected."""

    def program(x: jax.Array) -> Any:
        def step(carry: tuple[jax.Array, jax.Array], t: jax.Array) -> Any:
            x, restart = carry
            start = jnp.where(jnp.any(restart), 0, 2)
            x = lax.fori_loop(start, 6, lambda i, y: y * 3 + i, x)
            return (x, x % 11 == t), start

        return lax.scan(step, (x, x > 3), jnp.arange(20))

    check(program, numbers((100,)))


def test_loop_inside_that_lanes_leave_one_by_one() -> None:
    def step(x: jax.Array, t: jax.Array) -> jax.Array:
        stop = jax.vmap(lambda x: lax.while_loop(lambda y: y % 7 != 0, lambda y: y * 3 + 1, x))
        return stop(x) + jnp.max(x) % 5

    check(scan(step), numbers((100,)))


def test_branches_on_what_all_lanes_have_together() -> None:
    def dear(x: jax.Array) -> jax.Array:
        for shift in range(1, 20):
            x = (x ^ (x >> shift)) * 0x5BD1 + shift
        return x

    def step(x: jax.Array, t: jax.Array) -> jax.Array:
        return lax.cond(jnp.any(x % 50 == t), dear, lambda x: dear(x + 1) * 3, x)

    check(scan(step), numbers((100,)))


def test_streams_read_and_written() -> None:
    def program(x: jax.Array, rows: jax.Array) -> Any:
        def step(x: jax.Array, row: jax.Array) -> Any:
            y = x * 3 + row
            z = y - jnp.max(y)
            return z, (y, z + jnp.sum(row))

        return lax.scan(step, x, rows)

    check(program, numbers((100,)), numbers((9, 100)))


def test_what_lanes_have_alone_goes_with_what_they_meet_in() -> None:
    """As checkpoints do of a flag that never changes: it is parallel, and all the rest is not."""

    def program(x: jax.Array) -> Any:
        def step(carry: Any, t: jax.Array) -> Any:
            x, kept, flags = carry
            x = jnp.where(jnp.any(x % 11 == t), x * 3, x + t)
            kept = kept.at[:, t].set(x)
            return (x, kept, flags.at[:, t].set(7)), None

        empty = jnp.zeros((x.size, 9), jnp.int32)
        return lax.scan(step, (x, empty, empty - 1), jnp.arange(9))[0]

    report = check(program, numbers((100,)))
    assert [loop.lanes for loop in report.loops] == [100]


def test_branches_that_read_what_is_updated_in_place() -> None:
    """A branch reads a row, which another one is written over before or after it."""

    def far_away(x: jax.Array) -> jax.Array:
        for shift in range(1, 20):
            x = (x ^ (x >> shift)) * 0x5BD1 + shift
        return x

    def program(x: jax.Array) -> Any:
        def step(carry: Any, t: jax.Array) -> Any:
            x, rows = carry
            restart = jnp.max(x) % 3 == 0

            def back(x: jax.Array, rows: jax.Array) -> jax.Array:
                return far_away(x) + lax.dynamic_index_in_dim(rows, t // 2, 0, keepdims=False)

            y = lax.cond(restart, back, lambda x, rows: far_away(x * 3), x, rows)
            rows = lax.dynamic_update_index_in_dim(rows, x * 5, t // 2, 0)
            return (y, rows), restart

        return lax.scan(step, (x, jnp.ones((150, x.size), jnp.int32)), jnp.arange(40))

    report = check(program, numbers((100,)))
    numbers_of = report.loops[0].decision.numbers
    assert numbers_of["streams"] == 2


@pytest.mark.parametrize("name", ["maximum", "one_after_another"])
def test_more_lanes_than_the_stack_has_room_for(name: str) -> None:
    check(scan(STEPS[name]), numbers((300_000,)))
