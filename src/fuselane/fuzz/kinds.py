"""What is known of a value of a random program, so that it can be told from outside whether two
compilers compute it alike.

Rounding differs between compilers, and a loop may let any difference grow. So values are of kinds
that programs don't mix up:

- *Exact*: integers, booleans, and floats on a grid so coarse that sums and products are not
  rounded. Every bit is determined, and only such values decide what happens.
- *Near*: floats in [-2, 2], made by operations that move their result by no more than their
  operands are moved (in the maximum norm). So rounding errors add up at most, over operations and
  steps, and never grow.
- *Special*: floats of any bits, NaN, infinities and denormals among them, straight from an input,
  perhaps moved.
- *Done*: what a single operation makes of special ones. It is only moved from there on.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, final

import jax
import ml_dtypes
import numpy as np
from jax import lax

SIGNED: Final = ("int8", "int16", "int32", "int64")
UNSIGNED: Final = ("uint8", "uint16", "uint32", "uint64")
INTEGERS: Final = (*SIGNED, *UNSIGNED)
FLOATS: Final = ("float16", "bfloat16", "float32", "float64")
COMPLEX: Final = ("complex64", "complex128")

WIDE: Final = ("int64", "uint64", "float64", "complex128")
"""Types that JAX holds only with x64 switched on."""

GRIDS: Final = {
    "float64": (0.125, 64.0),
    "float32": (0.125, 64.0),
    "float16": (0.5, 8.0),
    "bfloat16": (1.0, 8.0),
}
"""Step and bound of the grid on which the exact floats of each type lie."""


@final
class Kind(enum.Enum):
    """How a value is determined; see the head of this file."""

    EXACT = "exact"
    NEAR = "near"
    SPECIAL = "special"
    DONE = "done"


MAX_PIECES: Final = 16
"""Repeated more often than that, an array is broadcast: XLA takes minutes over thousands of pieces
put together, and a kernel has code for each."""

NEAR_ULP: Final = 16
"""How far off the exact result a near operation is at most, in distances from 1 to the next number:
two compilers, 4 units in the last place each, of numbers up to 2."""

ALL_KINDS: Final = frozenset(Kind)


@final
class Value(NamedTuple):
    """A traced array with what is known of it.

    Attributes:
        array: What one lane has.
        kind: How it is determined.
        error: By how much compilers may disagree: as an absolute number for a near value, in units
            in the last place for a done one.
    """

    array: jax.Array
    kind: Kind = Kind.EXACT
    error: float = 0.0

    @property
    def dtype(self) -> str:
        """Name of the element type."""
        return str(self.array.dtype)

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes in one lane."""
        return tuple(self.array.shape)

    def moved(self, array: jax.Array) -> Value:
        """Returns an array that holds values of this one, as they are."""
        return self._replace(array=array)


def is_floating(dtype: str) -> bool:
    """Whether a type is one of real floating point numbers."""
    return dtype in FLOATS


def is_complex(dtype: str) -> bool:
    """Whether a type is one of complex numbers."""
    return dtype in COMPLEX


def part_of(dtype: str) -> str:
    """Returns the type of the parts of a complex type."""
    return "float32" if dtype == "complex64" else "float64"


def epsilon(dtype: str) -> float:
    """Returns the distance from 1 to the next number."""
    return float(ml_dtypes.finfo(dtype).eps)


def number(value: float, dtype: str) -> Any:
    """Returns a number of a type, such that JAX does not promote what it meets."""
    return np.asarray(value).astype(dtype)


def full(value: float, like: jax.Array) -> jax.Array:
    """Returns an array of one number, in the type and shape of another."""
    return lax.broadcast(number(value, str(like.dtype)), like.shape)


def limit(array: jax.Array, bound: float) -> jax.Array:
    """Returns the values limited to [-bound, bound]; NaN stays."""
    dtype = str(array.dtype)
    return lax.clamp(number(-bound, dtype), array, number(bound, dtype))


def on_grid(array: jax.Array) -> jax.Array:
    """Puts exact floats and parts of complex numbers back on their grid; others stay."""
    dtype = str(array.dtype)
    if is_complex(dtype):
        return lax.complex(on_grid(lax.real(array)), on_grid(lax.imag(array)))
    if not is_floating(dtype):
        return array
    step, bound = GRIDS[dtype]
    scaled = lax.mul(limit(array, bound), number(1 / step, dtype))
    return lax.mul(lax.floor(scaled), number(step, dtype))


def without_nan(array: jax.Array) -> jax.Array:
    """Returns the values with ones in the place of NaN."""
    return lax.select(lax.ne(array, array), full(1, array), array)


