"""Input values that have broken compilers before: special values of every dtype, and seeded
samples."""

from __future__ import annotations

from typing import Any, Final

import jax
import ml_dtypes
import numpy as np
import numpy.typing as npt

from fuselane.fuzz.inputs import special_floats
from fuselane.fuzz.kinds import FLOATS, INTEGERS

NumpyArray = npt.NDArray[Any]

DTYPES: Final = ("bool", *INTEGERS, *FLOATS)
NUM_ROWS: Final = 3


def is_floating(dtype: Any) -> bool:
    """Whether values of `dtype` are floating point, bfloat16 included."""
    return bool(np.dtype(dtype) == ml_dtypes.bfloat16 or np.issubdtype(dtype, np.floating))


def needs_x64(*dtypes: str) -> bool:
    """Whether JAX holds one of these dtypes only with x64 switched on."""
    return any(dtype.endswith("64") and not dtype.startswith("bf") for dtype in dtypes)


def special_values(dtype: str) -> NumpyArray:
    """Returns the values at which operations on `dtype` change their behaviour, as a vector."""
    if dtype == "bool":
        return np.array([False, True])
    if is_floating(dtype):
        return special_floats(dtype)
    info = np.iinfo(dtype)
    bits = info.bits
    candidates = [0, 1, 2, 3, 5, 7, 10, bits - 1, bits, bits + 1, 100, 127, 128, 255]
    candidates += [info.max, info.max - 1, info.max // 2, info.max // 2 + 1, info.max // 3]
    candidates += [-1, -2, -3, -7, -bits, info.min, info.min + 1, info.min // 2]
    fitting = sorted({value for value in candidates if info.min <= value <= info.max})
    return np.array(fitting, dtype)


def without_denormals(values: NumpyArray) -> NumpyArray:
    """Returns the values with ones in the place of denormals.

    XLA:CPU runs with denormals switched off in the processor. Functions that look at the bits of a
    float, however, see them, and which ones do is left open.
    """
    if not is_floating(values.dtype):
        return values
    with np.errstate(invalid="ignore"):
        is_denormal = (values != 0) & (np.abs(values) < ml_dtypes.finfo(values.dtype).tiny)
    return np.where(is_denormal, values.dtype.type(1), values)


def without_ambiguous(values: NumpyArray) -> NumpyArray:
    """Returns the values without denormals of bfloat16 where one program of XLA's takes them for
    zero and another does not, as JAX 0.11 and later do in minima, maxima and remainders."""
    is_ambiguous = values.dtype == ml_dtypes.bfloat16 and jax.__version_info__ >= (0, 11)
    return without_denormals(values) if is_ambiguous else values


def random_values(dtype: str, count: int, seed: int) -> NumpyArray:
    """Returns `count` values: integers and booleans of random bits, floats around one and of random
    bits."""
    generator = np.random.default_rng(seed)
    if dtype == "bool":
        return generator.integers(0, 2, count).astype(bool)
    if is_floating(dtype):
        scale = 10.0 ** generator.uniform(-3, 2, count)
        return (generator.standard_normal(count) * scale).astype(dtype)
    itemsize = np.dtype(dtype).itemsize
    return np.frombuffer(generator.bytes(count * itemsize), dtype).copy()


def sample(dtype: str, shape: tuple[int, ...], seed: int = 0) -> NumpyArray:
    """Returns an array of `dtype` and `shape`: the special values in random places, then random
    ones."""
    count = int(np.prod(shape))
    specials = special_values(dtype)
    values = np.concatenate([specials, random_values(dtype, count, seed)])[:count]
    return np.random.default_rng(seed + 1).permutation(values).reshape(shape)


def moderate(dtype: str, shape: tuple[int, ...], seed: int = 0) -> NumpyArray:
    """Returns finite values of small size: floats within [-2, 2], integers within [0, 50]."""
    generator = np.random.default_rng(seed)
    if dtype == "bool":
        return generator.integers(0, 2, shape).astype(bool)
    if is_floating(dtype):
        return generator.uniform(-2, 2, shape).astype(dtype)
    return generator.integers(0, 51, shape).astype(dtype)


def unary_rows(dtype: str, seed: int = 0) -> NumpyArray:
    """Returns a stream [NUM_ROWS, 151] that holds every special value of `dtype` at least once."""
    return sample(dtype, (NUM_ROWS, 151), seed)


def binary_rows(dtype: str, seed: int = 0) -> tuple[NumpyArray, NumpyArray]:
    """Returns two streams [NUM_ROWS, n] that hold every pair of special values of `dtype`."""
    specials = special_values(dtype)
    left, right = (grid.ravel() for grid in np.meshgrid(specials, specials))
    padding = -len(left) % NUM_ROWS + 3 * NUM_ROWS
    left = np.concatenate([left, random_values(dtype, padding, seed)])
    right = np.concatenate([right, random_values(dtype, padding, seed + 1)])
    return left.reshape(NUM_ROWS, -1), right.reshape(NUM_ROWS, -1)
