"""What the lanes of a random program have together: what they make of all their values in a step,
and a table that the loop changes and all of them read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, final

import jax
import numpy as np
from jax import lax

from fuselane.fuzz.builder import COMPUTED, Builder, Operation
from fuselane.fuzz.kinds import (
    Kind,
    Value,
    cast,
    chosen,
    full,
    is_complex,
    is_floating,
    limit,
    near,
    number,
    on_grid,
    resize,
    to_near,
)
from fuselane.fuzz.program import Slot, Step


@final
class Shared(NamedTuple):
    """What all lanes get alike.

    Attributes:
        uniform: A number of the loop's, int32.
        table: The table, or an empty tuple if there is none.
    """

    uniform: jax.Array
    table: jax.Array | tuple[()] = ()


def meet(builder: Builder, step: Step) -> Value:
    """The sum, mean or extreme of a value over the lanes, in all of their dimensions or in one; the
    value itself where lanes cannot meet."""
    value = builder.pick(step.operands[0], lambda value: value.kind in COMPUTED)
    axes = builder.axes
    if not axes or builder.depth:
        return value
    if step.variant // 4 % 3 == 0:
        axes = (axes[step.operands[1] % len(axes)],)
    count = 1
    for axis in axes:
        count *= lax.axis_size(axis)
    form = step.variant % 4
    if value.kind is Kind.NEAR:
        value = to_near(value, "float64" if value.dtype == "float64" else "float32")
        if form >= 2 and not builder.smooth:
            extreme = (lax.pmax, lax.pmin)[form % 2](value.array, axes)
            return chosen(extreme, Kind.NEAR, (value,))
        scaled = value.array * number(1 / count, value.dtype)
        return near(lax.psum(scaled, axes), value, num_terms=count)
    # A constant's sum is a product with the number of lanes, which JAX makes of the same type.
    is_narrow = value.dtype in ("bool", "int8", "uint8")
    array = cast(value.array, "int32") if is_narrow else value.array
    if is_complex(value.dtype):
        array = cast(array, "float32")
    if form >= 2 and not builder.smooth:
        return Value((lax.pmax, lax.pmin)[form % 2](array, axes))
    if is_floating(str(array.dtype)):
        wide = "float64" if str(array.dtype) == "float64" else "float32"
        array = limit(cast(array, wide), 1)
    return Value(on_grid(lax.psum(array, axes)))


def look_up(builder: Builder, step: Step) -> Value:
    """An element of the table, or several: at a place that the lane says, or that all say."""
    if builder.table is None:
        return builder.values[min(builder.values)]
    table = builder.table
    size = table.shape[0]
    place = builder.count(step.operands[0], size)
    form = step.variant % 3
    if form == 0:
        return Value(lax.dynamic_index_in_dim(table, place, keepdims=False))
    width = min(1 + step.variant // 3 % 7, size)
    if form == 1:
        return Value(lax.dynamic_slice_in_dim(table, place, width))
    places = lax.rem(place + lax.iota(np.int32, width) * np.int32(3), np.int32(size))
    return Value(table.at[places].get(mode="clip"))


def start_table(slot: Slot, bits: jax.Array) -> jax.Array:
    """Returns the first value of a table, of exact numbers, from an int32 that is not constant."""
    (size,) = slot.shape
    numbers = lax.rem(lax.add(lax.iota(np.int32, size), bits), np.int32(101))
    return cast(numbers, slot.dtype)


def change_table(
    table: jax.Array, form: int, number: jax.Array, uniform: jax.Array, met: Sequence[jax.Array]
) -> jax.Array:
    """Returns what a step makes of the table.

    Args:
        table: As it was.
        form: Chooses how it changes: one place or a few, set or added to, or moved along.
        number: The step's number.
        uniform: The loop's number.
        met: What the lanes made together in this step.
    """
    size, dtype = table.shape[0], str(table.dtype)
    word = cast(resize(met[0], ()), "int32") if met else uniform
    new = cast(lax.add(word, number), dtype)
    place = lax.rem(number if form // 5 % 2 else _positive(uniform), np.int32(size))
    if form % 5 == 0:
        return lax.dynamic_update_index_in_dim(table, new, place, 0)
    if form % 5 == 1 and dtype != "bool":
        return on_grid(table.at[place].add(new))
    if form % 5 == 2:
        return lax.dynamic_update_index_in_dim(jax.numpy.roll(table, 1), new, 0, 0)
    if form % 5 == 3:
        width = min(5, size)
        rows = lax.broadcast(new, (width,))
        return lax.dynamic_update_slice_in_dim(table, rows, place, 0)
    places = lax.rem(place + lax.iota(np.int32, min(3, size)), np.int32(size))
    return table.at[places].set(new, unique_indices=False)


def _positive(uniform: jax.Array) -> jax.Array:
    return lax.bitwise_and(lax.shift_right_logical(uniform, np.int32(8)), full(0xFFFF, uniform))


MEETING: Final[Mapping[str, Operation]] = {"meet": meet, "look-up": look_up}
