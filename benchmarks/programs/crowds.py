"""One system whose parts see each other: bodies, oscillators, populations, spins."""

from __future__ import annotations

from typing import Any, Final

import jax
import jax.numpy as jnp

from programs.program import EXACT, Built, Program, Rule, Size

CATEGORY: Final = "crowds"


def build_n_body(size: Size) -> Built:
    """Bodies that attract each other, all pairs; every position is kept."""

    def simulate(positions: jax.Array, masses: jax.Array) -> Any:
        def step(carry: Any, _: None) -> Any:
            x, v = carry
            offsets = x[None] - x[:, None]
            squares = (offsets**2).sum(-1) + 0.01
            v = v + 1e-3 * (offsets * (masses / squares**1.5)[..., None]).sum(1)
            return (x + 1e-3 * v, v), x

        return jax.lax.scan(step, (positions, jnp.zeros_like(positions)), length=size.steps)

    key = jax.random.key(0)
    return simulate, (
        jax.random.normal(key, (size.lanes, 3)),
        jax.random.uniform(key, (size.lanes,)) + 0.5,
    )


def build_oscillators(size: Size) -> Built:
    """Kuramoto's oscillators, each coupled to all; the order they reach is kept."""

    def simulate(phases: jax.Array, rates: jax.Array) -> Any:
        def step(phases: jax.Array, _: None) -> Any:
            pulls = jnp.sin(phases[None] - phases[:, None]).mean(1)
            phases = phases + 0.02 * (rates + 2.0 * pulls)
            return phases, jnp.abs(jnp.exp(1j * phases).mean())

        return jax.lax.scan(step, phases, length=size.steps)

    key = jax.random.key(0)
    return simulate, (
        jax.random.uniform(key, (size.lanes,), maxval=6.28),
        jax.random.normal(key, (size.lanes,)),
    )


def build_mean_shift(size: Size) -> Built:
    """Points that climb the density of all of them, as they were at the start."""

    def climb(points: jax.Array) -> jax.Array:
        def step(_: Any, x: jax.Array) -> jax.Array:
            weights = jnp.exp(-2.0 * ((x[:, None] - points[None]) ** 2).sum(-1))
            return (weights[..., None] * points[None]).sum(1) / weights.sum(1, keepdims=True)

        return jax.lax.fori_loop(0, size.steps, step, points)

    return climb, (jax.random.normal(jax.random.key(0), (size.lanes, 2)),)


def build_differential_evolution(size: Size) -> Built:
    """A population each of which is crossed with others drawn at random (Rastrigin's function)."""

    def cost(x: jax.Array) -> jax.Array:
        return (x**2 - 10.0 * jnp.cos(2.0 * jnp.pi * x) + 10.0).sum(-1)

    def evolve(population: jax.Array, key: jax.Array) -> Any:
        def step(carry: Any, key: jax.Array) -> Any:
            x, costs = carry
            of_partners, of_mixing = jax.random.split(key)
            a, b, c = jax.random.randint(of_partners, (3, size.lanes), 0, size.lanes)
            is_mixed = jax.random.uniform(of_mixing, x.shape) < 0.9
            trial = jnp.where(is_mixed, x[a] + 0.7 * (x[b] - x[c]), x)
            is_better = cost(trial) < costs
            x = jnp.where(is_better[:, None], trial, x)
            return (x, jnp.where(is_better, cost(trial), costs)), costs.min()

        keys = jax.random.split(key, size.steps)
        return jax.lax.scan(step, (population, cost(population)), keys)

    key = jax.random.key(0)
    return evolve, (3.0 * jax.random.normal(key, (size.lanes, 6)), jax.random.key(1))


def build_ising(size: Size) -> Built:
    """Spins on a torus, the two colours of its checkerboard in turns."""

    def relax(spins: jax.Array, key: jax.Array) -> Any:
        rows, columns = jnp.indices(spins.shape)
        colours = (rows + columns) % 2

        def step(spins: jax.Array, key: jax.Array) -> Any:
            for colour, part in enumerate(jax.random.split(key)):
                around = sum(jnp.roll(spins, by, axis) for by in (1, -1) for axis in (0, 1))
                chance = jnp.exp(-0.9 * spins * around)
                is_flipped = (colours == colour) & (jax.random.uniform(part, spins.shape) < chance)
                spins = jnp.where(is_flipped, -spins, spins)
            return spins, spins.mean()

        return jax.lax.scan(step, spins, jax.random.split(key, size.steps))

    side = max(4, int(size.lanes**0.5))
    spins = jnp.sign(jax.random.normal(jax.random.key(0), (side, side)))
    return relax, (spins, jax.random.key(1))


PROGRAMS: Final = (
    Program(
        name="crowd/n-body",
        category=CATEGORY,
        build=build_n_body,
        full=Size(lanes=100, steps=200),
        quick=Size(lanes=12, steps=5),
        rule=Rule(relative=1e-4),
    ),
    Program(
        name="crowd/oscillators",
        category=CATEGORY,
        build=build_oscillators,
        full=Size(lanes=128, steps=300),
        quick=Size(lanes=16, steps=5),
        rule=Rule(relative=1e-3),
    ),
    Program(
        name="crowd/mean-shift",
        category=CATEGORY,
        build=build_mean_shift,
        full=Size(lanes=300, steps=50),
        quick=Size(lanes=20, steps=5),
        rule=Rule(relative=1e-4),
    ),
    Program(
        name="crowd/differential-evolution",
        category=CATEGORY,
        build=build_differential_evolution,
        full=Size(lanes=128, steps=300),
        quick=Size(lanes=16, steps=5),
        rule=Rule(relative=1e-5),
    ),
    Program(
        name="crowd/ising",
        category=CATEGORY,
        build=build_ising,
        full=Size(lanes=1024, steps=200),
        quick=Size(lanes=64, steps=5),
        rule=EXACT,
    ),
)
