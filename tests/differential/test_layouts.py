"""Arrays that do not lie row-major in memory."""

from __future__ import annotations

from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental.layout import Format, Layout
from jax.sharding import SingleDeviceSharding

from tests.differential.comparison import CLOSE, assert_same_results
from tests.differential.harness import check, linear_values, run_fused

LANES: Final = 26


def column_major(rank: int) -> Format:
    """Returns the format whose first dimension is the minor one."""
    return Format(Layout(tuple(reversed(range(rank)))), SingleDeviceSharding(jax.devices()[0]))


def rollout(state: jax.Array, rows: jax.Array) -> Any:
    def step(x: jax.Array, row: jax.Array) -> tuple[jax.Array, jax.Array]:
        return x * 3 + row, x[:, ::-1]

    return lax.scan(step, state, rows)


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("returned", [False, True])
def test_of_arguments_and_results(given: bool, returned: bool) -> None:
    state, rows = linear_values((LANES, 4), "int32"), linear_values((70, LANES, 4), "int32")
    expected = jax.jit(rollout)(state, rows)
    in_formats = (column_major(2), column_major(3)) if given else (None, None)
    out_formats = (column_major(2), column_major(3)) if returned else (None, None)
    arguments = [
        jax.device_put(x, layout) if layout else jnp.array(x)
        for x, layout in zip((state, rows), in_formats, strict=True)
    ]
    actual = run_fused(rollout, *arguments, in_shardings=in_formats, out_shardings=out_formats)
    assert_same_results(expected, actual)


def test_chosen_by_xla_for_a_transposed_stream() -> None:
    """XLA may keep [lanes, steps] data as it is and read it through a layout."""

    def program(data: jax.Array) -> Any:
        x, ys = lax.scan(lambda x, row: (x + row, x * row), data[:, 0], data.T)
        return x, ys.T

    check(program, linear_values((LANES, 80), "int32"))


def test_around_matrix_products() -> None:
    """A product in front of the loop may ask for a column-major operand."""

    def program(left: jax.Array, right: jax.Array) -> Any:
        state = (left.T @ right).T
        x, ys = lax.scan(lambda x, i: (jnp.maximum(x - i, 0), x[:, :2]), state, jnp.arange(5.0))
        return right @ x, ys

    left = np.random.default_rng(0).standard_normal((8, 4)).astype(np.float32)
    right = np.random.default_rng(1).standard_normal((8, LANES)).astype(np.float32)
    check(program, left, right, tolerance=CLOSE)


def test_transposed_state_inside_the_loop() -> None:
    def program(x: jax.Array) -> Any:
        def step(x: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
            turned = jnp.transpose(x, (2, 1, 0)) * 2
            return jnp.transpose(turned + 1, (2, 1, 0)), turned[0]

        return lax.scan(step, x, length=4)

    check(program, linear_values((LANES, 2, 3), "int32"))
