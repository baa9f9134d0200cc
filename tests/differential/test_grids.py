"""One grid of any size, each point of which sees its neighbours: stencils, waves, automata."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.differential.comparison import (
    CLOSE,
    CLOSE_DOUBLE,
    EXACT,
    Tolerance,
)
from tests.differential.harness import check
from tests.differential.values import NumpyArray

SHAPES = [(7,), (300,), (70_000,), (9, 11), (40, 50), (300, 301), (6, 7, 8), (30, 31, 32)]
"""Some fit into registers, some into memory, and some are more than a lane could have."""


def grid(*shape: int, dtype: Any = np.float32, seed: int = 0) -> NumpyArray:
    numbers = np.random.default_rng(seed).normal(size=shape) * 8
    return numbers.astype(dtype)


def check_grid(
    function: Any, *arguments: Any, tolerance: Tolerance = CLOSE, x64: bool = False
) -> None:
    """Checks a program, and that its loop is fused without lanes."""
    report = check(function, *arguments, fused=None, tolerance=tolerance, x64=x64)
    assert [loop.lanes for loop in report.loops if loop.fused] == [None], report


def inside(x: Any) -> Any:
    """Returns where a point has neighbours on all sides."""
    return (slice(1, -1),) * x.ndim


def neighbours(x: jax.Array) -> jax.Array:
    """Returns the sum of the neighbours of all points inside."""
    total = jnp.zeros((), x.dtype)
    for axis in range(x.ndim):
        for part in (slice(2, None), slice(None, -2)):
            total = total + x[(*inside(x)[:axis], part, *inside(x)[axis + 1 :])]
    return total


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_inside_changes_and_the_border_stays(shape: tuple[int, ...]) -> None:
    def heat(x: jax.Array) -> Any:
        def step(x: jax.Array, _: None) -> Any:
            at = inside(x)
            return x.at[at].add(0.1 * (neighbours(x) - 2 * x.ndim * x[at])), None

        return lax.scan(step, x, None, length=5)[0]

    check_grid(heat, grid(*shape))


@pytest.mark.parametrize("shape", [(300,), (40, 50), (300, 301)], ids=str)
def test_two_fields_take_turns(shape: tuple[int, ...]) -> None:
    def waves(x: jax.Array, v: jax.Array) -> Any:
        def step(state: tuple[jax.Array, jax.Array], _: None) -> Any:
            x, v = state
            at = inside(x)
            v = v.at[at].add(0.1 * (neighbours(x) - 2 * x.ndim * x[at]))
            x = x + 0.1 * v
            return (x, v), x[(1,) * x.ndim]

        return lax.scan(step, (x, v), None, length=5)

    check_grid(waves, grid(*shape), grid(*shape, seed=1))


@pytest.mark.parametrize("shape", [(300,), (40, 50), (260, 301)], ids=str)
def test_the_border_follows_the_inside(shape: tuple[int, ...]) -> None:
    def pressure(x: jax.Array, source: jax.Array) -> Any:
        def step(x: jax.Array, _: None) -> Any:
            x = x.at[inside(x)].set(neighbours(x) / (2 * x.ndim) - source[inside(x)])
            x = x.at[0].set(x[1]).at[-1].set(0)
            return x.at[..., 0].set(x[..., 1]), None

        return lax.scan(step, x, None, length=4)[0]

    check_grid(pressure, grid(*shape), grid(*shape, seed=1))


def test_what_was_there_is_needed_later() -> None:
    def f(x: jax.Array) -> Any:
        def step(state: tuple[jax.Array, jax.Array], _: None) -> Any:
            x, old = state
            new = x.at[1:-1].set(2 * x[1:-1] - old[1:-1] + 0.3 * neighbours(x))
            return (new, x), (new - old).max()

        return lax.scan(step, (x, x), None, length=6)

    check_grid(f, grid(400))


def test_a_new_array_is_filled_inside() -> None:
    def f(x: jax.Array) -> Any:
        def step(x: jax.Array, t: jax.Array) -> Any:
            flow = jnp.full_like(x, t).at[1:-1, 2:].set((x[1:-1, 2:] - x[1:-1, :-2]) * t)
            return x - 0.1 * flow, flow.sum()

        return lax.scan(step, x, jnp.arange(5, dtype=jnp.float32))

    check_grid(f, grid(40, 50))


def test_parts_are_computed_where_they_are_put_together() -> None:
    def f(x: jax.Array) -> Any:
        def step(x: jax.Array, _: None) -> Any:
            middle = 0.3 * (x[1:-1] + x[2:] - x[:-2])
            return jnp.concatenate([-x[-1:], middle, 0.5 * x[:1]]), None

        return lax.scan(step, x, None, length=5)[0]

    check_grid(f, grid(1000))


def test_more_parts_than_loops() -> None:
    """Sums of grids that are put together in different places are not worked out piece by piece."""

    def f(x: jax.Array) -> Any:
        def step(x: jax.Array, _: None) -> Any:
            total = x
            for size in range(1, 9):
                part = jnp.sin(x[size:, size:]) * size
                total = total + jnp.pad(part, ((size // 2, size - size // 2),) * 2)
            return jnp.where(total > 9, x, total / 9), None

        return lax.scan(step, x, None, length=4)[0]

    check_grid(f, grid(30, 40))


def test_life() -> None:
    def life(board: jax.Array) -> Any:
        def step(board: jax.Array, _: None) -> Any:
            steps = [(i, j) for i in (-1, 0, 1) for j in (-1, 0, 1) if i or j]
            around = sum(jnp.roll(board, by, (0, 1)) for by in steps)
            board = ((around == 3) | ((around == 2) & (board == 1))).astype(board.dtype)
            return board, board.sum()

        return lax.scan(step, board, None, length=6)

    check_grid(life, (grid(300, 301) > 0).astype(np.int32), tolerance=EXACT)


@pytest.mark.for_cpus
@pytest.mark.parametrize("size", [16, 33])
def test_each_field_of_a_stack_moves_its_own_way(size: int) -> None:
    def f(fields: jax.Array) -> Any:
        def step(fields: jax.Array, _: None) -> Any:
            mean = fields.mean(0)
            fields = fields + 0.3 * (mean - fields)
            steps = [(i, j) for i in (-1, 0, 1) for j in (-1, 0, 1)]
            moved = [jnp.roll(x, by, (0, 1)) for x, by in zip(fields, steps, strict=True)]
            return jnp.stack(moved), mean[3, 4]

        return lax.scan(step, fields, None, length=5)

    check_grid(f, grid(9, size, size + 2))


def test_doubles() -> None:
    def f(x: jax.Array) -> Any:
        def step(x: jax.Array, _: None) -> Any:
            return x.at[2:-1].set(x[1:-2] * 0.5 + x[3:] * 0.25), None

        return lax.scan(step, x, None, length=7)[0]

    check_grid(f, grid(5_000, dtype=np.float64), tolerance=CLOSE_DOUBLE, x64=True)


def test_inner_loops_over_the_same_grid() -> None:
    def f(x: jax.Array, source: jax.Array) -> Any:
        def relax(_: Any, x: jax.Array) -> jax.Array:
            return x.at[inside(x)].set(0.25 * (neighbours(x) - source[inside(x)]))

        def step(x: jax.Array, _: None) -> Any:
            return lax.fori_loop(0, 7, relax, x) + 0.5 * source, x[3, 4]

        return lax.scan(step, x, None, length=3)

    check_grid(f, grid(40, 50), grid(40, 50, seed=1))


@pytest.mark.for_cpus
@pytest.mark.parametrize("size", [7, 300, 3000])
def test_the_cheapest_way_on(size: int) -> None:
    """Seams: what is least of three neighbours, and which; beyond the border nothing is cheap, and
    some costs are NaN. On some processors, seven are lanes that see each other."""

    def step(costs: jax.Array, row: jax.Array) -> Any:
        left = jnp.concatenate([jnp.array([jnp.inf]), costs[:-1]])
        right = jnp.concatenate([costs[1:], jnp.array([jnp.inf])])
        ways = jnp.stack([left, costs, right])
        return row + ways.min(0), ways.argmin(0)

    rows = np.abs(grid(11, size))
    rows[5, 3] = np.nan
    compare = check_grid if size > 7 else check
    compare(lambda r: lax.scan(step, r[0], r), rows, tolerance=CLOSE)


def test_the_best_of_the_neighbours() -> None:
    """A spatial game: each point takes after the neighbour that has gained most."""
    shifts = [(i, j) for i in (-1, 0, 1) for j in (-1, 0, 1)]

    def step(plays: jax.Array, _: None) -> Any:
        cooperating = plays.astype(jnp.float32)
        gained = sum(jnp.roll(cooperating, s, (0, 1)) for s in shifts)
        gained = jnp.where(plays == 1, gained, 1.85 * gained)
        all_gained = jnp.stack([jnp.roll(gained, s, (0, 1)) for s in shifts])
        all_plays = jnp.stack([jnp.roll(plays, s, (0, 1)) for s in shifts])
        best = jnp.argmax(all_gained, axis=0)
        plays = jnp.take_along_axis(all_plays, best[None], axis=0)[0]
        return plays, plays.sum()

    plays = (np.random.default_rng(0).random((64, 64)) < 0.9).astype(np.int32)
    check(lambda p: lax.scan(step, p, None, length=20), plays)
