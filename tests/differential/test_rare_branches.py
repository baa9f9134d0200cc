"""Loops with branches that no kernel can hold: XLA takes the steps that need them, kernels those
in between."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import fuselane
from fuselane.replacing import Kernels
from tests.differential.comparison import CLOSE, EXACT, Tolerance
from tests.differential.harness import Program, check, run_and_explain

STEPS = 23
LANES = 40


def check_ahead(
    program: Program, *arguments: Any, tolerance: Tolerance = EXACT, min_gain: float = 0.0
) -> fuselane.Report:
    """Checks that a program gives the same results, and that its loop runs ahead; returns what
    became of its loops."""
    options = {"min_gain": min_gain}
    report = check(program, *arguments, fused=None, tolerance=tolerance, options=options)
    sentences = [loop.decision.sentence for loop in report.loops if loop.fused]
    assert any("up to the next step that only XLA can take" in s for s in sentences), report
    assert len({loop.name for loop in report.loops}) == len(report.loops), "one decision a loop"
    return report


def numbers(*shape: int) -> Any:
    return np.random.default_rng(0).integers(-50, 50, shape).astype(np.int32)


@pytest.mark.parametrize("every", [1, 2, 5, STEPS + 1])
def test_a_spectrum_now_and_then(every: int) -> None:
    def program(x: jax.Array) -> Any:
        def step(i: Any, state: Any) -> Any:
            x, spectrum = state
            x = x * 3 % 101 + i
            spectrum = lax.cond(
                i % every == every - 1,
                lambda s: s + jnp.abs(jnp.fft.rfft(x.astype(jnp.float32))),
                lambda s: s,
                spectrum,
            )
            return x, spectrum

        return lax.fori_loop(0, STEPS, step, (x, jnp.zeros((LANES, 5))))

    check_ahead(program, numbers(LANES, 8), tolerance=CLOSE)


@pytest.mark.parametrize("shape", [(LANES,), (3, 7), ()])
def test_what_depends_on_the_data(shape: tuple[int, ...]) -> None:
    def program(x: jax.Array) -> Any:
        def step(state: Any, row: jax.Array) -> Any:
            x, total = state
            x = x * 3 % 101 + row
            total = lax.cond(
                x.sum() % 3 == 0, lambda: total + jnp.fft.fft(jnp.arange(4.0)).real, lambda: total
            )
            return (x, total), x.max()

        return lax.scan(step, (x, jnp.zeros(4)), jnp.arange(STEPS))

    check_ahead(program, numbers(*shape), tolerance=CLOSE)


def test_scales_made_anew_now_and_then() -> None:
    """The kernel goes on with what the branch has made, and the branch with what it makes."""

    def program(x: jax.Array) -> Any:
        def step(state: Any, row: Any) -> Any:
            x, scales = state
            moved = jnp.tanh(x * scales + row)
            scales = lax.cond(
                row == 0, lambda: 1 + jnp.linalg.svd(moved, compute_uv=False), lambda: scales
            )
            return (moved, scales), moved[:, 0]

        rows = (jnp.arange(STEPS) % 6).astype(jnp.float32)
        return lax.scan(step, (x, jnp.ones(4)), rows)[1]

    check_ahead(program, numbers(LANES, 4).astype(np.float32) / 50, tolerance=CLOSE)


def test_branches_within_branches() -> None:
    """The outer branch is taken now and then, whatever else it holds."""

    def program(x: jax.Array) -> Any:
        def spectrum(x: jax.Array) -> jax.Array:
            return x + jnp.fft.fft(jnp.arange(3.0)).real.astype(jnp.int32).sum()

        def step(i: Any, x: jax.Array) -> jax.Array:
            x = x * 3 % 101 + i
            return lax.cond(
                i % 2 == 0,
                lambda x: lax.cond(i % 3 == 0, spectrum, lambda x: x + 1, x),
                lambda x: x,
                x,
            )

        return lax.fori_loop(0, STEPS, step, x)

    check_ahead(program, numbers(LANES))


def test_several_quiet_branches() -> None:
    """Which of them makes what the kernel goes on with is known in each step only."""

    def program(x: jax.Array) -> Any:
        def spectrum(x: jax.Array) -> jax.Array:
            return x + jnp.fft.fft(jnp.arange(3.0)).real.astype(jnp.int32).sum()

        def step(i: Any, x: jax.Array) -> jax.Array:
            return lax.switch(i % 3, [spectrum, lambda x: x + 1, lambda x: x - 1], x)

        return lax.fori_loop(0, STEPS, step, x)

    check(program, numbers(LANES), refused="unsupported-opcode")


@pytest.mark.for_cpus
def test_lanes_sorted_now_and_then() -> None:
    """A kernel could hold the branch, but not with these lanes; where it is rarely taken, as its
    condition tells, it is left to XLA."""

    def program(x: jax.Array, table: jax.Array) -> Any:
        def step(i: Any, state: Any) -> Any:
            x, table = state
            x = (x * 3 + table[:3].sum()) % 1013 + i
            return lax.cond(
                i % 8 == 0, lambda x, t: (jnp.sort(x), t @ t % 7), lambda x, t: (x, t), x, table
            )

        return lax.fori_loop(0, STEPS, step, (x, table))

    report = check_ahead(program, numbers(70_000), numbers(40, 40), min_gain=1.0)
    assert report.loops[0].decision.numbers["quiet_steps"] == 7


def test_a_loop_for_xla_keeps_its_reason() -> None:
    """What is refused with and without its rare branches is refused for what the whole lacks."""

    def program(x: jax.Array) -> Any:
        def step(i: Any, x: jax.Array) -> jax.Array:
            x = jnp.fft.fft(x).real
            return lax.cond(i % 8 == 0, lambda x: x * 2, lambda x: x, x)

        return lax.fori_loop(0, STEPS, step, x)

    _, report = run_and_explain(program, jnp.arange(8.0))
    assert [loop.decision.opcode for loop in report.loops] == ["fft"]


def test_frequent_branches_stay() -> None:
    """Nobody knows how often the spectrum is wanted: it would not pay if that was in each step."""

    def program(x: jax.Array) -> Any:
        def step(i: Any, state: Any) -> Any:
            x, total = state
            x = x * 1.25 + 0.5
            total = lax.cond(x[0, 0] > 0.0, lambda: total + jnp.fft.fft(x[0]).real, lambda: total)
            return x, total

        return lax.fori_loop(0, STEPS, step, (x, jnp.zeros(32)))

    reasons = ("not-profitable", "data-dependent-trip-count")
    _, report = run_and_explain(program, np.ones((4, 32), np.float32), options={"min_gain": 1.0})
    assert report.loops[0].decision.reason.code in reasons, report


def test_in_a_short_loop_nothing_runs_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """XLA would be done with it before a kernel could pay, whatever its steps hold."""
    asked: list[bool] = []

    def find_ahead(self: Kernels, loop: Any, *, rare: bool = False) -> None:
        asked.append(rare)

    def program(x: jax.Array) -> Any:
        def step(i: Any, x: jax.Array) -> Any:
            return lax.cond(i % 2 == 1, lambda x: x + x.sum(), lambda x: x, x * 3)

        return lax.fori_loop(0, 3, step, x)

    monkeypatch.setattr(Kernels, "find_ahead", find_ahead)
    _, report = run_and_explain(program, numbers(LANES), options={"min_gain": 1.15})
    assert [loop.decision.reason.code for loop in report.loops] == ["not-profitable"], report
    assert asked == [False]
