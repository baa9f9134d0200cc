"""Lanes that see each other: all pairs, neighbours, partners drawn at random, the best of all."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax, random

from fuselane import replacing
from fuselane.backends.backend import Backend, Planned, pick
from fuselane.decisions import Reason
from fuselane.lanes.program import LaneProgram
from tests.differential.comparison import (
    CLOSE,
    CLOSE_DOUBLE,
    EXACT,
    Tolerance,
)
from tests.differential.harness import check, run_and_explain
from tests.differential.values import NumpyArray

SIZES = (5, 16, 37, 100)


def normals(*shape: int, seed: int = 0) -> NumpyArray:
    """Returns normal numbers."""
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


@pytest.fixture(autouse=True)
def _rivals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets lanes see each other wherever they can, whatever the estimates say."""

    def pick_shared(program: LaneProgram, backend: Backend) -> Planned:
        return pick(program.rival or program, backend)

    monkeypatch.setattr(replacing, "pick", pick_shared)


def check_lanes(
    lanes: int, function: Any, *arguments: Any, tolerance: Tolerance = EXACT, x64: bool = False
) -> None:
    """Checks a program, and that its loop runs over so many lanes."""
    report = check(function, *arguments, fused=None, tolerance=tolerance, x64=x64)
    assert lanes in [loop.lanes for loop in report.loops if loop.fused], report


def n_body(x: jax.Array, v: jax.Array, mass: jax.Array) -> Any:
    """Bodies that attract each other; their masses never change."""

    def step(state: tuple[jax.Array, jax.Array], _: None) -> Any:
        x, v = state
        d = x[None] - x[:, None]
        squares = (d * d).sum(-1) + 0.1
        v = v + 0.01 * (d * (mass / squares**1.5)[..., None]).sum(1)
        return (x + 0.01 * v, v), x

    return lax.scan(step, (x, v), None, length=4)


@pytest.mark.parametrize("size", SIZES)
def test_all_pairs(size: int) -> None:
    mass = np.abs(normals(size, seed=2)) + 0.5
    check_lanes(size, n_body, normals(size, 3), normals(size, 3, seed=1), mass, tolerance=CLOSE)


def test_all_pairs_of_doubles() -> None:
    x, v = (normals(12, 3, seed=seed).astype(np.float64) for seed in (0, 1))
    mass = np.full(12, 0.7)
    check_lanes(12, n_body, x, v, mass, tolerance=CLOSE_DOUBLE, x64=True)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("axis", [0, 1])
def test_sums_along_either_side_of_a_pair(size: int, axis: int) -> None:
    def turn(angles: jax.Array, rates: jax.Array) -> Any:
        def step(x: jax.Array, _: None) -> Any:
            pulls = jnp.sin(x[:, None] - 0.9 * x[None])
            x = x + 0.05 * (rates + pulls.mean(axis))
            return x, jnp.abs(jnp.exp(1j * x).mean())

        return lax.scan(step, angles, None, length=5)

    check_lanes(size, turn, normals(size), normals(size, seed=1), tolerance=CLOSE)


def test_sums_along_both_sides_of_a_pair() -> None:
    def balance(x: jax.Array) -> Any:
        def step(_: int, x: jax.Array) -> jax.Array:
            flows = jnp.tanh(x[:, None] - 2 * x[None])
            return x + 0.1 * (flows.sum(0) - flows.sum(1)) / x.size

        return lax.fori_loop(0, 5, step, x)

    check_lanes(37, balance, normals(37), tolerance=CLOSE)


def test_energies_of_all_pairs_are_one_sum() -> None:
    def fall(x: jax.Array) -> Any:
        def energy(x: jax.Array) -> jax.Array:
            d = x[:, None] - x[None]
            return jnp.log((d * d).sum(-1) + 0.5).sum()

        def step(x: jax.Array, _: None) -> Any:
            return x - 0.01 * jax.grad(energy)(x), energy(x)

        return lax.scan(step, x, None, length=4)

    check_lanes(20, fall, normals(20, 2), tolerance=CLOSE)


def test_others_that_go_their_own_way_are_shared_by_nobody() -> None:
    """What `y` is, all lanes compute alike: it has nothing of theirs."""

    def follow(x: jax.Array, y: jax.Array) -> Any:
        def step(state: tuple[jax.Array, jax.Array], _: None) -> Any:
            x, y = state
            pulls = jnp.tanh(y[None] - x[:, None]).mean(1) + jnp.tanh(x[None] - x[:, None]).sum(1)
            return (x + 0.1 * pulls, jnp.sin(y) + 0.5), x.max()

        return lax.scan(step, (x, y), None, length=4)

    check_lanes(20, follow, normals(20), normals(20, seed=1), tolerance=CLOSE)


