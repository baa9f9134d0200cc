"""The price of an Asian option by Monte Carlo: random numbers drawn inside the loop.

python examples/option_price.py
fuselane run examples/option_price.py
"""

from __future__ import annotations

import time

import jax
import jax.numpy as jnp

NUM_PATHS = 100_000
NUM_DAYS = 252
SPOT, STRIKE, RATE, VOLATILITY = 100.0, 105.0, 0.03, 0.2


@jax.jit
def price(key: jax.Array) -> jax.Array:
    """Returns the discounted mean payoff of a call on the average price over a year."""
    day = 1.0 / NUM_DAYS
    drift = (RATE - 0.5 * VOLATILITY**2) * day

    def step(
        carry: tuple[jax.Array, jax.Array, jax.Array], _: None
    ) -> tuple[tuple[jax.Array, jax.Array, jax.Array], None]:
        key, logarithm, total = carry
        key, draw = jax.random.split(key)
        shock = VOLATILITY * jnp.sqrt(day) * jax.random.normal(draw, logarithm.shape)
        logarithm = logarithm + drift + shock
        return (key, logarithm, total + jnp.exp(logarithm)), None

    start = (key, jnp.full(NUM_PATHS, jnp.log(SPOT)), jnp.zeros(NUM_PATHS))
    (_, _, total), _ = jax.lax.scan(step, start, length=NUM_DAYS)
    return jnp.exp(-RATE) * jnp.maximum(total / NUM_DAYS - STRIKE, 0.0).mean()


if __name__ == "__main__":
    price(jax.random.key(0)).block_until_ready()
    begin = time.perf_counter()
    value = price(jax.random.key(1)).block_until_ready()
    print(f"{(time.perf_counter() - begin) * 1e3:.1f} ms, price {value:.4f}")
