"""Loops that hand their arrays on to each other: buffers shared, copied, donated, returned."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import fuselane
from fuselane.fuzz.run import quick_options
from tests.hlo.xla import UNOPTIMISED

LANES = 1000
Arrays = tuple[jax.Array, ...]


def mix(x: jax.Array, y: Any) -> jax.Array:
    """An update that is exact on integers and undoes nothing."""
    return (x * 3 + y) ^ (x >> 5)


def read_then_update(x: jax.Array, w: jax.Array) -> Arrays:
    """What the first loop only reads, the second updates in place."""
    w = w * 2 + 1
    a = lax.fori_loop(0, 200, lambda i, c: mix(c, w + i), x)
    updated = lax.fori_loop(0, 200, lambda i, c: mix(c, a), w)
    return a, updated


def update_and_keep(x: jax.Array, w: jax.Array) -> Arrays:
    """The array is needed both before and after it is updated."""
    w = w * 2 + 1
    updated = lax.fori_loop(0, 200, lambda i, c: mix(c, i), w)
    a = lax.fori_loop(0, 200, lambda i, c: mix(c, w), x)
    return a, updated, w + a


def work_after_the_loop(x: jax.Array, w: jax.Array) -> Arrays:
    """The loop's result is not the program's: donated memory could be used in between."""
    return lax.fori_loop(0, 200, lambda i, c: mix(c, w), x) + w, jnp.cumsum(w)


def return_everything(x: jax.Array, w: jax.Array) -> Arrays:
    """The carry is the result: constants, arguments, counters and all."""
    start: Any = (0, x, w, x)
    carry = lax.while_loop(
        lambda c: c[0] < 200, lambda c: (c[0] + 1, mix(c[1], c[2]), c[2], c[3]), start
    )
    return (*carry, w, x)


def pass_through_loops(x: jax.Array, w: jax.Array) -> Arrays:
    """An array rides through two loops unchanged and is updated by a third."""
    first = lax.fori_loop(0, 150, lambda i, c: (mix(c[0], c[1]), c[1]), (x, w))
    second = lax.fori_loop(0, 150, lambda i, c: (mix(c[0], c[1] + i), c[1]), first)
    third = lax.fori_loop(0, 150, lambda i, c: (c[0], mix(c[1], c[0])), second)
    return third


def same_array_twice(x: jax.Array, w: jax.Array) -> Arrays:
    """One array is the initial value of two states and of something that does not change."""
    return lax.fori_loop(0, 150, lambda i, c: (mix(c[0], c[2]), mix(c[1], i), c[2]), (x, x, x))


def stack_and_update_rows(x: jax.Array, w: jax.Array) -> Arrays:
    """Rows are stacked by one loop, rewritten in part by the next, read by the last."""
    last, rows = lax.scan(lambda c, _: (mix(c, w), c), x, None, length=120)
    rows = lax.fori_loop(10, 90, lambda i, r: r.at[i].set(mix(r[i], w)), rows)
    total, _ = lax.scan(lambda c, row: (mix(c, row), None), last, rows)
    return rows, total


def loops_in_a_loop(x: jax.Array, w: jax.Array) -> Arrays:
    """The outer loop mixes lanes and stays; the inner ones become calls in its body."""

    def step(i: jax.Array, carry: Arrays) -> Arrays:
        x, w = carry
        x = lax.fori_loop(0, 120, lambda j, c: mix(c, w + j), x)
        w = lax.fori_loop(0, 120, lambda j, c: mix(c, x), w)
        return jnp.roll(x, 1), w

    return lax.fori_loop(0, 7, step, (x, w))


def loops_in_branches(x: jax.Array, w: jax.Array) -> Arrays:
    """One loop per branch of a conditional."""
    one = lax.cond(
        x[3] > 5,
        lambda x, w: lax.fori_loop(0, 200, lambda i, c: mix(c, w), x),
        lambda x, w: lax.fori_loop(0, 200, lambda i, c: mix(c, i), w),
        x,
        w,
    )
    return one, x + w


def uniform_states(x: jax.Array, w: jax.Array) -> Arrays:
    """Scalars from arguments and from a loop before are states and results."""
    n, total, x = lax.fori_loop(
        0, 200, lambda i, c: (c[0] + 1, c[1] + c[0], mix(c[2], c[0])), (x[5], w[5], x)
    )
    again = lax.fori_loop(0, 200, lambda i, c: (mix(c[0], 1), mix(c[1], c[0])), (n, x))
    return n, total, x, *again


PROGRAMS = [
    read_then_update,
    update_and_keep,
    work_after_the_loop,
    return_everything,
    pass_through_loops,
    same_array_twice,
    stack_and_update_rows,
    loops_in_a_loop,
    loops_in_branches,
    uniform_states,
]


def arguments() -> list[jax.Array]:
    return [jnp.arange(LANES, dtype=jnp.int32), jnp.arange(LANES, dtype=jnp.int32)[::-1] * 7]


@functools.cache
def results_of_xla(program: Callable[..., Arrays]) -> Arrays:
    results: Arrays = jax.jit(program).lower(*arguments()).compile(quick_options())(*arguments())
    return results


@pytest.mark.parametrize("donated", [(), (0,), (1,), (0, 1)], ids=str)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_chain(program: Callable[..., Arrays], donated: tuple[int, ...]) -> None:
    """Results are those of plain XLA; arguments that are not donated stay as they were."""
    expected = results_of_xla(program)
    with fuselane.enabled(verify_hlo=True):
        if not donated:
            assert fuselane.explain(program, *arguments()).num_fused >= 1
        lowered = jax.jit(program, donate_argnums=donated).lower(*arguments())
        function = lowered.compile(UNOPTIMISED)
        for _ in range(2):
            given = arguments()
            views = [np.asarray(array) for array in arguments()]
            results = function(*given)
            for result, wanted in zip(results, expected, strict=True):
                np.testing.assert_array_equal(result, wanted)
            for array, view in zip(given, views, strict=True):
                if not array.is_deleted():
                    np.testing.assert_array_equal(array, view)
