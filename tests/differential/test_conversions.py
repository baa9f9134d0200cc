"""Conversions between all dtypes: by value, and of the bits."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.differential.comparison import CLOSE_HALF
from tests.differential.harness import (
    Program,
    check,
    check_operations,
    map_rows,
)
from tests.differential.values import DTYPES, moderate, unary_rows, without_denormals


def convert_to(dtype: str) -> Program:
    return functools.partial(lax.convert_element_type, new_dtype=dtype)


@pytest.mark.parametrize("source", DTYPES)
def test_convert(source: str) -> None:
    """Includes NaN and what lies outside the range of an integer type, which saturates."""
    operations = {dtype: convert_to(dtype) for dtype in DTYPES if dtype != source}
    check_operations(operations, without_denormals(unary_rows(source)), x64=True)


@pytest.mark.parametrize("source", [dtype for dtype in DTYPES if dtype != "bool"])
def test_bitcast_of_equal_width(source: str) -> None:
    width = np.dtype(source).itemsize
    targets = [dtype for dtype in DTYPES if np.dtype(dtype).itemsize == width and dtype != "bool"]
    operations: dict[str, Program] = {
        dtype: functools.partial(lax.bitcast_convert_type, new_dtype=dtype) for dtype in targets
    }
    check_operations(operations, unary_rows(source), x64=True)


def test_bitcast_of_other_width() -> None:
    """Adds or drops a dimension; fused or not, the results must be right."""
    operations: dict[str, Program] = {
        "narrower": lambda x: lax.bitcast_convert_type(x, np.uint8),
        "there_and_back": lambda x: lax.bitcast_convert_type(
            lax.bitcast_convert_type(x, np.uint16) + np.uint16(1), np.float32
        ),
    }
    check(map_rows(operations), unary_rows("float32"), fused=None)


def test_chain_of_conversions() -> None:
    """A value passes through most types each step, as mixed-precision programs do."""

    def step(state: jax.Array, row: jax.Array) -> tuple[jax.Array, tuple[jax.Array, ...]]:
        small = (state + row).astype(np.int8)
        half = small.astype(np.float16) * np.float16(0.5)
        brain = half.astype(jax.numpy.bfloat16) + 1
        wide = brain.astype(np.float32).astype(np.int16)
        flag = wide > 3
        return flag.astype(np.float32) + wide, (small, half, brain, wide, flag)

    def program(state: jax.Array, rows: jax.Array) -> object:
        return lax.scan(step, state, rows)

    check(program, moderate("float32", (37,)), moderate("float32", (6, 37), seed=1))


def _next(value: jax.Array) -> jax.Array:
    if value.dtype == bool:
        return ~value
    if jnp.issubdtype(value.dtype, jnp.integer):
        return value * value.dtype.type(3) + value.dtype.type(1)
    return value * jnp.asarray(0.5, value.dtype) + jnp.asarray(0.25, value.dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_arrays_of_every_type_are_updated_in_place(dtype: str) -> None:
    """Rows written, rows read, elements replaced by lanes, and values kept by some of them."""

    def step(state: Any, rows: Any) -> Any:
        value, board, place = state
        row, t = rows
        taken = jax.vmap(lambda b, p: b[p])(board, place)
        board = jax.vmap(lambda b, p, v: b.at[p].set(v))(board, place, _next(taken))
        value = jnp.where(t % 2 == 0, _next(value), jnp.where(place < 50, row, value))
        return (value, board, (place * 3 + 1) % 100), (value, taken)

    def program(value: jax.Array, board: jax.Array, place: jax.Array, rows: jax.Array) -> Any:
        return lax.scan(step, (value, board, place), (rows, jnp.arange(7)))

    arguments = (
        moderate(dtype, (37,)),
        moderate(dtype, (37, 100), seed=1),
        np.arange(37, dtype=np.int32),
        moderate(dtype, (7, 37), seed=2),
    )
    report = check(program, *arguments, tolerance=CLOSE_HALF, x64=True)
    assert report.loops[0].decision.numbers["streams"] == len(("values", "taken", "board"))
