"""Recurrences over scalars and tiny matrices: nothing to run in parallel, but a dispatch for every
instruction of every step. Written in the spirit of the issues of JAX named at each.

Those without a target XLA compiles into one function, as their loops touch little data: there is no
dispatch to save, and the latency of a step's operations sets the pace.
"""

from __future__ import annotations

from typing import Any, Final

import jax
import jax.numpy as jnp

from programs.program import EXACT, Built, Program, Rule, Size

CATEGORY: Final = "scalar"


def build_logistic_map(size: Size) -> Built:
    """The logistic map, outside its chaotic range, with each value kept."""

    def iterate(start: jax.Array, growth: jax.Array) -> Any:
        def step(x: jax.Array, _: None) -> Any:
            x = growth * x * (1.0 - x)
            return x, x

        return jax.lax.scan(step, start, length=size.steps)[1]

    return iterate, (jnp.float32(0.2), jnp.float32(3.2))


def build_running_maximum(size: Size) -> Built:
    """jax#25190: a `while_loop` that walks through an array until it has seen its maximum."""

    def walk(values: jax.Array) -> Any:
        stop = jnp.max(values)

        def goes_on(carry: Any) -> Any:
            return carry[0] < stop

        def advance(carry: Any) -> Any:
            highest, i = carry
            return jnp.maximum(highest, values[i]), i + 1

        return jax.lax.while_loop(goes_on, advance, (jnp.int32(0), jnp.int32(0)))

    return walk, (jnp.arange(size.steps, dtype=jnp.int32),)


def build_quasiseparable_cholesky(size: Size) -> Built:
    """jax#36799: a scan that carries a 3x3 matrix of doubles, a Cholesky factor's generators."""

    def factorise(diagonal: jax.Array, p: jax.Array, q: jax.Array, transitions: jax.Array) -> Any:
        def step(carry: jax.Array, row: Any) -> Any:
            d, p, q, a = row
            pivot = jnp.sqrt(d - p @ carry @ p)
            moved = carry @ a.T
            w = (q - p @ moved) / pivot
            return a @ moved + jnp.outer(w, w), (pivot, w)

        return jax.lax.scan(step, jnp.zeros((3, 3)), (diagonal, p, q, transitions))

    keys = jax.random.split(jax.random.key(0), 3)
    p = 0.3 * jax.random.normal(keys[0], (size.steps, 3))
    q = 0.3 * jax.random.normal(keys[1], (size.steps, 3))
    transitions = 0.5 * jnp.eye(3) + 0.1 * jax.random.normal(keys[2], (size.steps, 3, 3))
    return factorise, (jnp.full(size.steps, 4.0), p, q, transitions)


