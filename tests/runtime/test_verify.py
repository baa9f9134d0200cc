"""`verify=True`: kernels compared to XLA while a program runs, and broken kernels found."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from llvmlite import ir

import fuselane
from fuselane import replacing
from fuselane.codegen import math
from fuselane.codegen.elemental import integer
from fuselane.codegen.math.trigonometric import emit_sine
from fuselane.fuzz.run import quick_options
from fuselane.lanes import checked_loop
from fuselane.runtime import verify
from tests.differential.harness import find_report, last_decision
from tests.runtime.test_chains import PROGRAMS

ROOT = Path(__file__).parents[2]
LIMIT = 2.5


@pytest.fixture(autouse=True)
def every_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSELANE_MIN_GAIN", "0")


def verified(program: Callable[..., Any], *arguments: Any, **jit_arguments: Any) -> Any:
    """Returns a program's results under verification; fails unless a loop is fused."""
    last = last_decision()
    with fuselane.enabled(verify=True):
        results = jax.block_until_ready(jax.jit(program, **jit_arguments)(*arguments))
    report = find_report(last, program, *arguments)
    assert report.num_fused, report
    return results


def error_of(program: Callable[..., Any], *arguments: Any) -> str:
    """Returns what verification says about a program."""
    with pytest.raises(jax.errors.JaxRuntimeError) as caught:
        verified(program, *arguments)
    return str(caught.value)


def assert_same(program: Callable[..., Any], *arguments: Any) -> None:
    """Checks that a program under verification runs through and gives XLA's results."""
    expected = jax.tree.leaves(jax.jit(program)(*arguments))
    for wanted, got in zip(expected, jax.tree.leaves(verified(program, *arguments)), strict=True):
        np.testing.assert_array_equal(got, wanted)


