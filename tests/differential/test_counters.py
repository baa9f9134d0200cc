"""Counters of small and unsigned types: they go down, wrap around, and others are beside them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.differential.comparison import CLOSE
from tests.differential.harness import check

LANES = 19


def lanes(*shape: int) -> jax.Array:
    return jnp.linspace(-1.0, 1.0, LANES * int(np.prod(shape)), dtype=jnp.float32).reshape(
        *shape, LANES
    )


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32"])
def test_unsigned_counters_that_go_down(dtype: str) -> None:
    kind = jnp.dtype(dtype).type

    def program(x: jax.Array) -> Any:
        def step(state: Any) -> Any:
            i, x, rows = state
            return i - kind(2), 0.9 * x + i.astype(jnp.float32), rows.at[i].set(x)

        start = (jnp.asarray(11, dtype), x, jnp.zeros((12, LANES)))
        return lax.while_loop(lambda state: state[0] >= kind(3), step, start)

    check(program, lanes())


@pytest.mark.parametrize(
    ("dtype", "start", "delta"), [("uint8", 250, 1), ("int8", 120, 3), ("uint8", 9, 255)]
)
def test_counters_that_wrap_around(dtype: str, start: int, delta: int) -> None:
    """Rows are written at a counter of 8 bits, which does not get to all of them."""
    change = np.array(delta).astype(dtype)

    def stacking(x: jax.Array) -> Any:
        def step(state: Any, _: None) -> Any:
            k, x, rows = state
            rows = lax.dynamic_update_index_in_dim(rows, x, k.astype(jnp.int32) - start, 0)
            return (k + change, 0.9 * x + 0.1, rows), None

        state = (jnp.asarray(start, dtype), x, jnp.ones((20, LANES)))
        return lax.scan(step, state, None, length=20)[0]

    def row_by_row(rows: jax.Array) -> Any:
        def step(k: jax.Array, row: jax.Array) -> Any:
            return k + change, jnp.sin(row) * k.astype(jnp.float32)

        return lax.scan(step, jnp.asarray(start, dtype), rows)

    check(stacking, lanes())
    check(row_by_row, lanes(300), tolerance=CLOSE)
