"""Loops of unusual structure: one array, several loops, loops in what XLA keeps, many dtypes."""

from __future__ import annotations

from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import fuselane
from tests.differential.harness import check, explain, linear_values

LANES: Final = 37


def triple(x: jax.Array) -> jax.Array:
    return lax.while_loop(lambda x: x < 1000, lambda x: x * 3 + 1, x)


def test_a_loop_that_carries_one_array() -> None:
    check(jax.vmap(triple), np.arange(LANES, dtype=np.int32))


def test_a_loop_that_carries_one_array_between_other_things() -> None:
    check(lambda x: jax.vmap(triple)(x * 2) + 1, np.arange(LANES, dtype=np.int32))


def test_a_loop_on_the_result_of_another() -> None:
    def program(x: jax.Array) -> Any:
        first = lax.fori_loop(0, 10, lambda i, s: (s[0] * 3 + i, s[1] ^ s[0]), (x, x))
        second = lax.fori_loop(0, 7, lambda i, s: (s[0] + s[1], s[1] * 5), first)
        return jax.vmap(triple)(second[0] % 100), second

    check(program, linear_values((LANES,), "int32"))


@pytest.mark.parametrize("reverse", [False, True])
def test_mixed_types(reverse: bool) -> None:
    def program(x: jax.Array) -> Any:
        state = {
            "float": x,
            "int": (x.astype(jnp.int32), x.astype(jnp.int8), x.astype(jnp.uint16)),
            "bool": x > 3,
            "half": [x.astype(jnp.bfloat16), x.astype(jnp.float16)],
        }

        def step(s: Any, i: jax.Array) -> Any:
            n, b, u = s["int"]
            following = {
                "float": s["float"] + n,
                "int": (n * 3 + i, b + 1, u * 7),
                "bool": s["bool"] ^ (s["float"] > 5),
                "half": [s["half"][0] * 2, s["half"][1] * 0.5],
            }
            return following, s

        return lax.scan(step, state, jnp.arange(6), reverse=reverse)

    check(program, np.arange(LANES, dtype=np.float32))


def test_half_precision_rows_in_place() -> None:
    """XLA:CPU converts whole stacks of bf16 to f32 and back for each row it writes."""

    def program(x: jax.Array, rows: jax.Array) -> Any:
        return lax.scan(lambda x, row: (x * 2 + row, (x, row)), x, rows)

    x = linear_values((LANES,)).astype(jnp.bfloat16)
    rows = linear_values((300, LANES)).astype(jnp.bfloat16) * 0
    check(program, x, rows)


def test_arrays_without_elements() -> None:
    def program(x: jax.Array, nothing: jax.Array) -> Any:
        def step(carry: tuple[jax.Array, jax.Array], _: None) -> Any:
            return (carry[0] * 3 + 1, carry[1] * 2), carry[1]

        return lax.scan(step, (x, nothing), None, length=5)

    check(program, linear_values((LANES,), "int32"), np.zeros((0, LANES), np.int32))


@pytest.mark.parametrize("count", [0, -3, 4])
def test_trips_known_only_at_run_time(count: int) -> None:
    def program(x: jax.Array, n: jax.Array) -> Any:
        def step(x: jax.Array, t: jax.Array) -> tuple[jax.Array, jax.Array]:
            bound = n + t * (n > 0)
            return lax.fori_loop(0, bound, lambda i, y: y * 3 + i, x), x

        return lax.scan(step, x, jnp.arange(3)), lax.fori_loop(0, n, lambda i, y: y + i, x)

    check(program, linear_values((LANES,), "int32"), np.int32(count))


def test_uniform_condition_on_data() -> None:
    def program(x: jax.Array, k: jax.Array) -> Any:
        def body(carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            return carry[0] * 3 + carry[1], jnp.where(
                carry[1] % 2 == 0, carry[1] // 2, carry[1] * 3 + 1
            )

        return lax.while_loop(lambda c: c[1] > 1, body, (x, k))

    check(program, linear_values((LANES,), "int32"), np.int32(27))


def test_loops_in_a_loop_that_stays() -> None:
    """The outer loop mixes lanes by position: only the loops inside run as kernels."""

    def program(x: jax.Array) -> Any:
        def outer(x: jax.Array, t: jax.Array) -> tuple[jax.Array, None]:
            x = lax.fori_loop(0, 30, lambda i, y: y * 3 + i, x)
            x = jax.vmap(triple)(x % 1000)
            return jnp.roll(x, 1) + t, None

        return lax.scan(outer, x, jnp.arange(4))[0]

    check(program, linear_values((5_000,), "int32"), fused=None)
    with fuselane.enabled(min_gain=1.0):
        report = explain(program, linear_values((50_000,), "int32"))
    assert [loop.fused for loop in report.loops] == [False, True, True]


def test_loops_in_branches_that_stay() -> None:
    def program(x: jax.Array, flag: jax.Array) -> Any:
        def yes(x: jax.Array) -> jax.Array:
            return lax.fori_loop(0, 30, lambda i, y: y * 3 + i, x)

        return lax.cond(flag, yes, jax.vmap(triple), x)

    for flag in (True, False):
        check(program, linear_values((LANES,), "int32"), np.bool_(flag))


def test_nothing_that_changes_is_needed() -> None:
    def program(x: jax.Array, y: jax.Array) -> Any:
        return lax.while_loop(lambda c: c[2] < 5, lambda c: (c[0], c[1] + 1, c[2] + 1), (x, y, 0))[
            0
        ]

    x = linear_values((LANES,), "int32")
    check(program, x, x, fused=None)
