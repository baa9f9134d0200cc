"""Cheap functions called over and over from Python: what a call costs is all there is to see."""

from __future__ import annotations

from typing import Any, Final

import jax
import jax.numpy as jnp

from programs.program import Built, Program, Rule, Size

CATEGORY: Final = "calls"


def build_increment(size: Size) -> Built:
    """One addition."""
    return (lambda x: x + 1), (jnp.zeros(size.lanes),)


def build_many_arguments(size: Size) -> Built:
    """Many small arguments, few used."""

    def run(*arguments: jax.Array) -> jax.Array:
        return arguments[0] + arguments[-1]

    return run, tuple(jnp.float32(i) for i in range(size.lanes))


def build_many_results(size: Size) -> Built:
    """Many small results."""

    def run(x: jax.Array) -> Any:
        return [x + i for i in range(size.lanes)]

    return run, (jnp.float32(0.0),)


def build_tree(size: Size) -> Built:
    """A dictionary of dictionaries in and out, as of parameters."""

    def run(tree: Any) -> Any:
        return jax.tree.map(lambda x: x * 0.9, tree)

    layer = {"kernel": jnp.ones((4, 4)), "bias": jnp.zeros(4)}
    return run, ({f"layer {i}": dict(layer) for i in range(size.lanes)},)


def build_small_product(size: Size) -> Built:
    """A small matrix times a vector."""
    return jnp.matmul, (jnp.eye(size.lanes), jnp.ones(size.lanes))


def build_small_gradient(size: Size) -> Built:
    """A step of gradient descent on a small regression."""

    def loss(w: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.mean((jnp.tanh(x @ w) - 1.0) ** 2)

    def step(w: jax.Array, x: jax.Array) -> jax.Array:
        return w - 0.1 * jax.grad(loss)(w, x)

    return step, (jnp.zeros(size.lanes), jnp.ones((8, size.lanes)))


def build_key_split(size: Size) -> Built:
    """A random key split and used."""

    def run(key: jax.Array) -> Any:
        key, own = jax.random.split(key)
        return key, jax.random.normal(own, (size.lanes,))

    return run, (jax.random.key(0),)


def build_sorting_loop(size: Size) -> Built:
    """A short loop that sorts all it carries in each step."""

    def run(x: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, 4, lambda _, y: jnp.sort(y)[::-1] * 0.5, x)

    return run, (jnp.linspace(0.0, 1.0, size.lanes),)


def build_fused_loop(size: Size) -> Built:
    """A loop just long enough to be worth a kernel."""

    def run(x: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, 50, lambda _, y: jnp.sin(y) * x + 0.5, x)

    return run, (jnp.linspace(0.0, 1.0, size.lanes),)


def build_environment_step(size: Size) -> Built:
    """One step of a few pendulums, the loop over steps being Python's."""

    def step(state: Any, force: jax.Array) -> Any:
        angle, speed = state
        speed = jnp.clip(speed + 0.05 * (15 * jnp.sin(angle) + 3 * force), -8.0, 8.0)
        angle = angle + 0.05 * speed
        return (angle, speed), -(angle**2 + 0.1 * speed**2 + 0.001 * force**2)

    zeros = jnp.zeros(size.lanes)
    return step, ((zeros, zeros), zeros)


def _make(name: str, lanes: int, calls: int, **settings: Any) -> Program:
    return Program(
        name=f"calls/{name}",
        category=CATEGORY,
        full=Size(lanes=lanes, steps=1),
        quick=Size(lanes=2, steps=1),
        calls=calls,
        rule=Rule(relative=1e-4),
        **settings,
    )


PROGRAMS: Final = (
    _make("increment", 10, 2000, build=build_increment),
    _make("many-arguments", 100, 500, build=build_many_arguments),
    _make("many-results", 50, 200, build=build_many_results),
    _make("tree", 10, 500, build=build_tree),
    _make("small-product", 16, 1000, build=build_small_product),
    _make("small-gradient", 16, 500, build=build_small_gradient),
    _make("key-split", 16, 300, build=build_key_split),
    _make("sorting-loop", 256, 300, build=build_sorting_loop),
    _make("fused-loop", 1000, 300, build=build_fused_loop),
    _make("environment-step", 64, 1000, build=build_environment_step),
)