def build_cable(size: Size) -> Built:
    """jax#26145: a Hodgkin-Huxley cable of eight compartments, in doubles, solved implicitly."""
    num_compartments, dt = 8, 0.025

    def rate(voltage: jax.Array, scale: float, middle: float, width: float) -> jax.Array:
        x = (voltage - middle) / width
        return scale * width * x / (1.0 - jnp.exp(-x))

    def solve(lower: jax.Array, diagonal: jax.Array, upper: jax.Array, right: jax.Array) -> Any:
        for i in range(1, num_compartments):
            factor = lower[i] / diagonal[i - 1]
            diagonal = diagonal.at[i].add(-factor * upper[i - 1])
            right = right.at[i].add(-factor * right[i - 1])
        result = right.at[-1].divide(diagonal[-1])
        for i in range(num_compartments - 2, -1, -1):
            result = result.at[i].set((right[i] - upper[i] * result[i + 1]) / diagonal[i])
        return result

    def simulate(current: jax.Array) -> Any:
        def step(state: Any, current: jax.Array) -> Any:
            v, m, h, n = state["v"], state["m"], state["h"], state["n"]
            rates = {
                "m": (rate(v, 0.1, -40.0, 10.0), 4.0 * jnp.exp(-(v + 65.0) / 18.0)),
                "h": (0.07 * jnp.exp(-(v + 65.0) / 20.0), jax.nn.sigmoid((v + 35.0) / 10.0)),
                "n": (rate(v, 0.01, -55.0, 10.0), 0.125 * jnp.exp(-(v + 65.0) / 80.0)),
            }
            gates = {}
            for name, (opens, closes) in rates.items():
                decay = jnp.exp(-dt * (opens + closes))
                gates[name] = state[name] * decay + opens / (opens + closes) * (1.0 - decay)
            sodium, potassium = 120.0 * m**3 * h, 36.0 * n**4
            conductance = sodium + potassium + 0.3
            drive = sodium * 50.0 - potassium * 77.0 - 0.3 * 54.4
            drive = drive.at[0].add(current)
            coupling = jnp.full(num_compartments, -dt * 2.0)
            diagonal = 1.0 + dt * (conductance + 4.0)
            v = solve(coupling, diagonal, coupling, v + dt * drive)
            return {"v": v, **gates}, v[-1]

        full = jnp.full(num_compartments, 1.0)
        start = {"v": -65.0 * full, "m": 0.05 * full, "h": 0.6 * full, "n": 0.32 * full}
        return jax.lax.scan(step, start, current)[1]

    return simulate, (jnp.where(jnp.arange(size.steps) < size.steps // 2, 10.0, 0.0),)


def build_many_leaves(is_gradient: bool, size: Size) -> Built:
    """jax#40150: a carry of sixty scalars in a dictionary, and its gradient."""
    num_nodes = 20

    def infer(coupling: jax.Array, observations: jax.Array) -> jax.Array:
        def step(nodes: Any, observation: jax.Array) -> Any:
            error = observation - nodes[0]["mean"]
            updated = {}
            for i, node in nodes.items():
                precision = 1.0 / (1.0 / node["precision"] + jnp.exp(node["volatility"]))
                gain = jax.nn.sigmoid(coupling * precision)
                volatility = 0.99 * node["volatility"] + 0.01 * jnp.tanh(error**2 - gain)
                updated[i] = {
                    "mean": node["mean"] + gain * error,
                    "precision": 0.9 * precision + 0.1,
                    "volatility": volatility,
                }
                error = error - 0.5 * gain * error
            return updated, jnp.square(error)

        node = {"mean": 0.0, "precision": 1.0, "volatility": -2.0}
        start = {i: jax.tree.map(jnp.float32, node) for i in range(num_nodes)}
        return jax.lax.scan(step, start, observations)[1].sum()

    observations = jnp.sin(jnp.arange(size.steps) * 0.1)
    function = jax.value_and_grad(infer) if is_gradient else infer
    return function, (jnp.float32(0.7), observations)


def build_many_leaves_forward(size: Size) -> Built:
    """The value alone."""
    return build_many_leaves(False, size)


def build_many_leaves_gradient(size: Size) -> Built:
    """Value and gradient."""
    return build_many_leaves(True, size)


def build_rigid_body(size: Size) -> Built:
    """A tumbling rigid body: a rotation matrix and three angular speeds, one body."""

    def tumble(speeds: jax.Array) -> Any:
        inertia = jnp.array([1.0, 2.0, 3.0])

        def step(_: Any, carry: Any) -> Any:
            rotation, speeds = carry
            x, y, z = speeds
            zero = jnp.zeros_like(x)
            skew = jnp.array([[zero, -z, y], [z, zero, -x], [-y, x, zero]])
            rotation = rotation + 0.001 * rotation @ skew
            rotation = 1.5 * rotation - 0.5 * rotation @ rotation.T @ rotation
            speeds = speeds - 0.001 * jnp.cross(speeds, inertia * speeds) / inertia
            return rotation, speeds

        return jax.lax.fori_loop(0, size.steps, step, (jnp.eye(3), speeds))

    return tumble, (jnp.array([0.1, 1.0, 0.1]),)


def build_random_walk(size: Size) -> Built:
    """One walker that draws in each step and turns back at walls."""

    def walk(key: jax.Array) -> Any:
        def step(carry: Any, _: None) -> Any:
            key, place, num_hits = carry
            key, draw = jax.random.split(key)
            place = place + jax.random.randint(draw, (), -3, 4)
            hits = jnp.abs(place) > 20
            place = jax.lax.cond(hits, lambda p: jnp.sign(p) * 20, lambda p: p, place)
            return (key, place, num_hits + hits), place

        start = key, jnp.int32(0), jnp.int32(0)
        (_, _, num_hits), places = jax.lax.scan(step, start, length=size.steps)
        return num_hits, places

    return walk, (jax.random.key(1),)


def build_linear_congruence(size: Size) -> Built:
    """An integer recurrence: a linear congruential generator and a checksum of it."""

    def run(seed: jax.Array) -> Any:
        def step(i: jax.Array, carry: Any) -> Any:
            state, checksum = carry
            state = state * jnp.uint32(1664525) + jnp.uint32(1013904223)
            return state, checksum ^ (state >> (i % 13).astype(jnp.uint32))

        return jax.lax.fori_loop(0, size.steps, step, (seed, jnp.uint32(0)))

    return run, (jnp.uint32(7),)


def build_newton_scalar(size: Size) -> Built:
    """Thousands of roots one after the other, each by a `while_loop` of its own: nested loops."""

    def solve_all(values: jax.Array) -> jax.Array:
        def solve(value: jax.Array) -> jax.Array:
            def is_off(carry: Any) -> Any:
                x, i = carry
                return (jnp.abs(x * x * x - value) > 1e-4 * value) & (i < 60)

            def improve(carry: Any) -> Any:
                x, i = carry
                return x - (x * x * x - value) / (3.0 * x * x), i + 1

            return jax.lax.while_loop(is_off, improve, (value, 0))[0]

        return jax.lax.map(solve, values)

    return solve_all, (jnp.linspace(1.0, 50.0, size.steps),)


def _make(name: str, steps: int, **settings: Any) -> Program:
    return Program(
        name=f"scalar/{name}",
        category=CATEGORY,
        full=Size(lanes=1, steps=steps),
        quick=Size(lanes=1, steps=20),
        **{"target": 5.0, **settings},
    )


PROGRAMS: Final = (
    _make("logistic-map", 10_000, build=build_logistic_map, target=None),
    _make("running-maximum", 20_000, build=build_running_maximum, rule=EXACT, target=None),
    _make("quasiseparable-cholesky", 10_000, build=build_quasiseparable_cholesky, x64=True),
    _make("cable", 2000, build=build_cable, x64=True, rule=Rule(relative=1e-8)),
    _make("many-leaves", 600, build=build_many_leaves_forward, rule=Rule(relative=1e-4)),
    _make("many-leaves-gradient", 600, build=build_many_leaves_gradient, rule=Rule(relative=1e-3)),
    _make("rigid-body", 10_000, build=build_rigid_body, rule=Rule(relative=1e-3), target=None),
    _make("random-walk", 5000, build=build_random_walk, rule=EXACT),
    _make("linear-congruence", 20_000, build=build_linear_congruence, rule=EXACT, target=None),
    _make("newton", 2000, build=build_newton_scalar, target=None),
)