@pytest.fixture
def broken_sine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels take the sine of angles above LIMIT for a little more than it is."""

    def emit(emitter: Any, angle: ir.Value) -> ir.Value:
        value, builder = right(emitter, angle), emitter.builder
        wrong = builder.fmul(value, emitter.constant(1.01))
        is_large = builder.fcmp_ordered(">", angle, emitter.constant(LIMIT))
        return builder.select(is_large, wrong, value)

    right = math._EMITTERS["sine"]
    monkeypatch.setitem(math._EMITTERS, "sine", emit)


@pytest.fixture
def broken_xor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(integer._INSTRUCTIONS, "xor", "or_")


def climb(x: jax.Array) -> jax.Array:
    return lax.fori_loop(0, 90, lambda i, x: x + 0.01 + 0.0001 * jnp.sin(x), x)


def start() -> jax.Array:
    return jnp.asarray(LIMIT - 0.995 + 0.01 * np.arange(100), jnp.float32)


# Programs that are right.


def logistic_map(x: jax.Array) -> jax.Array:
    return lax.fori_loop(0, 10_000, lambda i, x: 3.9 * x * (1 - x), x)


def double_pendulum(x: jax.Array) -> Any:
    def step(state: Any, _: None) -> Any:
        a, b, da, db = state
        sine, cosine = jnp.sin(a - b), jnp.cos(a - b)
        scale = 3 - jnp.cos(2 * (a - b))
        pull = -29.4 * jnp.sin(a) - 9.8 * jnp.sin(a - 2 * b)
        dda = (pull - 2 * sine * (db * db + da * da * cosine)) / scale
        ddb = 2 * sine * (2 * da * da + 19.6 * jnp.cos(a) + db * db * cosine) / scale
        return (a + 0.01 * da, b + 0.01 * db, da + 0.01 * dda, db + 0.01 * ddb), None

    return lax.scan(step, (2 + x, 2 - x, 0 * x, 0 * x), None, length=3_000)[0]


def poles_with_resets(x: jax.Array) -> Any:
    """Unstable, with a limit that decides, and an integer and a boolean that follow it."""

    def step(state: Any, _: None) -> Any:
        angle, speed, falls = state
        speed = speed + 0.05 * jnp.sin(angle)
        angle = angle + 0.05 * speed
        has_fallen = jnp.abs(angle) > 1.0
        angle = jnp.where(has_fallen, 0.1 * angle, angle)
        speed = jnp.where(has_fallen, 0.1 * speed, speed)
        return (angle, speed, falls + has_fallen), has_fallen

    return lax.scan(step, (x, 0 * x, jnp.zeros(x.shape, jnp.int32)), None, length=2_000)


def mixed_types(x: jax.Array) -> Any:
    def step(state: Any, row: jax.Array) -> Any:
        half, byte, flag = state
        half = half * 0.9 + row.astype(jnp.bfloat16)
        return (half, byte + 1, ~flag), (half, byte)

    first = (x.astype(jnp.bfloat16), jnp.zeros(x.shape, jnp.int8), x > 0.5)
    return lax.scan(step, first, jnp.linspace(0, 1, 60))


def inner_loops(x: jax.Array) -> jax.Array:
    """Each step is chaotic itself."""

    def step(i: jax.Array, x: jax.Array) -> jax.Array:
        return lax.fori_loop(0, 60, lambda j, x: 3.9 * x * (1 - x), x)

    return lax.fori_loop(0, 20, step, x)


def loop_around(x: jax.Array) -> Any:
    """The outer loop sorts the lanes and stays with XLA; the inner one is fused."""

    def outer(x: jax.Array, _: None) -> Any:
        x, path = lax.scan(lambda x, _: (jnp.sin(x) + 0.5, x), x, None, length=20)
        return jnp.sort(x)[::-1] * jnp.cumsum(x)[-1] / jnp.sum(x), path[-1]

    return lax.scan(outer, x, None, length=7)


@pytest.mark.parametrize(
    "program",
    [
        climb,
        logistic_map,
        double_pendulum,
        poles_with_resets,
        mixed_types,
        inner_loops,
        loop_around,
    ],
    ids=lambda program: program.__name__,
)
def test_no_false_alarm(program: Callable[..., Any]) -> None:
    assert_same(program, jnp.linspace(0.1, 0.9, 301))


def soft_dtw(x: jax.Array, y: jax.Array) -> jax.Array:
    """The distance of two series [n] and [m], by the smooth minimum of three."""

    def smooth_minimum(*values: jax.Array) -> jax.Array:
        scaled = [value / -0.1 for value in values]
        largest = jnp.maximum(jnp.maximum(scaled[0], scaled[1]), scaled[2])
        return -0.1 * (jnp.log(sum(jnp.exp(s - largest) for s in scaled)) + largest)

    def row(before: jax.Array, x: jax.Array) -> Any:
        def cell(left: jax.Array, inputs: Any) -> Any:
            cost, up, diagonal = inputs
            new = cost + smooth_minimum(diagonal, up, left)
            return new, new

        inputs = (jnp.abs(x - y), before[1:], before[:-1])
        _, cells = lax.scan(cell, jnp.float32(1e10), inputs)
        return jnp.concatenate([jnp.full(1, 1e10), cells]), None

    start = jnp.full(y.shape[0] + 1, 1e10).at[0].set(0.0)
    return lax.scan(row, start, x)[0][-1]


def waves(generator: np.random.Generator, steps: int) -> np.ndarray[Any, Any]:
    """Returns 64 noisy series."""
    angles = np.linspace(0, 6, steps) + generator.uniform(0, 1, (64, 1))
    return np.sin(angles) + 0.2 * generator.standard_normal((64, steps))


def test_rounding_of_what_every_step_reads() -> None:
    """Above the first row there are 0 and 1e10, which are not varied. By how much XLA's
    `exp(s - largest)` is off 1 there, where `s`, the largest, is rounded in one place only, hangs
    on the series alone."""
    generators = [np.random.default_rng(seed) for seed in (2, 27)]
    pair = [
        np.concatenate([waves(generator, steps) for generator in generators]) for steps in (16, 21)
    ]
    distance = jax.value_and_grad(lambda x, y: jax.vmap(soft_dtw)(x, y).sum(), (0, 1))
    assert_same(distance, *(series.astype(np.float32) for series in pair))


def test_special_values() -> None:
    values = jnp.asarray([0.0, -0.0, np.inf, -np.inf, np.nan, 1e38, 1e-40, 1.0] * 5, jnp.float32)
    assert_same(lambda x: lax.fori_loop(0, 40, lambda i, x: x * 1.5 - x * x, x), values)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_chains_and_donation(program: Callable[..., Any]) -> None:
    """The loop that stays gets no copy; the kernel does."""

    def arguments() -> list[jax.Array]:
        return [jnp.arange(99, dtype=jnp.int32), jnp.arange(99, dtype=jnp.int32)[::-1] * 7]

    expected = jax.jit(program).lower(*arguments()).compile(quick_options())(*arguments())
    results = verified(program, *arguments(), donate_argnums=(0, 1))
    for result, wanted in zip(results, expected, strict=True):
        np.testing.assert_array_equal(result, wanted)


def test_many_threads() -> None:
    expected = np.asarray(jax.jit(climb)(start()))
    failures: list[BaseException] = []
    with fuselane.enabled(verify=True):
        compiled = jax.jit(climb).lower(start()).compile()

    def run() -> None:
        try:
            for _ in range(5):
                np.testing.assert_array_equal(compiled(start()), expected)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_several_devices() -> None:
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"
    result = subprocess.run(
        [sys.executable, "-m", "tests.differential.sharded_programs", "shard_map", "sharded_lanes"],
        env={**os.environ, "XLA_FLAGS": flags.strip(), "FUSELANE_VERIFY": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        cwd=ROOT,
    )
    assert result.returncode == 0, result.stdout + result.stderr


# Kernels that are wrong.


@pytest.mark.usefixtures("broken_sine")
def test_error_names_everything() -> None:
    def program(x: jax.Array) -> jax.Array:
        return lax.fori_loop(0, 60, lambda i, x: jnp.sin(x) + x * 0.01 + 2.6, x)

    message = error_of(program, jnp.linspace(0.1, 0.9, 64).at[5].set(2.7))
    assert "in loop while" in message and "of jit_program, in step 0: element" in message
    assert re.search(r"element \d+, f32\[64\]\{0\}, computed at test_verify.py:\d+ \(", message)
    assert re.search(r"is [\d.]+ by the kernel and [\d.]+ by XLA at \[5\] \(lane 5\); ", message)
    assert "1 of 64 values differ" in message
    assert "report it" in message and "FUSELANE=0" in message


@pytest.mark.usefixtures("broken_sine")
def test_first_wrong_step() -> None:
    """A lane passes LIMIT after some steps; before that the kernel is right."""

    def program(x: jax.Array) -> jax.Array:
        return lax.fori_loop(0, 60, lambda i, x: x + 0.01 + 0.1 * jnp.sin(x) * (x > LIMIT), x)

    x = np.full(64, 1.0, np.float32)
    x[37] = LIMIT - 0.2005  # passes it by the 21st addition, numbered 20
    message = error_of(program, jnp.asarray(x))
    assert "in step 21: element" in message
    assert "(lane 37); 1 of 64 values differ" in message


@pytest.mark.usefixtures("broken_sine")
@pytest.mark.parametrize("reverse", [False, True])
def test_only_the_stacked_outputs_are_wrong(reverse: bool) -> None:
    """The row tells the step."""

    def program(x: jax.Array) -> Any:
        return lax.scan(lambda x, _: (x + 1, jnp.sin(x)), x, None, length=30, reverse=reverse)

    x = np.full((3, 40), -50.0, np.float32)
    x[1, 7] = LIMIT - 10.5
    message = error_of(program, jnp.asarray(x))
    row = 18 if reverse else 11
    assert "in step 11: element" in message
    assert f"at [{row}, 1, 7]" in message


@pytest.mark.usefixtures("broken_xor")
def test_integers_are_exact() -> None:
    def program(x: jax.Array) -> jax.Array:
        return lax.fori_loop(0, 50, lambda i, x: (x ^ (i // 20)) + 2, x)

    message = error_of(program, jnp.arange(0, 128, 2, dtype=jnp.int32) * 4)
    assert "s32[64]" in message and "in step 21: element" in message


@pytest.mark.usefixtures("broken_sine")
def test_a_loop_that_runs_more_than_once() -> None:
    def outer(x: jax.Array, _: None) -> Any:
        x = lax.fori_loop(0, 30, lambda i, x: x + 0.02 + 0.1 * jnp.sin(x), x)
        return jnp.sort(x), x.sum()

    message = error_of(lambda x: lax.scan(outer, x, None, length=9), jnp.linspace(0.1, 0.9, 50))
    assert "in step" in message and "lane" in message


@pytest.mark.usefixtures("broken_sine")
def test_without_verification_nothing_is_said() -> None:
    with fuselane.enabled():
        jax.block_until_ready(jax.jit(climb)(start()))


def test_bugs_of_the_whole_kernel_alone(broken_sine: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels of single steps are right, the kernel that matters is not."""

    def calls_of(self: Any, *arguments: Any) -> checked_loop.CheckCalls:
        calls = original(self, *arguments)

        def compile_step(loop: Any) -> Any:
            with monkeypatch.context() as patch:
                patch.setitem(math._EMITTERS, "sine", emit_sine)
                return calls.compile_step(loop)

        return dataclasses.replace(calls, compile_step=compile_step)

    original = replacing.Kernels._check_calls
    monkeypatch.setattr(replacing.Kernels, "_check_calls", calls_of)
    message = error_of(climb_fast, jnp.linspace(0.1, 0.9, 64))
    assert "after 40 steps" in message


def climb_fast(x: jax.Array) -> jax.Array:
    return lax.fori_loop(0, 40, lambda i, x: x + 0.1 + 0.1 * jnp.sin(x), x)


def test_steps_of_another_loop_that_cannot_be_formed(
    broken_sine: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a kernel of one step the whole is still compared."""
    original = replacing.Kernels._check_calls
    monkeypatch.setattr(
        replacing.Kernels,
        "_check_calls",
        lambda *arguments: dataclasses.replace(
            original(*arguments), compile_step=lambda loop: None
        ),
    )
    assert "after 40 steps" in error_of(climb_fast, jnp.linspace(0.1, 0.9, 64))


def test_a_failing_check_fails_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> str:
        raise RuntimeError("injected")

    monkeypatch.setattr(verify, "run_check", fail)
    message = error_of(climb, start())
    assert "failed to verify" in message and "injected" in message


def test_switched_on_by_the_environment(broken_sine: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSELANE_VERIFY", "1")
    program = fuselane.jit(climb_fast)
    with pytest.raises(jax.errors.JaxRuntimeError, match="kernel and XLA disagree"):
        jax.block_until_ready(program(jnp.linspace(0.1, 0.9, 64)))