def test_pairs_leave_the_loop() -> None:
    def walk(x: jax.Array) -> Any:
        def step(x: jax.Array, _: None) -> Any:
            d = jnp.abs(x[:, None] - x[None])
            return x + 0.1 * d.max(1), d

        return lax.scan(step, x, None, length=3)

    check_lanes(24, walk, normals(24), tolerance=CLOSE)


def test_a_matrix_that_never_changes_is_read_by_rows_and_by_columns() -> None:
    def play(payoff: jax.Array, x: jax.Array) -> Any:
        def step(x: jax.Array, _: None) -> Any:
            x = x * jnp.exp(0.1 * (payoff @ x) - 0.05 * (x @ payoff))
            return x / x.sum(), x @ payoff @ x

        return lax.scan(step, x, None, length=4)

    payoff, shares = normals(24, 24), np.full(24, 1 / 24, np.float32)
    check_lanes(24, play, payoff, shares, tolerance=CLOSE)


@pytest.mark.parametrize("size", SIZES)
def test_sums_along_the_rows_of_a_matrix_that_never_changes(size: int) -> None:
    def pull(weights: jax.Array, x: jax.Array) -> Any:
        def step(x: jax.Array, _: None) -> Any:
            return 0.9 * x + 0.1 * jnp.tanh((weights * x[:, None]).sum(0)), None

        return lax.scan(step, x, None, length=40)[0]

    check_lanes(size, pull, normals(size, size), normals(size, seed=1), tolerance=CLOSE)


@pytest.mark.parametrize("size", SIZES)
def test_neighbours_on_a_ring(size: int) -> None:
    def couple(x: jax.Array) -> Any:
        def step(x: jax.Array, _: None) -> Any:
            near = jnp.sin(jnp.roll(x, 1) - x) + jnp.sin(jnp.roll(x, -1) - x)
            return x + 0.1 * near + 0.01 * jnp.sin(x.mean() - x), x

        return lax.scan(step, x, None, length=4)

    check_lanes(size, couple, normals(size), tolerance=CLOSE)


def test_partners_drawn_at_random() -> None:
    """As differential evolution does it."""

    def evolve(x: jax.Array, key: jax.Array) -> Any:
        def cost(x: jax.Array) -> jax.Array:
            return (x * x - jnp.cos(3 * x)).sum(-1)

        def step(state: tuple[jax.Array, jax.Array], key: jax.Array) -> Any:
            x, costs = state
            of_partners, of_mixing = random.split(key)
            a, b = random.randint(of_partners, (2, len(x)), 0, len(x))
            trial = jnp.where(random.uniform(of_mixing, x.shape) < 0.8, x + 0.7 * (x[a] - x[b]), x)
            is_better = cost(trial) < costs
            x = jnp.where(is_better[:, None], trial, x)
            return (x, jnp.where(is_better, cost(trial), costs)), costs.min()

        return lax.scan(step, (x, cost(x)), random.split(key, 4))

    check_lanes(40, evolve, normals(40, 3), random.key(0), tolerance=CLOSE)


def test_the_best_of_all() -> None:
    """As particle swarms do it."""

    def swarm(x: jax.Array) -> Any:
        def step(state: tuple[jax.Array, ...], _: None) -> Any:
            x, v, best, least = state
            costs = (x * x).sum(-1)
            number = jnp.argmin(costs)
            is_better = costs[number] < least
            best = jnp.where(is_better, x[number], best)
            v = 0.7 * v + 0.5 * (best - x)
            return (x + v, v, best, jnp.minimum(costs[number], least)), number

        start = x, jnp.zeros_like(x), x[0], jnp.float32(100.0)
        return lax.scan(step, start, None, length=5)

    check_lanes(37, swarm, normals(37, 4), tolerance=CLOSE)


def test_ranks_of_all() -> None:
    """As evolution strategies do it: the population is drawn anew in each step."""

    def adapt(key: jax.Array) -> Any:
        def step(state: tuple[jax.Array, jax.Array], key: jax.Array) -> Any:
            mean, width = state
            x = mean + width * random.normal(key, (32, 3))
            best = x[jnp.argsort((x * x).sum(-1))[:8]]
            return (best.mean(0), 0.9 * width + 0.1 * best.std(0)), x[0]

        return lax.scan(step, (jnp.ones(3), jnp.ones(3)), random.split(key, 4))

    check_lanes(32, adapt, random.key(0), tolerance=CLOSE)


