"""Gradients through loops: a forward and a backward scan."""

from __future__ import annotations

from typing import Any, Final

import jax
import jax.numpy as jnp

from programs.ode import lotka_volterra, runge_kutta
from programs.program import Built, Program, Rule, Size
from programs.recurrent import make_weights, run_gru

CATEGORY: Final = "gradients"


def build_initial_state(size: Size) -> Built:
    """Sensitivity of each lane's end to its own start: gradients have lanes."""

    def loss(start: Any, rates: Any) -> jax.Array:
        def step(state: Any, _: None) -> Any:
            return runge_kutta(lotka_volterra, 0.01, state, rates), None

        (prey, predators), _ = jax.lax.scan(step, start, length=size.steps)
        return jnp.square(prey - 1.0) + jnp.square(predators - 1.0)

    rates = 1.0 + 0.2 * jax.random.uniform(jax.random.key(0), (4, size.lanes))
    starts = jnp.linspace(0.5, 2.0, size.lanes), jnp.ones(size.lanes)
    return jax.vmap(jax.value_and_grad(loss, argnums=(0, 1))), (starts, tuple(rates))


def build_shared_rate(size: Size) -> Built:
    """One learning rate and momentum for all lanes: gradients are sums over lanes."""

    def loss(settings: Any, targets: jax.Array) -> jax.Array:
        def step(carry: Any, _: None) -> Any:
            x, velocity = carry
            velocity = settings["momentum"] * velocity - settings["rate"] * jnp.sin(x - targets)
            return (x + velocity, velocity), None

        zeros = jnp.zeros_like(targets)
        (x, _), _ = jax.lax.scan(step, (zeros, zeros), length=size.steps)
        return jnp.square(x - targets).mean()

    settings = {"momentum": jnp.float32(0.8), "rate": jnp.float32(0.02)}
    targets = jnp.linspace(-1.5, 1.5, size.lanes)
    return jax.value_and_grad(loss), (settings, targets)


def build_policy_gradient(size: Size) -> Built:
    """A small network that swings pendulums, by differentiating the simulation: shared weights."""

    def loss(weights: Any, angles: jax.Array) -> jax.Array:
        def step(carry: Any, _: None) -> Any:
            angle, speed, cost = carry
            seen = jnp.stack([jnp.cos(angle), jnp.sin(angle), speed], axis=-1)
            hidden = jnp.tanh(seen @ weights["in"] + weights["bias"])
            torque = jnp.tanh(hidden @ weights["out"])[..., 0]
            cost = cost + angle**2 + 0.1 * speed**2 + 0.01 * torque**2
            speed = 0.98 * speed + (-9.81 * jnp.sin(angle) + 4.0 * torque) * 0.02
            return (angle + speed * 0.02, speed, cost), None

        zeros = jnp.zeros_like(angles)
        (_, _, cost), _ = jax.lax.scan(step, (angles, zeros, zeros), length=size.steps)
        return cost.mean()

    first, second = jax.random.split(jax.random.key(1))
    weights = {
        "in": jax.random.normal(first, (3, 16)) / 3**0.5,
        "bias": jnp.zeros(16),
        "out": jax.random.normal(second, (16, 1)) / 4.0,
    }
    return jax.value_and_grad(loss), (weights, jnp.linspace(-1.0, 1.0, size.lanes))


def build_gru_gradient(size: Size) -> Built:
    """A training step of a GRU on a batch of sequences."""

    def loss(weights: Any, inputs: jax.Array) -> jax.Array:
        return jnp.square(run_gru(weights, inputs)).mean()

    inputs = jax.random.normal(jax.random.key(2), (size.steps, size.lanes, 16))
    return jax.value_and_grad(loss), (make_weights(jax.random.key(3), 16, 3), inputs)


def build_greeks(size: Size) -> Built:
    """Delta, vega and rho of an Asian option by differentiating the simulation; normals are given
    from outside."""

    def price(spot: jax.Array, volatility: jax.Array, rate: jax.Array, normals: Any) -> jax.Array:
        day = 1.0 / size.steps

        def step(carry: Any, normal: jax.Array) -> Any:
            value, total = carry
            growth = (rate - 0.5 * volatility**2) * day + volatility * jnp.sqrt(day) * normal
            value = value * jnp.exp(growth)
            return (value, total + value), None

        start = jnp.full(normals.shape[1], spot), jnp.zeros(normals.shape[1])
        (_, total), _ = jax.lax.scan(step, start, normals)
        return jnp.exp(-rate) * jnp.maximum(total / size.steps - 100.0, 0.0).mean()

    normals = jax.random.normal(jax.random.key(4), (size.steps, size.lanes))
    market = jnp.float32(100.0), jnp.float32(0.2), jnp.float32(0.03)
    return jax.value_and_grad(price, argnums=(0, 1, 2)), (*market, normals)


def build_checkpointed(size: Size) -> Built:
    """A body under `jax.checkpoint`: the backward loop computes the forward step again."""

    def loss(parameters: jax.Array, inputs: jax.Array) -> jax.Array:
        @jax.checkpoint
        def step(x: jax.Array, u: jax.Array) -> Any:
            for _ in range(3):
                x = jnp.tanh(parameters[0] * x + parameters[1] * u) + 0.1 * jnp.sin(x)
            return x, None

        last = jax.lax.scan(step, jnp.zeros(inputs.shape[1:]), inputs)[0]
        return jnp.square(last).mean()

    inputs = jax.random.normal(jax.random.key(5), (size.steps, size.lanes))
    return jax.value_and_grad(loss, argnums=(0, 1)), (jnp.array([0.9, 0.3]), inputs)


def _make(name: str, lanes: int, steps: int, **settings: Any) -> Program:
    return Program(
        name=f"gradient/{name}",
        category=CATEGORY,
        full=Size(lanes=lanes, steps=steps),
        quick=Size(lanes=12, steps=5),
        **{"rule": Rule(relative=1e-3), **settings},
    )


PROGRAMS: Final = (
    _make("initial-state", 4096, 200, build=build_initial_state),
    _make("shared-rate", 16_384, 200, build=build_shared_rate),
    _make("policy", 4096, 100, build=build_policy_gradient),
    _make("gru", 256, 50, build=build_gru_gradient),
    _make("greeks", 32_768, 100, build=build_greeks),
    _make("checkpointed", 8192, 100, build=build_checkpointed),
)
