"""Sorts, arg-sorts and top-k along a dimension of one lane."""

from __future__ import annotations

from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from fuselane.lanes.form import form
from tests.differential.comparison import EXACT
from tests.differential.harness import check
from tests.differential.values import sample
from tests.lanes.oracle import capture, loops_of

LANES: Final = 37
STEPS: Final = 3


def ties(shape: tuple[int, ...]) -> np.ndarray:
    """Returns few different values, zeros of both signs and NaNs among them."""
    values = np.array([1, -1, 0.0, -0.0, np.nan, np.inf, -np.inf, 2], np.float32)
    return values[np.random.default_rng(0).integers(0, len(values), shape)]


def check_steps(step: Any, *arguments: Any, **options: Any) -> None:
    """Checks a scan over rows of the last argument, which `step` gets one by one."""

    def program(state: Any, rows: Any) -> Any:
        return lax.scan(step, state, rows)

    check(program, *arguments, tolerance=EXACT, **options)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 16, 24, 25, 33, 100])
def test_sort_and_argsort(size: int) -> None:
    """Stable, whatever the number of elements; equal values keep their order."""

    def step(state: Any, row: Any) -> Any:
        order = jnp.argsort(row, axis=1)
        return state + order.astype(jnp.float32), (jnp.sort(row, axis=1), order)

    check_steps(step, np.zeros((LANES, size), np.float32), ties((STEPS, LANES, size)))


@pytest.mark.parametrize(
    "dtype",
    ["bool", "int8", "uint16", "int32", "uint32", "int64", "float16", "bfloat16", "float64"],
)
@pytest.mark.parametrize("size", [9, 40])
def test_sort_types(dtype: str, size: int) -> None:
    """Every element type, extremes included, down and up: in registers, in words of a key and a
    place, and, of 64 bits, beside their places."""

    def step(state: Any, row: Any) -> Any:
        return state + 1, (jnp.sort(row, axis=1), jnp.sort(row, axis=1, descending=True))

    wide = dtype in ("int64", "float64")
    check_steps(step, np.zeros(LANES, np.int32), sample(dtype, (STEPS, LANES, size)), x64=wide)


@pytest.mark.parametrize("shape", [(LANES, 4, 5), (4, LANES, 5), (4, 5, LANES)])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_sort_along_any_dimension(shape: tuple[int, ...], axis: int) -> None:
    """The lanes lie before, between or after what is sorted."""
    if shape[axis] == LANES:
        axis = (axis + 1) % 3

    def step(state: Any, row: Any) -> Any:
        moved = jnp.sort(state + row, axis=axis)
        return moved, moved

    check_steps(step, np.zeros(shape, np.float32), sample("float32", (STEPS, *shape)))


@pytest.mark.parametrize(("size", "k"), [(5, 1), (9, 3), (40, 7), (8, 8)])
def test_top_k(size: int, k: int) -> None:
    """Equal values come in the order of their indices."""

    def step(state: Any, row: Any) -> Any:
        values, indices = lax.top_k(row, k)
        return state + indices.sum(1), (values, indices)

    rows = np.where(np.isnan(ties((STEPS, LANES, size))), 3, ties((STEPS, LANES, size)))
    check_steps(step, np.zeros(LANES, np.int32), rows)


@pytest.mark.parametrize("first_dtype", ["float32", "int32"])
@pytest.mark.parametrize("size", [6, 40])
def test_sort_several_by_several_keys(size: int, first_dtype: str) -> None:
    """Lexicographic order of two keys, with a payload, for NaN and zeros of both signs as well."""

    def step(state: Any, row: Any) -> Any:
        first = jnp.floor(row).astype(first_dtype)
        sorted_rows = lax.sort((first, state, row), dimension=1, num_keys=2)
        return -sorted_rows[1], sorted_rows

    rng = np.random.default_rng(1)
    state = rng.integers(-1, 3, (LANES, size)).astype(np.float32)
    state[:, ::3] *= 0
    state[::2, ::5] = np.nan
    check_steps(step, state, rng.uniform(0, 3, (STEPS, LANES, size)).astype(np.float32))


def test_sort_by_keys_made_once() -> None:
    """What a comparator makes of each side is not made for each comparison."""

    def step(state: Any, row: Any) -> Any:
        return lax.sort((jnp.floor(row), state), dimension=1, num_keys=2)[1], None

    def rollout(state: Any, rows: Any) -> Any:
        return lax.scan(step, state, rows)

    rows = np.ones((STEPS, LANES, 6), np.float32)
    module = capture(rollout, rows[0], rows)
    program = form(module, loops_of(module)[0])
    (sort,) = (i for i in program.loop.instruction.body.instructions if i.opcode == "sort")
    opcodes = {i.opcode for i in sort.to_apply.instructions}
    assert opcodes <= {"parameter", "compare", "and", "or"}
    assert len(sort.operands) == 4


def test_median_and_quantile() -> None:
    """What users do with sorts."""

    def step(state: Any, row: Any) -> Any:
        middle = jax.vmap(jnp.median)(row)
        return state + middle, (middle, jnp.quantile(row, 0.25, axis=1))

    check_steps(
        step,
        np.zeros(LANES, np.float32),
        np.random.default_rng(2).normal(size=(STEPS, LANES, 7)).astype(np.float32),
    )


@pytest.mark.parametrize("dtype", ["float32", "uint8", "int64"])
@pytest.mark.parametrize("size", [17, 300])
def test_sorts_without_lanes(dtype: str, size: int) -> None:
    """Several arrays in the order of one, which has equal elements."""

    def step(state: Any, row: Any) -> Any:
        order = lax.iota(jnp.int32, size)
        found = lax.sort((row, order, state), num_keys=1)
        return found[2] + 1, found

    rows = sample(dtype, (STEPS, size))
    rows[:, ::3] = rows[:, :1]
    wide = dtype == "int64"
    check_steps(step, np.arange(size, dtype=np.float32), rows, x64=wide, fused=None)
