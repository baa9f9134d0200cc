"""Loops of different kinds, small, for back ends that cannot run or not fast."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax


def _angles(x: jax.Array) -> jax.Array:
    return lax.fori_loop(0, 20, lambda i, x: x + 0.1 * jnp.sin(x) * jnp.exp(-x), x)


def _drawn(x: jax.Array) -> jax.Array:
    def step(carry: tuple[jax.Array, jax.Array], _: None) -> Any:
        x, key = carry
        key, own = jax.random.split(key)
        return (x + jax.random.normal(own, x.shape), key), None

    return lax.scan(step, (x, jax.random.PRNGKey(3)), None, length=6)[0][0]


def _rows(x: jax.Array) -> Any:
    def step(x: jax.Array, row: jax.Array) -> tuple[jax.Array, jax.Array]:
        x = x * 0.5 + row
        return x, x > 0

    return lax.scan(step, x, jnp.arange(5 * x.size, dtype=x.dtype).reshape(5, *x.shape))


def _matrices(x: jax.Array) -> jax.Array:
    state = jnp.stack([x, x + 1, x * 2], axis=1)
    weights = jnp.asarray(np.linspace(-1, 1, 9, dtype=np.float32).reshape(3, 3))
    return lax.fori_loop(0, 7, lambda i, s: jnp.tanh(s @ weights), state)


def _collatz(x: jax.Array) -> jax.Array:
    def one(n: jax.Array) -> jax.Array:
        def step(carry: Any) -> Any:
            n, count = carry
            return jnp.where(n % 2 == 0, n // 2, 3 * n + 1), count + 1

        return lax.while_loop(lambda carry: carry[0] != 1, step, (n, jnp.int32(0)))[1]

    return jax.vmap(one)(jnp.abs(x).astype(jnp.int32) + 1)


def _boards(x: jax.Array) -> jax.Array:
    def one(x: jax.Array) -> jax.Array:
        def step(i: jax.Array, board: jax.Array) -> jax.Array:
            at = (board[i] + i + jnp.abs(x).astype(jnp.int32)) % 9
            return board.at[at].add(i + 1)

        return lax.fori_loop(0, 8, step, jnp.zeros(9, jnp.int32))

    return jax.vmap(one)(x)


def _totals(x: jax.Array) -> Any:
    def step(x: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
        x = x * 1.01 + 0.5
        return x, x.sum()

    return lax.scan(step, x, None, length=6)


def _means(x: jax.Array) -> Any:
    """Lanes that meet three times a step, in floats, truth values and positions."""

    def step(carry: Any, _: None) -> Any:
        x, count = carry
        count = count + jnp.any(x > 4).astype(jnp.int32)
        x = x * 0.9 + jnp.mean(x) - 0.1 * jnp.max(x) + count
        return (x, count), x.min()

    return lax.scan(step, (x, jnp.int32(0)), None, length=6)


def _guarded(x: jax.Array) -> jax.Array:
    def step(i: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.where(x > 30, jnp.log1p(jnp.abs(x)) ** 1.3, x * 1.3 + 0.2)

    return lax.fori_loop(0, 25, step, x)


def _sorted(x: jax.Array) -> jax.Array:
    state = jnp.stack([x, -x, x * 2, 1 - x], axis=1)
    return lax.fori_loop(0, 4, lambda i, s: jnp.sort(s * 0.9 + i, axis=1)[:, ::-1], state)


def picking(
    size: int, dtype: str = "int32", num_steps: int = 500
) -> Callable[[jax.Array], jax.Array]:
    """Returns a loop whose lanes each change an array of their own at places of their own."""

    def one(x: jax.Array) -> jax.Array:
        def step(i: jax.Array, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            board, at = carry
            at = (at * 5 + board[at].astype(jnp.int32) + i) % size
            return board.at[at].add((i + 1).astype(board.dtype)), at

        start = jnp.abs(x * 7).astype(jnp.int32) % size
        return lax.fori_loop(0, num_steps, step, (jnp.zeros(size, dtype), start))[0]

    return jax.vmap(one)


def attracting(x: jax.Array) -> Any:
    """Bodies on a line, all pairs of them."""

    def step(carry: tuple[jax.Array, jax.Array], _: None) -> Any:
        x, v = carry
        offsets = x[None] - x[:, None]
        v = v + 1e-3 * (offsets / (offsets**2 + 0.1)).sum(1)
        return (x + 1e-2 * v, v), x.max()

    return lax.scan(step, (x, jnp.zeros_like(x)), None, length=7)


def neighbouring(x: jax.Array) -> jax.Array:
    """Cells on a ring, and what each has of its own in three places."""

    def step(i: jax.Array, rows: jax.Array) -> jax.Array:
        around = jnp.roll(rows, 1, axis=0) + jnp.roll(rows, -1, axis=0)
        return rows * 0.5 + jnp.tanh(around[:, ::-1]) * 0.25 + i

    return lax.fori_loop(0, 7, step, jnp.stack([x, x + 1, -x], axis=1))


def mating(x: jax.Array) -> Any:
    """Individuals crossed with partners drawn at random, by a random number of all and of each."""

    def step(carry: tuple[jax.Array, jax.Array], _: None) -> Any:
        x, key = carry
        key, partners, mixing = jax.random.split(key, 3)
        others = jax.random.randint(partners, x.shape, 0, x.size)
        is_mixed = jax.random.uniform(mixing, x.shape) < 0.5
        x = jnp.where(is_mixed, x[others] * 0.9, x)
        return (x, key), x.min()

    return lax.scan(step, (x, jax.random.PRNGKey(5)), None, length=6)


CROWDS: Final[Mapping[str, Callable[[jax.Array], Any]]] = {
    "attracting": attracting,
    "neighbouring": neighbouring,
    "mating": mating,
}
"""Functions of an f32 array whose lanes see each other."""

LOOPS: Final[Mapping[str, Callable[[jax.Array], Any]]] = {
    "angles": _angles,
    "drawn": _drawn,
    "rows": _rows,
    "matrices": _matrices,
    "collatz": _collatz,
    "boards": _boards,
    "totals": _totals,
    "means": _means,
    "guarded": _guarded,
    "sorted": _sorted,
}
"""Functions of an f32 array of one dimension, the lanes."""