def without_sign_of_zero(array: jax.Array) -> jax.Array:
    """Returns the values with +0 in the place of -0.

    What adds up to nothing but -0 in a dot is -0 in some of XLA:CPU's loops and +0 in others.
    """
    if not is_floating(str(array.dtype)):
        return array
    return lax.select(lax.eq(array, full(0, array)), full(0, array), array)


def without_denormals(array: jax.Array) -> jax.Array:
    """Returns the values with ones in the place of denormals and zeros.

    XLA:CPU runs with denormals switched off in the processor. Functions that look at the bits of a
    float, however, see them, and which ones do is left open.
    """
    dtype = str(array.dtype)
    smallest = number(float(ml_dtypes.finfo(dtype).tiny), dtype)
    return lax.select(lax.lt(lax.abs(array), smallest), full(1, array), array)


def cast(array: jax.Array, dtype: str) -> jax.Array:
    """Returns exact values in another type, by what is defined and exact; integers become floats of
    the grid by their low bits."""
    source = str(array.dtype)
    if source == dtype:
        return array
    if is_complex(source):
        array = on_grid(lax.add(lax.real(array), lax.imag(array)))
        return cast(array, dtype)
    if is_complex(dtype):
        part = cast(array, part_of(dtype))
        return lax.complex(part, on_grid(lax.sub(number(1, part_of(dtype)), part)))
    if dtype == "bool":
        return lax.ne(array, number(0, source))
    if is_floating(dtype) and source in INTEGERS:
        array = lax.bitwise_and(array, number(7, source))
    elif is_floating(dtype) and is_floating(source):
        return on_grid(lax.convert_element_type(limit(array, 8), dtype))
    return lax.convert_element_type(array, dtype)


def to_near(value: Value, dtype: str | None = None) -> Value:
    """Returns a near or exact value as a near one, in a floating point type."""
    target = dtype or (value.dtype if is_floating(value.dtype) else "float32")
    if value.kind is Kind.NEAR:
        if target == value.dtype:
            return value
        return near(lax.convert_element_type(value.array, target), value)
    array = cast(value.array, target)
    # An operation on NaN may or may not depend on another operand's last bits.
    array = without_nan(limit(array, 2))
    return Value(array, Kind.NEAR)


def near(array: jax.Array, *operands: Value, num_terms: int = 1) -> Value:
    """Returns what an operation made of near values, perhaps by adding up as many as `num_terms`.

    Each function or its argument may be off by some units in the last place of numbers up to 4.
    """
    rounding = (NEAR_ULP + num_terms) * epsilon(str(array.dtype))
    return Value(array, Kind.NEAR, rounding + max(operand.error for operand in operands))


def resize(array: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Returns an array in another shape: repeated, cut or reshaped."""
    if array.shape == shape:
        return array
    if array.size == 1:
        return lax.broadcast(lax.reshape(array, ()), shape)
    size = math.prod(shape)
    flat = lax.reshape(array, (array.size,))
    if size > array.size:
        count = -(-size // array.size)
        if count <= MAX_PIECES:
            flat = lax.concatenate([flat] * count, 0)
        else:
            flat = lax.reshape(lax.broadcast(flat, (count,)), (count * array.size,))
    return lax.reshape(lax.slice_in_dim(flat, 0, size), shape)


def can_become(kind: Kind, wanted: Kind) -> bool:
    """Whether values of a kind may stand where values of another are wanted."""
    return kind is wanted or kind is Kind.EXACT or (kind is Kind.SPECIAL and wanted is Kind.DONE)


def fit(value: Value, kind: Kind, dtype: str, shape: tuple[int, ...]) -> Value:
    """Returns a value as one of another kind that it can become, in a type and shape.

    Special and done values must have the type already.
    """
    if kind is Kind.NEAR:
        value = to_near(value, dtype)
    elif value.kind is Kind.EXACT:
        value = Value(cast(value.array, dtype), kind)
    return value._replace(array=resize(value.array, shape), kind=kind)


def fits(value: Value, kind: Kind, dtype: str) -> bool:
    """Whether `fit` can be asked for a kind and type."""
    if value.kind in {Kind.SPECIAL, Kind.DONE} and value.dtype != dtype:
        return False
    return can_become(value.kind, kind)


def common_kind(values: Sequence[Value]) -> Kind | None:
    """Returns what a choice among values is, or None if they don't go together."""
    kinds = (Kind.EXACT, Kind.NEAR, Kind.SPECIAL, Kind.DONE)
    return next((k for k in kinds if all(can_become(v.kind, k) for v in values)), None)


def chosen(array: jax.Array, kind: Kind, values: Sequence[Value]) -> Value:
    """Returns an array whose elements are chosen among those of values."""
    return Value(array, kind, max(value.error for value in values))
