"""Gradients through loops, and what recomputing cheap residuals is worth.

    python benchmarks/gradients.py [--lanes 2048] [--steps 200] [name ...]

For each program plain XLA, Fuselane, and Fuselane storing every residual run in turn, in one
process; printed are the medians in milliseconds and their ratios to plain XLA.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, Final
from unittest.mock import patch

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import fuselane
from fuselane.lanes import residuals

Program = tuple[Callable[..., Any], Sequence[Any]]

_ROUNDS: Final = 15


def values(*sizes: int) -> jax.Array:
    """Returns numbers between -0.2 and 0.8."""
    size = int(np.prod(sizes))
    return jnp.asarray(np.sin(np.arange(size) * 0.7).reshape(sizes) * 0.5 + 0.3, jnp.float32)


def tanh(lanes: int, steps: int) -> Program:
    """A recurrence with two weights; its backward loop wants `1 - tanh(..)`."""

    def loss(weights: jax.Array, start: jax.Array) -> jax.Array:
        def step(x: jax.Array, _: None) -> tuple[jax.Array, None]:
            return jnp.tanh(x * weights[0] + weights[1]), None

        return lax.scan(step, start, None, length=steps)[0].sum()

    return jax.value_and_grad(loss), (values(2), values(lanes))


def gate(lanes: int, steps: int) -> Program:
    """Sigmoids and exponentials, several of their residuals cheap."""

    def loss(weights: jax.Array, start: jax.Array) -> jax.Array:
        def step(x: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
            z = jax.nn.sigmoid(x * weights[0])
            x = x * (1 - z) + z * jnp.exp(-x * x)
            return x, jnp.mean(x * x)

        return lax.scan(step, start, None, length=steps)[1].sum()

    return jax.value_and_grad(loss), (values(2), values(lanes))


def pendulum(lanes: int, steps: int) -> Program:
    """An integrated ensemble of pendulums, and its two parameters."""

    def loss(parameters: jax.Array, start: Any) -> Any:
        def step(state: Any, _: None) -> tuple[Any, None]:
            angle, speed = state
            speed = speed - 0.05 * (parameters[0] * jnp.sin(angle) + parameters[1] * speed)
            return (angle + 0.05 * speed, speed), None

        angle, speed = lax.scan(step, start, None, length=steps)[0]
        return (angle**2 + speed**2).mean()

    return jax.value_and_grad(loss), (values(2), (values(lanes), values(lanes)))


def network(lanes: int, steps: int) -> Program:
    """A residual network of two layers that all lanes share."""

    def loss(weights: Any, start: jax.Array) -> Any:
        def step(x: jax.Array, _: None) -> tuple[jax.Array, None]:
            hidden = jnp.tanh(x @ weights[0] + weights[1])
            return x + 0.1 * (hidden @ weights[2]), None

        return (lax.scan(step, start, None, length=steps)[0] ** 2).mean()

    weights = [values(4, 32) - 0.3, values(32), values(32, 4) - 0.3]
    return jax.value_and_grad(loss), (weights, values(lanes, 4))


PROGRAMS: Final = {each.__name__: each for each in (tanh, gate, pendulum, network)}


def measure(program: Program) -> tuple[float, float, float]:
    """Returns the milliseconds of plain XLA, of Fuselane, and of Fuselane storing residuals."""
    function, arguments = program
    plain = jax.jit(lambda *a: function(*a))  # noqa: PLW0108  (functions of their own)
    fused = jax.jit(lambda *a: function(*a))  # noqa: PLW0108
    storing = jax.jit(lambda *a: function(*a))  # noqa: PLW0108
    times: tuple[list[float], ...] = ([], [], [])

    def run(compiled: Callable[..., Any], results: list[float]) -> None:
        start = time.perf_counter()
        jax.block_until_ready(compiled(*arguments))  # type: ignore[no-untyped-call]
        results.append(1000 * (time.perf_counter() - start))

    for _ in range(_ROUNDS + 1):
        run(plain, times[0])
        with fuselane.enabled():
            run(fused, times[1])
            with patch.multiple(residuals, MAX_COST=0.0, MAX_COST_CACHED=0.0):
                run(storing, times[2])
    first, second, third = (statistics.median(each[1:]) for each in times)
    return first, second, third


def main() -> None:
    """Measures the programs that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lanes", type=int, default=2048)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("names", nargs="*", choices=[*PROGRAMS, []])
    options = parser.parse_args()
    print(f"{options.lanes} lanes, {options.steps} steps, milliseconds")
    for name in options.names or PROGRAMS:
        plain, fused, storing = measure(PROGRAMS[name](options.lanes, options.steps))
        print(
            f"{name:10} XLA {plain:8.3f}   Fuselane {fused:8.3f} ({plain / fused:.2f}x)"
            f"   storing all residuals {storing:8.3f} ({plain / storing:.2f}x)"
        )


if __name__ == "__main__":
    main()
