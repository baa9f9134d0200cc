"""Arrays with several dimensions that could be lanes: which are, and that several become one."""

from __future__ import annotations

from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.differential.comparison import CLOSE, EXACT, Tolerance
from tests.differential.harness import Program, check, linear_values


def check_lanes(
    program: Program, *arguments: Any, lanes: int, tolerance: Tolerance = EXACT
) -> None:
    """Checks the results of a program with one loop and over how many lanes it runs."""
    report = check(program, *arguments, fused=None, tolerance=tolerance)
    assert [(loop.fused, loop.lanes) for loop in report.loops] == [(True, lanes)], report


def repeat(body: Program, steps: int = 5) -> Program:
    def program(x: Any) -> Any:
        return lax.fori_loop(0, steps, lambda i, x: body(x, i), x)

    return program


def smooth(x: jax.Array, axis: int) -> jax.Array:
    return x + jnp.roll(x, 1, axis) - 2 * jnp.roll(x, -1, axis)


def normalise(x: jax.Array, axis: int) -> jax.Array:
    centred = x - x.mean(axis, keepdims=True)
    return centred * lax.rsqrt((centred * centred).mean(axis, keepdims=True) + 0.1)


# A shape, a body, and the lanes it has.
SHAPES: Final[dict[str, tuple[tuple[int, ...], Program, int]]] = {
    "two": ((5, 7), lambda x, i: x * 3 + i, 35),
    "three": ((3, 5, 7), lambda x, i: x * 3 + i, 105),
    "four": ((3, 2, 5, 7), lambda x, i: x * 3 + i, 210),
    "stencil_along_the_last": ((19, 7), lambda x, i: smooth(x, 1), 19),
    "stencil_along_the_first": ((7, 19), lambda x, i: smooth(x, 0), 19),
    "stencil_along_the_last_of_three": ((3, 19, 7), lambda x, i: smooth(x, 2), 57),
    "stencil_along_the_middle": ((3, 7, 19), lambda x, i: smooth(x, 1), 19),
    "stencil_along_the_first_of_three": ((7, 3, 19), lambda x, i: smooth(x, 0), 57),
    "stencils_around_the_lanes": ((5, 19, 4), lambda x, i: smooth(smooth(x, 0), 2), 19),
    "images": ((9, 4, 5, 3), lambda x, i: smooth(smooth(x, 1), 2), 9),
    "reversed_along_one": ((4, 19, 3), lambda x, i: x[:, :, ::-1] * 3 + i, 76),
    "sorted_along_one": ((4, 19, 3), lambda x, i: jnp.sort(x ^ i, axis=2), 76),
    "total_of_one": ((4, 19, 3), lambda x, i: x - x.sum(2, keepdims=True), 76),
    "counted_along_one": ((6, 11), lambda x, i: x * 3 + jnp.arange(11), 66),
    "counted_along_the_other": ((6, 11), lambda x, i: x * 3 + jnp.arange(6)[:, None], 66),
    "turned": ((6, 11), lambda x, i: (x.T * 3 + i).T, 66),
}


@pytest.mark.parametrize("name", SHAPES)
def test_shapes(name: str) -> None:
    shape, body, lanes = SHAPES[name]
    check_lanes(repeat(body), linear_values(shape, "int32"), lanes=lanes)


@pytest.mark.parametrize(("shape", "lanes"), [((6, 5, 8), 30), ((40, 8), 40)])
def test_layer_norm_over_features(shape: tuple[int, ...], lanes: int) -> None:
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    check_lanes(
        repeat(lambda x, i: jnp.tanh(normalise(x, -1)) + 0.1 * x),
        x,
        lanes=lanes,
        tolerance=CLOSE,
    )


def test_stacked_rows_of_two_dimensions() -> None:
    def program(x: jax.Array, rows: jax.Array) -> Any:
        return lax.scan(lambda x, row: (x * 3 + row, x), x, rows)

    check_lanes(
        program,
        linear_values((6, 7), "int32"),
        linear_values((5, 6, 7), "int32"),
        lanes=42,
    )


def test_seeds_and_environments() -> None:
    """`vmap` of `vmap`, a parameter for each seed, state and done flags for each environment."""

    def rollout(gain: jax.Array, state: jax.Array) -> Any:
        def step(carry: Any, _: None) -> Any:
            state, count = carry
            state = state * gain + jnp.flip(state) // 3
            is_done = jnp.abs(state).sum() > 5000
            return (jnp.where(is_done, 1, state), count + is_done), is_done

        return lax.scan(step, (state, 0), length=20)

    over_seeds = jax.vmap(jax.vmap(rollout, (None, 0)), (0, 0))
    check_lanes(
        over_seeds,
        np.arange(1, 4, dtype=np.int32),
        linear_values((3, 21, 4), "int32"),
        lanes=63,
    )


def test_seeds_and_environments_without_parameters() -> None:
    def rollout(state: jax.Array) -> Any:
        def step(carry: Any, i: jax.Array) -> Any:
            state, count = carry
            state = state * 3 + jnp.flip(state) // 3 + i
            is_done = jnp.abs(state).sum() > 5000
            return (jnp.where(is_done, 1, state), count + is_done), is_done

        return lax.scan(step, (state, 0), jnp.arange(20))

    check_lanes(jax.vmap(jax.vmap(rollout)), linear_values((3, 21, 4), "int32"), lanes=63)


@pytest.mark.parametrize("left", [False, True])
def test_right_sides_of_one_matrix_are_lanes(left: bool) -> None:
    """As in Kalman filters of many series by one model, whose covariance they share."""

    def program(covariance: jax.Array, x: jax.Array) -> jax.Array:
        def step(_: Any, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            covariance, x = carry
            factor = jnp.linalg.cholesky(covariance)
            x = lax.linalg.triangular_solve(factor, x, left_side=left, lower=True)
            return covariance * 0.5 + jnp.eye(3), x + 1

        return lax.fori_loop(0, 20, step, (covariance, x))[1]

    covariance = np.asarray([[4, 1, 0.5], [1, 3, -1], [0.5, -1, 2]], np.float32)
    x = np.linspace(-1, 1, 3 * 100, dtype=np.float32).reshape((3, 100) if left else (100, 3))
    check_lanes(program, covariance, x, lanes=100, tolerance=CLOSE)
