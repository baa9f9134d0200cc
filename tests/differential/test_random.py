"""jax.random inside loops: the same bits as under plain XLA, floats made from them within their
bound."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.differential.comparison import EXACT, Tolerance
from tests.differential.harness import Program, check

LANES: Final = 131
NEAR: Final = Tolerance(ulp=64, relative=1e-5, absolute=1e-6)

Draw = Callable[[jax.Array, tuple[int, ...]], jax.Array]

EXACT_DRAWS: Final[dict[str, Draw]] = {
    "bits8": lambda key, shape: jax.random.bits(key, shape, "uint8"),
    "bits16": lambda key, shape: jax.random.bits(key, shape, "uint16"),
    "bits32": jax.random.bits,
    "uniform": jax.random.uniform,
    "uniform_half": lambda key, shape: jax.random.uniform(key, shape, "float16"),
    "uniform_bounds": lambda key, shape: jax.random.uniform(key, shape, minval=-0.5, maxval=0.5),
    "bernoulli": lambda key, shape: jax.random.bernoulli(key, 0.3, shape),
    "randint": lambda key, shape: jax.random.randint(key, shape, -5, 17),
    "randint_power_of_two": lambda key, shape: jax.random.randint(key, shape, 0, 8),
    "rademacher": jax.random.rademacher,
}
NEAR_DRAWS: Final[dict[str, Draw]] = {
    "normal": jax.random.normal,
    "truncated_normal": lambda key, shape: jax.random.truncated_normal(key, -1.0, 2.0, shape),
    "exponential": jax.random.exponential,
    "gumbel": jax.random.gumbel,
    "laplace": jax.random.laplace,
    "logistic": jax.random.logistic,
    "cauchy": lambda key, shape: jnp.clip(jax.random.cauchy(key, shape), -20, 20),
}


def draw_each_step(draw: Draw, shape: tuple[int, ...]) -> Program:
    """Returns a program that splits its key in every step and draws numbers of `shape`."""

    def program(key: jax.Array) -> Any:
        def step(carry: tuple[jax.Array, jax.Array], _: None) -> tuple[Any, jax.Array]:
            key, count = carry
            key, subkey = jax.random.split(key)
            return (key, count + 1), draw(subkey, shape)

        return lax.scan(step, (key, jnp.zeros(shape, jnp.int32)), length=4)

    return program


@pytest.mark.parametrize("name", EXACT_DRAWS)
def test_exact(name: str) -> None:
    check(draw_each_step(EXACT_DRAWS[name], (LANES,)), jax.random.key(3))


@pytest.mark.parametrize("name", NEAR_DRAWS)
def test_near(name: str) -> None:
    check(draw_each_step(NEAR_DRAWS[name], (LANES,)), jax.random.key(4), tolerance=NEAR)


@pytest.mark.parametrize("shape", [(4, LANES), (LANES, 3), (2, LANES, 3)])
def test_several_numbers_per_lane(shape: tuple[int, ...]) -> None:
    check(draw_each_step(jax.random.uniform, shape), jax.random.key(5))


@pytest.mark.parametrize("dtype", ["uint64", "float64"])
def test_wide_types(dtype: str) -> None:
    draws: dict[str, Draw] = {
        "uint64": lambda key, shape: jax.random.bits(key, shape, "uint64"),
        "float64": lambda key, shape: jax.random.uniform(key, shape, "float64"),
    }
    check(draw_each_step(draws[dtype], (LANES,)), jax.random.key(6), x64=True)


def test_raw_key_and_many_splits() -> None:
    def program(key: jax.Array) -> Any:
        def step(carry: tuple[jax.Array, jax.Array], _: None) -> tuple[Any, jax.Array]:
            key, x = carry
            key, *subkeys = jax.random.split(key, 4)
            draws = [jax.random.uniform(subkey, (LANES,)) for subkey in subkeys]
            return (key, x + draws[0]), draws[1] < draws[2]

        return lax.scan(step, (key, jnp.zeros(LANES)), length=5)

    check(program, np.array([0, 42], np.uint32), tolerance=EXACT)


def test_fold_in_of_the_step() -> None:
    def program(key: jax.Array) -> Any:
        def step(x: jax.Array, i: jax.Array) -> tuple[jax.Array, jax.Array]:
            bits = jax.random.bits(jax.random.fold_in(key, i), (LANES,))
            return x ^ bits, bits & 7

        return lax.scan(step, jnp.zeros(LANES, jnp.uint32), jnp.arange(4))

    check(program, jax.random.key(7))


def test_keys_as_stream() -> None:
    """All keys are split in front of the loop."""

    def program(key: jax.Array) -> Any:
        def step(x: jax.Array, key: jax.Array) -> tuple[jax.Array, None]:
            return x + jax.random.randint(key, (LANES,), 0, 100), None

        return lax.scan(step, jnp.zeros(LANES, jnp.int32), jax.random.split(key, 6))

    check(program, jax.random.key(8))


def test_key_per_lane() -> None:
    """Every lane carries its own key, as `vmap` of a whole rollout gives."""

    def rollout(key: jax.Array) -> Any:
        def step(carry: tuple[jax.Array, jax.Array], _: None) -> tuple[Any, jax.Array]:
            key, x = carry
            key, subkey = jax.random.split(key)
            return (key, x + jax.random.uniform(subkey)), jax.random.bits(subkey)

        return lax.scan(step, (key, jnp.float32(0)), length=4)

    check(jax.vmap(rollout), jax.random.split(jax.random.key(9), LANES))


def test_key_per_lane_with_several_numbers() -> None:
    def rollout(key: jax.Array) -> Any:
        def step(carry: tuple[jax.Array, jax.Array], _: None) -> tuple[Any, jax.Array]:
            key, x = carry
            key, first, second = jax.random.split(key, 3)
            drawn = jax.random.uniform(first, (3,))
            return (key, x + drawn), jax.random.randint(second, (2,), 0, 10)

        return lax.scan(step, (key, jnp.zeros(3)), length=3)

    check(jax.vmap(rollout), jax.random.split(jax.random.key(10), LANES))


@pytest.mark.parametrize("keys", [2, 7, 130])
def test_many_numbers_of_many_keys(keys: int) -> None:
    """Keys and numbers are lanes together: each has its part of its key."""
    draw = jax.vmap(lambda key: jax.random.bits(key, (300,)))
    arguments = jax.random.split(jax.random.key(12), keys)
    report = check(draw, arguments)
    assert [loop.lanes for loop in report.loops] == [keys * 300]


def test_categorical() -> None:
    def program(key: jax.Array, logits: jax.Array) -> Any:
        def step(carry: tuple[jax.Array, jax.Array], _: None) -> tuple[Any, jax.Array]:
            key, counts = carry
            key, subkey = jax.random.split(key)
            choice = jax.random.categorical(subkey, logits, axis=-1)
            return (key, counts + choice), choice

        return lax.scan(step, (key, jnp.zeros(LANES, jnp.int32)), length=4)

    logits = np.random.default_rng(0).standard_normal((LANES, 5)).astype(np.float32)
    check(program, jax.random.key(11), logits)


@pytest.mark.parametrize("rare", [False, True])
def test_draw_needed_under_a_select_only(rare: bool) -> None:
    """Resets: expensive numbers that are skipped for blocks of lanes where no lane needs them."""

    def program(key: jax.Array, state: jax.Array) -> Any:
        def step(carry: tuple[jax.Array, jax.Array], _: None) -> tuple[Any, jax.Array]:
            key, x = carry
            key, subkey = jax.random.split(key)
            done = x > (0.9 if not rare else 1e6)
            fresh = jax.random.uniform(subkey, x.shape)
            return (key, jnp.where(done, fresh, x * 1.5)), done

        return lax.scan(step, (key, state), length=6)

    state = np.random.default_rng(1).uniform(0, 1, 70).astype(np.float32)
    check(program, jax.random.key(12), state)


def test_bits_that_are_not_partitionable() -> None:
    """The older order of threefry's counters splits them into two halves, which may mix lanes."""
    jax.config.update("jax_threefry_partitionable", False)
    try:
        check(draw_each_step(jax.random.bits, (LANES,)), jax.random.key(13), fused=None)
    finally:
        jax.config.update("jax_threefry_partitionable", True)
