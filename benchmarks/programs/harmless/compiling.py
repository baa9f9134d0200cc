"""Modules that take long to compile: whatever Fuselane does there, it does to many instructions."""

from __future__ import annotations

from typing import Any, Final

import jax
import jax.numpy as jnp

from programs.program import Built, Program, Rule, Size

CATEGORY: Final = "compiling"


def _weights(size: Size, width: int) -> jax.Array:
    return jax.random.normal(jax.random.key(0), (size.steps, width, width)) / width**0.5


def build_unrolled_layers(size: Size) -> Built:
    """Layers one after another, each traced by itself."""

    def run(weights: jax.Array, x: jax.Array) -> jax.Array:
        for i in range(size.steps):
            x = jnp.tanh(x @ weights[i]) + x
            x = (x - x.mean(-1, keepdims=True)) / (x.std(-1, keepdims=True) + 1e-5)
        return x

    return run, (_weights(size, 64), jnp.ones((size.lanes, 64)))


def build_unrolled_gradient(size: Size) -> Built:
    """Their gradient."""
    run, arguments = build_unrolled_layers(size)
    return jax.grad(lambda w, x: jnp.sum(run(w, x) ** 2)), arguments


def build_long_expression(size: Size) -> Built:
    """One expression of many elementwise operations."""

    def run(x: jax.Array) -> jax.Array:
        y = x
        for i in range(size.steps):
            y = jnp.sin(y * (1.0 + 0.01 * i)) + x if i % 2 else y * x + 0.1 * i
        return y

    return run, (jnp.linspace(-1.0, 1.0, size.lanes),)


def build_unrolled_scan(size: Size) -> Built:
    """A recurrent network's steps unrolled by `scan(unroll=True)`."""

    def run(w: jax.Array, inputs: jax.Array) -> jax.Array:
        def step(h: jax.Array, x: jax.Array) -> Any:
            return jnp.tanh(h @ w + x), None

        return jax.lax.scan(step, jnp.zeros_like(inputs[0]), inputs, unroll=True)[0]

    inputs = jax.random.normal(jax.random.key(1), (size.steps, size.lanes, 64))
    return run, (_weights(size, 64)[0], inputs)


def build_many_loops(size: Size) -> Built:
    """Many loops in one module, each over matrix products, none worth a kernel."""

    def run(weights: jax.Array, x: jax.Array) -> jax.Array:
        for i in range(size.steps):
            w = weights[i]
            x = jax.lax.fori_loop(0, 4, lambda _, y, w=w: jnp.tanh(y @ w), x) + x.mean(0)
        return x

    return run, (_weights(size, 128), jnp.ones((size.lanes, 128)))


def build_wide_body(size: Size) -> Built:
    """A loop whose body is long and mixes all it carries."""

    def run(weights: jax.Array, x: jax.Array) -> jax.Array:
        def step(_: Any, x: jax.Array) -> jax.Array:
            for i in range(size.steps):
                x = jnp.tanh(x @ weights[i])
                x = x / (1e-3 + jnp.linalg.norm(x)) + jnp.roll(x, i, 0)
            return x

        return jax.lax.fori_loop(0, 5, step, x)

    return run, (_weights(size, 128), jnp.ones((size.lanes, 128)))


def build_hessian(size: Size) -> Built:
    """A matrix of second derivatives, forwards over backwards."""

    def energy(x: jax.Array) -> jax.Array:
        for _ in range(size.steps):
            x = jnp.sin(x) * jnp.roll(x, 1) + jnp.cumsum(x) / x.size
        return jnp.sum(x**2)

    return jax.hessian(energy), (jnp.linspace(0.0, 1.0, size.lanes),)


def build_branches(size: Size) -> Built:
    """A switch over many functions."""

    def branch(i: int) -> Any:
        return lambda x: jnp.sin(x * i) @ x.T / (1.0 + i) @ x

    def run(index: jax.Array, x: jax.Array) -> jax.Array:
        return jax.lax.switch(index, [branch(i) for i in range(size.steps)], x)

    return run, (jnp.int32(1), jax.random.normal(jax.random.key(2), (size.lanes, 64)))


def _make(name: str, lanes: int, steps: int, **settings: Any) -> Program:
    return Program(
        name=f"compiling/{name}",
        category=CATEGORY,
        full=Size(lanes=lanes, steps=steps),
        quick=Size(lanes=4, steps=2),
        rule=Rule(relative=1e-2),
        **settings,
    )


PROGRAMS: Final = (
    _make("unrolled-layers", 64, 40, build=build_unrolled_layers),
    _make("unrolled-gradient", 64, 20, build=build_unrolled_gradient),
    _make("long-expression", 20_000, 200, build=build_long_expression),
    _make("unrolled-scan", 64, 60, build=build_unrolled_scan),
    _make("many-loops", 128, 20, build=build_many_loops),
    _make("wide-body", 128, 12, build=build_wide_body),
    _make("hessian", 64, 8, build=build_hessian),
    _make("branches", 64, 20, build=build_branches),
)
