"""JAX's transformations and features around fused loops."""

from __future__ import annotations

import concurrent.futures
import functools
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import fuselane
from tests.differential.comparison import CLOSE, CLOSE_DOUBLE, assert_same_results
from tests.differential.harness import (
    IS_OFF,
    assert_decisions,
    check,
    linear_values,
    no_warnings,
    run_fused,
)

LANES: Final = 25
POINTS: Final = np.linspace(-1, 1, LANES, dtype=np.float32)


def pendulum(x: jax.Array, steps: int = 20) -> tuple[jax.Array, jax.Array]:
    """A damped pendulum, the loop most tests here run."""

    def step(state: tuple[jax.Array, jax.Array], _: None) -> tuple[Any, jax.Array]:
        angle, speed = state
        speed = speed * 0.99 - 0.1 * jnp.sin(angle)
        angle = angle + 0.1 * speed
        return (angle, speed), angle

    (angle, speed), path = lax.scan(step, (x, jnp.zeros_like(x)), length=steps)
    return angle * speed, path


def test_forward() -> None:
    check(pendulum, POINTS, tolerance=CLOSE)


@pytest.mark.parametrize("x64", [False, True])
def test_gradient(x64: bool) -> None:
    """The backward pass reads what the forward pass stored, in reverse."""

    def program(x: jax.Array) -> jax.Array:
        return jax.grad(lambda x: pendulum(x)[0].sum())(x)

    points = POINTS.astype(np.float64) if x64 else POINTS
    check(program, points, tolerance=CLOSE_DOUBLE if x64 else CLOSE, x64=x64)


def test_value_and_gradient_per_lane() -> None:
    program = jax.vmap(jax.value_and_grad(lambda x: pendulum(x)[0]))
    check(program, POINTS, tolerance=CLOSE)


def test_gradient_with_checkpoint() -> None:
    def program(x: jax.Array) -> jax.Array:
        @jax.checkpoint
        def step(x: jax.Array, _: None) -> tuple[jax.Array, None]:
            return x + 0.1 * jnp.tanh(x * 2), None

        return jax.grad(lambda x: lax.scan(step, x, length=12)[0].sum())(x)

    check(program, POINTS, tolerance=CLOSE)


def test_gradient_of_shared_weights() -> None:
    """The gradient of weights that all lanes share adds up over the lanes: fused or not, it must be
    right."""

    def loss(weights: jax.Array, x: jax.Array) -> jax.Array:
        def step(x: jax.Array, _: None) -> tuple[jax.Array, None]:
            return jnp.tanh(x * weights[0] + weights[1]), None

        return (lax.scan(step, x, length=6)[0] ** 2).sum()

    check(jax.grad(loss), np.array([0.7, -0.2], np.float32), POINTS, fused=None, tolerance=CLOSE)


def test_forward_mode() -> None:
    def program(x: jax.Array) -> Any:
        return jax.jvp(lambda x: pendulum(x)[0], (x,), (jnp.ones_like(x),))

    check(program, POINTS, tolerance=CLOSE)


@pytest.mark.parametrize("in_axis", [0, 1])
def test_vmap_of_scan(in_axis: int) -> None:
    """Both dimensions are lanes; the larger one is taken."""
    state = POINTS[:, None] * np.arange(1, 4, dtype=np.float32)
    program = jax.vmap(lambda x: pendulum(x)[1], in_axes=in_axis, out_axes=1)
    check(program, state if in_axis == 0 else state.T, tolerance=CLOSE)


def test_nested_vmap() -> None:
    def per_lane(x: jax.Array, scale: jax.Array) -> Any:
        return lax.scan(lambda x, i: (x * scale + i, x), x, jnp.arange(4))

    program = jax.vmap(jax.vmap(per_lane, in_axes=(0, None)), in_axes=(None, 0))
    check(program, POINTS, np.array([1, 2, 0.5], np.float32), tolerance=CLOSE)


def test_lax_map() -> None:
    """Each step is independent of the others and writes its row of the result."""
    check(
        lambda rows: lax.map(lambda row: jnp.abs(row) * 3 + row[::-1].max(), rows),
        linear_values((80, 16, 4)),
        fused=None,
    )
    check(lambda rows: lax.map(lambda row: row * row + 1, rows), linear_values((80, LANES)))


def test_lax_map_in_batches() -> None:
    check(
        lambda rows: lax.map(lambda x: x * 3 - 1, rows, batch_size=16),
        linear_values((100, 5), "int32"),
        fused=None,
    )


