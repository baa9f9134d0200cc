"""Tables of rows and columns, looked up by the numbers of lanes that are merged from both."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fuselane
from fuselane.codegen.llvm import HostTarget, read_ir

ROWS = np.linspace(-3, 3, 96, dtype=np.float32)
COLUMNS = np.linspace(1, 2, 1024, dtype=np.float32)


def by_column(x: jax.Array, rows: jax.Array, columns: jax.Array) -> jax.Array:
    """What a dense layer adds."""
    del rows
    return x * 3 + columns[: x.shape[1]]


def by_row(x: jax.Array, rows: jax.Array, columns: jax.Array) -> jax.Array:
    """What a norm divides by."""
    del columns
    return x / rows[: x.shape[0], None]


def by_both(x: jax.Array, rows: jax.Array, columns: jax.Array) -> jax.Array:
    """Both."""
    return (x + columns[: x.shape[1]]) * rows[: x.shape[0], None]


def by_index(x: jax.Array, rows: jax.Array, columns: jax.Array) -> jax.Array:
    """Indices that a user made, of which some are beyond the table."""
    del rows
    numbers = jnp.arange(x.size) % x.shape[1]
    return x.ravel() - jnp.take(columns[:77], numbers, mode="clip")


@pytest.mark.parametrize("function", [by_column, by_row, by_both, by_index])
@pytest.mark.parametrize(("num_rows", "num_columns"), [(96, 1024), (96, 77), (5, 128), (3, 24)])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_as_xla(
    function: Callable[..., Any], num_rows: int, num_columns: int, dtype: type[np.generic]
) -> None:
    """The same, whether rows are whole vectors or not."""
    x = np.arange(num_rows * num_columns).reshape(num_rows, num_columns) % 211 + 1
    arguments = (x.astype(dtype), ROWS.astype(dtype), COLUMNS.astype(dtype))
    expected = jax.jit(function)(*arguments)
    with fuselane.enabled(fusion="fuselane", min_gain=0):
        actual = jax.jit(function)(*arguments)
    np.testing.assert_allclose(actual, expected, rtol=1e-6 if dtype is np.float32 else 1e-3)


@pytest.mark.parametrize("function", [by_column, by_row, by_both])
def test_no_gather(
    function: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Lanes of one row load neighbours, or one element for all of them."""
    codes: list[str] = []

    def keep(code: str, target: HostTarget) -> bytes:
        codes.append(code)
        return read_ir(code, target)

    monkeypatch.setattr("fuselane.backends.cpu.read_ir", keep)
    monkeypatch.setenv("FUSELANE_CACHE_DIR", str(tmp_path))
    jax.clear_caches()
    with fuselane.enabled(fusion="fuselane", min_gain=0):
        jax.jit(function)(np.ones((96, 1024), np.float32), ROWS, COLUMNS)
    assert codes
    assert not any("masked.gather" in code for code in codes)
