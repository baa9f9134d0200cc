"""Loops whose iterations have nothing to do with each other: the iterations are the lanes."""

from __future__ import annotations

from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.differential.comparison import CLOSE
from tests.differential.harness import Program, check, linear_values, run_and_explain
from tests.differential.test_lane_dimensions import check_lanes

NUM: Final = 40
TABLE: Final = (np.arange(7, dtype=np.int32) * 5) % 7
MATRIX: Final = np.arange(12, dtype=np.int32).reshape(3, 4) - 5


def count_up(x: jax.Array) -> Any:
    """Ends at its own time."""
    return lax.while_loop(lambda c: c[0] * c[1] < 200, lambda c: (c[0] + 3, c[1] + 1), (x, 1))[1]


def count_twice(x: jax.Array) -> Any:
    """A loop that ends at its own time, in one that does."""

    def step(c: Any) -> Any:
        total, left = c
        return total + count_up(left % 5 + 1), left - 2

    return lax.while_loop(lambda c: c[1] > 0, step, (0, x % 7))[0]


def shared_inside(x: jax.Array) -> Any:
    """A counter that is the same for all, beside what is not."""

    def step(i: jax.Array, c: Any) -> Any:
        row, total = c
        return row * 2 - i, total + row[i % 3] + jnp.asarray(TABLE)[i]

    return lax.fori_loop(0, 4, step, (jnp.arange(3) + x, x))[1]


def updated(x: jax.Array) -> jax.Array:
    row = jnp.arange(5) * x
    return lax.dynamic_update_slice(row, row[:2] * 3, (jnp.int32(2),))


# What is done to a number, or to a row of some.
SCALARS: Final[dict[str, Program]] = {
    "arithmetic": lambda x: x * x - 3,
    "two_results": lambda x: (x * 2, jnp.stack([x, -x, x + 1])),
    "table": lambda x: jnp.asarray(TABLE)[x % 7],
    "part_of_a_table": lambda x: lax.dynamic_slice(jnp.asarray(TABLE), (x % 9,), (3,)),
    "rows_of_a_table": lambda x: jnp.asarray(MATRIX)[jnp.stack([x % 3, (x + 1) % 3])],
    "fixed_trips": lambda x: lax.fori_loop(0, 6, lambda i, y: y * 3 + i, x),
    "own_trips": count_up,
    "own_trips_in_own_trips": count_twice,
    "shared_inside": shared_inside,
    "updated": updated,
    "same_for_all": lambda x: jnp.int32(4),
}
ROWS: Final[dict[str, Program]] = {
    "sum": lambda r: r.sum(),
    "largest": lambda r: (r.argmax(), r.max()),
    "sorted": lambda r: jnp.sort(r * 7 % 5),
    "own_element": lambda r: r[r[0] % 3],
    "own_elements": lambda r: r[jnp.abs(r) % 3],
    "shared_matrix_right": lambda r: r @ jnp.asarray(MATRIX),
    "shared_matrix_left": lambda r: jnp.asarray(MATRIX).T @ r,
    "outer": lambda r: r[:, None] * r[None, :],
    "product": lambda r: (r[:, None] + r[None, :]) @ (r[:, None] - 2 * jnp.asarray(MATRIX)),
    "turned_and_padded": lambda r: jnp.pad(r[::-1], (1, 2)) + jnp.concatenate([r, r]),
    "transposed": lambda r: (r[:, None] + jnp.asarray(MATRIX)).T,
}


@pytest.mark.parametrize("name", SCALARS)
def test_numbers(name: str) -> None:
    one = SCALARS[name]
    check_lanes(lambda x: lax.map(one, x), np.arange(NUM, dtype=np.int32), lanes=NUM)


@pytest.mark.parametrize("name", ROWS)
def test_rows(name: str) -> None:
    one = ROWS[name]
    check_lanes(lambda x: lax.map(one, x), linear_values((NUM, 3), "int32"), lanes=NUM)


def test_counting_scan_without_carry() -> None:
    def program(table: jax.Array) -> Any:
        def step(_: None, i: jax.Array) -> Any:
            return None, table * i + jnp.arange(3)

        return lax.scan(step, None, jnp.arange(NUM))[1]

    check_lanes(program, linear_values((3,), "int32"), lanes=3 * NUM)


def test_stacked_along_another_dimension() -> None:
    def program(x: jax.Array) -> jax.Array:
        def step(i: jax.Array, out: jax.Array) -> jax.Array:
            row = lax.dynamic_index_in_dim(x, i, 1, keepdims=True)
            return lax.dynamic_update_slice(out, row * row - i, (0, i))

        return lax.fori_loop(0, NUM, step, jnp.zeros_like(x))

    check_lanes(program, linear_values((3, NUM), "int32"), lanes=NUM)


def test_in_floating_point() -> None:
    def kepler(m: jax.Array) -> jax.Array:
        def step(_: int, e: jax.Array) -> jax.Array:
            return e - (e - 0.6 * jnp.sin(e) - m) / (1 - 0.6 * jnp.cos(e))

        return lax.fori_loop(0, 8, step, m)

    x = np.linspace(0, 6, NUM, dtype=np.float32)
    check_lanes(lambda x: lax.map(kepler, x), x, lanes=NUM, tolerance=CLOSE)


@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_several_arrays_in_and_out(dtype: str) -> None:
    def one(row: Any) -> Any:
        a, b = row
        return {"sum": a + b.sum(), "row": b * a}

    a = np.linspace(-1, 1, NUM).astype(dtype)
    b = np.outer(np.linspace(0, 3, NUM), [1, 2, 4]).astype(dtype)
    check(lambda a, b: lax.map(one, (a, b)), a, b, tolerance=CLOSE)


def test_inside_another_loop() -> None:
    """Each step of a training loop maps over samples."""

    def program(x: jax.Array) -> jax.Array:
        def step(w: jax.Array, _: None) -> Any:
            losses = lax.map(lambda row: jnp.sin(row * w).sum(), x)
            return w - 0.01 * losses.mean(), losses.max()

        return lax.scan(step, jnp.float32(0.5), length=3)[1]

    x = np.linspace(-1, 1, 3 * NUM, dtype=np.float32).reshape(NUM, 3)
    check(program, x, fused=None, tolerance=CLOSE)


# Loops whose iterations are no lanes.


def previous_row(x: jax.Array) -> jax.Array:
    """Reads what the iteration before has written."""

    def step(i: jax.Array, out: jax.Array) -> jax.Array:
        return out.at[i].set(out[i - 1] * 3 + x[i])

    return lax.fori_loop(0, NUM, step, x)


def every_other_row(x: jax.Array) -> jax.Array:
    """Leaves some rows as they were."""
    return lax.fori_loop(0, NUM // 2, lambda i, out: out.at[2 * i].set(x[i] * 3), x)


def in_reverse(x: jax.Array) -> Any:
    def step(_: None, row: Any) -> Any:
        return None, row * 3

    return lax.scan(step, None, x, reverse=True)[1]


def carried(x: jax.Array) -> Any:
    return lax.scan(lambda c, row: (c + row, c * row), jnp.zeros_like(x[0]), x)


@pytest.mark.parametrize("program", [previous_row, every_other_row, in_reverse, carried])
def test_dependent_iterations(program: Program) -> None:
    x = linear_values((NUM,), "int32")
    expected = jax.jit(program)(x)
    actual, report = run_and_explain(program, x)
    jax.tree.map(np.testing.assert_array_equal, expected, actual)
    assert all(loop.lanes is None for loop in report.loops)
