"""Markov chain Monte Carlo: many chains side by side."""

from __future__ import annotations

import functools
from typing import Any, Final

import jax
import jax.numpy as jnp

from programs.program import Built, Program, Rule, Size, load

CATEGORY: Final = "mcmc"


def banana(position: jax.Array) -> jax.Array:
    """Rosenbrock's density in the plane, up to a constant."""
    x, y = position[..., 0], position[..., 1]
    return -0.5 * jnp.square(1.0 - x) - 2.0 * jnp.square(y - jnp.square(x))


def build_metropolis(size: Size) -> Built:
    """Random-walk Metropolis, all chains in one array, one key per step."""

    def sample(key: jax.Array, start: jax.Array) -> Any:
        def step(carry: Any, step_key: jax.Array) -> Any:
            position, log_density, num_accepted = carry
            move_key, accept_key = jax.random.split(step_key)
            proposal = position + 0.5 * jax.random.normal(move_key, position.shape)
            proposed = banana(proposal)
            uniform = jax.random.uniform(accept_key, log_density.shape)
            accepts = jnp.log(uniform) < proposed - log_density
            position = jnp.where(accepts[:, None], proposal, position)
            log_density = jnp.where(accepts, proposed, log_density)
            return (position, log_density, num_accepted + accepts), None

        carry = start, banana(start), jnp.zeros(size.lanes, jnp.int32)
        return jax.lax.scan(step, carry, jax.random.split(key, size.steps))[0]

    return sample, (jax.random.key(0), jnp.zeros((size.lanes, 2)))


def build_metropolis_chains(size: Size) -> Built:
    """One chain as its author wrote it, with samples kept, mapped over keys."""

    def chain(key: jax.Array, start: jax.Array) -> jax.Array:
        def step(carry: Any, _: None) -> Any:
            key, position, log_density = carry
            key, move_key, accept_key = jax.random.split(key, 3)
            proposal = position + 0.5 * jax.random.normal(move_key, (2,))
            proposed = banana(proposal)
            accepts = jnp.log(jax.random.uniform(accept_key)) < proposed - log_density
            position, log_density = jax.lax.cond(
                accepts, lambda: (proposal, proposed), lambda: (position, log_density)
            )
            return (key, position, log_density), position

        return jax.lax.scan(step, (key, start, banana(start)), length=size.steps)[1]

    keys = jax.random.split(jax.random.key(1), size.lanes)
    return jax.vmap(chain), (keys, jnp.zeros((size.lanes, 2)))


def build_ising(size: Size) -> Built:
    """The Ising model by checkerboard updates: the lattice mixes, so its sites are no lanes, but
    the lattices are."""
    side = 16

    def sweep(spins: jax.Array, step_key: jax.Array) -> Any:
        parity = (jnp.arange(side)[:, None] + jnp.arange(side)[None, :]) % 2
        for color in range(2):
            rolled = [jnp.roll(spins, shift, axis) for shift in (-1, 1) for axis in (1, 2)]
            neighbours = jnp.stack(rolled).sum(axis=0)
            chance = jax.nn.sigmoid(2.0 * 0.4 * neighbours.astype(jnp.float32))
            draw = jax.random.uniform(jax.random.fold_in(step_key, color), spins.shape)
            flipped = jnp.where(draw < chance, jnp.int32(1), jnp.int32(-1))
            spins = jnp.where(parity == color, flipped, spins)
        return spins, None

    def simulate(key: jax.Array, spins: jax.Array) -> jax.Array:
        return jax.lax.scan(sweep, spins, jax.random.split(key, size.steps))[0]

    return simulate, (jax.random.key(2), jnp.ones((size.lanes, side, side), jnp.int32))


def build_blackjax(algorithm: str, size: Size) -> Built:
    """A sampler of blackjax, one chain per lane, on a Gaussian with ten correlated dimensions."""
    blackjax = load("blackjax")
    num_dimensions = 10

    def log_density(position: jax.Array) -> jax.Array:
        differences = position[1:] - 0.9 * position[:-1]
        return -0.5 * (position[0] ** 2 + jnp.sum(differences**2) / 0.19)

    inverse_mass = jnp.ones(num_dimensions)
    if algorithm == "hmc":
        kernel = blackjax.hmc(log_density, 0.1, inverse_mass, num_integration_steps=10)
    else:
        kernel = blackjax.nuts(log_density, 0.1, inverse_mass, max_num_doublings=5)

    def chain(key: jax.Array, start: jax.Array) -> Any:
        def step(state: Any, step_key: jax.Array) -> Any:
            state, info = kernel.step(step_key, state)
            return state, info.is_divergent

        state, diverged = jax.lax.scan(step, kernel.init(start), jax.random.split(key, size.steps))
        return state.position, diverged.sum()

    keys = jax.random.split(jax.random.key(3), size.lanes)
    starts = jax.random.normal(jax.random.key(4), (size.lanes, num_dimensions))
    return jax.vmap(chain), (keys, starts)


# An acceptance that rounding turned sends a chain another way until it is forgotten.
_ACCEPTANCE: Final = Rule(relative=1e-3, share_apart=0.02, early_steps=10)

PROGRAMS: Final = (
    Program(
        name="mcmc/metropolis",
        category=CATEGORY,
        build=build_metropolis,
        full=Size(lanes=16_384, steps=200),
        quick=Size(lanes=50, steps=10),
        target=5.0,
        rule=_ACCEPTANCE,
    ),
    Program(
        name="mcmc/metropolis-chains",
        category=CATEGORY,
        build=build_metropolis_chains,
        full=Size(lanes=4096, steps=200),
        quick=Size(lanes=50, steps=10),
        target=5.0,
        rule=_ACCEPTANCE,
    ),
    Program(
        name="mcmc/ising",
        category=CATEGORY,
        build=build_ising,
        full=Size(lanes=256, steps=50),
        quick=Size(lanes=5, steps=5),
        rule=Rule(share_apart=0.01),
    ),
    Program(
        name="mcmc/blackjax-hmc",
        category=CATEGORY,
        build=functools.partial(build_blackjax, "hmc"),
        full=Size(lanes=2048, steps=100),
        quick=Size(lanes=20, steps=5),
        target=5.0,
        requires=("blackjax",),
        rule=_ACCEPTANCE,
    ),
    Program(
        name="mcmc/blackjax-nuts",
        category=CATEGORY,
        build=functools.partial(build_blackjax, "nuts"),
        full=Size(lanes=256, steps=20),
        quick=Size(lanes=8, steps=2),
        requires=("blackjax",),
        rule=Rule(relative=1e-2, share_apart=0.1, early_steps=2),
    ),
)
