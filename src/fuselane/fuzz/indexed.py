"""Gathers and scatters of random programs: reads and writes at places that the lane says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import jax
import numpy as np
from jax import lax

from fuselane.fuzz.builder import COMPUTED, EXACT, Builder, Operation
from fuselane.fuzz.kinds import (
    INTEGERS,
    Kind,
    Value,
    cast,
    chosen,
    common_kind,
    fit,
    fits,
    is_complex,
    near,
    number,
    on_grid,
    resize,
)
from fuselane.fuzz.program import Step

GATHER_MODES: Final = ("clip", "fill", "fill", "promise_in_bounds")
SCATTER_MODES: Final = ("drop", "clip", "promise_in_bounds", "drop")


def _index(builder: Builder, step: Step, size: int, mode: str) -> jax.Array:
    """An index in and out of range, unless that is promised."""
    wanted = step.operands[1]
    return builder.count(wanted, size) if mode == "promise_in_bounds" else builder.index(wanted)


def _indices(builder: Builder, step: Step, size: int, mode: str) -> jax.Array:
    """A few indices, at most one out of range."""
    found = cast(builder.array(step.operands[1], EXACT).array, "int32")
    indices = lax.sub(lax.rem(found, number(size + 2, str(found.dtype))), np.int32(1))
    if mode == "promise_in_bounds":
        indices = lax.clamp(np.int32(0), indices, np.int32(size - 1))
    return indices


def gather(builder: Builder, step: Step) -> Value:
    """Reads at indices of the lane: one place, several, rows, elements."""
    value = builder.array(step.operands[0])
    array = value.array
    mode = GATHER_MODES[step.variant % 4]
    # What fills is NaN where it can be.
    if value.kind is Kind.NEAR and mode == "fill":
        mode = "clip"
    kind = step.variant // 4 % 4
    if kind == 1:
        indices = _indices(builder, step, array.shape[0], mode)
        return value.moved(array.at[indices].get(mode=mode))
    safe = "clip" if mode == "promise_in_bounds" else mode
    if kind == 2 and array.ndim == 2:
        both = builder.index(step.operands[1]), builder.index(step.operands[2])
        return value.moved(array.at[both].get(mode=safe))
    if kind == 3:
        found = builder.array(step.operands[1], EXACT).array
        indices = resize(cast(found, "int32"), array.shape)
        return value.moved(jax.numpy.take_along_axis(array, indices, 0, mode=safe))
    index = _index(builder, step, array.shape[0], mode)
    return value.moved(array.at[index].get(mode=mode))


def dynamic_slice(builder: Builder, step: Step) -> Value:
    """Reads a window that starts where the lane, or the number of the step, says."""
    value = builder.array(step.operands[0])
    size = 1 + step.operands[2] % value.shape[0]
    index = builder.index(step.operands[1])
    if step.variant % 3 == 0:
        starts, sizes = _window(builder, step, index, value.shape, size)
        return value.moved(lax.dynamic_slice(value.array, starts, sizes))
    return value.moved(lax.dynamic_slice_in_dim(value.array, index, size, 0))


def _window(
    builder: Builder, step: Step, index: jax.Array, shape: tuple[int, ...], size: int
) -> tuple[list[jax.Array], list[int]]:
    """Returns where a window starts that is cut in every dimension, and its sizes."""
    first = lax.convert_element_type(index, np.int32)
    others = [builder.count(step.operands[2] + d, 3) for d in range(1, len(shape))]
    return [first, *others], [size, *(-(-extent // 2) for extent in shape[1:])]


def dynamic_update_slice(builder: Builder, step: Step) -> Value:
    """Writes a window that starts where the lane, or the number of the step, says."""
    value = builder.array(step.operands[0])
    size = 1 + step.operands[2] % value.shape[0]
    index = builder.index(step.operands[1])
    if step.variant % 3 == 0:
        starts, sizes = _window(builder, step, index, value.shape, size)
        new, kind = _new_rows(builder, step, value, tuple(sizes))
        return chosen(lax.dynamic_update_slice(value.array, new.array, starts), kind, (value, new))
    new, kind = _new_rows(builder, step, value, (size, *value.shape[1:]))
    array = lax.dynamic_update_slice_in_dim(value.array, new.array, index, 0)
    return chosen(array, kind, (value, new))


def update_inside(builder: Builder, step: Step) -> Value:
    """Writes a window that always starts in the same place: what lies there, or next to there, in
    another value of the same shape."""
    value = builder.array(step.operands[0])
    new, kind = _new_rows(builder, step, value, value.shape)
    variant = step.variant
    starts, stops, shift = [], [], []
    for size in value.shape:
        low, high, by = variant % 3, variant // 3 % 3, variant // 9 % 3 - 1
        variant = variant // 27 or step.variant // 5
        starts.append(min(low, size - 1))
        stops.append(max(size - high, starts[-1] + 1))
        shift.append(max(-starts[-1], min(by, size - stops[-1])))
    moved = list(map(sum, zip(starts, shift, strict=True)))
    ends = list(map(sum, zip(stops, shift, strict=True)))
    window = lax.slice(new.array, moved, ends)
    array = lax.dynamic_update_slice(value.array, window, [np.int32(start) for start in starts])
    return chosen(array, kind, (value, new))


def _new_rows(
    builder: Builder, step: Step, value: Value, shape: tuple[int, ...]
) -> tuple[Value, Kind]:
    """Returns what is to be written into a value, and what kind that makes of it."""

    def accept(other: Value) -> bool:
        kind = common_kind((value, other))
        return kind in {value.kind, Kind.EXACT} and fits(other, value.kind, value.dtype)

    found = builder.pick(step.operands[2], accept)
    return fit(found, value.kind, value.dtype, shape), value.kind


def scatter(builder: Builder, step: Step) -> Value:
    """Changes places given by the lane, in and out of range: one, several, rows."""
    form = step.variant // 4 % 8
    if builder.smooth and form in (4, 6):
        form = 0
    value = builder.array(step.operands[0], COMPUTED if form >= 3 else frozenset(Kind))
    mode = SCATTER_MODES[step.variant % 4]
    size, *rest = value.shape
    if form == 1:
        # Differ, since it is not determined which of two writes to one place comes last.
        count = 1 + step.operands[2] % size
        numbers = lax.iota(np.int32, count)
        if step.variant % 2:
            numbers = lax.rev(numbers, (0,))
        indices = builder.count(step.operands[1], 5) - np.int32(2) + numbers
        rows, kind = _new_rows(builder, step, value, (count, *rest))
        array = value.array.at[indices].set(rows.array, mode="drop", wrap_negative_indices=False)
        return chosen(array, kind, (value, rows))
    index = _index(builder, step, size, mode)
    row, kind = _new_rows(builder, step, value, tuple(rest))
    if form in (0, 2) or value.dtype == "bool":
        array = value.array.at[index].set(row.array, mode=mode)
        return chosen(array, kind, (value, row))
    if form == 3:
        indices = _indices(builder, step, size, "drop")
        rows, kind = _new_rows(builder, step, value, (*indices.shape, *rest))
        if kind is Kind.NEAR:
            share = number(1 / (1 + indices.size), value.dtype)
            added = (value.array * share).at[indices].add(rows.array * share, mode="drop")
            return near(added, value, rows, num_terms=indices.size)
        return Value(on_grid(value.array.at[indices].add(rows.array, mode="drop")))
    if form == 4 and not is_complex(value.dtype):
        return chosen(value.array.at[index].max(row.array, mode=mode), kind, (value, row))
    if form == 6 and not is_complex(value.dtype):
        return chosen(value.array.at[index].min(row.array, mode=mode), kind, (value, row))
    if form == 7 and value.dtype in INTEGERS:
        return Value(value.array.at[index].multiply(row.array, mode=mode))
    if kind is Kind.NEAR:
        half = number(0.5, value.dtype)
        return near((value.array * half).at[index].add(row.array * half, mode=mode), value, row)
    return Value(on_grid(value.array.at[index].add(row.array, mode=mode)))


INDEXED: Final[Mapping[str, Operation]] = {
    "gather": gather,
    "dynamic-slice": dynamic_slice,
    "dynamic-update-slice": dynamic_update_slice,
    "scatter": scatter,
    "update-inside": update_inside,
}
