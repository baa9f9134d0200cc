"""Operations of random programs that treat a lane's state as a whole: resets, and random numbers
drawn for each lane."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import jax
import numpy as np
from jax import lax

from fuselane.fuzz.builder import Builder, Operation
from fuselane.fuzz.kinds import (
    Kind,
    Value,
    cast,
    chosen,
    fit,
    full,
    is_complex,
    near,
    number,
    on_grid,
    to_near,
)
from fuselane.fuzz.program import NUMBER, Step

RARITIES: Final = (3, 7, 1, 15)
"""A lane is done when the low bits of a number of its, as many as these have, are of one kind."""


def is_done(builder: Builder, wanted: int) -> jax.Array:
    """Returns whether a lane is to start anew, bool: the same for all that ask with one number."""
    mask = np.int32(RARITIES[wanted % len(RARITIES)])
    return lax.eq(lax.bitwise_and(builder.small(wanted), mask), np.int32(wanted % 5 & int(mask)))


def draw_bits(builder: Builder, step: Step, wanted: int, shape: tuple[int, ...]) -> jax.Array:
    """Returns random bits of this step, uint32, of each lane or, in a third of the forms, of all
    lanes together: JAX's for a quarter of the steps, which are long code, else a short hash's."""
    word = builder.values[NUMBER].array
    if step.variant % 3:
        word = lax.add(word, lax.mul(builder.small(wanted), np.int32(97)))
    if step.variant // 7 % 4:
        return _hash(word, step.number, shape)
    key = jax.random.fold_in(jax.random.key(step.number), word)
    return jax.random.bits(key, shape, np.uint32)


def _hash(word: jax.Array, salt: int, shape: tuple[int, ...]) -> jax.Array:
    """Returns uint32 that look random, by a product and two shifts of a word and of places."""
    places = np.arange(math.prod(shape), dtype=np.uint32).reshape(shape)
    numbers = places * np.uint32(0x9E3779B9) + np.uint32(salt)
    bits = lax.bitwise_xor(lax.broadcast(cast(word, "uint32"), shape), numbers)
    for shift in (16, 15):
        bits = lax.bitwise_xor(bits, lax.shift_right_logical(bits, full(shift, bits)))
        bits = lax.mul(bits, full(0x7FEB352D, bits))
    return lax.bitwise_xor(bits, lax.shift_right_logical(bits, full(16, bits)))


def draw_like(builder: Builder, step: Step, wanted: int, value: Value) -> Value:
    """Returns random numbers of a value's kind, type and shape; the value itself if it is
    special."""
    if value.kind is Kind.EXACT:
        bits = draw_bits(builder, step, wanted, value.shape)
        return Value(cast(lax.shift_right_logical(bits, full(7, bits)), value.dtype))
    if value.kind is not Kind.NEAR:
        return value
    bits = draw_bits(builder, step, wanted, value.shape)
    whole = lax.convert_element_type(lax.shift_right_logical(bits, full(8, bits)), "float32")
    small = lax.sub(lax.mul(whole, number(2.0**-23, "float32")), number(1, "float32"))
    return near(lax.convert_element_type(small, value.dtype), Value(small))


def draw(builder: Builder, step: Step) -> Value:
    """Random numbers like a value, of all lanes or of each."""
    value = builder.pick(step.operands[0])
    return draw_like(builder, step, step.operands[1], value)


def _fresh(builder: Builder, step: Step, value: Value) -> Value:
    """Returns what a lane starts anew from, like a value: drawn, constant, or computed."""
    form = step.variant // 3 % 6
    if value.kind not in {Kind.EXACT, Kind.NEAR}:
        return _turned(builder.like(step.operands[1], value))
    if form == 0:
        start = full(1 + step.variant % 2, value.array)
        return Value(start) if value.kind is Kind.EXACT else to_near(Value(start), value.dtype)
    if form < 3:
        return draw_like(builder, step, step.operands[1], value)
    other = _turned(builder.like(step.operands[1], value))
    if value.kind is Kind.EXACT:
        is_bool = value.dtype == "bool"
        together = lax.bitwise_xor if is_bool else lax.add
        return Value(on_grid(together(other.array, value.array)))
    half = number(0.5, value.dtype)
    return near(lax.sub(other.array * half, lax.sin(value.array) * half), other, value)


def _turned(value: Value) -> Value:
    return value.moved(lax.rev(value.array, (0,))) if value.shape else value


def reset(builder: Builder, step: Step) -> Value:
    """A value, or where the lane is done, what it starts anew from: by a select or a branch."""
    value = builder.pick(step.operands[0])
    done = is_done(builder, step.operands[2])
    if step.variant // 18 % 4 == 0:
        made: list[Value] = []

        def anew() -> jax.Array:
            made.append(_fresh(builder, step, value))
            return made[-1].array

        array = lax.cond(done, anew, lambda: value.array)
        return chosen(array, value.kind, (value, *made))
    fresh = _fresh(builder, step, value)
    where = lax.broadcast(done, value.shape)
    return chosen(lax.select(where, fresh.array, value.array), value.kind, (value, fresh))


def split(builder: Builder, step: Step) -> Value:
    """One of the two keys that a key is split into, two numbers of uint32."""
    found = builder.exact(step.operands[0], lambda value: not is_complex(value.dtype))
    key = fit(found, Kind.EXACT, "uint32", (2,)).array
    keys = jax.random.split(jax.random.wrap_key_data(key))
    return Value(jax.random.key_data(keys)[step.variant % 2])


STATES: Final[Mapping[str, Operation]] = {"reset": reset, "draw": draw, "split": split}
