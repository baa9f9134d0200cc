"""Reduce-windows along dimensions of one lane: cumulative, pooling, dilated."""

from __future__ import annotations

import itertools
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.differential.comparison import CLOSE, EXACT
from tests.differential.harness import check
from tests.differential.values import sample

LANES: Final = 37
STEPS: Final = 3


def check_rows(of_row: Any, rows: np.ndarray, *, exact: bool = True, x64: bool = False) -> None:
    """Checks a scan that gives `of_row` of each row and carries its sum."""

    def program(state: Any, rows: Any) -> Any:
        def step(state: Any, row: Any) -> Any:
            result = of_row(row)
            return state + result, result

        return lax.scan(step, state, rows)

    state = np.zeros(jax.eval_shape(of_row, rows[0]).shape, rows.dtype)
    check(program, state, rows, tolerance=EXACT if exact else CLOSE, x64=x64)


CUMULATIVE: Final = {
    "sum": lax.cumsum,
    "product": lax.cumprod,
    "max": lax.cummax,
    "min": lax.cummin,
}


@pytest.mark.parametrize(
    ("name", "size"),
    [*itertools.product(CUMULATIVE, (9, 70)), *(("sum", size) for size in (1, 2, 31, 200))],
)
def test_cumulative(name: str, size: int) -> None:
    rows = sample("int32", (STEPS, LANES, size))
    check_rows(lambda row: CUMULATIVE[name](row, axis=1), rows)


@pytest.mark.parametrize("is_reversed", [False, True])
@pytest.mark.parametrize("dtype", ["uint8", "int64", "bfloat16", "float32", "float64"])
def test_cumulative_types(dtype: str, *, is_reversed: bool) -> None:
    rows = np.ones((STEPS, LANES, 6), dtype) + np.arange(6).astype(dtype)
    wide = dtype in ("int64", "float64")
    check_rows(lambda row: lax.cumsum(row, axis=1, reverse=is_reversed), rows, x64=wide)


@pytest.mark.parametrize(
    ("shape", "axis"),
    [
        *(((LANES, 4, 5), axis) for axis in (1, 2)),
        *(((4, LANES, 5), axis) for axis in (0, 2)),
        *(((4, 5, LANES), axis) for axis in (0, 1)),
    ],
)
def test_cumulative_along_any_dimension(shape: tuple[int, ...], axis: int) -> None:
    rows = sample("float32", (STEPS, *shape))
    check_rows(lambda row: lax.cummax(row, axis=axis), rows)


@pytest.mark.parametrize("shape", [(LANES, 9, 13), (9, LANES, 13), (9, 13, LANES)])
def test_cumulative_along_each_of_two_dimensions(shape: tuple[int, ...]) -> None:
    """One longer than the other, of more elements than are in registers."""
    first, second = (axis for axis in range(3) if shape[axis] != LANES)
    rows = sample("int32", (STEPS, *shape))
    check_rows(lambda row: lax.cumsum(row, axis=first) - lax.cumsum(row, axis=second), rows)


def test_cumulative_sum_of_floats() -> None:
    rows = np.random.default_rng(0).normal(size=(STEPS, LANES, 50)).astype(np.float32)
    check_rows(lambda row: jnp.cumsum(row, axis=1), rows, exact=False)


def test_log_cumulative_sum_of_exponentials() -> None:
    rows = np.random.default_rng(0).normal(size=(STEPS, LANES, 9)).astype(np.float32)
    check_rows(lambda row: lax.cumlogsumexp(row, axis=1), rows, exact=False)


@pytest.mark.parametrize(
    ("window", "strides", "padding", "dilation"),
    [
        ((3,), (1,), "SAME", (1,)),
        ((3,), (2,), "VALID", (1,)),
        ((4,), (3,), ((2, 5),), (2,)),
        ((2,), (1,), ((0, 3),), (5,)),
    ],
)
@pytest.mark.parametrize("size", [11, 90])
def test_pooling(size: int, window: Any, strides: Any, padding: Any, dilation: Any) -> None:
    """Windows that overlap, leave gaps, lie in the padding in part or as a whole."""

    def pool(row: Any) -> Any:
        return lax.reduce_window(
            row,
            np.float32(-1.5),
            lax.max,
            (1, *window),
            (1, *strides),
            padding if isinstance(padding, str) else ((0, 0), *padding),
            window_dilation=(1, *dilation),
        )

    check_rows(pool, sample("float32", (STEPS, LANES, size)))


def test_pooling_in_two_dimensions() -> None:
    def pool(row: Any) -> Any:
        return lax.reduce_window(row, 0, lax.add, (2, 1, 3), (1, 1, 2), "SAME")

    check_rows(pool, sample("int32", (STEPS, 7, LANES, 8)))
