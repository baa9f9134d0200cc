"""Inner loops and branches of random programs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, final

import jax
import numpy as np
from jax import lax

from fuselane.fuzz.builder import MAX_DEPTH, Builder, Operation
from fuselane.fuzz.kinds import Kind, Value, resize
from fuselane.fuzz.program import NUMBER, Step

MAX_TRIPS: Final = 9
"""Trips of an inner loop, at most."""

_COUNTERS: Final = (
    (np.uint8, -1),
    (np.int8, -1),
    (np.uint16, -2),
    (np.uint32, -1),
    (np.int16, 3),
    (np.uint8, 100),
)
"""Types of counters, and their strides."""

Arrays = tuple[jax.Array, ...]
Body = Callable[[jax.Array, Arrays], Arrays]


@final
class _Carried:
    """What a loop or branch takes and leaves: one value or two, and all that was made of them.

    Attributes:
        values: Before.
        arrays: Their arrays.
    """

    def __init__(self, builder: Builder, step: Step) -> None:
        self._builder = builder
        self._step = step
        self._made: list[Value] = []
        numbers = step.operands[::2] if step.variant // 5 % 2 else step.operands[:1]
        self.values = [builder.pick(number) for number in numbers]
        self.arrays = tuple(value.array for value in self.values)

    def go_on(self, arrays: Sequence[jax.Array], *extra: Value) -> tuple[Arrays, Builder]:
        """Returns what the body of the step makes of them, and all that it made."""
        step, values = self._step, self.values
        current = [value.moved(array) for value, array in zip(values, arrays, strict=True)]
        inner = self._builder.inner(step, [*extra, *current])
        new = [inner.next(step, values[0])]
        if len(values) > 1:
            first, second = values
            new.append(inner.like(step.body[0].number if step.body else step.number, second))
            are_alike = (first.kind, first.dtype, first.shape) == (
                *(second.kind, second.dtype, second.shape),
            )
            if are_alike and step.variant // 10 % 3 == 0:
                new.reverse()
        self._made += new
        return tuple(value.array for value in new), inner

    def after(self, arrays: Sequence[jax.Array], trips: int = MAX_TRIPS) -> Value:
        """Returns one of them after so many trips at most."""
        place = self._step.variant // 30 % len(self.values)
        value = self.values[place]
        before = max(v.error for v in self.values if v.kind is value.kind)
        made = max((v.error for v in self._made if v.kind is value.kind), default=0.0)
        grown = before + trips * max(made - before, 0.0)
        error = grown if value.kind is Kind.NEAR else max(before, made)
        return Value(arrays[place], value.kind, error)


def loop(builder: Builder, step: Step) -> Value:
    """A loop of as many trips as the lane's value says, the step's number, or a constant, by a
    counter of any type, or until a value is reached; or one over a dimension."""
    carried = _Carried(builder, step)
    if builder.depth >= MAX_DEPTH:
        return carried.values[0]
    form = step.variant % 6
    if form == 4:
        return _scan(builder, step, carried)

    def body(number: jax.Array, arrays: Arrays) -> Arrays:
        return carried.go_on(arrays, Value(number))[0]

    if form == 3 and not builder.smooth:
        return carried.after(_while(builder, step, carried.arrays, body))
    trips: Any = np.int32(step.operands[1] % 4)
    if form == 5 and not builder.smooth:
        return carried.after(_count(step, carried.arrays, body))
    if form == 0 and not builder.smooth:
        trips = builder.count(step.operands[1], 4)
    if form == 1 and not builder.smooth:
        trips = lax.rem(builder.values[NUMBER].array, np.int32(3))
    return carried.after(lax.fori_loop(np.int32(0), trips, body, carried.arrays))


def _count(step: Step, first: Arrays, body: Body) -> Arrays:
    """A loop of up to three trips whose counter is small or unsigned, goes down or by strides, or
    wraps around."""
    kind, stride = _COUNTERS[step.variant // 10 % len(_COUNTERS)]
    trips = step.operands[1] % 4
    wraps = step.variant // 60 % 3 == 0
    first_number = 1 if wraps else max(0, -trips * stride)
    numbers = stride, first_number, first_number + trips * stride
    change, start, limit = (np.array(number).astype(kind) for number in numbers)
    holds = lax.ne if wraps else lax.gt if stride < 0 else lax.lt

    def onward(state: tuple[jax.Array, Arrays]) -> tuple[jax.Array, Arrays]:
        counter, arrays = state
        number = lax.bitwise_and(lax.convert_element_type(counter, np.int32), np.int32(3))
        return lax.add(counter, change), body(number, arrays)

    state = (lax.full((), start, kind), first)
    return lax.while_loop(lambda state: holds(state[0], limit), onward, state)[1]


def _while(builder: Builder, step: Step, first: Arrays, body: Body) -> Arrays:
    most = lax.bitwise_and(builder.small(step.operands[1]), np.int32(3))

    def goes_on(state: tuple[jax.Array, Arrays]) -> jax.Array:
        number, arrays = state
        again = lax.lt(number, most)
        if str(arrays[0].dtype) == "int32":
            first = resize(arrays[0], ())
            if step.variant // 5 % 4 == 0:
                first = lax.fori_loop(np.int32(0), np.int32(5), _hash, first)
            low = lax.bitwise_and(first, np.int32(7))
            goes = lax.bitwise_and(lax.eq(low, np.int32(3)), lax.lt(number, np.int32(6)))
            again = lax.bitwise_or(again, goes)
        return again

    def onward(state: tuple[jax.Array, Arrays]) -> tuple[jax.Array, Arrays]:
        return lax.add(state[0], np.int32(1)), body(*state)

    return lax.while_loop(goes_on, onward, (lax.full((), 0, np.int32), first))[1]


def _hash(number: jax.Array, value: jax.Array) -> jax.Array:
    return lax.bitwise_xor(
        lax.mul(value, np.int32(-1640531527)), lax.convert_element_type(number, np.int32)
    )


def _scan(builder: Builder, step: Step, carried: _Carried) -> Value:
    """A scan over the rows of an array, whose last carry or stacked values are taken."""
    rows = builder.array(step.operands[1])
    stacked: list[Value] = []

    def onward(arrays: Arrays, row: jax.Array) -> tuple[Arrays, jax.Array]:
        new, inner = carried.go_on(arrays, rows.moved(row))
        stacked.append(inner.last(step))
        array = stacked[-1].array
        return new, resize(array, array.shape[:1])

    reverse = step.operands[2] % 2 == 1
    last, found = lax.scan(onward, carried.arrays, rows.array[:MAX_TRIPS], reverse=reverse)
    after = carried.after(last)
    if step.operands[2] % 3:
        return after
    kind = stacked[-1].kind
    error = stacked[-1].error + (after.error if kind is Kind.NEAR else 0)
    return Value(found, kind, error)


def conditional(builder: Builder, step: Step) -> Value:
    """A choice of branches by a value of the lane or the step's number."""
    carried = _Carried(builder, step)
    if builder.depth >= MAX_DEPTH:
        return carried.values[0]

    def computed(*arrays: jax.Array) -> Arrays:
        return carried.go_on(arrays)[0]

    def turned(*arrays: jax.Array) -> Arrays:
        return tuple(lax.rev(array, (0,)) if array.ndim else array for array in arrays)

    def same(*arrays: jax.Array) -> Arrays:
        return arrays

    index = builder.values[NUMBER].array if step.variant % 2 else builder.small(step.operands[1])
    if step.variant % 3 == 0:
        is_odd = lax.ne(lax.bitwise_and(index, np.int32(1)), np.int32(0))
        arrays = lax.cond(is_odd, computed, turned, *carried.arrays)
    else:
        arrays = lax.switch(index, (turned, computed, same), *carried.arrays)
    return carried.after(arrays, trips=1)


CONTROL: Final[Mapping[str, Operation]] = {"while": loop, "conditional": conditional}
