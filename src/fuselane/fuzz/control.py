"""Inner loops and branches of random programs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import jax
import numpy as np
from jax import lax

from fuselane.fuzz.builder import MAX_DEPTH, Builder, Operation
from fuselane.fuzz.kinds import Kind, Value, resize
from fuselane.fuzz.program import NUMBER, Step

MAX_TRIPS: Final = 9
"""Trips of an inner loop, at most."""

Body = Callable[[jax.Array, jax.Array], jax.Array]


def loop(builder: Builder, step: Step) -> Value:
    """A loop of as many trips as the lane's value says, the step's number, or a constant, or until
    a value is reached; or one over a dimension."""
    value = builder.pick(step.operands[0])
    if builder.depth >= MAX_DEPTH:
        return value
    form = step.variant % 5
    if form == 4:
        return _scan(builder, step, value)
    made: list[Value] = []

    def body(number: jax.Array, carried: jax.Array) -> jax.Array:
        extra = [Value(number), value.moved(carried)]
        made.append(builder.inner(step, extra).next(step, value))
        return made[-1].array

    if form == 3:
        return _after(value, _while(builder, step, value.array, body), made)
    trips: Any = np.int32(step.operands[1] % 4)
    if form == 0:
        trips = builder.count(step.operands[1], 4)
    if form == 1:
        trips = lax.rem(builder.values[NUMBER].array, np.int32(3))
    return _after(value, lax.fori_loop(np.int32(0), trips, body, value.array), made)


def _after(value: Value, array: jax.Array, made: list[Value]) -> Value:
    """Returns a carried value after a loop whose body has made values of it."""
    largest = max((new.error for new in made), default=0.0)
    grown = value.error + MAX_TRIPS * max(largest - value.error, 0.0)
    return Value(array, value.kind, grown if value.kind is Kind.NEAR else max(value.error, largest))


def _while(builder: Builder, step: Step, first: jax.Array, body: Body) -> jax.Array:
    most = lax.bitwise_and(builder.small(step.operands[1]), np.int32(3))

    def goes_on(state: tuple[jax.Array, jax.Array]) -> jax.Array:
        number, carried = state
        again = lax.lt(number, most)
        if str(carried.dtype) == "int32":
            low = lax.bitwise_and(resize(carried, ()), np.int32(7))
            again |= lax.eq(low, np.int32(3)) & lax.lt(number, np.int32(6))
        return again

    def onward(state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        return state[0] + np.int32(1), body(*state)

    return lax.while_loop(goes_on, onward, (lax.full((), 0, np.int32), first))[1]


def _scan(builder: Builder, step: Step, value: Value) -> Value:
    """A scan over the rows of an array, whose last carry or stacked values are taken."""
    rows = builder.array(step.operands[1])
    made: list[Value] = []
    stacked: list[Value] = []

    def onward(carried: jax.Array, row: jax.Array) -> tuple[jax.Array, jax.Array]:
        inner = builder.inner(step, [value.moved(carried), rows.moved(row)])
        made.append(inner.next(step, value))
        stacked.append(inner.last(step))
        array = stacked[-1].array
        return made[-1].array, resize(array, array.shape[:1])

    reverse = step.operands[2] % 2 == 1
    last, found = lax.scan(onward, value.array, rows.array[:MAX_TRIPS], reverse=reverse)
    carried = _after(value, last, made)
    if step.operands[2] % 3:
        return carried
    kind = stacked[-1].kind
    error = stacked[-1].error + (carried.error if kind is Kind.NEAR else 0)
    return Value(found, kind, error)


def conditional(builder: Builder, step: Step) -> Value:
    """A choice of branches by a value of the lane or the step's number."""
    value = builder.pick(step.operands[0])
    if builder.depth >= MAX_DEPTH:
        return value
    made = [value]

    def computed(carried: jax.Array) -> jax.Array:
        made.append(builder.inner(step, [value.moved(carried)]).next(step, value))
        return made[-1].array

    def turned(carried: jax.Array) -> jax.Array:
        return lax.rev(carried, (0,)) if carried.ndim else carried

    index = builder.values[NUMBER].array if step.variant % 2 else builder.small(step.operands[1])
    if step.variant % 3 == 0:
        is_odd = lax.ne(lax.bitwise_and(index, np.int32(1)), np.int32(0))
        array = lax.cond(is_odd, computed, turned, value.array)
    else:
        array = lax.switch(index, (turned, computed, lambda carried: carried), value.array)
    return Value(array, value.kind, max(new.error for new in made))


CONTROL: Final[Mapping[str, Operation]] = {"while": loop, "conditional": conditional}
