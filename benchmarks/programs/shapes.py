"""Forms that loops come in: several lane dimensions, other types, reverse scans, branches, loops in
sequence and in loops that XLA keeps."""

from __future__ import annotations

from typing import Any, Final

import jax
import jax.numpy as jnp

from programs.program import EXACT, Built, Program, Rule, Size

CATEGORY: Final = "shapes"


def build_seeds(size: Size) -> Built:
    """Mapped over environments, then over seeds: two dimensions of lanes."""
    num_seeds = 8

    def episode(key: jax.Array, gravity: jax.Array) -> Any:
        def step(carry: Any, step_key: jax.Array) -> Any:
            height, speed, bounces = carry
            speed = speed - gravity * 0.01 + 0.02 * jax.random.normal(step_key)
            height = height + speed * 0.01
            is_down = height < 0.0
            speed = jnp.where(is_down, -0.8 * speed, speed)
            return (jnp.abs(height), speed, bounces + is_down), None

        start = jnp.float32(1.0), jnp.float32(0.0), jnp.int32(0)
        return jax.lax.scan(step, start, jax.random.split(key, size.steps))[0]

    keys = jax.random.split(jax.random.key(0), (num_seeds, size.lanes // num_seeds))
    gravities = jnp.linspace(5.0, 15.0, size.lanes // num_seeds)
    return jax.vmap(jax.vmap(episode), (0, None)), (keys, gravities)


def build_bfloat16(size: Size) -> Built:
    """Leaky integrate-and-fire neurons in bfloat16."""

    def simulate(potential: jax.Array, current: jax.Array) -> Any:
        def step(carry: Any, _: None) -> Any:
            potential, num_spikes = carry
            potential = potential + (current - potential) * jnp.bfloat16(0.0625)
            spikes = potential > 1
            return (jnp.where(spikes, jnp.bfloat16(0), potential), num_spikes + spikes), None

        counts = jnp.zeros(potential.shape, jnp.int32)
        return jax.lax.scan(step, (potential, counts), length=size.steps)[0]

    currents = jnp.linspace(0.5, 2.0, size.lanes).astype(jnp.bfloat16)
    return simulate, (jnp.zeros(size.lanes, jnp.bfloat16), currents)


def build_double(size: Size) -> Built:
    """A symplectic three-body problem in doubles, bodies in a dimension of their own."""

    def accelerate(positions: jax.Array) -> jax.Array:
        offsets = positions[None, :, :] - positions[:, None, :]
        squares = jnp.sum(offsets**2, axis=-1) + 0.01
        return jnp.sum(offsets / squares[..., None] ** 1.5, axis=1)

    def integrate(positions: jax.Array, velocities: jax.Array) -> Any:
        def step(_: Any, carry: Any) -> Any:
            positions, velocities = carry
            velocities = velocities + 0.005 * accelerate(positions)
            positions = positions + 0.01 * velocities
            return positions, velocities + 0.005 * accelerate(positions)

        return jax.lax.fori_loop(0, size.steps, step, (positions, velocities))

    first, second = jax.random.split(jax.random.key(1))
    positions = jax.random.normal(first, (size.lanes, 3, 2))
    return jax.vmap(integrate), (positions, 0.3 * jax.random.normal(second, (size.lanes, 3, 2)))


def build_advantage(size: Size) -> Built:
    """Generalised advantage estimation: a reverse scan over stored rewards and values."""

    def estimate(rewards: jax.Array, values: jax.Array, dones: jax.Array) -> jax.Array:
        def step(carry: Any, row: Any) -> Any:
            advantage, following = carry
            reward, value, done = row
            goes_on = 1.0 - done.astype(jnp.float32)
            delta = reward + 0.99 * following * goes_on - value
            advantage = delta + 0.99 * 0.95 * goes_on * advantage
            return (advantage, value), advantage

        zeros = jnp.zeros(rewards.shape[1])
        return jax.lax.scan(step, (zeros, values[-1]), (rewards, values, dones), reverse=True)[1]

    keys = jax.random.split(jax.random.key(2), 3)
    shape = (size.steps, size.lanes)
    rewards, values = (jax.random.normal(key, shape) for key in keys[:2])
    return estimate, (rewards, values, jax.random.bernoulli(keys[2], 0.02, shape))


def build_uniform_branch(size: Size) -> Built:
    """Every tenth step does something else: a `cond` on the step counter."""

    def run(x: jax.Array) -> Any:
        def step(i: jax.Array, carry: Any) -> Any:
            x, moments = carry
            x = x + 0.01 * jnp.sin(3.0 * x)
            moments = jax.lax.cond(
                i % 10 == 9, lambda: moments + jnp.stack([x, x * x]), lambda: moments
            )
            return x, moments

        return jax.lax.fori_loop(0, size.steps, step, (x, jnp.zeros((2, *x.shape))))

    return run, (jnp.linspace(-2.0, 2.0, size.lanes),)


def build_switch(size: Size) -> Built:
    """Each lane does one of four things, by its own state: `switch` under `vmap`."""

    def run(start: jax.Array) -> Any:
        def step(carry: Any, _: None) -> Any:
            mode, x = carry
            x = jax.lax.switch(
                mode,
                (lambda x: 0.9 * x, jnp.sin, lambda x: x + 0.1, lambda x: jnp.exp(-x * x)),
                x,
            )
            return ((mode * 5 + 3 + (x > 0.5)) % 4, x), None

        return jax.lax.scan(step, (jnp.int32(0), start), length=size.steps)[0]

    return jax.vmap(run), (jnp.linspace(-1.0, 1.0, size.lanes),)


def build_two_loops(size: Size) -> Built:
    """A loop that warms up, another that measures, in one module, with a mean in between."""

    def advance(x: jax.Array, v: jax.Array) -> tuple[jax.Array, jax.Array]:
        v = 0.99 * v - 0.05 * jnp.sin(x)
        return x + 0.05 * v, v

    def run(x: jax.Array) -> Any:
        def warm(_: Any, carry: Any) -> Any:
            return advance(*carry)

        def measure(carry: Any, _: None) -> Any:
            x, v, energy = carry
            x, v = advance(x, v)
            return (x, v, energy + 0.5 * v * v + 1.0 - jnp.cos(x)), None

        x, v = jax.lax.fori_loop(0, size.steps, warm, (x, jnp.zeros_like(x)))
        v = v - v.mean()
        (x, v, energy), _ = jax.lax.scan(measure, (x, v, jnp.zeros_like(x)), length=size.steps)
        return x, energy / size.steps

    return run, (jnp.linspace(-2.0, 2.0, size.lanes),)


def build_training(size: Size) -> Built:
    """Evolution strategies: an outer loop with a sort and a matrix product around a rollout."""

    def train(key: jax.Array) -> Any:
        def fitness(gains: jax.Array) -> jax.Array:
            def step(carry: Any, _: None) -> Any:
                angle, speed, cost = carry
                torque = jnp.clip(gains[:, 0] * angle + gains[:, 1] * speed, -2.0, 2.0)
                speed = speed + 0.02 * (9.81 * jnp.sin(angle) + torque)
                angle = angle + 0.02 * speed
                return (angle, speed, cost + angle**2 + 0.01 * torque**2), None

            zeros = jnp.zeros(gains.shape[0])
            start = zeros + 0.1, zeros, zeros
            return jax.lax.scan(step, start, length=size.steps)[0][2]

        def generation(mean: jax.Array, key: jax.Array) -> Any:
            noise = jax.random.normal(key, (size.lanes, 2))
            costs = fitness(mean + noise)
            ranks = jnp.argsort(jnp.argsort(costs)) / size.lanes - 0.5
            return mean - 0.5 * ranks @ noise / size.lanes, costs.mean()

        return jax.lax.scan(generation, jnp.array([-5.0, -1.0]), jax.random.split(key, 10))

    return train, (jax.random.key(3),)


def build_unrolled(size: Size) -> Built:
    """A scan unrolled eight times, with inputs and outputs."""

    def run(inputs: jax.Array) -> Any:
        def step(x: jax.Array, u: jax.Array) -> Any:
            x = 0.95 * x + 0.05 * jnp.tanh(u + x)
            return x, x * u

        return jax.lax.scan(step, jnp.zeros(inputs.shape[1]), inputs, unroll=8)

    return run, (jax.random.normal(jax.random.key(4), (size.steps, size.lanes)),)


def build_cells(size: Size) -> Built:
    """Many small games of life: the board mixes, so boards are the lanes."""

    def run(boards: jax.Array) -> jax.Array:
        def step(_: Any, board: jax.Array) -> jax.Array:
            around = [(i, j) for i in (-1, 0, 1) for j in (-1, 0, 1) if (i, j) != (0, 0)]
            neighbours = sum(jnp.roll(board, shift, (0, 1)) for shift in around)
            return ((neighbours == 3) | ((board == 1) & (neighbours == 2))).astype(jnp.uint8)

        return jax.lax.fori_loop(0, size.steps, step, boards)

    start = jax.random.bernoulli(jax.random.key(5), 0.3, (size.lanes, 12, 12))
    return jax.vmap(run), (start.astype(jnp.uint8),)


def build_smoothing(size: Size) -> Built:
    """A reverse scan of a pytree of mixed types over the output of a forward scan."""

    def run(observations: jax.Array) -> Any:
        def forward(carry: Any, observation: jax.Array) -> Any:
            mean, variance, count = carry
            gain = variance / (variance + 0.5)
            mean = mean + gain * (observation - mean)
            carry = mean, (1.0 - gain) * variance + 0.05, count + (observation > mean)
            return carry, (mean, variance)

        def backward(carry: Any, row: Any) -> Any:
            following, weight = carry
            mean, variance = row
            smoothed = mean + variance / (variance + 0.05) * (following - mean)
            return (smoothed, weight * jnp.float16(0.99)), smoothed

        shape = observations.shape[1:]
        start = jnp.zeros(shape), jnp.ones(shape), jnp.zeros(shape, jnp.int8)
        (mean, _, count), rows = jax.lax.scan(forward, start, observations)
        ones = jnp.ones(shape, jnp.float16)
        (_, weight), smoothed = jax.lax.scan(backward, (mean, ones), rows, reverse=True)
        return smoothed, weight, count

    return run, (jax.random.normal(jax.random.key(6), (size.steps, size.lanes)),)


def build_progress(size: Size) -> Built:
    """Particles in a double well, with a callback every tenth of the way, as progress bars have."""

    def take(step: Any, energy: Any) -> None:
        del step, energy

    def simulate(start: jax.Array, key: jax.Array) -> Any:
        def step(i: Any, x: jax.Array) -> jax.Array:
            def tell() -> None:
                energy = jnp.mean((x * x - 1.0) ** 2)
                jax.debug.callback(take, i, energy, ordered=True)

            jax.lax.cond(i % (size.steps // 10) == 0, tell, lambda: None)
            noise = jax.random.normal(jax.random.fold_in(key, i), x.shape)
            return x - 0.04 * x * (x * x - 1.0) + 0.1 * noise

        return jax.lax.fori_loop(0, size.steps, step, start)

    return simulate, (jnp.linspace(-2.0, 2.0, size.lanes), jax.random.key(5))


def build_learning(size: Size) -> Built:
    """Q-learning with a small network: poles that are balanced and remembered in every step, and an
    update of the network from what is remembered in every tenth."""
    num_hidden, num_kept, num_drawn, period = 64, 200, 64, 10

    def score(weights: Any, poles: jax.Array) -> jax.Array:
        first, second = weights
        return jnp.maximum(poles @ first, 0.0) @ second

    def balance(poles: jax.Array, actions: jax.Array, key: jax.Array) -> Any:
        angle, speed = poles.T
        speed = speed + 0.1 * jnp.sin(angle) + 0.15 * (2.0 * actions - 1.0)
        moved = jnp.stack([angle + 0.1 * speed, speed], axis=1)
        has_fallen = jnp.abs(moved[:, 0]) > 0.5
        fresh = jax.random.uniform(key, poles.shape, minval=-0.1, maxval=0.1)
        return jnp.where(has_fallen[:, None], fresh, moved), has_fallen

    def update(weights: Any, memory: jax.Array, key: jax.Array) -> Any:
        rows = memory[jax.random.randint(key, (num_drawn,), 0, memory.shape[0])]
        before, after, actions, ended = rows[:, :2], rows[:, 2:4], rows[:, 4:5], rows[:, 5]
        goals = 1.0 + 0.9 * (1.0 - ended) * jnp.max(score(weights, after), axis=1)

        def loss(weights: Any) -> jax.Array:
            scores = jnp.take_along_axis(score(weights, before), actions.astype(jnp.int32), 1)
            return jnp.mean((scores[:, 0] - goals) ** 2)

        slopes = jax.grad(loss)(weights)
        return jax.tree.map(lambda weight, slope: weight - 0.01 * slope, weights, slopes)

    def train(weights: Any, poles: jax.Array, key: jax.Array) -> Any:
        def step(carry: Any, i: jax.Array) -> Any:
            weights, poles, memory = carry
            explore, act, start, draw = jax.random.split(jax.random.fold_in(key, i), 4)
            best = jnp.argmax(score(weights, poles), axis=1)
            other = jax.random.randint(act, best.shape, 0, 2)
            actions = jnp.where(jax.random.uniform(explore, best.shape) < 0.2, other, best)
            moved, has_fallen = balance(poles, actions, start)
            outcome = jnp.stack([actions.astype(jnp.float32), has_fallen.astype(jnp.float32)], 1)
            rows = jnp.concatenate([poles, moved, outcome], axis=1)
            place = i % num_kept * size.lanes
            memory = jax.lax.dynamic_update_slice(memory, rows, (place, 0))
            weights = jax.lax.cond(
                i % period == 0, lambda w: update(w, memory, draw), lambda w: w, weights
            )
            return (weights, moved, memory), jnp.mean(has_fallen)

        memory = jnp.zeros((num_kept * size.lanes, 6))
        start: Any = (weights, poles, memory)
        (weights, *_), falls = jax.lax.scan(step, start, jnp.arange(size.steps))
        return weights, falls

    first, second, start = jax.random.split(jax.random.key(0), 3)
    weights = (
        0.3 * jax.random.normal(first, (2, num_hidden)),
        0.3 * jax.random.normal(second, (num_hidden, 2)),
    )
    poles = jax.random.uniform(start, (size.lanes, 2), minval=-0.1, maxval=0.1)
    return train, (weights, poles, jax.random.key(3))


def build_whitening(size: Size) -> Built:
    """Metropolis chains whose proposals follow what they have found: a singular value decomposition
    in every hundredth step."""

    def sample(points: jax.Array, key: jax.Array) -> Any:
        def energy(points: jax.Array) -> jax.Array:
            return 0.5 * jnp.sum((points / jnp.arange(1.0, 5.0)) ** 2, axis=1)

        def step(i: Any, carry: Any) -> Any:
            points, scales = carry
            noise, choice = jax.random.split(jax.random.fold_in(key, i))
            proposed = points + jax.random.normal(noise, points.shape) @ scales
            gain = energy(points) - energy(proposed)
            taken = jnp.log(jax.random.uniform(choice, gain.shape)) < gain
            points = jnp.where(taken[:, None], proposed, points)

            def follow() -> jax.Array:
                centred = points - jnp.mean(points, axis=0)
                _, singular, axes = jnp.linalg.svd(centred, full_matrices=False)
                return 0.5 * (axes.T * singular) @ axes / jnp.sqrt(float(size.lanes))

            return points, jax.lax.cond(i % 100 == 99, follow, lambda: scales)

        start = (points, 0.5 * jnp.eye(4))
        return jax.lax.fori_loop(0, size.steps, step, start)

    return sample, (jnp.ones((size.lanes, 4)), jax.random.key(7))


def _make(name: str, lanes: int, steps: int, **settings: Any) -> Program:
    return Program(
        name=f"shape/{name}",
        category=CATEGORY,
        full=Size(lanes=lanes, steps=steps),
        quick=Size(lanes=24, steps=10),
        **settings,
    )


PROGRAMS: Final = (
    _make(
        "seeds-environments",
        8192,
        300,
        build=build_seeds,
        rule=Rule(relative=1e-3, share_apart=0.01),
    ),
    _make("bfloat16", 65_536, 300, build=build_bfloat16, rule=Rule(share_apart=0.01)),
    _make(
        "double",
        1024,
        200,
        build=build_double,
        x64=True,
        rule=Rule(relative=1e-8, share_apart=0.01, early_steps=50),
    ),
    _make("advantage", 16_384, 500, build=build_advantage),
    _make("uniform-branch", 65_536, 200, build=build_uniform_branch, rule=Rule(relative=1e-4)),
    _make("switch", 32_768, 200, build=build_switch, rule=Rule(share_apart=0.01)),
    _make("two-loops", 16_384, 500, build=build_two_loops, rule=Rule(relative=1e-3)),
    _make("training", 4096, 200, build=build_training, rule=Rule(relative=1e-2)),
    _make("unrolled", 16_384, 400, build=build_unrolled),
    _make("boards", 4096, 50, build=build_cells, rule=EXACT),
    _make("progress", 4096, 1000, build=build_progress, rule=Rule(relative=1e-3)),
    _make("learning", 16, 2000, build=build_learning, rule=Rule(spread=0.3, early_steps=100)),
    _make("whitening", 256, 1000, build=build_whitening, rule=Rule(spread=0.3, early_steps=150)),
    _make("smoothing", 16_384, 200, build=build_smoothing, rule=Rule(relative=1e-4)),
)
