"""Loops of so many steps whose state comes back before the last: fixed points, cycles, NaN."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import fuselane
from tests.differential.comparison import CLOSE
from tests.differential.harness import check

LANES: Final = 150
STEPS: Final = (24, 31, 40, 100, 101, 102, 103, 1000)
"""Multiples of the number of steps between two comparisons, and others."""


def laboured(x: jax.Array) -> jax.Array:
    """Returns what it is given, a small natural number, after some work."""
    for _ in range(2):
        x = jnp.round(x + 0.001 * jnp.sin(x)).astype(x.dtype)
    return x


def go_round(x: jax.Array, period: jax.Array | float) -> jax.Array:
    """Is where it was after so many steps."""
    y = laboured(x) + 1
    return jnp.where(y >= period, y - period, y)


def repeat(step: Callable[..., Any], count: int) -> Callable[[Any], Any]:
    return lambda start: lax.fori_loop(0, count, lambda _, carry: step(carry), start)


def is_compared(report: fuselane.Report) -> bool:
    (loop,) = report.loops
    return loop.decision.numbers.get("compared_after", 0) > 0


@pytest.mark.parametrize(
    ("period", "count"),
    [*itertools.product((3, 8), STEPS), *itertools.product((1, 2, 4, 5, 16), (40, 101))],
)
def test_cycles(period: int, count: int) -> None:
    start = (np.arange(LANES) % period).astype(np.float32)
    program = repeat(lambda x: go_round(x, period), count)
    assert is_compared(check(program, start))


def test_lanes_of_many_periods() -> None:
    """A block of lanes goes on for the one that takes longest."""
    sizes = (np.arange(LANES) % 11 + 1).astype(np.float32)

    def step(carry: tuple[jax.Array, jax.Array]) -> Any:
        x, size = carry
        return go_round(x, size), size

    for count in (99, 1000):
        program = repeat(step, count)
        assert is_compared(check(program, (np.zeros(LANES, np.float32), sizes)))


@pytest.mark.parametrize("lanes", [1, 5, 64, 131])
def test_newtons_method(lanes: int) -> None:
    """Lanes that don't exist don't matter; the numbers of steps count those that changed."""
    targets = np.linspace(0.0, 1000.0, lanes).astype(np.float32)

    def program(targets: jax.Array) -> Any:
        def step(_: Any, carry: tuple[jax.Array, jax.Array]) -> Any:
            x, changes = carry
            better = 0.5 * (x + targets / x)
            return better, changes + (jnp.abs(better - x) > 1e-3 * x)

        start = jnp.ones_like(targets), jnp.zeros(targets.shape, jnp.int32)
        return lax.fori_loop(0, 75, step, start)

    assert is_compared(check(program, targets, tolerance=CLOSE))


def test_one_lane_changes_at_last() -> None:
    """Countdowns of which most are over at once; no lane may be left behind."""
    start = np.zeros(LANES, np.float32)
    start[77] = 500.0

    def step(x: jax.Array) -> jax.Array:
        return jnp.maximum(laboured(x) - 1.0, 0.0)

    check(repeat(step, 499), start)
    check(repeat(step, 600), start)


def test_zeros_of_both_signs() -> None:
    """`0.0 == -0.0`, but they are not the same state: what divides by them tells them apart."""

    def step(carry: tuple[jax.Array, jax.Array]) -> Any:
        x, _ = carry
        return -x, jnp.sqrt(jnp.sqrt(jnp.abs(1.0 / x))) / x

    start = np.tile(np.array([0.0, -0.0, 2.0], np.float32), 50), np.ones(150, np.float32)
    for count in (25, 26, 64):
        check(repeat(step, count), start)


def test_nan_is_a_state() -> None:
    start = np.linspace(-3.0, 3.0, LANES).astype(np.float32)
    for count in (40, 41):
        check(repeat(lambda x: jnp.sqrt(x) * 2.0 - 1.0, count), start, tolerance=CLOSE)


def test_swapped() -> None:
    """What a step passes along counts as well: three elements go round, two are back at once."""

    def step(carry: tuple[jax.Array, ...]) -> Any:
        a, b, c, x = carry
        return b, c, a, laboured(x)

    start = tuple(np.full(LANES, k, np.float32) for k in range(4))
    for count in (48, 49, 50):
        check(repeat(step, count), start)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_other_types(dtype: str) -> None:
    start = (np.arange(LANES) % 4).astype(jnp.dtype(dtype))

    def step(carry: tuple[jax.Array, jax.Array, jax.Array]) -> Any:
        x, is_odd, rest = carry
        return go_round(x, 4), ~is_odd, jnp.where(is_odd, rest, jnp.minimum(rest, 3))

    carry = start, start > 1, np.arange(LANES, dtype=np.int16)
    for count in (50, 51):
        check(repeat(step, count), carry, x64=dtype == "float64", tolerance=CLOSE)


def test_counters_that_lead_somewhere() -> None:
    """The counter's last value is a result, whatever steps were left out; by strides, down."""

    def program(x: jax.Array) -> Any:
        def step(carry: tuple[jax.Array, jax.Array]) -> Any:
            i, x = carry
            return i - 3, jnp.sqrt(laboured(x) * 2.0)

        return lax.while_loop(lambda carry: carry[0] > 7, step, (jnp.int32(400), x))

    start = np.linspace(1.0, 9.0, LANES).astype(np.float32)
    assert is_compared(check(program, start, tolerance=CLOSE))


