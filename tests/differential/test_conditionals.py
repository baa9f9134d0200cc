"""`lax.cond` and `lax.switch` on what all lanes share: only the side that is taken runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.differential.harness import check, linear_values

LANES: Final = 37


def cheap(x: jax.Array) -> jax.Array:
    return x * 3 + 1


def dear(x: jax.Array) -> jax.Array:
    """More than is worth computing on both sides."""
    for shift in range(1, 20):
        x = (x ^ (x >> shift)) * 0x5BD1 + shift
    return x


def dearer(x: jax.Array) -> jax.Array:
    return dear(dear(x) * 7)


def scan(step: Callable[..., Any], *, steps: int = 9) -> Callable[..., Any]:
    return lambda *state: lax.scan(lambda s, t: (step(t, *s), None), state, jnp.arange(steps))[0]


SIDES: Final = {"cheap": (cheap, jnp.negative), "dear": (dear, dearer), "mixed": (dear, cheap)}


@pytest.mark.parametrize("sides", SIDES)
@pytest.mark.parametrize("shape", [(LANES,), (LANES, 3), (3, LANES), (2, LANES, 50)])
def test_cond(sides: str, shape: tuple[int, ...]) -> None:
    def step(t: jax.Array, x: jax.Array) -> tuple[jax.Array]:
        return (lax.cond(t % 3 == 1, *SIDES[sides], x),)

    check(scan(step), linear_values(shape, "int32"))


@pytest.mark.parametrize("branches", ["cheap", "dear"])
@pytest.mark.parametrize("first", [-4, -1, 0, 2])
def test_switch_and_indices_out_of_range(branches: str, first: int) -> None:
    sides = {
        "cheap": [cheap, jnp.negative, lambda x: x + 5],
        "dear": [dear, cheap, dearer],
    }[branches]

    def step(t: jax.Array, x: jax.Array) -> tuple[jax.Array]:
        return (lax.switch(t + first, sides, x),)

    check(scan(step), linear_values((LANES,), "int32"))


def test_several_operands_and_results() -> None:
    def step(t: jax.Array, x: jax.Array, y: jax.Array, k: jax.Array) -> Any:
        def yes(x: jax.Array, y: jax.Array, k: jax.Array) -> Any:
            return dear(x), x, k + 1

        def no(x: jax.Array, y: jax.Array, k: jax.Array) -> Any:
            return x, dear(y) + k, k

        return lax.cond(t % 2 == 0, yes, no, x, y, k)

    x = linear_values((LANES,), "int32")
    check(scan(step), x, x[::-1] * 7, np.int32(3))


def test_what_all_lanes_share_is_needed_by_all() -> None:
    """The conditional gives what lanes share as well as what they don't."""

    def step(t: jax.Array, x: jax.Array, k: jax.Array) -> Any:
        x, k = lax.cond(k % 5 < 3, lambda x, k: (dear(x), dear(k)), lambda x, k: (x, k + 1), x, k)
        return x + k, k

    check(scan(step), linear_values((LANES,), "int32"), np.int32(3))


@pytest.mark.parametrize("lanes", [LANES, 5_000])
def test_random_numbers_on_one_side(lanes: int) -> None:
    def step(t: jax.Array, x: jax.Array, key: jax.Array) -> Any:
        def draw(x: jax.Array, key: jax.Array) -> Any:
            key, sub = jax.random.split(key)
            return x + jax.random.randint(sub, x.shape, 0, 9), key

        return lax.cond(t % 3 == 0, draw, lambda x, key: (x - 1, key), x, key)

    check(scan(step), linear_values((lanes,), "int32"), np.array([1, 2], np.uint32))


def test_loops_in_branches() -> None:
    def step(t: jax.Array, x: jax.Array) -> Any:
        def counted(x: jax.Array) -> jax.Array:
            return lax.fori_loop(0, 20, lambda i, y: y * 3 + i, x)

        def until(x: jax.Array) -> jax.Array:
            stop = jax.vmap(lambda x: lax.while_loop(lambda y: y % 7 != 0, lambda y: y * 3 + 1, x))
            return stop(x)

        def bounded(x: jax.Array) -> jax.Array:
            return lax.fori_loop(0, t, lambda i, y: y * 5 + i, x)

        return (lax.switch(t % 3, [counted, until, bounded], x),)

    check(scan(step), linear_values((LANES,), "int32"))