def test_running_sums_over_all() -> None:
    def share(x: jax.Array) -> Any:
        def step(x: jax.Array, _: None) -> Any:
            sums = jnp.cumsum(jnp.abs(x))
            return jnp.tanh(x + 0.1 * sums / sums[-1]), sums[-1]

        return lax.scan(step, x, None, length=4)

    check_lanes(37, share, normals(37), tolerance=CLOSE)


def test_counts_of_neighbours_on_a_board() -> None:
    def live(board: jax.Array) -> Any:
        def step(_: int, board: jax.Array) -> jax.Array:
            shifts = [(i, j) for i in (-1, 0, 1) for j in (-1, 0, 1) if i or j]
            near = sum(jnp.roll(board, shift, (0, 1)) for shift in shifts)
            return ((near == 3) | ((board == 1) & (near == 2))).astype(board.dtype)

        return lax.fori_loop(0, 6, step, board)

    for dtype in (np.int32, np.uint8):
        board = np.random.default_rng(0).integers(0, 2, (24, 19)).astype(dtype)
        check_lanes(19, live, board)


def test_lanes_go_on_until_all_have_met() -> None:
    def settle(x: jax.Array) -> Any:
        def is_apart(state: tuple[jax.Array, jax.Array]) -> jax.Array:
            return (state[1].max() - state[1].min() > 0.2) & (state[0] < 50)

        def step(state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            count, x = state
            pulls = jnp.tanh(x[None] - x[:, None]).mean(1)
            return count + 1, x + 0.2 * pulls

        return lax.while_loop(is_apart, step, (jnp.int32(0), x))

    check_lanes(21, settle, normals(21), tolerance=CLOSE)


def test_loops_of_each_lane_between_meetings() -> None:
    def orbit(x: jax.Array) -> Any:
        def step(x: jax.Array, _: None) -> Any:
            pull = jnp.sin(x[None] - x[:, None]).mean(1)
            x = lax.fori_loop(0, 3, lambda _, y: y + 0.1 * jnp.cos(y) * pull, x)
            return x, x.max()

        return lax.scan(step, x, None, length=4)

    check_lanes(19, orbit, normals(19), tolerance=CLOSE)


@pytest.mark.for_cpus  # a GPU's thread has no memory for what lanes share
def test_what_all_share_may_be_much_beside_a_short_loop() -> None:
    """Particles drawn anew by sorting their weights together with evenly spaced points."""
    num = 256

    def program(x: jax.Array, keys: jax.Array) -> Any:
        def step(x: jax.Array, key: jax.Array) -> Any:
            x = (x * 5 + random.randint(key, (), 0, 100)) % 101
            ends = jnp.cumsum(x + 1)
            points = jnp.arange(num) * (ends[-1] // num)
            kinds = jnp.repeat(jnp.array([1, 0]), num)
            kinds = lax.sort((jnp.concatenate([ends, points]), kinds), num_keys=1)[1]
            places = jnp.where(kinds == 0, jnp.cumsum(kinds), num)
            return x[jnp.sort(places)[:num]], x[0]

        return lax.scan(step, x, keys)

    check_lanes(num, program, np.arange(num, dtype=np.int32), random.split(random.key(0), 3))


def test_no_steps_leave_all_as_it_is() -> None:
    def still(x: jax.Array, v: jax.Array, steps: jax.Array) -> Any:
        def step(_: int, state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            x, v = state
            d = x[None] - x[:, None]
            v = v + 0.01 * (d / ((d * d).sum(-1, keepdims=True) + 0.1)).sum(1)
            return x + 0.01 * v, v

        return lax.fori_loop(0, steps, step, (x, v))

    for steps in (0, 1, 3):
        arguments = normals(17, 3), normals(17, 3, seed=1), np.int32(steps)
        check_lanes(17, still, *arguments, tolerance=CLOSE)


def test_verification_knows_them() -> None:
    arguments = normals(16, 3), normals(16, 3, seed=1), np.ones(16, np.float32)
    options = {"min_gain": 0, "verify": True}
    results, report = run_and_explain(n_body, *arguments, options=options)
    assert [loop.lanes for loop in report.loops] == [16]
    assert np.isfinite(np.asarray(results[1])).all()


def test_a_table_of_what_all_share_gets_a_column_of_each_lane() -> None:
    def f(x: jax.Array, flags: jax.Array) -> Any:
        def step(state: tuple[jax.Array, jax.Array], t: tuple[jax.Array, jax.Array]) -> Any:
            x, at = state
            table = jnp.tile(jnp.arange(7, dtype=jnp.int32) * t[0], (7, 1))
            table = table.at[:, at].set(t[1].astype(jnp.int32))
            return (x + (table[:, (at + t[0]) % 7] & 7), at * 5 + 3), None

        state = (x, jnp.int32(2))
        return lax.scan(step, state, (jnp.arange(6, dtype=jnp.int32), flags))[0]

    flags = normals(6, 7) > 0
    check_lanes(7, f, np.arange(7, dtype=np.float32), flags)


@pytest.mark.parametrize("size", SIZES)
def test_a_table_of_what_all_share_is_read_by_rows(size: int) -> None:
    def f(x: jax.Array) -> Any:
        numbers = jnp.arange(size, dtype=jnp.int32)

        def step(x: jax.Array, t: jax.Array) -> Any:
            table = lax.sort(jnp.tile(numbers * t % 7, (size, 1)), dimension=1)
            return x + (table * x[:, None] // 3).sum(1), None

        return lax.scan(step, x, jnp.arange(5, dtype=jnp.int32))[0]

    check_lanes(size, f, np.arange(size, dtype=np.int32))


def test_a_square_that_is_read_by_rows_and_by_columns() -> None:
    """Of what no step changes; numbers were wrong, found by the fuzzer, with seed 910000175."""

    def f(x: jax.Array, squares: jax.Array) -> Any:
        def step(state: tuple[jax.Array, jax.Array], square: jax.Array) -> Any:
            _, total = state
            total = jnp.floor(jnp.clip(total + square.sum(0), -64, 64))
            return (square[:, 0].astype(jnp.int32), total), None

        return lax.scan(step, (x, jnp.zeros(7)), squares)[0]

    squares = np.round(8 * normals(2, 7, 7))
    check_lanes(7, f, np.arange(7, dtype=np.int32), squares)


@pytest.mark.for_cpus  # a GPU's thread has no memory for what lanes share
def test_what_lanes_see_is_kept_until_they_have_met() -> None:
    """Lanes meet in `x` behind what a step makes of it, which may then not lie where `x` is."""
    rows = 100

    def program(chosen: jax.Array, pairs: jax.Array, x: jax.Array, y: jax.Array, i: Any) -> Any:
        def goes_on(state: Any) -> Any:
            return (state[0] < 4) & (state[1][0] % 6 != 1)

        def step(state: Any) -> Any:
            i, chosen, _, x, y, seen = state
            is_chosen = ((chosen & 15) == 3)[:, None, None]
            pairs = lax.complex(jnp.where(is_chosen, 2.0, y), 1 - y).reshape(rows, 64)[:, :33]
            following = jnp.where(is_chosen, x[:, ::-1] + y, y)
            chosen = y.astype(jnp.int32).reshape(rows, 64)[:, 0]
            seen = seen.at[i].set(y.max(2))
            return i + 1, chosen, pairs, jnp.where(is_chosen, 1.0, y), following, seen

        state = (i, chosen, pairs, x, y, jnp.zeros((4, rows, 16)))
        return lax.while_loop(goes_on, step, state)

    chosen = np.where(np.arange(rows) % 3, 2, 3).astype(np.int32)
    chosen[0] = 2
    x, y = normals(rows, 16, 4), normals(rows, 16, 4, seed=1)
    check_lanes(16, program, chosen, np.zeros((rows, 33), np.complex64), x, y, np.int32(0))


def test_lanes_that_end_the_loop_are_not_those_of_what_they_share() -> None:
    """A row of seven, the same in every lane, has seven elements by chance: lanes along it have
    nothing to do with those of the state, which decide together when the loop ends."""

    def program(x: jax.Array) -> Any:
        def is_short(state: tuple[jax.Array, jax.Array]) -> jax.Array:
            count, x = state
            return count < 3 - (x.reshape(7, 6)[:, 0].astype(jnp.int32) & 1)

        def step(state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            goes_on = is_short(state)
            count, x = state
            row = lax.iota(jnp.int32, 7).astype(jnp.int8)[:6].reshape(2, 3)
            x = jnp.where(goes_on[:, None, None], row, x)
            return jnp.where(goes_on, count + 1, count), x

        state = (jnp.zeros(7, jnp.int32), x)
        return lax.while_loop(lambda state: is_short(state).any(), step, state)

    x = np.random.default_rng(0).integers(-9, 9, (7, 2, 3)).astype(np.int8)
    report = check(program, x, fused=None)
    assert not [loop for loop in report.loops if loop.reason is Reason.INTERNAL_ERROR], report
