"""The largest of many elements, and where it is, of arrays that all lanes share or each has."""

from __future__ import annotations

from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.differential.comparison import Tolerance
from tests.differential.harness import Program, check, fused_by
from tests.differential.values import NumpyArray

SIZE: Final = 300
STEPS: Final = 7
LANES: Final = np.ones(64, np.float32)


def _arrays() -> dict[str, NumpyArray]:
    random = np.random.default_rng(0)
    uniform = random.random(SIZE, np.float32)
    coin = random.random(SIZE) > 0.5
    nan = uniform.copy()
    nan[[50, 200]] = np.nan
    negative_nan = nan.copy()
    negative_nan.view(np.uint32)[50] |= 1 << 31
    return {
        "uniform": uniform,
        "few values": random.integers(0, 3, SIZE).astype(np.float32),
        "zeros": np.where(coin, np.float32(0.0), np.float32(-0.0)),
        "zeros below": np.where(coin, np.float32(-0.0), -uniform),
        "negative zeros": np.full(SIZE, -0.0, np.float32),
        "lowest": np.full(SIZE, -np.inf, np.float32),
        "infinities": np.where(coin, np.float32(np.inf), uniform),
        "nan": nan,
        "negative nan": negative_nan,
        "nothing but nan": np.full(SIZE, np.nan, np.float32),
        "denormal": (random.integers(0, 9, SIZE) * 1e-40).astype(np.float32),
        "double": random.integers(0, 50, SIZE) / 7,
        "int32": random.integers(-5, 5, SIZE).astype(np.int32),
        "lowest int32": np.full(SIZE, -(2**31), np.int32),
        "uint8": random.integers(0, 255, SIZE).astype(np.uint8),
        "int64": random.integers(-5, 5, SIZE),
        "bool": random.random(SIZE) > 0.99,
        "half": random.random(SIZE).astype(np.float16),
        "rows of 8": random.random((50, 8), np.float32),
        "rows of 70": random.random((6, 70), np.float32),
    }


ARRAYS: Final = _arrays()


def _beside_lanes(reduce: Program) -> Program:
    def program(x: jax.Array, lanes: jax.Array) -> Any:
        def step(carry: Any, _: None) -> Any:
            x, lanes = carry
            found = reduce(x)
            return (jnp.roll(x, 1, -1), lanes * 0.5 + 1), found

        (_, lanes), found = lax.scan(step, (x, lanes), length=STEPS)
        return found, lanes

    return program


@pytest.mark.parametrize("name", ARRAYS)
@pytest.mark.parametrize("reduce", [jnp.argmax, jnp.argmin], ids=["argmax", "argmin"])
def test_places(reduce: Program, name: str) -> None:
    """As NumPy has them: the first of several, of NaNs as well."""
    array = ARRAYS[name]
    is_wide = array.dtype.itemsize == 8
    program = _beside_lanes(reduce)
    check(program, array, LANES, x64=is_wide)
    if name == "denormal":
        return  # zeros to XLA
    with jax.enable_x64(is_wide):
        found, _ = jax.jit(program)(array, LANES)
    wanted = [getattr(np, reduce.__name__)(np.roll(array, k, -1)) for k in range(STEPS)]
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("axis", [0, 1])
def test_places_in_rows_and_columns(axis: int) -> None:
    array = np.random.default_rng(1).integers(0, 9, (90, 70)).astype(np.float32)
    check(_beside_lanes(lambda x: jnp.argmax(x, axis)), array, LANES)


@pytest.mark.parametrize("name", ARRAYS)
@pytest.mark.parametrize("reduce", [jnp.max, jnp.min], ids=["max", "min"])
def test_extremes(reduce: Program, name: str) -> None:
    """Signs of zeros included; XLA's own maxima lose NaNs in rows."""
    array = ARRAYS[name]
    check(_beside_lanes(reduce), array, LANES, x64=array.dtype.itemsize == 8)


def test_place_and_element() -> None:
    """Who asks for the element as well gets the one that is there."""

    def both(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        place = jnp.argmax(x)
        return place, x[place]

    for name in ("zeros", "uniform", "few values"):
        check(_beside_lanes(both), ARRAYS[name], LANES)


@pytest.mark.parametrize("name", [name for name in ARRAYS if ARRAYS[name].ndim == 1])
@pytest.mark.parametrize("reduce", [jnp.max, jnp.min], ids=["max", "min"])
def test_extremes_of_each_lane(reduce: Program, name: str) -> None:
    """As NumPy has them, which loses no NaN, and of zeros with the sign that XLA leaves open."""
    array = np.stack([np.roll(ARRAYS[name], 5 * k) for k in range(64)])
    is_wide, has_nan = array.dtype.itemsize == 8, np.isnan(array.astype(np.float64)).any()
    if name == "nan":
        array[::2] = 0.5  # each lane has its own
    program = _beside_lanes(lambda x: reduce(x, 1))
    if not has_nan:
        check(program, array, LANES, x64=is_wide, tolerance=Tolerance(signed_zero=False))
    with jax.enable_x64(is_wide), fused_by():
        found, _ = jax.jit(program)(array, LANES)
    if name == "denormal":
        return  # zeros to XLA
    wanted = [getattr(np, reduce.__name__)(array, 1)] * STEPS
    np.testing.assert_array_equal(found, wanted)
    if "zeros" in name:
        is_negative = np.signbit(array)
        sign = is_negative.all(1) if reduce is jnp.max else is_negative.any(1)
        np.testing.assert_array_equal(np.signbit(found), [sign] * STEPS)