def test_condition_per_lane_and_uniform() -> None:
    """`cond` under `vmap` becomes a select; a uniform `cond` or `switch` stays a branch, fused or
    not."""

    def per_lane(x: jax.Array) -> Any:
        def step(x: jax.Array, i: jax.Array) -> tuple[jax.Array, jax.Array]:
            x = lax.cond(x > 0, lambda y: y - 3, lambda y: y * -2 + 1, x)
            return x, lax.switch(x % 3, [lambda y: y, lambda y: -y, lambda y: y + 100], x)

        return lax.scan(step, x, jnp.arange(5))

    check(jax.vmap(per_lane), linear_values((LANES,), "int32"))


def test_uniform_branches() -> None:
    def program(x: jax.Array) -> Any:
        def step(x: jax.Array, i: jax.Array) -> tuple[jax.Array, jax.Array]:
            x = lax.cond(i % 2 == 0, lambda y: y - 3, lambda y: y * 2, x)
            return x, lax.switch(i, [lambda y: y, lambda y: -y, lambda y: y + 100], x)

        return lax.scan(step, x, jnp.arange(5))

    check(program, linear_values((LANES,), "int32"), fused=None)


def test_loop_inside_a_branch() -> None:
    """The branch that is taken runs a loop of its own."""

    def program(x: jax.Array, flag: jax.Array) -> jax.Array:
        def looped(x: jax.Array) -> jax.Array:
            return lax.fori_loop(0, 40, lambda i, y: y * 3 + i, x)

        return lax.cond(flag, looped, lambda x: x - 1, x)

    for flag in (True, False):
        check(program, linear_values((LANES,), "int32"), np.bool_(flag))


def test_calls_from_several_threads() -> None:
    """One kernel runs on several threads at once, and each has its own results."""

    @jax.jit
    def program(x: jax.Array) -> Any:
        return lax.scan(lambda x, i: (x * 3 + i, x), x, jnp.arange(50))

    inputs = [linear_values((5000,), "int32") + i for i in range(8)]
    expected = [program(x) for x in inputs]

    def call(x: Any) -> Any:
        with fuselane.enabled():
            return jax.block_until_ready(program(x))

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for wanted, got in zip(expected, pool.map(call, inputs), strict=True):
            assert_same_results(wanted, got)


def test_jit_inside_jit() -> None:
    @jax.jit
    def inner(x: jax.Array, i: jax.Array) -> jax.Array:
        return jnp.where(x > i, x - i, x * 2)

    def program(x: jax.Array) -> Any:
        return lax.scan(lambda x, i: (inner(x, i), inner(-x, i)), x, jnp.arange(5))

    check(program, linear_values((LANES,), "int32"))


def test_custom_derivative() -> None:
    @jax.custom_jvp
    def clipped(x: jax.Array) -> jax.Array:
        return jnp.clip(x, -1, 1)

    @clipped.defjvp
    def _(primals: Any, tangents: Any) -> Any:
        return clipped(primals[0]), tangents[0]

    def program(x: jax.Array) -> jax.Array:
        def loss(x: jax.Array) -> jax.Array:
            return lax.fori_loop(0, 5, lambda _, y: clipped(y * 1.5), x).sum()

        return jax.grad(loss)(x)

    check(program, POINTS, tolerance=CLOSE)


def test_donated_arguments() -> None:
    """The state's memory is given away; it may be the result's memory, and the loop's.

    Whether it is taken is not checked: XLA of jaxlib 0.10.2 forgets a module's aliases when a hook
    changes the module.
    """

    def program(state: jax.Array, rows: jax.Array) -> Any:
        return lax.scan(lambda x, row: (x * 3 + row, None), state, rows)[0]

    state, rows = linear_values((LANES, 4), "int32"), linear_values((9, LANES, 4), "int32")
    expected = jax.jit(program)(state, rows)
    actual = run_fused(program, jnp.array(state), jnp.array(rows), donate_argnums=(0,))
    assert_same_results(expected, actual)


def test_donated_results_array() -> None:
    def program(out: jax.Array) -> jax.Array:
        return lax.fori_loop(0, 90, lambda i, x: x.at[i].set(x[i] * 2 + i), out)

    out = linear_values((100, LANES), "int32")
    expected = jax.jit(program)(out)
    for _ in range(2):
        assert_same_results(expected, run_fused(program, jnp.array(out), donate_argnums=0))


@pytest.mark.parametrize("form", ["row", "rows", "places"])
def test_donated_arguments_of_which_elements_are_changed(form: str) -> None:
    """Next to a loop, a donated array is written to: where XLA has forgotten that it is donated,
    it stays the caller's."""

    def program(table: jax.Array, x: jax.Array) -> Any:
        y = lax.fori_loop(0, 90, lambda i, x: x * 3 + i, x)
        if form == "places":
            changed = table.at[jnp.array([3, 7])].add(y[:2])
        elif form == "row":
            changed = lax.dynamic_update_index_in_dim(table, y[0], y[1] & 3, 0)
        else:
            changed = table.at[2:7].set(y[:5])
        return changed[::-1] * changed.sum(), y

    arguments = linear_values((90,), "int32"), linear_values((LANES,), "int32")
    expected = jax.jit(program)(*arguments)
    table = jnp.array(arguments[0])
    assert_same_results(expected, run_fused(program, table, arguments[1], donate_argnums=0))
    assert table.is_deleted() or np.array_equal(table, arguments[0])


