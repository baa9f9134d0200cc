"""Input values that have broken compilers before: special values of every dtype, and seeded
samples."""

from __future__ import annotations

from typing import Any, Final

import ml_dtypes
import numpy as np
import numpy.typing as npt

NumpyArray = npt.NDArray[Any]

FLOATS: Final = ("float16", "bfloat16", "float32", "float64")
SIGNED: Final = ("int8", "int16", "int32", "int64")
UNSIGNED: Final = ("uint8", "uint16", "uint32", "uint64")
INTEGERS: Final = SIGNED + UNSIGNED
DTYPES: Final = ("bool", *INTEGERS, *FLOATS)
NUM_ROWS: Final = 3

_FLOAT_SPECIALS: Final = (
    *(0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, -1.5, 2.5, -2.5, 3.0, -7.0, 0.1, -0.3),
    *(np.inf, -np.inf, np.nan, 3.1415927, -1.5707964, 100.0, -100.0, 88.5, -87.5, 10.5),
    *(127.5, -128.5, 255.0, 256.0, 32768.0, 0.49999997, 8388609.0, 2147483648.0, -2147483648.0),
    *(4294967296.0, 9.223372e18, -9.223372e18, 1.8446744e19, 1e10, 1e-10, 1e30, -1e-30),
)


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
        return _special_floats(np.dtype(dtype))
    info = np.iinfo(dtype)
    bits = info.bits
    candidates = [0, 1, 2, 3, 5, 7, 10, bits - 1, bits, bits + 1, 100, 127, 128, 255]
    candidates += [info.max, info.max - 1, info.max // 2, info.max // 2 + 1, info.max // 3]
    candidates += [-1, -2, -3, -7, -bits, info.min, info.min + 1, info.min // 2]
    fitting = sorted({value for value in candidates if info.min <= value <= info.max})
    return np.array(fitting, dtype)


def _special_floats(dtype: np.dtype[Any]) -> NumpyArray:
    info = ml_dtypes.finfo(dtype)
    limits = [info.max, info.tiny, info.eps, info.smallest_subnormal]
    signed = [sign * np.float64(limit) for limit in limits for sign in (1.0, -1.0)]
    with np.errstate(over="ignore", under="ignore"):
        near_one = [1.0 + np.float64(info.eps), 1.0 - np.float64(info.eps) / 2]
        return np.array([*_FLOAT_SPECIALS, *signed, *near_one]).astype(dtype)


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
