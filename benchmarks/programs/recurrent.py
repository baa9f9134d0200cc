"""Recurrent networks, filters and learners: linear algebra inside the loop."""

from __future__ import annotations

from typing import Any, Final

import jax
import jax.numpy as jnp

from programs.program import Built, Program, Rule, Size

CATEGORY: Final = "recurrent"
HIDDEN: Final = 64


def make_weights(key: jax.Array, num_inputs: int, num_gates: int) -> Any:
    """Returns input weights, recurrent weights and biases of a cell."""
    first, second = jax.random.split(key)
    scale = 1.0 / jnp.sqrt(HIDDEN)
    return {
        "input": scale * jax.random.normal(first, (num_inputs, num_gates * HIDDEN)),
        "hidden": scale * jax.random.normal(second, (HIDDEN, num_gates * HIDDEN)),
        "bias": jnp.zeros(num_gates * HIDDEN),
    }


def run_gru(weights: Any, inputs: jax.Array) -> jax.Array:
    """Returns the last state of a GRU; inputs are [steps, batch, features]."""

    def step(hidden: jax.Array, x: jax.Array) -> Any:
        from_input = jnp.split(x @ weights["input"] + weights["bias"], 3, axis=-1)
        from_hidden = jnp.split(hidden @ weights["hidden"], 3, axis=-1)
        reset = jax.nn.sigmoid(from_input[0] + from_hidden[0])
        update = jax.nn.sigmoid(from_input[1] + from_hidden[1])
        candidate = jnp.tanh(from_input[2] + reset * from_hidden[2])
        return (1.0 - update) * candidate + update * hidden, None

    return jax.lax.scan(step, jnp.zeros((inputs.shape[1], HIDDEN)), inputs)[0]


def run_lstm(weights: Any, inputs: jax.Array) -> Any:
    """Returns all outputs of an LSTM; inputs are [steps, batch, features]."""

    def step(carry: Any, x: jax.Array) -> Any:
        hidden, cell = carry
        gates = x @ weights["input"] + hidden @ weights["hidden"] + weights["bias"]
        i, f, g, o = jnp.split(gates, 4, axis=-1)
        cell = jax.nn.sigmoid(f) * cell + jax.nn.sigmoid(i) * jnp.tanh(g)
        hidden = jax.nn.sigmoid(o) * jnp.tanh(cell)
        return (hidden, cell), hidden

    zeros = jnp.zeros((inputs.shape[1], HIDDEN))
    return jax.lax.scan(step, (zeros, zeros), inputs)[1]


def build_gru(size: Size) -> Built:
    """A GRU over a batch of sequences."""
    inputs = jax.random.normal(jax.random.key(0), (size.steps, size.lanes, 16))
    return run_gru, (make_weights(jax.random.key(1), 16, 3), inputs)


def build_lstm(size: Size) -> Built:
    """An LSTM over a batch of sequences."""
    inputs = jax.random.normal(jax.random.key(2), (size.steps, size.lanes, 16))
    return run_lstm, (make_weights(jax.random.key(3), 16, 4), inputs)


def build_linear_recurrence(size: Size) -> Built:
    """A gated linear recurrence, each feature for itself, as in state space models."""

    def run(decay: jax.Array, inputs: jax.Array) -> Any:
        def step(hidden: jax.Array, x: jax.Array) -> Any:
            gate = jax.nn.sigmoid(x)
            hidden = jnp.exp(-jax.nn.softplus(decay) * gate) * hidden + gate * x
            return hidden, hidden * jax.nn.silu(x)

        return jax.lax.scan(step, jnp.zeros(inputs.shape[1:]), inputs)[1]

    inputs = jax.random.normal(jax.random.key(4), (size.steps, size.lanes, HIDDEN))
    return run, (jax.random.normal(jax.random.key(5), (HIDDEN,)), inputs)


def build_network_rollout(size: Size) -> Built:
    """A pendulum swung by a network of 3-32-32-1."""

    def rollout(weights: Any, angle: jax.Array, speed: jax.Array) -> Any:
        def step(carry: Any, _: None) -> Any:
            angle, speed, cost = carry
            seen = jnp.stack([jnp.cos(angle), jnp.sin(angle), speed], axis=-1)
            for matrix, bias in weights[:-1]:
                seen = jax.nn.relu(seen @ matrix + bias)
            matrix, bias = weights[-1]
            torque = 2.0 * jnp.tanh(seen @ matrix + bias)[..., 0]
            cost = cost + angle**2 + 0.1 * speed**2 + 0.001 * torque**2
            speed = speed + (15.0 * jnp.sin(angle) + 3.0 * torque) * 0.05
            speed = jnp.clip(speed, -8.0, 8.0)
            return (angle + speed * 0.05, speed, cost), None

        return jax.lax.scan(step, (angle, speed, jnp.zeros_like(angle)), length=size.steps)[0]

    shapes = ((3, 32), (32, 32), (32, 1))
    keys = jax.random.split(jax.random.key(6), len(shapes))
    weights = [
        (jax.random.normal(key, shape) / shape[0] ** 0.5, jnp.zeros(shape[1]))
        for key, shape in zip(keys, shapes, strict=True)
    ]
    starts = jnp.linspace(-3.0, 3.0, size.lanes)
    return rollout, (weights, starts, jnp.zeros(size.lanes))