def test_a_loop_that_would_not_end_on_the_other_side() -> None:
    def step(t: jax.Array, x: jax.Array) -> Any:
        def spin(x: jax.Array) -> jax.Array:
            # Ends for even t only.
            k = lax.while_loop(lambda k: k % 2 != 0, lambda k: k + 2, t)
            return dear(x) + k

        return (lax.cond(t % 2 == 0, spin, cheap, x),)

    check(scan(step), linear_values((LANES,), "int32"))


def test_branches_in_branches() -> None:
    def step(t: jax.Array, x: jax.Array) -> Any:
        def inner(x: jax.Array) -> jax.Array:
            return lax.cond(t % 4 == 0, dear, cheap, x) + lax.cond(t > 4, dearer, jnp.negative, x)

        return (lax.cond(t % 2 == 0, inner, dear, x),)

    check(scan(step), linear_values((LANES,), "int32"))


@pytest.mark.parametrize("work", [cheap, dear], ids=["cheap", "dear"])
def test_rows_recorded_now_and_then(work: Callable[[jax.Array], jax.Array]) -> None:
    def step(t: jax.Array, x: jax.Array, rows: jax.Array) -> Any:
        def record(x: jax.Array, rows: jax.Array) -> Any:
            return work(x), rows.at[t // 3].set(work(x) + 1)

        return lax.cond(t % 3 == 0, record, lambda x, rows: (x + 1, rows), x, rows)

    rows = np.zeros((120, LANES), np.int32)
    check(scan(step, steps=300), linear_values((LANES,), "int32"), rows)


def test_one_of_two_rows() -> None:
    def step(t: jax.Array, x: jax.Array, rows: jax.Array) -> Any:
        def early(x: jax.Array, rows: jax.Array) -> jax.Array:
            return rows.at[t].set(dear(x))

        def late(x: jax.Array, rows: jax.Array) -> jax.Array:
            return rows.at[t + 1].set(dearer(x))

        return x + 1, lax.cond(t % 3 == 0, early, late, x, rows)

    rows = np.zeros((10, LANES), np.int32)
    check(scan(step), linear_values((LANES,), "int32"), rows)


def test_cond_in_a_loop_that_lanes_leave_one_by_one() -> None:
    def program(x: jax.Array) -> Any:
        def body(carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            x, i = carry
            y = lax.cond(i % 2 == 0, dear, dearer, x)
            return jnp.where(x % 5 != 0, y, x), i + 1

        def go(carry: tuple[jax.Array, jax.Array]) -> jax.Array:
            return jnp.any(carry[0] % 5 != 0) & (carry[1] < 30)

        return lax.while_loop(go, body, (x, jnp.int32(0)))[0]

    check(program, linear_values((LANES,), "int32"))


def test_per_lane_predicates_become_selects() -> None:
    def program(x: jax.Array) -> Any:
        def one(t: jax.Array, x: jax.Array) -> jax.Array:
            x = lax.cond(x % 3 == 0, dear, cheap, x)
            return lax.switch(x % 7, [dear, cheap, dearer], x)

        step = jax.vmap(one, in_axes=(None, 0))
        return lax.scan(lambda x, t: (step(t, x), x), x, jnp.arange(5))

    check(program, linear_values((100,), "int32"))


def test_scalars_alone() -> None:
    def step(t: jax.Array, x: jax.Array) -> Any:
        return (lax.switch(x % 5, [dear, cheap, dearer], x),)

    check(scan(step, steps=500), np.int32(3))


def test_a_branch_that_needs_nothing_of_lanes_it_is_given() -> None:
    """The only column of a table is read wherever the lanes point, so they are not asked."""

    def program(x: jax.Array, table: jax.Array) -> Any:
        rows = jnp.arange(2)[:, None]

        def look_up(x: jax.Array, table: jax.Array) -> jax.Array:
            return table.at[rows, x.T % 3 - 1].get(mode="promise_in_bounds")[:, :1]

        def step(x: jax.Array, i: jax.Array) -> tuple[jax.Array, jax.Array]:
            found = lax.cond(i % 2 == 1, look_up, lambda x, table: table, x, table)
            return jnp.broadcast_to(jnp.asarray([3, 5]), (9, 2)) + 0 * x, found

        return lax.scan(step, x, jnp.arange(4))

    check(program, linear_values((9, 2), "int32"), linear_values((2, 1), "float32"))