def test_nested() -> None:
    """A solver in each step of a simulation: its loop ends early each time."""

    def program(x: jax.Array) -> Any:
        def step(t: jax.Array, x: jax.Array) -> jax.Array:
            root = repeat(lambda y: 0.5 * (y + (x + 1.0) / y), 30)(jnp.ones_like(x))
            return x + 0.1 * root + 0.01 * t.astype(jnp.float32)

        return lax.fori_loop(0, 20, step, x)

    check(program, np.linspace(0.0, 50.0, LANES).astype(np.float32), tolerance=CLOSE)


def test_without_lanes() -> None:
    def program(x: jax.Array) -> Any:
        return lax.fori_loop(0, 777, lambda _, x: 0.5 * (x + 2.0 / x), x)

    check(program, np.float32(9.0), tolerance=CLOSE)


def test_several_values_per_lane() -> None:
    """Gauss-Seidel for two unknowns and two equations of each lane."""

    def step(x: jax.Array) -> jax.Array:
        a = (3.0 - x[1]) / 4.0
        b = (laboured(a) + 1.0) / 5.0
        return jnp.stack([a, b])

    check(repeat(step, 200), np.ones((2, LANES), np.float32), tolerance=CLOSE)


@pytest.mark.parametrize("name", ["counter", "time", "stream", "hash", "few"])
def test_not_compared(name: str) -> None:
    """Steps that something else tells apart, or that are few."""
    x = np.linspace(1.0, 2.0, LANES).astype(np.float32)
    root = lambda x: jnp.sqrt(laboured(x) * 2.0)  # noqa: E731

    def count(x: jax.Array) -> jax.Array:
        return lax.fori_loop(0, 99, lambda i, x: root(x) + (i == 90), x)

    def time(x: jax.Array) -> Any:
        step = lambda _, c: (root(c[0]), c[1] + 0.5)  # noqa: E731
        return lax.fori_loop(0, 99, step, (x, jnp.zeros_like(x)))

    def stream(x: jax.Array) -> Any:
        return lax.scan(lambda x, _: (root(x), x), x, length=99)

    def hash_(x: jax.Array) -> Any:
        step = lambda _, c: (root(c[0]), c[1] * 1664525 + 1013904223)  # noqa: E731
        return lax.fori_loop(0, 99, step, (x, jnp.arange(LANES, dtype=jnp.uint32)))

    few = repeat(root, 11)
    programs = {"counter": count, "time": time, "stream": stream, "hash": hash_, "few": few}
    assert not is_compared(check(programs[name], x, tolerance=CLOSE))
