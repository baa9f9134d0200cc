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
