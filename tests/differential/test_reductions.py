"""Reductions along the dimensions of one lane."""

from __future__ import annotations

from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.differential.comparison import CLOSE, Tolerance
from tests.differential.harness import Program, check, check_operations, linear_values, place_lanes
from tests.differential.values import sample

LANES: Final = 83
STEPS: Final = 3


def reductions(axes: tuple[int, ...], dtype: str) -> dict[str, Program]:
    """Returns the reductions over `axes` that are defined for `dtype` and do not depend on the
    order."""
    if dtype == "bool":
        return {"all": lambda x: x.all(axes), "any": lambda x: x.any(axes)}
    operations: dict[str, Program] = {
        "max": lambda x: x.max(axes),
        "min": lambda x: x.min(axes),
        "any_positive": lambda x: (x > 0).any(axes),
        "all_positive": lambda x: (x > 0).all(axes),
        "count": lambda x: (x > 0).sum(axes),
    }
    if len(axes) == 1:
        operations["argmax"] = lambda x: jnp.argmax(x, axes[0])
        operations["argmin"] = lambda x: jnp.argmin(x, axes[0])
    if np.issubdtype(dtype, np.integer):
        operations |= {
            "sum": lambda x: x.sum(axes, dtype=x.dtype),
            "prod": lambda x: x.prod(axes, dtype=x.dtype),
            "and": lambda x: lax.reduce_and(x, axes),
            "or": lambda x: lax.reduce_or(x, axes),
            "xor": lambda x: lax.reduce_xor(x, axes),
        }
    return operations


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint32", "int64", "float32", "bfloat16"])
@pytest.mark.parametrize("axis", [0, 1])
def test_reduce(axis: int, dtype: str) -> None:
    """NaN, infinities and extreme integers included."""
    shape = (STEPS, *place_lanes((5,), LANES, 1 - axis))
    # Zeros of both signs are equal to XLA's maximum as well; which one it returns is left open.
    tolerance = Tolerance(signed_zero=False)
    operations = reductions((axis,), dtype)
    values = sample(dtype, shape)
    check_operations(operations, values, tolerance=tolerance, x64=dtype == "int64")


@pytest.mark.parametrize("dtype", ["int32", "float32"])
def test_reduce_two_dimensions(dtype: str) -> None:
    check_operations(
        reductions((0, 2), dtype),
        sample(dtype, (STEPS, 2, LANES, 3)),
        tolerance=Tolerance(signed_zero=False),
    )


@pytest.mark.parametrize("axis", [0, 1])
def test_sums_of_floats(axis: int) -> None:
    """Additions may be done in any order."""
    operations: dict[str, Program] = {
        "sum": lambda x: x.sum(axis),
        "mean": lambda x: x.mean(axis),
        "prod": lambda x: (x / 4).prod(axis),
        "norm": lambda x: jnp.sqrt((x * x).sum(axis)),
        "variance": lambda x: x.var(axis),
        "softmax": lambda x: jax.nn.softmax(x, axis),
        "logsumexp": lambda x: jax.nn.logsumexp(x, axis),
    }
    shape = (STEPS, *place_lanes((7,), LANES, 1 - axis))
    check_operations(operations, linear_values(shape) % 5, tolerance=CLOSE)


def test_reduction_with_own_function() -> None:
    """The value of largest size and its place, reduced together by a function of the user's own."""

    def largest_by_size(left: Any, right: Any) -> Any:
        keep = (abs(left[0]) > abs(right[0])) | (
            (abs(left[0]) == abs(right[0])) & (left[1] < right[1])
        )
        return jnp.where(keep, left[0], right[0]), jnp.where(keep, left[1], right[1])

    def largest(x: jax.Array) -> Any:
        numbers = lax.broadcasted_iota(np.int32, x.shape, 1)
        return lax.reduce((x, numbers), (np.int32(0), np.int32(99)), largest_by_size, (1,))

    rows = (linear_values((STEPS, LANES, 6), "int32") * 7919) % 1000 - 500
    check_operations({"largest": largest}, rows)


def test_carried_reduction() -> None:
    """The reduced value decides what happens to the whole state of the lane."""

    def program(state: jax.Array) -> Any:
        def step(x: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
            total = x.sum(1, keepdims=True)
            return jnp.where(total > 40, x - 7, x + 3), jnp.argmax(x, 1)

        return lax.scan(step, state, length=8)

    check(program, linear_values((LANES, 4), "int32") % 13)


def test_uniform_reduction_inside_the_loop() -> None:
    """A reduction of uniform data only: the lanes see a scalar."""

    def program(state: jax.Array, weights: jax.Array) -> Any:
        def step(x: jax.Array, row: jax.Array) -> tuple[jax.Array, None]:
            return x * row.max() + jnp.argmin(row), None

        return lax.scan(step, state, weights)

    check(program, linear_values((LANES,)), linear_values((6, 4)) % 3)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("size", [2, 3, 7, 16, 31, 40])
def test_extremes_of_special_numbers(size: int, dtype: str) -> None:
    """Elements are compared in pairs: the first of several equal ones is found, NaNs win, and -0 is
    less than 0."""
    random = np.random.default_rng(size)
    special = np.array([np.nan, -np.nan, -np.inf, -1.0, -0.0, 0.0, 1.0, np.inf], dtype)
    rows = random.choice(special, (STEPS, LANES, size))
    rows[:, ::4] = random.choice(special[2:], rows[:, ::4].shape)
    rows[:, 1::4] = random.choice(special[3:6], rows[:, 1::4].shape)
    rows[:, 2::4] = random.choice(special[4:7], rows[:, 2::4].shape)
    operations: dict[str, Program] = {
        "max": lambda x: x.max(1),
        "min": lambda x: x.min(1),
        "argmax": lambda x: jnp.argmax(x, 1),
        "argmin": lambda x: jnp.argmin(x, 1),
    }
    check_operations(operations, rows, x64=dtype == "float64")
