"""Ensembles of ordinary differential equations: Runge-Kutta by hand, and diffrax unmodified."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

import jax
import jax.numpy as jnp

from programs.program import Built, Program, Rule, Size, load

CATEGORY: Final = "ode"
Field = Callable[[Any, Any], Any]


def runge_kutta(field: Field, dt: float, state: Any, parameters: Any) -> Any:
    """One step of the classical method on a pytree."""

    def shifted(factor: float, slope: Any) -> Any:
        return jax.tree.map(lambda x, k: x + factor * k, state, slope)

    k1 = field(state, parameters)
    k2 = field(shifted(0.5 * dt, k1), parameters)
    k3 = field(shifted(0.5 * dt, k2), parameters)
    k4 = field(shifted(dt, k3), parameters)
    return jax.tree.map(
        lambda x, a, b, c, d: x + dt / 6.0 * (a + 2.0 * b + 2.0 * c + d), state, k1, k2, k3, k4
    )


def lorenz(state: jax.Array, parameters: jax.Array) -> jax.Array:
    """The Lorenz system, f32[3]; the parameter is its rho."""
    x, y, z = state
    return jnp.stack([10.0 * (y - x), x * (parameters - z) - y, x * y - 8.0 / 3.0 * z])


def lotka_volterra(state: Any, parameters: Any) -> Any:
    """Prey and predators, as a pair of scalars; four rates."""
    prey, predators = state
    alpha, beta, gamma, delta = parameters
    return prey * (alpha - beta * predators), predators * (delta * prey - gamma)


def double_pendulum(state: Any, mass: jax.Array) -> Any:
    """Two pendulums of unit length, the first of unit mass; a dictionary of pairs."""
    first, second = state["angle"]
    speed1, speed2 = state["speed"]
    difference = first - second
    sine, cosine = jnp.sin(difference), jnp.cos(difference)
    both = 1.0 + mass
    scale = both - mass * cosine**2
    turn1 = (
        mass * cosine * (9.81 * jnp.sin(second) - speed1**2 * sine)
        - mass * speed2**2 * sine
        - both * 9.81 * jnp.sin(first)
    )
    turn2 = (
        both * (speed1**2 * sine - 9.81 * jnp.sin(second) + 9.81 * jnp.sin(first) * cosine)
        + mass * speed2**2 * sine * cosine
    )
    return {
        "angle": jnp.stack([speed1, speed2]),
        "speed": jnp.stack([turn1 / scale, turn2 / scale]),
    }


def make_ensemble(field: Field, dt: float, size: Size) -> Callable[[Any, Any], Any]:
    """Returns a function that advances each lane's system by all steps."""

    def integrate(state: Any, parameters: Any) -> Any:
        def step(state: Any, _: None) -> Any:
            return runge_kutta(field, dt, state, parameters), None

        return jax.lax.scan(step, state, length=size.steps)[0]

    return jax.vmap(integrate)


def build_lorenz(size: Size) -> Built:
    """Lorenz systems, each with its own rho; chaotic after some hundred steps."""
    starts = 1.0 + 0.1 * jax.random.normal(jax.random.key(0), (size.lanes, 3))
    return make_ensemble(lorenz, 0.005, size), (starts, jnp.linspace(24.0, 30.0, size.lanes))


def build_lotka_volterra(size: Size) -> Built:
    """Predators and prey, each lane with its own rates."""
    rates = 1.0 + 0.2 * jax.random.uniform(jax.random.key(1), (4, size.lanes))
    starts = (jnp.linspace(0.5, 2.0, size.lanes), jnp.ones(size.lanes))
    return make_ensemble(lotka_volterra, 0.01, size), (starts, tuple(rates))


def build_double_pendulum(size: Size) -> Built:
    """Double pendulums from different angles; chaotic."""
    angles = 1.5 + 0.5 * jax.random.uniform(jax.random.key(2), (size.lanes, 2))
    starts = {"angle": angles, "speed": jnp.zeros((size.lanes, 2))}
    return make_ensemble(double_pendulum, 0.005, size), (starts, jnp.linspace(0.5, 2, size.lanes))


