"""Thousands of Lorenz systems integrated side by side; nothing here knows about Fuselane.

python examples/lorenz_ensemble.py                  # plain XLA
FUSELANE=1 python examples/lorenz_ensemble.py       # the same program, fused
fuselane run examples/lorenz_ensemble.py            # fused, with a line about each loop
"""

from __future__ import annotations

import time

import jax
import jax.numpy as jnp

NUM_SYSTEMS = 4096
NUM_STEPS = 5000
TIME_STEP = 0.005


def derivative(state: jax.Array) -> jax.Array:
    """Returns the time derivative of one system, f32[3] to f32[3]."""
    x, y, z = state
    return jnp.array([10.0 * (y - x), x * (28.0 - z) - y, x * y - 8.0 / 3.0 * z])


def advance(state: jax.Array) -> jax.Array:
    """One step of the classical Runge-Kutta method."""
    first = derivative(state)
    second = derivative(state + 0.5 * TIME_STEP * first)
    third = derivative(state + 0.5 * TIME_STEP * second)
    fourth = derivative(state + TIME_STEP * third)
    return state + TIME_STEP / 6.0 * (first + 2.0 * second + 2.0 * third + fourth)


@jax.jit
def integrate(states: jax.Array) -> jax.Array:
    """Advances all systems to the end; f32[systems, 3]."""
    return jax.lax.fori_loop(0, NUM_STEPS, lambda _, s: jax.vmap(advance)(s), states)


if __name__ == "__main__":
    starts = 1.0 + 0.01 * jax.random.normal(jax.random.key(0), (NUM_SYSTEMS, 3))
    integrate(starts).block_until_ready()
    begin = time.perf_counter()
    ends = integrate(starts).block_until_ready()
    print(f"{(time.perf_counter() - begin) * 1e3:.1f} ms, mean height {ends[:, 2].mean():.3f}")
