"""Loops of one instance, such as one chain of samples: taken because their steps are short."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.differential.comparison import CLOSE
from tests.differential.harness import check, explain

KEY = np.array([3, 7], np.uint32)


def metropolis(x: jax.Array, y: jax.Array, key: jax.Array) -> Any:
    """A regression's chain: what it draws is written down, a row of many in each step."""

    def log_density(w: jax.Array) -> jax.Array:
        return -jnp.sum(jnp.square(y - x @ w))

    def step(carry: tuple[jax.Array, jax.Array], key: jax.Array) -> Any:
        w, old = carry
        for_step, for_choice = jax.random.split(key)
        proposed = w + 0.1 * jax.random.normal(for_step, (3,))
        new = log_density(proposed)
        is_taken = jnp.log(jax.random.uniform(for_choice)) < new - old
        w = jnp.where(is_taken, proposed, w)
        return (w, jnp.where(is_taken, new, old)), w

    w = jnp.zeros(3)
    keys = jax.random.split(jax.random.wrap_key_data(key), 400)
    return lax.scan(step, (w, log_density(w)), keys)[1]


@pytest.mark.for_cpus
def test_a_chain_of_samples_is_worth_a_kernel() -> None:
    x = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
    arguments = (x, x @ np.array([1, 2, 3], np.float32), KEY)
    report = explain(metropolis, *arguments)
    # From 0.12 on XLA makes one function of the loop, and pays for no dispatch in it.
    least = 3.0 if jax.__version_info__ < (0, 12) else 1.2
    assert max(loop.decision.numbers.get("gain", 0.0) for loop in report.loops) > least
    check(metropolis, *arguments, tolerance=CLOSE)


def align(a: jax.Array, b: jax.Array) -> jax.Array:
    """An alignment's score by antidiagonals, made of neighbours in the last two and of letters that
    are picked for each."""
    size = a.shape[0]
    row = jnp.arange(size + 1)

    def step(carry: tuple[jax.Array, jax.Array], number: jax.Array) -> Any:
        last, before = carry
        column = number - row
        first, second = (x[jnp.clip(at - 1, 0, size - 1)] for x, at in ((a, row), (b, column)))
        both = jnp.roll(before, 1) + jnp.where(first == second, 1, -1)
        best = jnp.maximum(both, jnp.maximum(jnp.roll(last, 1), last) - 1)
        best = jnp.where((row == 0) | (column == 0), -number, best)
        best = jnp.where((column < 0) | (column > size), -10000, best)
        return (best, last), best[size]

    start = jnp.where(row == 0, 0, -10000)
    return lax.scan(step, (start, start), jnp.arange(1, 2 * size + 1))[1]


def jump(parent: jax.Array) -> jax.Array:
    """Forests become flat: each element is picked where the one before has pointed to."""
    return lax.fori_loop(0, 9, lambda _, p: p[p[p]] + jnp.roll(p, 1) % 3, parent)


def test_elements_that_are_picked_from_what_the_last_step_made() -> None:
    letters = np.random.default_rng(0).integers(0, 4, (2, 150)).astype(np.int32)
    check(align, *letters)
    parent = np.minimum(np.arange(700), np.random.default_rng(1).integers(0, 700, 700))
    check(jump, parent.astype(np.int32))
