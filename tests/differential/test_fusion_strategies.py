"""Programs give plain XLA's results under every fusion strategy; random ones, too."""

from __future__ import annotations

import dataclasses
import functools
import warnings
from collections.abc import Callable
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import fuselane
from fuselane.errors import OptionError
from fuselane.fusion.pipelines import PIPELINES, parse_pipeline
from fuselane.fusion.running import apply
from fuselane.fuzz.generate import draw_program
from fuselane.fuzz.run import run_programs
from fuselane.hlo.module import HloModule
from fuselane.xla.capture import capture, lower
from tests.differential.harness import compile_and_run, no_warnings
from tests.hlo.xla import UNOPTIMISED

MERGER: Final = "xla-today-cpu,fusion-merger{max-consumers=3}"
STRATEGIES: Final = (*PIPELINES, MERGER)
NUM_RANDOM: Final = 2
X: Final = np.linspace(0.5, 3.0, 40, dtype=np.float32)


def change_places(x: jax.Array, n: jax.Array) -> Any:
    return lax.fori_loop(0, n, lambda i, c: (c[1], c[2], jnp.sin(c[0]) + c[1][::-1]), (x, x, -x))


def update(x: jax.Array, n: jax.Array) -> Any:
    y, z = x.at[3].set(1.0), x.at[4].set(2.0)
    w = y.at[5].add(y[5])
    return x, y, z, w, w.at[n].set(w[n + 1] * 2), w.at[jnp.arange(7) * 3].add(2.0)


def nest(x: jax.Array, n: jax.Array) -> Any:
    def body(i: jax.Array, c: Any) -> Any:
        a, b = lax.fori_loop(0, 4, lambda j, d: (d[1] * 1.01, d[0] + j), c)
        return lax.cond(
            i % 2 == 0, lambda a, b: (b, a), lambda a, b: (a + 1, b.at[i].set(3.0)), a, b
        )

    return lax.fori_loop(0, n, body, (x, x * 2))


def stack(x: jax.Array, n: jax.Array) -> Any:
    def body(c: jax.Array, t: jax.Array) -> Any:
        y = jnp.sin(c) + t
        return y * 0.5 + c[::-1], (y, c.sum())

    return lax.scan(body, x * n, jnp.arange(9.0))


def start_alike(x: jax.Array, n: jax.Array) -> Any:
    z = jnp.zeros(40)
    r = lax.fori_loop(0, n, lambda i, c: (c[0] + x, c[1].at[i].add(c[0][i]), c[2]), (z, z, z))
    return r, z + 1, lax.fori_loop(0, n, lambda i, c: c * 2 + 1, z)


def call_libraries(x: jax.Array, n: jax.Array) -> Any:
    m = jnp.outer(x, x) / 90 + jnp.eye(40)
    return (
        jnp.linalg.cholesky(m),
        jnp.sort(x * n),
        m @ x,
        jax.random.normal(jax.random.key(n), (9,)),
    )


PROGRAMS: Final[dict[str, Callable[..., Any]]] = {
    f.__name__: f for f in (change_places, update, nest, stack, start_alike, call_libraries)
}


@functools.cache
def lowered_programs() -> Any:
    """Returns a program that is all of them."""
    return jax.jit(lambda x, n: {name: f(x, n) for name, f in PROGRAMS.items()}).lower(X, 7)


def run_programs_at_once() -> Any:
    """Returns the results of all programs, compiled afresh."""
    return compile_and_run(lowered_programs(), X, 7, compiler_options=UNOPTIMISED)


@functools.cache
def results_of_programs() -> Any:
    """Returns those of plain XLA."""
    return run_programs_at_once()


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_programs(strategy: str) -> None:
    """Loops, updates in place, branches, library calls: as plain XLA, but for rounding."""
    expected = results_of_programs()
    with fuselane.enabled(fusion=strategy, loops=False, verify_hlo=True), no_warnings():
        actual = run_programs_at_once()
    for right, got in zip(jax.tree.leaves(expected), jax.tree.leaves(actual), strict=True):
        np.testing.assert_allclose(got, right, rtol=3e-5, atol=3e-5)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_random_programs(strategy: str) -> None:
    """Random loops, none of them a kernel of ours, give XLA's results."""
    options = {"fusion": strategy, "loops": False, "verify_hlo": True}
    drawn = (draw_program(5 * 12 + i) for i in range(NUM_RANDOM))
    outcome = run_programs([dataclasses.replace(p, options=options) for p in drawn])
    assert not outcome.failures


def module_bytes() -> bytes:
    """Returns a module as XLA's hook shows it."""
    (captured,) = capture(lower(jax.jit(nest), "cpu", X, 7), "cpu")
    return [stage for stage in captured.stages if not stage.is_scheduled][-1].data


@pytest.fixture(scope="module")
def nested() -> bytes:
    return module_bytes()


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_deterministic(nested: bytes, strategy: str) -> None:
    """The same decisions and the same module each time."""
    results = []
    for _ in range(2):
        module = HloModule.from_bytes(nested)
        log = apply(module, parse_pipeline(strategy))
        results.append(([(s.producer, s.consumer, s.decision) for s in log], module.to_bytes()))
    assert results[0] == results[1]


def test_failures_leave_the_module_to_xla(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of ours is one warning, and the program runs as without us."""

    def fail(*_: Any) -> None:
        raise RuntimeError("on purpose")

    monkeypatch.setattr("fuselane.fusion.running.apply", fail)
    with (
        fuselane.enabled(fusion="none", loops=False),
        warnings.catch_warnings(record=True) as caught,
    ):
        warnings.simplefilter("always")
        result = jax.jit(lambda x: jnp.sin(x) * 3 + 1)(X)
    assert any("could not fuse" in str(warning.message) for warning in caught)
    np.testing.assert_allclose(result, np.sin(X) * 3 + 1, rtol=1e-5)


def test_bad_text_is_told_when_switched_on() -> None:
    """Not when something is compiled; of `jit` when it is called."""
    with pytest.raises(OptionError, match="There is no fusion pass"):
        fuselane.enable(fusion="fuse-it-all")
    with pytest.raises(OptionError, match="There is no fusion pass"):
        fuselane.jit(jnp.sin, fusion="fuse-it-all")


def test_for_one_function() -> None:
    """`jit(fusion=...)` holds for one function, whatever is on else."""

    def program(x: jax.Array) -> jax.Array:
        return jnp.sin(x) * jnp.exp(x[::-1])

    def count_kernels(function: Any) -> int:
        text: str = function.lower(X).compile().as_text()
        return text.count("kind=kLoop")

    assert count_kernels(fuselane.jit(program, fusion="none")) > count_kernels(jax.jit(program))
