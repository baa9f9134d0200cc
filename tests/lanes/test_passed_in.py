"""Large constants are operands of a kernel, wherever in a loop they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from fuselane.codegen.kernel import build
from fuselane.config import Options
from fuselane.device import host_device
from fuselane.hlo.computation import HloComputation
from fuselane.hlo.instruction import HloInstruction
from fuselane.lanes.form import form
from tests.lanes.oracle import (
    as_module,
    capture,
    loops_of,
    region_inputs,
    run_module,
    users_results,
)

_LANES: Final = 64
_STEPS: Final = 20
_FEATURES: Final = 16


def rows() -> np.ndarray[Any, Any]:
    """80 KiB of numbers, all different."""
    count = _STEPS * _LANES * _FEATURES
    return np.cos(np.arange(count, dtype=np.float32)).reshape(_STEPS, _LANES, _FEATURES)


def table() -> np.ndarray[Any, Any]:
    """80 KiB of numbers, as one line."""
    return rows().reshape(-1)


def streamed(state: jax.Array) -> jax.Array:
    return lax.scan(lambda s, x: (0.5 * s + x, None), state, jnp.asarray(rows()))[0]


def looked_up(state: jax.Array) -> jax.Array:
    numbers = jnp.asarray(table())

    def step(i: jax.Array, s: jax.Array) -> jax.Array:
        return numbers[jnp.abs(s * 1000).astype(jnp.int32) % 20_000 + i]

    return lax.fori_loop(0, 50, step, state)


def in_inner_loops(state: jax.Array) -> jax.Array:
    data = jnp.asarray(rows())

    def epoch(s: jax.Array, _: None) -> tuple[jax.Array, None]:
        return lax.scan(lambda s, x: (0.5 * s + jnp.sin(x + s), None), s, data)[0] * 0.9, None

    return lax.scan(epoch, state, None, length=3)[0]


def in_conditions(state: jax.Array) -> jax.Array:
    numbers = jnp.asarray(table())

    def goes_on(carry: Any) -> Any:
        i, total, _ = carry
        return (numbers[i] > -0.999) | (total < 3)

    def step(carry: Any) -> Any:
        i, total, s = carry
        return i + 1, total + 1, s * 0.5 + numbers[2 * i]

    return lax.while_loop(goes_on, step, (0, 0, state))[2]


def constants_in(computation: HloComputation) -> list[HloInstruction]:
    """Returns the constants of a computation and of all loops in it."""
    found = [i for i in computation.instructions if i.opcode == "constant"]
    for loop in (i for i in computation.instructions if i.opcode == "while"):
        found += constants_in(loop.body) + constants_in(loop.condition)
    return found


@pytest.mark.parametrize(
    ("program", "num_operands"),
    [(streamed, 1), (looked_up, 1), (in_inner_loops, 1), (in_conditions, 2)],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_large_constants_are_passed_in(program: Callable[..., Any], num_operands: int) -> None:
    state = np.linspace(-1.0, 1.0, _LANES * _FEATURES, dtype=np.float32).reshape(_LANES, -1)
    module = capture(program, state)
    formed = form(module, loops_of(module)[0])
    assert max(c.shape.byte_size for c in constants_in(formed.region)) < 1024
    passed = [o for o in formed.operands if o.opcode == "constant" and o.shape.byte_size > 2**16]
    assert len(passed) == num_operands
    assert len(build(formed, Options(), host_device()).ir) < 2**16
    results = run_module(as_module(formed.region), region_inputs(formed, (state,)))
    (wanted,) = jax.tree.leaves(jax.jit(program)(state))
    for result in users_results(formed, results):
        np.testing.assert_allclose(result, wanted, rtol=1e-5)


def test_small_constants_are_part_of_the_kernel() -> None:
    weights = np.cos(np.arange(_FEATURES * _FEATURES, dtype=np.float32)).reshape(_FEATURES, -1)

    def program(state: jax.Array) -> jax.Array:
        return lax.fori_loop(0, 9, lambda _, s: jnp.tanh(s @ jnp.asarray(weights)), state)

    module = capture(program, np.ones((_LANES, _FEATURES), np.float32))
    formed = form(module, loops_of(module)[0])
    assert not any(operand.opcode == "constant" for operand in formed.operands)