def make_kalman(is_solved: bool, size: Size) -> Built:
    """Kalman filters for a moving point in the plane: four states, two measurements, per lane."""
    dt = 0.1
    transition = jnp.eye(4).at[0, 2].set(dt).at[1, 3].set(dt)
    noise, measurement_noise = 0.01 * jnp.eye(4), 0.1 * jnp.eye(2)
    observe = jnp.eye(2, 4)

    def invert(matrix: jax.Array) -> jax.Array:
        (a, b), (c, d) = matrix
        return jnp.array([[d, -b], [-c, a]]) / (a * d - b * c)

    def update(state: Any, measurement: jax.Array) -> Any:
        mean, covariance = state
        mean = transition @ mean
        covariance = transition @ covariance @ transition.T + noise
        innovation = observe @ covariance @ observe.T + measurement_noise
        if is_solved:
            gain = jnp.linalg.solve(innovation, observe @ covariance).T
        else:
            gain = covariance @ observe.T @ invert(innovation)
        mean = mean + gain @ (measurement - observe @ mean)
        covariance = (jnp.eye(4) - gain @ observe) @ covariance
        return (mean, covariance), mean[:2]

    def track(measurements: jax.Array) -> Any:
        (mean, covariance), path = jax.lax.scan(update, (jnp.zeros(4), jnp.eye(4)), measurements)
        return mean, jnp.trace(covariance), path

    shape = (size.lanes, size.steps, 2)
    return jax.vmap(track), (jax.random.normal(jax.random.key(7), shape).cumsum(axis=1),)


def build_kalman(size: Size) -> Built:
    """With the inverse of the two by two matrix written out."""
    return make_kalman(False, size)


def build_kalman_solve(size: Size) -> Built:
    """With `jnp.linalg.solve`, which is LAPACK's on the CPU."""
    return make_kalman(True, size)


def build_q_learning(size: Size) -> Built:
    """Tabular Q-learning on a grid world, a table per lane, epsilon-greedy."""
    side, num_actions = 5, 4
    moves = jnp.array([[0, 1], [0, -1], [1, 0], [-1, 0]])

    def learn(key: jax.Array) -> Any:
        def step(carry: Any, step_key: jax.Array) -> Any:
            table, place = carry
            explore_key, action_key = jax.random.split(step_key)
            state = place[0] * side + place[1]
            greedy = jnp.argmax(table[state])
            explores = jax.random.uniform(explore_key) < 0.1
            random = jax.random.randint(action_key, (), 0, num_actions)
            action = jnp.where(explores, random, greedy)
            place = jnp.clip(place + moves[action], 0, side - 1)
            is_goal = jnp.all(place == side - 1)
            reward = jnp.where(is_goal, 1.0, -0.01)
            following = place[0] * side + place[1]
            best = jnp.where(is_goal, 0.0, table[following].max())
            error = reward + 0.95 * best - table[state, action]
            table = table.at[state, action].add(0.1 * error)
            place = jnp.where(is_goal, jnp.zeros_like(place), place)
            return (table, place), is_goal

        start = jnp.zeros((side * side, num_actions)), jnp.zeros(2, jnp.int32)
        (table, _), goals = jax.lax.scan(step, start, jax.random.split(key, size.steps))
        return table, goals.sum()

    return jax.vmap(learn), (jax.random.split(jax.random.key(8), size.lanes),)


def build_hidden_markov(size: Size) -> Built:
    """The forward algorithm of a hidden Markov model, eight states, in logarithms."""
    num_states = 8

    def filter_one(log_transition: jax.Array, log_likelihoods: jax.Array) -> Any:
        def step(alpha: jax.Array, log_likelihood: jax.Array) -> Any:
            alpha = jax.nn.logsumexp(alpha[:, None] + log_transition, axis=0) + log_likelihood
            return alpha, None

        start = jnp.full(num_states, -jnp.log(num_states))
        return jax.nn.logsumexp(jax.lax.scan(step, start, log_likelihoods)[0])

    logits = jax.random.normal(jax.random.key(9), (num_states, num_states))
    shape = (size.lanes, size.steps, num_states)
    likelihoods = jax.random.normal(jax.random.key(10), shape)
    return jax.vmap(filter_one, (None, 0)), (jax.nn.log_softmax(logits), likelihoods)


def _make(name: str, lanes: int, steps: int, **settings: Any) -> Program:
    return Program(
        name=f"recurrent/{name}",
        category=CATEGORY,
        full=Size(lanes=lanes, steps=steps),
        quick=Size(lanes=12, steps=5),
        **{"rule": Rule(relative=1e-4), **settings},
    )


PROGRAMS: Final = (
    _make("gru", 256, 200, build=build_gru, target=1.2),
    _make("lstm", 256, 200, build=build_lstm, target=1.2),
    _make("linear-recurrence", 256, 1000, build=build_linear_recurrence),
    _make(
        "network-rollout",
        2048,
        200,
        build=build_network_rollout,
        target=1.2,
        # Standing upright, a pendulum falls to either side.
        rule=Rule(relative=1e-3, share_apart=0.05, early_steps=20),
    ),
    _make("kalman", 4096, 100, build=build_kalman),
    _make("kalman-solve", 4096, 50, build=build_kalman_solve),
    _make("q-learning", 2048, 200, build=build_q_learning, rule=Rule(share_apart=0.01)),
    _make("hidden-markov", 4096, 100, build=build_hidden_markov),
)
