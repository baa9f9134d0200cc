"""Programs that Fuselane cannot or need not help. They must not become slower."""

from __future__ import annotations

from typing import Any, Final

import jax
import jax.numpy as jnp

from programs.program import EXACT, Built, Program, Rule, Size

CATEGORY: Final = "bystanders"


def build_matrix_power(size: Size) -> Built:
    """Power iteration with a large matrix: bound by the matrix product."""

    def iterate(matrix: jax.Array, start: jax.Array) -> jax.Array:
        def step(_: Any, block: jax.Array) -> jax.Array:
            block = matrix @ block
            return block / jnp.linalg.norm(block, axis=0)

        return jax.lax.fori_loop(0, size.steps, step, start)

    first, second = jax.random.split(jax.random.key(0))
    matrix = jax.random.normal(first, (size.lanes, size.lanes)) + 2.0 * jnp.eye(size.lanes)
    return iterate, (matrix, jax.random.normal(second, (size.lanes, 64)))


def build_heat(size: Size) -> Built:
    """The heat equation on a large square: each cell needs its neighbours."""

    def diffuse(field: jax.Array) -> jax.Array:
        def step(_: Any, u: jax.Array) -> jax.Array:
            inner = u[1:-1, 1:-1]
            around = u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2]
            return u.at[1:-1, 1:-1].set(inner + 0.2 * (around - 4.0 * inner))

        return jax.lax.fori_loop(0, size.steps, step, field)

    return diffuse, (jax.random.normal(jax.random.key(1), (size.lanes, size.lanes)),)


def build_sorting(size: Size) -> Built:
    """A long array sorted in each step, as by resampling."""

    def run(key: jax.Array) -> jax.Array:
        def step(x: jax.Array, step_key: jax.Array) -> Any:
            x = jnp.sort(x + 0.1 * jax.random.normal(step_key, x.shape))
            return x - x[x.shape[0] // 2], None

        start = jnp.linspace(-1.0, 1.0, size.lanes)
        return jax.lax.scan(step, start, jax.random.split(key, size.steps))[0]

    return run, (jax.random.key(2),)


def build_elementwise(size: Size) -> Built:
    """No loop at all: a fused elementwise expression and a sum."""

    def evaluate(x: jax.Array) -> Any:
        y = jnp.sin(x) * jnp.exp(-x * x) + jnp.tanh(3.0 * x)
        return y, jnp.sum(y)

    return evaluate, (jnp.linspace(-3.0, 3.0, size.lanes * size.steps),)


def build_attention(size: Size) -> Built:
    """Layers of attention in a scan over their weights: large products, no lanes to speak of."""
    width = 128

    def run(weights: Any, x: jax.Array) -> jax.Array:
        def layer(x: jax.Array, weights: Any) -> Any:
            query, key, value = (x @ weights[name] for name in ("query", "key", "value"))
            scores = jax.nn.softmax(query @ key.T / width**0.5, axis=-1)
            x = x + scores @ value
            return (x - x.mean(-1, keepdims=True)) / (x.std(-1, keepdims=True) + 1e-5), None

        return jax.lax.scan(layer, x, weights)[0]

    keys = jax.random.split(jax.random.key(3), 4)
    shape = (size.steps, width, width)
    weights = {
        name: jax.random.normal(key, shape) / width**0.5
        for name, key in zip(("query", "key", "value"), keys[:3], strict=True)
    }
    return run, (weights, jax.random.normal(keys[3], (size.lanes, width)))


def build_accumulation(size: Size) -> Built:
    """Rows of a matrix added up one by one: bound by memory."""

    def run(rows: jax.Array) -> jax.Array:
        return jax.lax.scan(lambda total, row: (total + row, None), jnp.zeros(rows.shape[1]), rows)[
            0
        ]

    return run, (jax.random.normal(jax.random.key(4), (size.steps, size.lanes)),)


def _make(name: str, lanes: int, steps: int, **settings: Any) -> Program:
    return Program(
        name=f"bystander/{name}",
        category=CATEGORY,
        full=Size(lanes=lanes, steps=steps),
        quick=Size(lanes=16, steps=3),
        **settings,
    )


PROGRAMS: Final = (
    _make("matrix-power", 512, 50, build=build_matrix_power, rule=Rule(relative=1e-3)),
    _make("heat", 1024, 50, build=build_heat, rule=Rule(relative=1e-4)),
    _make("sorting", 100_000, 10, build=build_sorting, rule=Rule(relative=1e-4)),
    _make("elementwise", 10_000, 200, build=build_elementwise, rule=Rule(relative=1e-4)),
    _make("attention", 256, 12, build=build_attention, rule=Rule(relative=1e-3)),
    _make("accumulation", 65_536, 300, build=build_accumulation, rule=EXACT),
)
