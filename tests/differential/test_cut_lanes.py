"""Lanes that are cut into parts or put together from them: pairs, halves, fours of random bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.differential.comparison import CLOSE
from tests.differential.harness import Program, check, linear_values
from tests.differential.test_lane_dimensions import check_lanes

NUM: Final = 24


def antithetic(x: jax.Array, i: jax.Array) -> jax.Array:
    z = (jnp.arange(NUM, dtype=jnp.int32) * 7 + i) % 11
    return x * 3 + jnp.concatenate([z, -z])


def halves(x: jax.Array, i: jax.Array) -> jax.Array:
    a, b = x[:NUM], x[NUM:]
    return jnp.concatenate([a + b * i, b - 2 * a])


def thirds(x: jax.Array, i: jax.Array) -> jax.Array:
    a, b = x[: NUM // 3 * 2], x[NUM // 3 * 2 :]
    return jnp.concatenate([b, a]) * 3 + i


def evens_and_odds(x: jax.Array, i: jax.Array) -> jax.Array:
    even, odd = x[::2], x[1::2]
    return jnp.stack([odd * 3 + i, even], axis=1).reshape(-1)


def numbered(x: jax.Array, i: jax.Array) -> jax.Array:
    return halves(x, i) + jnp.arange(2 * NUM)


def turned_in_pairs(x: jax.Array, i: jax.Array) -> jax.Array:
    pairs = x.reshape(NUM, 2)
    return (pairs[:, ::-1] * 3 + i).reshape(-1)


def turned_as_a_whole(x: jax.Array, i: jax.Array) -> jax.Array:
    """Rows are turned round where they lie in a row, which no cut can follow."""
    flat = (x * 3 + i).reshape(-1)
    return lax.rev(flat, (0,)).reshape(x.shape) + lax.rev(x[::-1].reshape(-1), (0,)).reshape(
        x.shape
    )


def totals_of_pairs(x: jax.Array, i: jax.Array) -> jax.Array:
    return x * 3 + jnp.repeat(x.reshape(NUM, 2).sum(1), 2) + i


def squeezed(x: jax.Array, i: jax.Array) -> jax.Array:
    """Features are sorted and rolled, padded and cut off while the lanes are cut."""
    x = jnp.concatenate([x[NUM:], x[:NUM] * 3])
    x = jnp.roll(jnp.sort(x ^ i, axis=1), 1, axis=1)
    return jnp.pad(x[:, 1:], ((0, 0), (0, 1))) + x[:, ::-1] + x.max(1, keepdims=True)


def products(x: jax.Array, i: jax.Array) -> jax.Array:
    weights = jnp.arange(9, dtype=x.dtype).reshape(3, 3) - 4
    return jnp.concatenate([x[NUM:] @ weights, x[:NUM] - i])


def updated(x: jax.Array, i: jax.Array) -> jax.Array:
    x = jnp.concatenate([x[NUM:], x[:NUM] + 1])
    row = lax.dynamic_index_in_dim(x, i % 3, 1)
    return lax.dynamic_update_slice(x, row * 2 + i, (0, (i + 1) % 3))


def while_inside(x: jax.Array, i: jax.Array) -> jax.Array:
    x = halves(x, i)
    return lax.while_loop(
        lambda y: jnp.any(y % 7 != 0), lambda y: jnp.where(y % 7 != 0, y + 1, y), x
    )


# A body, the shape of what it is done to, and the number of lanes.
BODIES: Final[dict[str, tuple[Program, tuple[int, ...], int]]] = {
    "antithetic": (antithetic, (2 * NUM,), NUM),
    "halves": (halves, (2 * NUM,), NUM),
    "evens_and_odds": (evens_and_odds, (2 * NUM,), NUM),
    "numbered": (numbered, (2 * NUM,), NUM),
    "turned_in_pairs": (turned_in_pairs, (2 * NUM,), NUM),
    "totals_of_pairs": (totals_of_pairs, (2 * NUM,), NUM),
    "squeezed": (squeezed, (2 * NUM, 3), NUM),
    "products": (products, (2 * NUM, 3), NUM),
    "updated": (updated, (2 * NUM, 3), NUM),
    "while_inside": (while_inside, (2 * NUM,), NUM),
    "thirds": (thirds, (2 * NUM * 2,), 2 * NUM // 3),
}


def repeat(body: Callable[..., jax.Array], steps: int = 5) -> Program:
    return lambda x: lax.fori_loop(0, steps, lambda i, x: body(x, i), x)


@pytest.mark.parametrize("name", BODIES)
def test_bodies(name: str) -> None:
    body, shape, lanes = BODIES[name]
    check_lanes(repeat(body), linear_values(shape, "int32"), lanes=lanes)


def test_cuts_that_lead_nowhere() -> None:
    program = repeat(turned_as_a_whole)
    check(program, linear_values((NUM, 2), "int32"), fused=None)
    check(program, linear_values((NUM, 2, 3), "int32"), fused=None)


def test_rows_in_and_out() -> None:
    def step(x: jax.Array, row: jax.Array) -> Any:
        x = halves(x, jnp.int32(2)) + row
        return x, (x, x[:NUM])

    x, rows = linear_values((2 * NUM,), "int32"), linear_values((5, 2 * NUM), "int32")
    check_lanes(lambda x, rows: lax.scan(step, x, rows), x, rows, lanes=NUM)


def test_totals_leave() -> None:
    def step(x: jax.Array, i: jax.Array) -> Any:
        x = halves(x, i)
        return x, (x.sum(), x[:NUM].max(), x[0])

    x = linear_values((2 * NUM,), "int32")
    check_lanes(lambda x: lax.scan(step, x, jnp.arange(5)), x, lanes=NUM)


def test_merged_inside_only() -> None:
    """Each lane has four elements of a flat array that a loop inside works on."""

    def step(i: jax.Array, x: jax.Array) -> jax.Array:
        flat = (x * 3 + i).reshape(-1)
        return lax.fori_loop(0, 4, lambda _, y: y * y % 101 + 1, flat).reshape(x.shape)

    x = linear_values((NUM, 4), "int32")
    check_lanes(lambda x: lax.fori_loop(0, 5, step, x + x[:, ::-1]), x, lanes=4 * NUM)

    def mixing(i: jax.Array, x: jax.Array) -> jax.Array:
        return step(i, x + x.sum(1, keepdims=True))

    check_lanes(lambda x: lax.fori_loop(0, 5, mixing, x), x, lanes=NUM)


@pytest.mark.parametrize("kind", ["rbg", "unsafe_rbg"])
def test_normals_of_the_other_generators(kind: str) -> None:
    def program(key: Any) -> jax.Array:
        def step(s: jax.Array, key: Any) -> Any:
            return s * jnp.exp(0.1 * jax.random.normal(key, s.shape)), None

        return lax.scan(step, jnp.ones(64), jax.random.split(key, 4))[0]

    check(lambda: program(jax.random.key(3, impl=kind)), fused=None, tolerance=CLOSE)


def test_parts_of_different_sizes_stay() -> None:
    """Seven and nine have no part in common."""

    def step(i: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.concatenate([x[7:] * 3 + i, x[:7]])

    check(lambda x: lax.fori_loop(0, 5, step, x), np.arange(16, dtype=np.int32), fused=None)
