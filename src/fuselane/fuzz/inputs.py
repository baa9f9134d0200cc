"""Draws the inputs of random programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import ml_dtypes
import numpy as np

from fuselane.fuzz.kinds import GRIDS, Kind, is_complex, is_floating, part_of
from fuselane.fuzz.program import Program, Slot

NumpyArray = np.ndarray[Any, Any]

_SPECIALS: Final = (
    *(0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, -1.5, 2.5, -2.5, 3.0, -7.0, 0.1, -0.3),
    *(np.inf, -np.inf, np.nan, 3.1415927, -1.5707964, 100.0, -100.0, 88.5, -87.5, 10.5),
    *(127.5, -128.5, 255.0, 256.0, 32768.0, 0.49999997, 8388609.0, 2147483648.0, -2147483648.0),
    *(4294967296.0, 9.223372e18, -9.223372e18, 1.8446744e19, 1e10, 1e-10, 1e30, -1e-30),
)


def draw_inputs(program: Program) -> tuple[list[NumpyArray], list[NumpyArray]]:
    """Returns the first values of the carries, and the streams."""
    carries = [
        _draw(slot, full_shape(slot, program.lanes), program.seed + i)
        for i, slot in enumerate(program.carries)
    ]
    streams = [
        _draw(slot, (program.steps, *full_shape(slot, program.lanes)), program.seed - 1 - i)
        for i, slot in enumerate(program.streams)
    ]
    return carries, streams


def lane_axes(slot: Slot, lanes: Sequence[int]) -> list[int | None]:
    """Returns the axis of each `vmap` for a slot, outermost first."""
    if not slot.has_lanes:
        return [None] * len(lanes)
    ranks = [len(slot.shape) + n for n in range(len(lanes), 0, -1)]
    return [(slot.place >> n) % rank for n, rank in enumerate(ranks)]


def sharded_axes(program: Program) -> tuple[list[int | None], list[int | None]]:
    """Returns the dimension that is spread over devices of every carry and every stream."""
    can_be = bool(program.lanes) and program.lanes[0] % program.devices == 0
    carries, streams = (
        [lane_axes(slot, program.lanes)[0] if can_be else None for slot in slots]
        for slots in (program.carries, program.streams)
    )
    return carries, [None if axis is None else axis + 1 for axis in streams]


def full_shape(slot: Slot, lanes: Sequence[int]) -> tuple[int, ...]:
    """Returns the shape of a slot's array, lanes included."""
    shape = list(slot.shape)
    if slot.has_lanes:
        for size, axis in zip(reversed(lanes), reversed(lane_axes(slot, lanes)), strict=True):
            assert axis is not None
            shape.insert(axis, size)
    return tuple(shape)


def special_floats(dtype: str) -> NumpyArray:
    """Returns the floats at which operations change their behaviour, as a vector."""
    info = ml_dtypes.finfo(dtype)
    limits = [float(x) for x in (info.max, info.tiny, info.eps, info.smallest_subnormal)]
    signed = [sign * value for value in limits for sign in (1.0, -1.0)]
    near_one = [1.0 + float(info.eps), 1.0 - float(info.eps) / 2]
    with np.errstate(all="ignore"):
        found: NumpyArray = np.array([*_SPECIALS, *signed, *near_one]).astype(dtype)
    return found


def _draw(slot: Slot, shape: tuple[int, ...], seed: int) -> NumpyArray:
    generator = np.random.default_rng(abs(seed))
    if slot.kind == Kind.NEAR.value:
        return generator.uniform(-2, 2, shape).astype(slot.dtype)
    if slot.kind == Kind.SPECIAL.value:
        return _special_floats(generator, slot.dtype, shape)
    return _exact_values(generator, slot.dtype, shape)


def _exact_values(generator: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> NumpyArray:
    if is_complex(dtype):
        real, imaginary = (_exact_values(generator, part_of(dtype), shape) for _ in range(2))
        return (real + 1j * imaginary).astype(dtype)
    if dtype == "bool":
        return generator.integers(0, 2, shape).astype(bool)
    if is_floating(dtype):
        step, bound = GRIDS[dtype]
        count = int(bound / step) // 2
        return (generator.integers(-count, count + 1, shape) * step).astype(dtype)
    info = np.iinfo(dtype)
    wide = generator.integers(info.min, info.max, shape, dtype=dtype, endpoint=True)
    extreme = generator.choice(
        np.array([info.min, info.min + 1, info.max, info.max - 1, 0, 1, info.max // 2], dtype),
        shape,
    )
    small = generator.integers(0, 9, shape).astype(dtype)
    chosen = generator.integers(0, 6, shape)
    return np.where(chosen == 0, wide, np.where(chosen == 1, extreme, small))


def _special_floats(
    generator: np.random.Generator, dtype: str, shape: tuple[int, ...]
) -> NumpyArray:
    specials = special_floats(dtype)
    with np.errstate(all="ignore"):
        spread = generator.standard_normal(shape) * 10.0 ** generator.uniform(-3, 2, shape)
        bits = generator.integers(0, 2**64, shape, dtype=np.uint64)
        arbitrary = bits.astype(f"uint{8 * specials.itemsize}").view(dtype)
        kinds = generator.integers(0, 5, shape)
        moderate = spread.astype(dtype)
    found = generator.choice(len(specials), shape)
    return np.where(kinds < 2, specials[found], np.where(kinds == 2, arbitrary, moderate))