def test_arguments_stay_untouched() -> None:
    """Without donation the caller's arrays keep their values."""
    out, state = jnp.arange(2500, dtype=jnp.int32).reshape(100, LANES), jnp.ones(LANES, jnp.int32)
    before = np.array(out)

    def program(out: jax.Array, state: jax.Array) -> Any:
        def body(i: jax.Array, carry: tuple[jax.Array, jax.Array]) -> Any:
            return carry[0].at[i].set(carry[1]), carry[1] * 3

        return lax.fori_loop(0, 90, body, (out, state))

    run_fused(program, out, state)
    np.testing.assert_array_equal(np.asarray(out), before)
    np.testing.assert_array_equal(np.asarray(state), 1)


def test_repeated_calls_and_new_shapes() -> None:
    """One compiled function is called many times, then with other shapes and dtypes."""

    def program(x: jax.Array) -> Any:
        return lax.scan(lambda x, i: (x * 2 + i.astype(x.dtype), x), x, jnp.arange(6))

    compiled = jax.jit(program)
    for dtype in ("int32", "float32", "uint8"):
        for lanes in (20, 20, 33):
            x = linear_values((lanes,), dtype)
            expected = compiled(x)
            with fuselane.enabled(), no_warnings():
                assert_same_results(expected, compiled(x))


def test_ahead_of_time_compilation() -> None:
    x = linear_values((LANES,), "int32")

    def program(x: jax.Array) -> Any:
        return lax.scan(lambda x, i: (x * 3 + i, x), x, jnp.arange(6))

    expected = jax.jit(program)(x)
    with fuselane.enabled(), no_warnings():
        compiled = jax.jit(program).lower(x).compile()
    assert_same_results(expected, compiled(x))


def test_switching_on_and_off() -> None:
    """The same jitted function under both, in turns."""

    def program(x: jax.Array) -> Any:
        return lax.scan(lambda x, i: (x * 3 + i, x), x, jnp.arange(6))

    jitted = jax.jit(program)
    x = linear_values((LANES,), "int32")
    expected = jitted(x)
    for _ in range(2):
        with fuselane.enabled():
            assert_same_results(expected, jitted(x))
        assert_same_results(expected, jitted(x))


def test_disabled_jit() -> None:
    x = linear_values((LANES,), "int32")

    def program(x: jax.Array) -> Any:
        return lax.scan(lambda x, i: (x * 3 + i, x), x, jnp.arange(3))

    expected = jax.jit(program)(x)
    with fuselane.enabled(), no_warnings(), jax.disable_jit():
        assert_same_results(expected, jax.jit(program)(x))


def test_static_arguments_and_closures() -> None:
    """Static arguments choose the program, captured arrays become its constants."""
    table = jnp.array(linear_values((50, LANES)))

    def program(steps: int, x: jax.Array) -> Any:
        return lax.scan(lambda x, i: (x * 0.5 + table[i], None), x, jnp.arange(steps))[0]

    for steps in (2, 50):
        check(functools.partial(program, steps), table[0], tolerance=CLOSE)


def test_loop_between_other_work() -> None:
    """What is in front of and behind the loop stays XLA's: sorting, matrices, reductions over
    lanes."""

    def program(x: jax.Array, matrix: jax.Array) -> Any:
        start = jnp.sort(matrix @ x)
        x, rows = lax.scan(lambda x, i: (x * 0.5 + i, jnp.abs(x)), start, jnp.arange(8.0))
        return matrix @ x, rows.sum(), rows.argmax(1), x.std()

    matrix = np.random.default_rng(0).standard_normal((LANES, LANES)).astype(np.float32)
    check(program, POINTS, matrix, tolerance=CLOSE)


def test_results_used_and_unused() -> None:
    """Of several carries and streams only one element is used after the loop."""

    def program(x: jax.Array) -> jax.Array:
        def step(carry: tuple[jax.Array, jax.Array], i: jax.Array) -> Any:
            a, b = carry
            return (a * 3 + b, b + i), (a, b)

        (_, _), (_, rows) = lax.scan(step, (x, x), jnp.arange(70))
        return rows[3:40:2]

    check(program, linear_values((LANES,), "int32"))


@pytest.mark.skipif(IS_OFF, reason="Fuselane is switched off")
def test_explain_reports_the_loop() -> None:
    report = fuselane.explain(pendulum, POINTS)
    assert_decisions(report)
    (loop,) = report.loops
    assert loop.trip_count == 20
    assert loop.lanes == LANES
    assert "test_transformations.py" in loop.source
