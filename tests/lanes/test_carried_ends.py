"""What a loop's condition and body both ask is asked once: no rounding keeps loops from ending."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from fuselane.codegen.kernel import build
from fuselane.codegen.llvm import optimised_ir
from fuselane.config import Options
from fuselane.device import host_device
from fuselane.lanes.form import form
from fuselane.lanes.program import LaneProgram
from tests.lanes.oracle import (
    as_module,
    capture,
    loops_of,
    region_inputs,
    run_module,
    users_results,
)

Function = Callable[..., Any]


def sums_over_data(n: int, num_data: int) -> tuple[Function, tuple[Any, ...]]:
    """Steps towards the solutions of `n` problems, while a mean over data is large."""
    data = jnp.cos(jnp.arange(3.0 * num_data).reshape(num_data, 3))

    def loss(x: jax.Array) -> jax.Array:
        return jnp.mean((data @ x - 1.0) ** 2)

    def solve(x: jax.Array, limit: jax.Array) -> Any:
        def goes_on(carry: Any) -> Any:
            return (loss(carry[1]) >= limit) & (carry[0] < 20)

        return lax.while_loop(goes_on, lambda c: (c[0] + 1, c[1] * 0.8), (0, x))

    return jax.vmap(solve), (jnp.linspace(1.0, 5.0, 3 * n).reshape(n, 3), jnp.linspace(0.5, 3.0, n))


def squares(n: int) -> tuple[Function, tuple[Any, ...]]:
    """Lanes that go on by a product that the body needs for more."""

    def solve(x: jax.Array, offset: jax.Array) -> Any:
        def goes_on(carry: Any) -> Any:
            x, _, count = carry
            return (x * x + offset >= 1.0) & (count < 20)

        def step(carry: Any) -> Any:
            x, total, count = carry
            return x * 0.9, total + jnp.sqrt(x * x + 2.0), count + 1

        return lax.while_loop(goes_on, step, (x, jnp.float32(0), 0))

    return jax.vmap(solve), (jnp.linspace(-3.0, 3.0, n), jnp.linspace(0.0, 0.5, n))


def form_loop(function: Function, arguments: tuple[Any, ...]) -> LaneProgram:
    module = capture(function, *arguments)
    return form(module, loops_of(module)[0])


@pytest.mark.parametrize(
    ("program", "meets"),
    [(sums_over_data(4, 50), True), (sums_over_data(3, 5), False)],
    ids=["lanes_meet", "no_lanes"],
)
def test_asked_once(program: tuple[Function, tuple[Any, ...]], meets: bool) -> None:
    function, arguments = program
    formed = form_loop(function, arguments)
    assert bool(formed.meetings) is meets
    loop = formed.loop.instruction
    assert not any(i.opcode == "compare" for i in loop.condition.instructions)
    asks = [i for i in loop.body.instructions if i.opcode == "compare" and i.users]
    assert sum(i.operands[0].shape.element_type.is_floating for i in asks) == 1
    results = run_module(as_module(formed.region), region_inputs(formed, arguments))
    expected = jax.tree.leaves(jax.jit(function)(*arguments))
    for result, wanted in zip(users_results(formed, results), expected, strict=True):
        np.testing.assert_allclose(result, wanted, rtol=1e-5)


def test_lanes_that_leave_one_by_one_ask_once() -> None:
    formed = form_loop(*squares(4096))
    assert formed.loop.lane_condition is not None
    kernel = optimised_ir(build(formed, Options(), host_device()).ir)
    assert kernel.count("fcmp") == 2  # in front of the loop and at its end, for the next step