def build_lorenz_trajectory(size: Size) -> Built:
    """Lorenz systems with all states stacked, as for a plot."""

    def integrate(state: jax.Array) -> jax.Array:
        def step(state: jax.Array, _: None) -> Any:
            state = runge_kutta(lorenz, 0.005, state, 28.0)
            return state, state

        return jax.lax.scan(step, state, length=size.steps)[1]

    starts = 1.0 + 0.1 * jax.random.normal(jax.random.key(3), (size.lanes, 3))
    return jax.vmap(integrate), (starts,)


def build_diffrax(solver: str, is_adaptive: bool, is_saved: bool, size: Size) -> Built:
    """One of diffrax's solvers on Lotka-Volterra, mapped over initial states and rates."""
    diffrax = load("diffrax")
    horizon = 0.02 * size.steps

    def field(t: Any, y: jax.Array, rates: jax.Array) -> jax.Array:
        prey, predators = y
        return jnp.stack(
            [
                prey * (rates[0] - rates[1] * predators),
                predators * (rates[3] * prey - rates[2]),
            ]
        )

    def solve(y0: jax.Array, rates: jax.Array) -> Any:
        solution = diffrax.diffeqsolve(
            diffrax.ODETerm(field),
            getattr(diffrax, solver)(),
            t0=0.0,
            t1=horizon,
            dt0=0.02,
            y0=y0,
            args=rates,
            saveat=diffrax.SaveAt(ts=jnp.linspace(0.0, horizon, 20))
            if is_saved
            else diffrax.SaveAt(t1=True),
            stepsize_controller=diffrax.PIDController(rtol=1e-5, atol=1e-5)
            if is_adaptive
            else diffrax.ConstantStepSize(),
            max_steps=4096,
        )
        return solution.ys, solution.stats["num_steps"]

    rates = 1.0 + 0.2 * jax.random.uniform(jax.random.key(4), (size.lanes, 4))
    starts = jax.random.uniform(jax.random.key(5), (size.lanes, 2), minval=0.5, maxval=2.0)
    return jax.vmap(solve), (starts, rates)


_QUICK: Final = Size(lanes=50, steps=10)
# Errors grow by e every time unit or so on the Lorenz attractor.
_CHAOTIC: Final = Rule(relative=1e-4, spread=0.1, early_steps=100)

_DIFFRAX: Final = {
    "diffrax-fixed": ("Tsit5", False, False, Rule(relative=1e-4)),
    # Rounding may make a step be rejected, or one step more or fewer.
    "diffrax-adaptive": ("Tsit5", True, False, Rule(relative=1e-3, share_apart=0.02)),
    "diffrax-saved": ("Tsit5", True, True, Rule(relative=1e-3, share_apart=0.02)),
    "diffrax-implicit": ("Kvaerno3", True, False, Rule(relative=1e-3, share_apart=0.02)),
}

PROGRAMS: Final = (
    Program(
        name="ode/lorenz",
        category=CATEGORY,
        build=build_lorenz,
        full=Size(lanes=8192, steps=1000),
        quick=_QUICK,
        target=5.0,
        rule=_CHAOTIC,
    ),
    Program(
        name="ode/lotka-volterra",
        category=CATEGORY,
        build=build_lotka_volterra,
        full=Size(lanes=16_384, steps=1000),
        quick=_QUICK,
        target=5.0,
        rule=Rule(relative=1e-3),
    ),
    Program(
        name="ode/double-pendulum",
        category=CATEGORY,
        build=build_double_pendulum,
        full=Size(lanes=8192, steps=400),
        quick=_QUICK,
        target=5.0,
        rule=Rule(relative=1e-3, share_apart=0.05, early_steps=50),
    ),
    Program(
        name="ode/lorenz-trajectory",
        category=CATEGORY,
        build=build_lorenz_trajectory,
        full=Size(lanes=1024, steps=1000),
        quick=_QUICK,
        rule=_CHAOTIC,
    ),
    *(
        Program(
            name=f"ode/{name}",
            category=CATEGORY,
            build=functools.partial(build_diffrax, solver, is_adaptive, is_saved),
            full=Size(lanes=16_384, steps=200),
            quick=_QUICK,
            target=4.0,
            requires=("diffrax",),
            rule=rule,
        )
        for name, (solver, is_adaptive, is_saved, rule) in _DIFFRAX.items()
    ),
)
