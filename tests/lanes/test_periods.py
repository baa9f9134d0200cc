"""How often a branch is taken, as its condition tells."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.module import HloModule
from fuselane.lanes.periods import find_period
from tests.hlo.xla import compiled


def _periods(condition: Callable[..., Any]) -> list[int | None]:
    """Returns the periods of both branches of `lax.cond`, the false one first, in XLA's module."""

    def program(x: jax.Array, n: Any) -> Any:
        def step(i: Any, x: jax.Array) -> jax.Array:
            return lax.cond(condition(i, n, x), jnp.sort, lambda x: x * 2, x)

        return lax.fori_loop(0, n, step, x)

    (conditional,) = _conditionals(program, jnp.arange(8.0), 5)
    return _both(conditional)


def _conditionals(program: Callable[..., Any], *arguments: Any) -> list[HloInstruction]:
    module = HloModule.from_bytes(compiled(program, *arguments))
    computations = module.computations
    return [i for c in computations for i in c.instructions if i.opcode == "conditional"]


def _both(conditional: HloInstruction) -> list[int | None]:
    found = [find_period(conditional, number) for number in range(2)]
    is_pred = not conditional.operands[0].shape.element_type.is_integral
    return found[::-1] if is_pred else found


@pytest.mark.parametrize(
    "condition",
    [
        lambda i, n, x: i % 50 == 0,
        lambda i, n, x: i % 50 == 49,
        lambda i, n, x: (i + 1) % 50 == 0,
        lambda i, n, x: (i % 50 == 0) & (x[0] > 0),
        lambda i, n, x: (i % 50 == 0) | (i == n - 1),
        lambda i, n, x: lax.rem(i, 50) == 3,
        lambda i, n, x: (i * 10 + 10) % 500 == 0,
    ],
)
def test_a_remainder(condition: Callable[..., Any]) -> None:
    assert _periods(condition) == [None, 50]


@pytest.mark.parametrize(("stride", "period"), [(1, 30), (3, 10), (4, 15), (30, None)])
@pytest.mark.parametrize("passes", [False, True])
def test_counters_of_other_strides(stride: int, period: int | None, *, passes: bool) -> None:
    """The branches may pass the counter on."""

    def rarely(i: Any, x: jax.Array) -> Any:
        return i, jnp.sort(x)

    def usually(i: Any, x: jax.Array) -> Any:
        return i, x * 2

    def program(x: jax.Array, n: Any) -> Any:
        def step(state: Any) -> Any:
            i, x = state
            i = i + stride
            # Another remainder, nearer to the root.
            takes = (i % 30 == 0) & ((i % 7 > 2) | (x[0] > 0))
            after, x = lax.cond(takes, rarely, usually, i, x)
            return after if passes else i, x

        return lax.while_loop(lambda state: state[0] < n, step, (0, x))

    (conditional,) = _conditionals(program, jnp.arange(8.0), 5)
    assert _both(conditional) == [None, period]


def test_the_lowest_bits() -> None:
    assert _periods(lambda i, n, x: i & 31 == 0) == [None, 32]


@pytest.mark.parametrize(
    "condition",
    [
        lambda i, n, x: x.sum() > 0,
        lambda i, n, x: i % 50 != 0,
        lambda i, n, x: i % 50 > 10,
        lambda i, n, x: i % n == 0,
        lambda i, n, x: i == 7,
        lambda i, n, x: jnp.floor(x[0]) % 4 == 0,
        lambda i, n, x: i & 20 == 0,
    ],
)
def test_what_is_not_known(condition: Callable[..., Any]) -> None:
    assert _periods(condition) == [None, None]
