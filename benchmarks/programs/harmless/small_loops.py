"""Loops over next to nothing, called many times through `jax.jit`: a kernel's overhead would show.

Some of them are worth a kernel by estimate, some are not.
"""

from __future__ import annotations

from typing import Any, Final

import jax
import jax.numpy as jnp

from programs.program import Built, Program, Rule, Size

CATEGORY: Final = "small loops"


def build_three_steps(size: Size) -> Built:
    """Three steps over a short vector."""

    def run(x: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, size.steps, lambda _, y: jnp.sin(y) + x, x)

    return run, (jnp.linspace(0.0, 1.0, size.lanes),)


def build_no_step(size: Size) -> Built:
    """A `while_loop` whose condition is false at once."""

    def run(x: jax.Array) -> jax.Array:
        def halve(y: jax.Array) -> jax.Array:
            return y * 0.5

        return jax.lax.while_loop(lambda y: jnp.max(y) > size.steps, halve, x)

    return run, (jnp.linspace(0.0, 1.0, size.lanes),)


def build_square_root(size: Size) -> Built:
    """Newton's method for one number."""

    def run(x: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, size.steps, lambda _, y: 0.5 * (y + x / y), x)

    return run, (jnp.float32(2.0),)


def build_bisection(size: Size) -> Built:
    """Bisection for a few numbers at once."""

    def run(target: jax.Array) -> jax.Array:
        def step(_: Any, ends: Any) -> Any:
            low, high = ends
            middle = 0.5 * (low + high)
            is_low = middle**3 + middle < target
            return jnp.where(is_low, middle, low), jnp.where(is_low, high, middle)

        ends = (jnp.zeros_like(target), jnp.full_like(target, 4.0))
        return jax.lax.fori_loop(0, size.steps, step, ends)[0]

    return run, (jnp.linspace(0.5, 60.0, size.lanes),)


def build_searchsorted(size: Size) -> Built:
    """Positions in a sorted table: a loop inside JAX's own function."""

    def run(table: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.searchsorted(table, x)

    table = jnp.linspace(0.0, 1.0, 1 << size.steps)
    return run, (table, jax.random.uniform(jax.random.key(0), (size.lanes,)))


def build_integer_power(size: Size) -> Built:
    """Powers of a small matrix by squaring."""

    def run(matrix: jax.Array) -> jax.Array:
        def square(_: Any, m: jax.Array) -> jax.Array:
            m = m @ m
            return m / jnp.abs(m).max()

        return jax.lax.fori_loop(0, size.steps, square, matrix)

    return run, (jnp.eye(size.lanes) + 0.1,)


def build_short_scan(size: Size) -> Built:
    """A scan of few steps with several small carries and outputs."""

    def run(xs: jax.Array) -> Any:
        def step(carry: Any, x: jax.Array) -> Any:
            mean, square = carry
            mean = 0.9 * mean + 0.1 * x
            return (mean, 0.9 * square + 0.1 * x * x), x - mean

        zeros = jnp.zeros(size.lanes)
        return jax.lax.scan(step, (zeros, zeros), xs)

    return run, (jax.random.normal(jax.random.key(1), (size.steps, size.lanes)),)


def build_nested(size: Size) -> Built:
    """A few steps of a few steps."""

    def run(x: jax.Array) -> jax.Array:
        def inner(y: jax.Array) -> jax.Array:
            return jax.lax.fori_loop(0, size.steps, lambda _, z: jnp.cos(z), y)

        return jax.lax.fori_loop(0, size.steps, lambda _, y: inner(y) + x, x)

    return run, (jnp.linspace(0.0, 1.0, size.lanes),)


def build_branches(size: Size) -> Built:
    """A conditional in each of a few steps."""

    def run(x: jax.Array) -> jax.Array:
        def step(i: Any, y: jax.Array) -> jax.Array:
            return jax.lax.cond(i % 2 == 0, jnp.sin, lambda z: z * z, y)

        return jax.lax.fori_loop(0, size.steps, step, x)

    return run, (jnp.linspace(0.0, 1.0, size.lanes),)


def build_gamma(size: Size) -> Built:
    """A few gamma variates: rejection sampling, a loop inside JAX's own function."""

    def run(key: jax.Array) -> jax.Array:
        return jax.random.gamma(key, 2.5, (size.lanes,))

    return run, (jax.random.key(2),)


def build_poisson(size: Size) -> Built:
    """A few Poisson variates."""

    def run(key: jax.Array) -> jax.Array:
        return jax.random.poisson(key, 3.0, (size.lanes,))

    return run, (jax.random.key(3),)


def build_shuffle(size: Size) -> Built:
    """A random permutation: sorts in a loop, inside JAX's own function."""

    def run(key: jax.Array) -> jax.Array:
        return jax.random.permutation(key, size.lanes)

    return run, (jax.random.key(4),)


def build_horner(size: Size) -> Built:
    """A polynomial's value by a scan over its coefficients."""

    def run(coefficients: jax.Array, x: jax.Array) -> jax.Array:
        def step(total: jax.Array, c: jax.Array) -> Any:
            return total * x + c, None

        return jax.lax.scan(step, jnp.zeros_like(x), coefficients)[0]

    return run, (jnp.linspace(-1.0, 1.0, size.steps), jnp.linspace(-1.0, 1.0, size.lanes))


def build_batched_collatz(size: Size) -> Built:
    """`vmap` of a `while_loop` that ends soon."""

    def length(n: jax.Array) -> jax.Array:
        def step(carry: Any) -> Any:
            n, count = carry
            return jnp.where(n % 2 == 0, n // 2, 3 * n + 1), count + 1

        start = (n, jnp.int32(0))
        return jax.lax.while_loop(lambda c: c[0] > 1, step, start)[1]

    return jax.vmap(length), (jnp.arange(1, size.lanes + 1),)


def _make(name: str, lanes: int, steps: int, calls: int, **settings: Any) -> Program:
    return Program(
        name=f"small/{name}",
        category=CATEGORY,
        full=Size(lanes=lanes, steps=steps),
        quick=Size(lanes=2, steps=2),
        calls=calls,
        rule=Rule(relative=1e-4),
        **settings,
    )


PROGRAMS: Final = (
    _make("three-steps", 8, 3, 500, build=build_three_steps),
    _make("three-steps-of-1000", 1000, 3, 200, build=build_three_steps),
    _make("no-step", 64, 4, 500, build=build_no_step),
    _make("square-root", 1, 6, 500, build=build_square_root),
    _make("bisection", 16, 24, 300, build=build_bisection),
    _make("searchsorted", 64, 12, 300, build=build_searchsorted),
    _make("integer-power", 8, 6, 300, build=build_integer_power),
    _make("short-scan", 32, 8, 300, build=build_short_scan),
    _make("nested", 16, 3, 300, build=build_nested),
    _make("branches", 32, 6, 300, build=build_branches),
    _make("gamma", 16, 1, 100, build=build_gamma),
    _make("poisson", 16, 1, 100, build=build_poisson),
    _make("shuffle", 256, 1, 200, build=build_shuffle),
    _make("horner", 64, 8, 300, build=build_horner),
    _make("batched-collatz", 16, 1, 100, build=build_batched_collatz),
)
