"""Loops that cannot run lane by lane: left to XLA, with the expected reason and the same
results."""

from __future__ import annotations

from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import io_callback

from fuselane.analysis import gain
from tests.differential.comparison import CLOSE, EXACT, Tolerance
from tests.differential.harness import Program, check, linear_values

LANES: Final = 40


@pytest.fixture(autouse=True)
def no_loop_is_too_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replaces the fixture of that name: no loop pays here, not even as scalar code."""
    monkeypatch.setenv("FUSELANE_MIN_GAIN", "1e9")
    monkeypatch.setattr(gain, "MIN_XLA_TIME_US", 0.0)


def repeat(body: Program, steps: int = 4) -> Program:
    """Returns a program that applies `body` to its argument in a loop."""

    def program(x: jax.Array) -> Any:
        return lax.scan(lambda x, i: (body(x, i), x), x, jnp.arange(steps))

    return program


def gather_at_own_index(x: jax.Array, i: jax.Array) -> jax.Array:
    return x[jnp.abs(x * 7 + i) % LANES]


def scatter_at_own_index(x: jax.Array, i: jax.Array) -> jax.Array:
    return jnp.zeros_like(x).at[jnp.abs(x + i) % LANES].add(x)


# What mixes the lanes of one array [LANES], and the reason that must be given, or one of two.
MIXING: Final[dict[str, tuple[Program, str]]] = {
    "roll": (lambda x, i: jnp.roll(x, 1), "cross-lane"),
    "reverse": (lambda x, i: x[::-1] + 1, "cross-lane"),
    "neighbours": (lambda x, i: x.at[1:-1].set(x[2:] + x[:-2]), "cross-lane"),
    "sum_of_lanes": (lambda x, i: x - x.sum() // LANES, "not-profitable"),
    "largest_lane": (lambda x, i: x - jnp.max(x), "not-profitable"),
    "index_of_largest": (lambda x, i: x.at[jnp.argmax(x)].set(0), "cross-lane"),
    "one_lane_for_all": (lambda x, i: x + x[3], "cross-lane"),
    "lane_of_the_step": (lambda x, i: x.at[i].add(x[i + 1]), "cross-lane"),
    "padded": (lambda x, i: jnp.pad(x[:-2], (1, 1)) + i, "cross-lane"),
    "concatenated": (lambda x, i: jnp.concatenate([x[5:], x[:5]]), "cross-lane"),
    "reshaped": (lambda x, i: x.reshape(8, 5).T.reshape(-1), "cross-lane"),
    "associative_scan": (lambda x, i: lax.associative_scan(jnp.add, x), "cross-lane"),
    "cumulative_sum": (lambda x, i: jnp.cumsum(x), "cross-lane"),
    "sort": (lambda x, i: jnp.sort(x ^ i), "cross-lane"),
    "top_k": (lambda x, i: x - lax.top_k(x, 3)[0].sum(), "cross-lane"),
    "gather": (gather_at_own_index, "not-profitable"),
    "scatter": (scatter_at_own_index, "not-profitable"),
    "permutation": (
        lambda x, i: jax.random.permutation(jax.random.key(i), x),
        "cross-lane or not-profitable",
    ),
}


@pytest.mark.for_cpus
@pytest.mark.parametrize("name", MIXING)
def test_mixing_lanes(name: str) -> None:
    body, reason = MIXING[name]
    check(repeat(body), linear_values((LANES,), "int32"), refused=reason.split(" or "))


def test_matrix_product() -> None:
    matrix = np.random.default_rng(0).standard_normal((LANES, LANES)).astype(np.float32) / 8

    def program(x: jax.Array) -> Any:
        return lax.scan(lambda x, _: (jnp.tanh(matrix @ x), None), x, length=4)

    check(program, linear_values((LANES,)) / LANES, refused="cross-lane", tolerance=CLOSE)


def test_convolution_over_lanes() -> None:
    kernel = np.array([0.25, 0.5, 0.25], np.float32)
    body = repeat(lambda x, i: jnp.convolve(x, kernel, mode="same"))
    check(body, linear_values((LANES,)), refused="cross-lane", tolerance=CLOSE)


def test_lanes_that_change_when_they_are_done() -> None:
    """Without a select a lane goes on as long as any other does; lanes then take steps together."""

    def program(x: jax.Array) -> Any:
        def body(carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            x, steps = carry
            return x * 2, steps + 1

        return lax.while_loop(lambda c: jnp.any(c[0] < 100), body, (x, jnp.int32(0)))

    check(program, np.abs(linear_values((LANES,))) + 1, fused=None)


def test_condition_over_all_lanes() -> None:
    def program(x: jax.Array) -> jax.Array:
        return lax.while_loop(lambda x: jnp.sum(x) < 1e5, lambda x: jnp.abs(x) * 2 + 1, x)

    check(program, linear_values((LANES,)), fused=None)


def test_scalars_only() -> None:
    def program(x: jax.Array) -> Any:
        return lax.fori_loop(0, 100, lambda i, x: x * 3 + i, x)

    check(program, np.int32(5), refused="no-lanes")


def test_floats_of_eight_bits() -> None:
    def program(x: jax.Array) -> Any:
        def step(x: jax.Array, _: None) -> Any:
            return x * 0.5, x.astype(jnp.float8_e4m3fn)

        return lax.scan(step, x, length=4)[1].astype(jnp.float32)

    check(program, linear_values((LANES,)) / LANES, refused="unsupported-type")


def fourier(x: jax.Array, i: jax.Array) -> jax.Array:
    return jnp.fft.irfft(jnp.fft.rfft(x), LANES) + i


def cholesky(x: jax.Array, i: jax.Array) -> jax.Array:
    return x + jnp.linalg.cholesky(jnp.eye(LANES) * (i + 2))[0]


@pytest.mark.parametrize("body", [fourier, cholesky])
def test_library_calls(body: Program) -> None:
    check(
        repeat(body),
        linear_values((LANES,)) / LANES,
        refused="unsupported-opcode",
        tolerance=CLOSE,
    )


def test_pure_callback() -> None:
    def body(x: jax.Array, i: jax.Array) -> jax.Array:
        shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return jax.pure_callback(lambda y: np.asarray(y) * 2, shape, x) + i

    check(repeat(body), linear_values((LANES,), "int32"), refused="unsupported-opcode")


def test_ordered_callback() -> None:
    """Its effects happen once a step, in order, with and without Fuselane."""
    seen: list[int] = []

    def body(x: jax.Array, i: jax.Array) -> jax.Array:
        io_callback(lambda number: seen.append(int(number)), None, i, ordered=True)
        return x + i

    check(repeat(body), linear_values((LANES,), "int32"), refused="side-effect")
    jax.effects_barrier()
    assert seen
    assert seen == [0, 1, 2, 3] * (len(seen) // 4)


def test_debug_callback() -> None:
    seen: list[int] = []

    def body(x: jax.Array, i: jax.Array) -> jax.Array:
        jax.debug.callback(lambda number: seen.append(int(number)), i)
        return x + i

    check(repeat(body), linear_values((LANES,), "int32"), refused="side-effect")
    jax.effects_barrier()
    assert sorted(set(seen)) == [0, 1, 2, 3]


def test_program_without_loop() -> None:
    def program(x: jax.Array) -> jax.Array:
        return jnp.sort(jnp.sin(x)) + x.sum()

    check(program, linear_values((LANES,)), fused=None)


def test_while_opcode_in_a_name_only() -> None:
    """A program that only looks like it had a loop."""

    def while_(x: jax.Array) -> jax.Array:
        with jax.named_scope("while"):
            return x * 2

    check(while_, linear_values((LANES,)), fused=None, tolerance=EXACT)


def test_one_lane_local_loop_beside_a_mixing_one() -> None:
    """What one loop is refused for does not touch the other."""

    def program(x: jax.Array) -> Any:
        first, _ = lax.scan(lambda x, i: (x * 3 + i, None), x, jnp.arange(5))
        second, _ = lax.scan(lambda x, i: (jnp.sort(x + i), None), x, jnp.arange(5))
        return first, second

    check(program, linear_values((LANES,), "int32"), fused=None, tolerance=Tolerance())
