"""Monte Carlo over paths, with the normals drawn inside the loop."""

from __future__ import annotations

from typing import Any, Final

import jax
import jax.numpy as jnp

from programs.program import Built, Program, Rule, Size

CATEGORY: Final = "monte carlo"


def build_geometric_brownian_motion(size: Size) -> Built:
    """Terminal prices under geometric Brownian motion, logarithms stepped."""
    step_years = 1.0 / size.steps

    def simulate(key: jax.Array, spot: jax.Array, volatility: jax.Array) -> jax.Array:
        drift = (0.03 - 0.5 * volatility**2) * step_years

        def step(_: Any, carry: Any) -> Any:
            key, logarithm = carry
            key, draw = jax.random.split(key)
            normal = jax.random.normal(draw, (size.lanes,))
            return key, logarithm + drift + volatility * jnp.sqrt(step_years) * normal

        start = key, jnp.full(size.lanes, jnp.log(spot))
        return jnp.exp(jax.lax.fori_loop(0, size.steps, step, start)[1])

    return simulate, (jax.random.key(0), jnp.float32(100.0), jnp.float32(0.2))


def build_heston(size: Size) -> Built:
    """Heston's stochastic volatility, full truncation Euler; returns a call's price and error."""
    kappa, theta, xi, rho, rate = 2.0, 0.04, 0.3, -0.7, 0.02
    dt = 1.0 / size.steps

    def price(key: jax.Array, spot: jax.Array) -> Any:
        def step(carry: Any, step_key: jax.Array) -> Any:
            log_price, variance = carry
            first, second = jax.random.normal(step_key, (2, size.lanes))
            second = rho * first + jnp.sqrt(1 - rho**2) * second
            positive = jnp.maximum(variance, 0.0)
            root = jnp.sqrt(positive * dt)
            log_price = log_price + (rate - 0.5 * positive) * dt + root * first
            variance = variance + kappa * (theta - positive) * dt + xi * root * second
            return (log_price, variance), None

        start = jnp.full(size.lanes, jnp.log(spot)), jnp.full(size.lanes, theta)
        (log_price, _), _ = jax.lax.scan(step, start, jax.random.split(key, size.steps))
        payoff = jnp.exp(-rate) * jnp.maximum(jnp.exp(log_price) - 100.0, 0.0)
        return payoff.mean(), payoff.std() / jnp.sqrt(size.lanes), log_price

    return price, (jax.random.key(1), jnp.float32(100.0))


def build_ornstein_uhlenbeck(size: Size) -> Built:
    """Euler-Maruyama, one path mapped over keys: each lane draws with its own key."""

    def simulate(key: jax.Array, mean: jax.Array) -> jax.Array:
        def step(i: jax.Array, x: jax.Array) -> jax.Array:
            noise = jax.random.normal(jax.random.fold_in(key, i))
            return x + 0.7 * (mean - x) * 0.01 + 0.3 * jnp.sin(x) * 0.1 * noise

        return jax.lax.fori_loop(0, size.steps, step, jnp.float32(0.5))

    keys = jax.random.split(jax.random.key(2), size.lanes)
    return jax.vmap(simulate), (keys, jnp.linspace(0.5, 2.0, size.lanes))


def build_asian_option(size: Size) -> Built:
    """An Asian and a lookback option from one set of paths: only means leave the program."""
    day = 1.0 / 252

    def price(key: jax.Array) -> Any:
        def step(carry: Any, _: None) -> Any:
            key, logarithm, total, highest = carry
            key, draw = jax.random.split(key)
            normal = jax.random.normal(draw, logarithm.shape)
            logarithm = logarithm + 0.01 * day + 0.2 * jnp.sqrt(day) * normal
            spot = jnp.exp(logarithm)
            return (key, logarithm, total + spot, jnp.maximum(highest, spot)), None

        start = jnp.full(size.lanes, jnp.log(100.0))
        carry = (key, start, jnp.zeros(size.lanes), jnp.full(size.lanes, 100.0))
        (_, _, total, highest), _ = jax.lax.scan(step, carry, length=size.steps)
        asian = jnp.maximum(total / size.steps - 100.0, 0.0)
        return asian.mean(), asian.var(), (highest - 100.0).mean()

    return price, (jax.random.key(3),)


def build_mean_path(size: Size) -> Built:
    """Mean and variance over paths leave the loop at each step."""

    def simulate(key: jax.Array) -> Any:
        def step(x: jax.Array, step_key: jax.Array) -> Any:
            x = x + 0.05 * (1.0 - x) + 0.1 * jax.random.normal(step_key, x.shape)
            return x, (x.mean(), jnp.square(x).mean(), x.max())

        return jax.lax.scan(step, jnp.zeros(size.lanes), jax.random.split(key, size.steps))[1]

    return simulate, (jax.random.key(4),)


def build_jump_diffusion(size: Size) -> Built:
    """Merton's jumps: whether a jump happens is drawn by a uniform, its size by a normal."""

    def simulate(key: jax.Array) -> Any:
        def step(carry: Any, step_key: jax.Array) -> Any:
            x, num_jumps = carry
            jump_key, size_key, noise_key = jax.random.split(step_key, 3)
            jumps = jax.random.bernoulli(jump_key, 0.02, x.shape)
            jump = -0.1 + 0.15 * jax.random.normal(size_key, x.shape)
            x = x + 0.01 * jax.random.normal(noise_key, x.shape) + jnp.where(jumps, jump, 0.0)
            return (x, num_jumps + jumps), None

        start = jnp.zeros(size.lanes), jnp.zeros(size.lanes, jnp.int32)
        return jax.lax.scan(step, start, jax.random.split(key, size.steps))[0]

    return simulate, (jax.random.key(5),)


_QUICK: Final = Size(lanes=100, steps=10)
_FULL: Final = Size(lanes=10_000, steps=252)
_SUMS: Final = Rule(relative=1e-4)

PROGRAMS: Final = (
    Program(
        name="monte-carlo/gbm",
        category=CATEGORY,
        build=build_geometric_brownian_motion,
        full=_FULL,
        quick=_QUICK,
        target=6.0,
        rule=_SUMS,
    ),
    Program(
        name="monte-carlo/gbm-many-paths",
        category=CATEGORY,
        build=build_geometric_brownian_motion,
        full=Size(lanes=200_000, steps=50),
        quick=_QUICK,
        rule=_SUMS,
    ),
    Program(
        name="monte-carlo/heston",
        category=CATEGORY,
        build=build_heston,
        full=_FULL,
        quick=_QUICK,
        target=6.0,
        rule=Rule(relative=1e-3, share_apart=1e-3),
    ),
    Program(
        name="monte-carlo/ornstein-uhlenbeck",
        category=CATEGORY,
        build=build_ornstein_uhlenbeck,
        full=Size(lanes=16_384, steps=500),
        quick=_QUICK,
        target=6.0,
        rule=_SUMS,
    ),
    Program(
        name="monte-carlo/asian-option",
        category=CATEGORY,
        build=build_asian_option,
        full=_FULL,
        quick=_QUICK,
        target=6.0,
        rule=_SUMS,
    ),
    Program(
        name="monte-carlo/mean-path",
        category=CATEGORY,
        build=build_mean_path,
        full=_FULL,
        quick=_QUICK,
        target=6.0,
        rule=_SUMS,
    ),
    Program(
        name="monte-carlo/jump-diffusion",
        category=CATEGORY,
        build=build_jump_diffusion,
        full=_FULL,
        quick=_QUICK,
        target=6.0,
        rule=_SUMS,
    ),
)
