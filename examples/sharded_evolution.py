"""An evolution strategy on many devices: each rolls out its share of a population of policies.

Nothing here knows about Fuselane. Each generation every device simulates its own policies, then all
devices add up their estimates of the gradient: the rollouts become kernels, the sum stays XLA's.

python examples/sharded_evolution.py                                   # one device, plain XLA
fuselane run examples/sharded_evolution.py                             # the same, fused
XLA_FLAGS=--xla_force_host_platform_device_count=8 fuselane run examples/sharded_evolution.py
FUSELANE=1 python examples/sharded_evolution.py localhost:1234 2 0 &   # two processes, as on
FUSELANE=1 python examples/sharded_evolution.py localhost:1234 2 1     # two hosts
"""

from __future__ import annotations

import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

POPULATION = 2048
NUM_GENERATIONS = 10
NUM_STEPS = 200
NUM_HIDDEN = 8
NUM_WEIGHTS = 3 * NUM_HIDDEN + NUM_HIDDEN + NUM_HIDDEN
SPREAD, RATE = 0.1, 0.3


def act(weights: jax.Array, observation: jax.Array) -> jax.Array:
    """Returns the torque that a small network wants, f32[weights], f32[3] -> f32[]."""
    first = weights[: 3 * NUM_HIDDEN].reshape(3, NUM_HIDDEN)
    bias, second = weights[3 * NUM_HIDDEN :].reshape(2, NUM_HIDDEN)
    return 2.0 * jnp.tanh(jnp.tanh(observation @ first + bias) @ second)


def rollout(weights: jax.Array, angle: jax.Array) -> jax.Array:
    """Returns the mean reward of one policy that swings up one pendulum from an angle."""

    def step(
        carry: tuple[jax.Array, jax.Array, jax.Array], _: None
    ) -> tuple[tuple[jax.Array, jax.Array, jax.Array], None]:
        angle, speed, total = carry
        observation = jnp.stack([jnp.cos(angle), jnp.sin(angle), 0.2 * speed])
        torque = act(weights, observation)
        wrapped = (angle + jnp.pi) % (2 * jnp.pi) - jnp.pi
        reward = -(wrapped**2 + 0.1 * speed**2 + 0.001 * torque**2)
        speed = jnp.clip(speed + 0.05 * (15.0 * jnp.sin(angle) + 3.0 * torque), -8.0, 8.0)
        return (angle + 0.05 * speed, speed, total + reward), None

    start = angle, jnp.zeros_like(angle), jnp.zeros_like(angle)
    (_, _, total), _ = jax.lax.scan(step, start, length=NUM_STEPS)
    return total / NUM_STEPS


def evolve(key: jax.Array, weights: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Runs all generations on one device of several; returns weights and mean reward of each."""
    share = POPULATION // jax.lax.axis_size("population")
    device = jax.lax.axis_index("population")

    def generation(weights: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        noise_key, angle_key = jax.random.split(jax.random.fold_in(key, device))
        noise = jax.random.normal(noise_key, (share, NUM_WEIGHTS))
        angles = jax.random.uniform(angle_key, (share,), minval=-jnp.pi, maxval=jnp.pi)
        better = jax.vmap(rollout)(weights + SPREAD * noise, angles)
        worse = jax.vmap(rollout)(weights - SPREAD * noise, angles)
        gradient = jax.lax.psum((better - worse) @ noise, "population") / (2 * POPULATION * SPREAD)
        return weights + RATE * gradient, jax.lax.pmean((better + worse).mean() / 2, "population")

    return jax.lax.scan(generation, weights, jax.random.split(key, NUM_GENERATIONS))


def make_train() -> jax.stages.Wrapped:
    """Returns the compiled-on-first-use training over all devices there are."""
    mesh = Mesh(np.array(jax.devices()), ("population",))
    replicated = PartitionSpec()
    over_devices = jax.shard_map(
        evolve, mesh=mesh, in_specs=(replicated, replicated), out_specs=(replicated, replicated)
    )
    return jax.jit(over_devices)


def main(arguments: list[str]) -> None:
    """Trains twice, since the first time compiles; prints what the second took."""
    if arguments:
        coordinator, num_processes, process = arguments
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(coordinator, int(num_processes), int(process))
    train = make_train()
    start = 0.1 * np.asarray(jax.random.normal(jax.random.key(1), (NUM_WEIGHTS,)))
    jax.block_until_ready(train(jax.random.key(0), start))
    begin = time.perf_counter()
    _, rewards = jax.block_until_ready(train(jax.random.key(0), start))
    seconds = time.perf_counter() - begin
    steps = 2 * POPULATION * NUM_STEPS * NUM_GENERATIONS
    if jax.process_index() == 0:
        print(f"{jax.device_count()} devices: {steps / seconds / 1e6:.1f} million steps per second")
        print(f"mean reward {float(rewards[0]):.3f} -> {float(rewards[-1]):.3f}")


if __name__ == "__main__":
    main(sys.argv[1:])
