"""Random lane-local loops: a strategy that draws their description, and the programs the
descriptions stand for.

A program is described by genes, small tuples of integers. Building the program reads one gene after
the other: each takes values made so far, applies an operation to them and adds the result to the
values. Every list of genes is a valid program, so that Hypothesis can shrink a failing one gene by
gene.

Two kinds of floats are kept apart. *Exact* ones lie on a grid so coarse that sums and products are
not rounded: however multiplications and additions are contracted, the bits are the same, and
comparisons of them and conversions to integers are too. Anything else is *near*: it is computed by
continuous functions of bounded slope, never decides anything, and is compared within a tolerance.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, final

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st
from jax import lax

from tests.differential.values import INTEGERS, NumpyArray, is_floating, needs_x64

DTYPES: Final = (
    "int32",
    "float32",
    "bool",
    "uint32",
    "int8",
    "uint8",
    "int16",
    "float16",
    "bfloat16",
)
WIDE_DTYPES: Final = ("int64", "float64", "uint64", "int32", "float32")
RESIDUALS: Final = ((), (3,), (2, 3), (1,), (4,))
# What is carried may also be too large for registers.
CARRIED_RESIDUALS: Final = (*RESIDUALS, (80,), (67, 2))
# Step and bound of the grid on which the exact floats of each dtype lie.
GRIDS: Final = {
    "float64": (0.125, 64.0),
    "float32": (0.125, 64.0),
    "float16": (0.5, 8.0),
    "bfloat16": (1.0, 8.0),
}

# How kernels may be laid out, other than as the cost model chooses.
OPTIONS: Final = st.fixed_dictionaries(
    {},
    optional={
        "vector_bits": st.sampled_from((128, 256, 512)),
        "unroll": st.sampled_from((1, 2, 3)),
        "tile_lanes": st.sampled_from((1, 24, 64, 1000)),
        "threads": st.sampled_from((1, 3)),
    },
)


@final
class Gene(NamedTuple):
    """One step in building a program: which operation, on which values, in which variant."""

    operation: int
    first: int
    second: int
    variant: int


@final
@dataclass(frozen=True, slots=True)
class Slot:
    """A carry or stream: its dtype, its dimensions besides the lanes, whether it has lanes and
    whether its floats are exact."""

    dtype: str
    residual: tuple[int, ...]
    has_lanes: bool = True
    exact: bool = True

    @property
    def is_exact(self) -> bool:
        """Whether it never holds near floats."""
        return self.exact or not is_near_dtype(self.dtype)


@final
@dataclass(frozen=True, slots=True)
class Description:
    """A whole random program, and the options under which it is compiled."""

    lanes: int
    lanes_in_front: bool
    steps: int
    reverse: bool
    carries: tuple[Slot, ...]
    streams: tuple[Slot, ...]
    genes: tuple[Gene, ...]
    inner_genes: tuple[Gene, ...]
    inner_trips: int
    updates: tuple[int, ...]
    results: tuple[int, ...]
    seed: int
    options: Mapping[str, Any]

    @property
    def x64(self) -> bool:
        """Whether a carry or stream needs 64-bit types."""
        return needs_x64(*(slot.dtype for slot in self.carries + self.streams))


@final
@dataclass(frozen=True, slots=True)
class Value:
    """A traced array with what the builder must know about it."""

    array: jax.Array
    has_lanes: bool
    exact: bool = True

    @property
    def dtype(self) -> str:
        """Name of the element type."""
        return str(self.array.dtype)


def genes(max_size: int, min_size: int = 1) -> st.SearchStrategy[tuple[Gene, ...]]:
    """Draws the genes of one body."""
    small = st.integers(0, 30)
    gene = st.builds(Gene, st.integers(0, len(OPERATIONS) - 1), small, small, small)
    return st.lists(gene, min_size=min_size, max_size=max_size).map(tuple)


@st.composite
def descriptions(draw: st.DrawFn, dtypes: Sequence[str]) -> Description:
    """Draws a program of up to three carries, two streams and a dozen operations, with an inner
    loop."""
    slot_dtypes = st.sampled_from(dtypes)
    residuals = st.sampled_from(RESIDUALS)
    carried = st.sampled_from(CARRIED_RESIDUALS)
    first = draw(st.builds(Slot, slot_dtypes, carried))
    carries = st.builds(Slot, slot_dtypes, carried, st.booleans(), st.booleans())
    streams = st.builds(Slot, slot_dtypes, residuals, st.booleans(), st.booleans())
    picks = st.integers(0, 30)
    return Description(
        lanes=draw(st.sampled_from((7, 16, 33, 100, 131))),
        lanes_in_front=draw(st.booleans()),
        steps=draw(st.sampled_from((2, 3, 5, 70))),
        reverse=draw(st.booleans()),
        carries=(first, *draw(st.lists(carries, max_size=2))),
        streams=tuple(draw(st.lists(streams, max_size=2))),
        genes=draw(genes(14, min_size=3)),
        inner_genes=draw(genes(4)),
        inner_trips=draw(st.integers(0, 4)),
        updates=tuple(draw(st.lists(picks, min_size=3, max_size=3))),
        results=tuple(draw(st.lists(picks, min_size=1, max_size=5))),
        seed=draw(st.integers(0, 1000)),
        options=draw(OPTIONS),
    )


def make_inputs(description: Description) -> tuple[list[NumpyArray], list[NumpyArray]]:
    """Returns the first values of the carries and the streams."""
    generator = np.random.default_rng(description.seed)
    carries = [_draw_values(description, slot, (), generator) for slot in description.carries]
    steps = (description.steps,)
    streams = [_draw_values(description, slot, steps, generator) for slot in description.streams]
    return carries, streams


def _draw_values(
    description: Description,
    slot: Slot,
    leading: tuple[int, ...],
    generator: np.random.Generator,
) -> NumpyArray:
    shape = leading + full_shape(description, slot.residual, slot.has_lanes)
    if slot.dtype == "bool":
        return generator.integers(0, 2, shape).astype(bool)
    if is_floating(slot.dtype):
        step, bound = GRIDS[slot.dtype]
        count = int(bound / step) // 2
        return (generator.integers(-count, count + 1, shape) * step).astype(slot.dtype)
    info = np.iinfo(slot.dtype)
    wide = generator.integers(info.min, info.max, shape, dtype=slot.dtype, endpoint=True)
    small = generator.integers(0, 20, shape).astype(slot.dtype)
    return np.where(generator.integers(0, 2, shape) == 0, wide, small)


def full_shape(
    description: Description, residual: Sequence[int], has_lanes: bool
) -> tuple[int, ...]:
    """Returns the array shape for dimensions `residual` of each lane."""
    if not has_lanes:
        return tuple(residual)
    if description.lanes_in_front:
        return (description.lanes, *residual)
    return (*residual, description.lanes)


def make_program(description: Description) -> Callable[..., Any]:
    """Returns the program as a function of the carries' first values and the streams.

    Its results are two lists: those in which every bit is determined, and the near floats.
    """

    def step(carries: list[jax.Array], inputs: tuple[jax.Array, list[jax.Array]]) -> Any:
        builder = Builder(description, inputs[0])
        builder.add_slots(description.carries, carries)
        builder.add_slots(description.streams, inputs[1])
        builder.run(description.genes)
        updated = [
            builder.fit(builder.values[-1 - update % len(builder.values)], slot)
            for update, slot in zip(description.updates, description.carries, strict=False)
        ]
        results = [builder.values[-1 - i % len(builder.values)] for i in description.results]
        return updated, {
            "exact": [value.array for value in results if value.exact],
            "near": [value.array for value in results if not value.exact],
        }

    def program(carries: list[jax.Array], streams: list[jax.Array]) -> Any:
        numbers = jnp.arange(description.steps, dtype=jnp.int32)
        last, stacked = lax.scan(step, carries, (numbers, streams), reverse=description.reverse)
        for slot, array in zip(description.carries, last, strict=True):
            stacked["exact" if slot.is_exact else "near"].append(array)
        return stacked["exact"], stacked["near"]

    return program


@final
class Builder:
    """Builds the body of a loop from genes.

    Attributes:
        description: The program it belongs to.
        values: All values made so far; genes refer to them by number.
    """

    def __init__(self, description: Description, number: jax.Array, depth: int = 0) -> None:
        self.description = description
        self.values: list[Value] = [Value(number, has_lanes=False)]
        self.depth = depth

    def add_slots(self, slots: Sequence[Slot], arrays: Sequence[jax.Array]) -> None:
        """Adds carried values or rows of streams."""
        for slot, array in zip(slots, arrays, strict=True):
            self.values.append(Value(array, slot.has_lanes, slot.is_exact))

    def run(self, body: Sequence[Gene]) -> None:
        """Applies the genes in order."""
        for gene in body:
            self.values.append(OPERATIONS[gene.operation](self, gene))

    def pick(
        self, number: int, accept: Callable[[Value], bool] = lambda value: value.exact
    ) -> Value:
        """Returns a value that is acceptable, counted from the latest; the step's number always
        is."""
        accepted = [value for value in self.values if accept(value)] or self.values[:1]
        return accepted[-1 - number % len(accepted)]

    def residual(self, value: Value) -> tuple[int, ...]:
        """Returns a value's dimensions besides the lanes."""
        shape = value.array.shape
        if not value.has_lanes:
            return tuple(shape)
        return tuple(shape[1:] if self.description.lanes_in_front else shape[:-1])

    def axis(self, value: Value, residual_axis: int) -> int:
        """Returns the array's dimension for a residual one."""
        return residual_axis + (value.has_lanes and self.description.lanes_in_front)

    def broadcast(self, value: Value, residual: tuple[int, ...], has_lanes: bool) -> Value:
        """Returns a value with other residual dimensions and lanes: repeated, or its first
        entry."""
        own = self.residual(value)
        if own not in ((), residual):
            for _ in own:
                index = functools.partial(lax.index_in_dim, index=0, keepdims=False)
                array = index(value.array, axis=self.axis(value, 0))
                value = Value(array, value.has_lanes, value.exact)
            own = ()
        has_lanes = has_lanes or value.has_lanes
        shape = full_shape(self.description, residual, has_lanes)
        if value.array.shape == shape and value.has_lanes == has_lanes:
            return value
        lane_axis = 0 if self.description.lanes_in_front else len(residual)
        kept = [axis for axis in range(len(shape)) if not has_lanes or axis != lane_axis]
        mapped = kept if own == residual else []
        if value.has_lanes:
            mapped = sorted([*mapped, lane_axis])
        array = lax.broadcast_in_dim(value.array, shape, mapped)
        return Value(array, has_lanes, value.exact)

    def match(self, left: Value, right: Value) -> tuple[Value, Value]:
        """Returns both values with the left one's dtype and residual dimensions, and lanes if one
        has them."""
        right = convert(right, left.dtype)
        residual = self.residual(left)
        has_lanes = left.has_lanes or right.has_lanes
        return self.broadcast(left, residual, has_lanes), self.broadcast(right, residual, has_lanes)

    def fit(self, value: Value, slot: Slot) -> jax.Array:
        """Returns a value in the form of a carry."""
        must_be_exact = slot.is_exact
        if (must_be_exact and not value.exact) or (value.has_lanes and not slot.has_lanes):
            value = self.pick(
                0,
                lambda other: (
                    (other.exact or not must_be_exact) and (slot.has_lanes or not other.has_lanes)
                ),
            )
        fitted = self.broadcast(convert(value, slot.dtype), slot.residual, slot.has_lanes)
        return fitted.array


def is_near_dtype(dtype: str) -> bool:
    """Whether near floats are computed in this dtype; the narrow ones are kept exact."""
    return dtype in ("float32", "float64")


def quantize(array: jax.Array) -> jax.Array:
    """Rounds floats down to the grid of their dtype and limits them; the values must be exact."""
    step, bound = GRIDS[str(array.dtype)]
    limited = jnp.clip(array, -bound, bound)
    return jnp.floor(limited * np.float32(1 / step).astype(array.dtype)) * np.float32(step).astype(
        array.dtype
    )


def convert(value: Value, dtype: str) -> Value:
    """Returns a value in another dtype; integers become floats of the grid by their low bits."""
    if value.dtype == dtype:
        return value
    array = value.array
    if dtype == "bool":
        array = array != 0
    elif is_floating(dtype) and value.dtype in INTEGERS:
        array = (array & jnp.asarray(7, array.dtype)).astype(dtype)
    elif is_floating(dtype) and is_floating(value.dtype) and value.exact:
        array = quantize(jnp.clip(array, -8, 8).astype(dtype))
    else:
        array = array.astype(dtype)
    return Value(array, value.has_lanes, value.exact)


def shift(operation: Callable[..., jax.Array], x: jax.Array, y: jax.Array) -> jax.Array:
    """Shifts by up to twice the width, which is defined in HLO."""
    return operation(x, y & jnp.asarray(2 * 8 * x.dtype.itemsize - 1, x.dtype))


INTEGER_BINARY: Final[tuple[Callable[..., jax.Array], ...]] = (
    *(lax.add, lax.mul, lax.sub, lax.bitwise_xor, lax.max, lax.min, lax.div, lax.rem),
    *(lax.bitwise_and, lax.bitwise_or),
    *(
        functools.partial(shift, operation)
        for operation in (lax.shift_left, lax.shift_right_logical, lax.shift_right_arithmetic)
    ),
)
FLOAT_BINARY: Final[tuple[Callable[..., jax.Array], ...]] = (
    *(lax.add, lax.mul, lax.sub, lax.max, lax.min, lax.div, lax.rem),
)
BOOLEAN_BINARY: Final[tuple[Callable[..., jax.Array], ...]] = (
    *(lax.bitwise_xor, lax.bitwise_and, lax.bitwise_or, lax.eq, lax.max),
)
INTEGER_UNARY: Final[tuple[Callable[..., jax.Array], ...]] = (
    *(lax.neg, lax.bitwise_not, lax.population_count, lax.clz, lax.sign),
    lambda x: x * jnp.asarray(3, x.dtype) + jnp.asarray(1, x.dtype),
    lambda x: lax.div(x, jnp.asarray(5, x.dtype)),
    lambda x: x >> 1,
)
FLOAT_UNARY: Final[tuple[Callable[..., jax.Array], ...]] = (
    *(lax.neg, lax.abs, lax.sign, lax.ceil, lax.floor),
    lambda x: lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN),
    lambda x: lax.round(x, lax.RoundingMethod.AWAY_FROM_ZERO),
    lambda x: x * 0.5,
    lambda x: lax.is_finite(x).astype(x.dtype),
)
NEAR_UNARY: Final[tuple[Callable[..., jax.Array], ...]] = (
    *(jnp.sin, jnp.cos, jnp.tanh, lax.logistic, lax.erf),
    lambda x: jnp.exp(-jnp.abs(x)),
    lambda x: jnp.log1p(jnp.abs(x)),
    lambda x: jnp.sqrt(1 + x * x),
    lambda x: lax.rsqrt(1 + x * x),
    jnp.arctan,
    lambda x: lax.cbrt(1 + x * x),
    lambda x: lax.expm1(-jnp.abs(x)),
    lambda x: lax.pow(1 + jnp.abs(jnp.clip(x, -4, 4)), jnp.asarray(-1.5, x.dtype)),
)
COMPARISONS: Final = (lax.lt, lax.ge, lax.eq, lax.ne, lax.gt, lax.le)


def on_grid(value: Value, array: jax.Array) -> Value:
    """Wraps a result made of `value`, put back on the grid when it is a float."""
    if is_floating(str(array.dtype)):
        array = quantize(array)
    return Value(array, value.has_lanes)


def apply_binary(builder: Builder, gene: Gene) -> Value:
    """Two values, one operation of their dtype."""
    left, right = builder.match(builder.pick(gene.first), builder.pick(gene.second))
    table = FLOAT_BINARY if is_floating(left.dtype) else INTEGER_BINARY
    table = BOOLEAN_BINARY if left.dtype == "bool" else table
    return on_grid(left, table[gene.variant % len(table)](left.array, right.array))


def apply_unary(builder: Builder, gene: Gene) -> Value:
    """One value, one operation of its dtype."""
    value = builder.pick(gene.first)
    if value.dtype == "bool":
        return Value(~value.array, value.has_lanes)
    table = FLOAT_UNARY if is_floating(value.dtype) else INTEGER_UNARY
    return on_grid(value, table[gene.variant % len(table)](value.array))


def apply_comparison(builder: Builder, gene: Gene) -> Value:
    """A boolean from two values."""
    left, right = builder.match(builder.pick(gene.first), builder.pick(gene.second))
    compare = COMPARISONS[gene.variant % len(COMPARISONS)]
    return Value(compare(left.array, right.array), left.has_lanes)


def apply_select(builder: Builder, gene: Gene) -> Value:
    """One of two values, near ones included, by a third one's truth."""
    left = builder.pick(gene.first, lambda value: True)
    right = builder.pick(
        gene.second, lambda value: value.exact or (not left.exact and value.dtype == left.dtype)
    )
    left, right = builder.match(left, right)
    chosen = convert(builder.pick(gene.variant), "bool")
    residual = builder.residual(left)
    chosen = builder.broadcast(chosen, residual, left.has_lanes)
    left = builder.broadcast(left, residual, chosen.has_lanes)
    right = builder.broadcast(right, residual, chosen.has_lanes)
    array = lax.select(chosen.array, left.array, right.array)
    return Value(array, left.has_lanes, left.exact and right.exact)


def apply_conversion(builder: Builder, gene: Gene) -> Value:
    """A value in another dtype."""
    dtypes = DTYPES + WIDE_DTYPES if builder.description.x64 else DTYPES
    return convert(builder.pick(gene.first), dtypes[gene.variant % len(dtypes)])


def apply_shape_operation(builder: Builder, gene: Gene) -> Value:
    """Moves a value's data along one of its residual dimensions; a new dimension when it has
    none."""
    value = builder.pick(gene.first)
    residual = builder.residual(value)
    if not residual:
        return builder.broadcast(value, RESIDUALS[1 + gene.variant % 4], value.has_lanes)
    axis = builder.axis(value, gene.second % len(residual))
    size = value.array.shape[axis]
    array = value.array
    flat = full_shape(builder.description, (math.prod(residual),), value.has_lanes)
    padding = [(0, 0, 0)] * array.ndim
    padding[axis] = (1, -1, 1)
    moves: tuple[Callable[[], jax.Array], ...] = (
        lambda: lax.rev(array, (axis,)),
        lambda: lax.slice_in_dim(array, size // 2, size, axis=axis),
        lambda: lax.concatenate([array, lax.slice_in_dim(array, 0, 1, axis=axis)], axis),
        lambda: lax.pad(array, jnp.zeros((), array.dtype), padding),
        lambda: lax.slice_in_dim(array, 0, size, 2, axis),
        lambda: lax.index_in_dim(array, size - 1, axis, keepdims=False),
        lambda: jnp.roll(array, 1, axis),
        lambda: jnp.swapaxes(array, axis, builder.axis(value, 0)),
        lambda: lax.reshape(array, flat),
    )
    moved = moves[gene.variant % len(moves)]()
    return Value(moved, value.has_lanes) if moved.size < 40_000 else value


def apply_reduction(builder: Builder, gene: Gene) -> Value:
    """Reduces a value along all its residual dimensions."""
    value = builder.pick(gene.first, lambda value: value.exact and builder.residual(value) != ())
    residual = builder.residual(value)
    axes = tuple(builder.axis(value, axis) for axis in range(len(residual)))
    if value.dtype == "bool":
        return Value(value.array.any(axes), value.has_lanes)
    if is_floating(value.dtype):
        # This many small values on the grid add up without rounding.
        floats: tuple[Callable[..., jax.Array], ...] = (jnp.max, jnp.min, jnp.sum)
        array = jnp.clip(value.array, -1, 1) if gene.variant % 3 == 2 else value.array
        return on_grid(value, floats[gene.variant % 3](array, axis=axes))
    if len(axes) == 1 and gene.second % 4 == 0:
        return Value(jnp.argmax(value.array, axes[0]).astype(jnp.int32), value.has_lanes)
    integers = (lax.reduce_xor, lax.reduce_max, lax.reduce_min, lax.reduce_or, lax.reduce_sum)
    return Value(integers[gene.variant % len(integers)](value.array, axes), value.has_lanes)


def apply_near_unary(builder: Builder, gene: Gene) -> Value:
    """A transcendental function."""
    value = builder.pick(gene.first, lambda value: not value.exact or is_near_dtype(value.dtype))
    if not is_near_dtype(value.dtype):
        value = convert(convert(value, "int32"), "float32")
    array = NEAR_UNARY[gene.variant % len(NEAR_UNARY)](value.array)
    return Value(array, value.has_lanes, exact=False)


def apply_near_binary(builder: Builder, gene: Gene) -> Value:
    """Sums and products of near floats, limited so that errors stay small."""
    left = apply_near_unary(builder, gene)
    right = builder.pick(gene.second, lambda value: value.exact or value.dtype == left.dtype)
    left, right = builder.match(left, right)
    operations: tuple[Callable[..., jax.Array], ...] = (
        *(operator.add, operator.mul, operator.sub, lax.max),
        lambda x, y: x / (1 + jnp.abs(y)),
        lambda x, y: x * y + x,
        lambda x, y: lax.atan2(x, 1 + jnp.abs(y)),
    )
    array = operations[gene.variant % len(operations)](left.array, right.array)
    return Value(jnp.clip(array, -4, 4), left.has_lanes, exact=False)


def apply_constant(builder: Builder, gene: Gene) -> Value:
    """A constant, the lane's number, or a small vector."""
    dtype = builder.pick(gene.first).dtype
    lanes = full_shape(builder.description, (), has_lanes=True)
    if gene.variant % 3 == 0:
        return convert(Value(lax.iota(jnp.int32, lanes[0]), has_lanes=True), dtype)
    if gene.variant % 3 == 1:
        return convert(Value(jnp.int32(gene.second), has_lanes=False), dtype)
    return convert(Value(jnp.array([5, gene.second, 0], jnp.int32), has_lanes=False), dtype)


def apply_dynamic_index(builder: Builder, gene: Gene) -> Value:
    """Reads or writes one entry of a residual dimension at a place that is the same for all
    lanes."""
    value = builder.pick(gene.first, lambda value: value.exact and builder.residual(value) != ())
    if not builder.residual(value):
        return value
    index = builder.pick(
        gene.second,
        lambda value: value.exact and value.array.ndim == 0 and value.dtype in INTEGERS,
    )
    axis = builder.axis(value, 0)
    entry = lax.dynamic_slice_in_dim(value.array, index.array, 1, axis)
    if gene.variant % 2 == 0:
        return Value(lax.squeeze(entry, (axis,)), value.has_lanes)
    array = lax.dynamic_update_slice_in_dim(value.array, entry, index.array + 1, axis)
    return Value(array, value.has_lanes)


def apply_inner_loop(builder: Builder, gene: Gene) -> Value:
    """A loop of a few trips, known or not, over one value and, with the outer step's number, others
    of the body."""
    value = builder.pick(gene.first)
    if builder.depth > 0:
        return value
    slot = Slot(value.dtype, builder.residual(value), value.has_lanes)
    outside = list(builder.values)
    trips: Any = builder.description.inner_trips
    if gene.variant % 2:
        trips = lax.rem(builder.values[0].array, jnp.int32(3))

    def body(number: jax.Array, array: jax.Array) -> jax.Array:
        inner = Builder(builder.description, number, builder.depth + 1)
        inner.values += outside[1:]
        inner.values.append(Value(array, value.has_lanes))
        inner.run(builder.description.inner_genes)
        return inner.fit(inner.values[-1], slot)

    return Value(lax.fori_loop(jnp.int32(0), trips, body, value.array), value.has_lanes)


def apply_guarded(builder: Builder, gene: Gene) -> Value:
    """Something expensive that only the lanes of a rare value need: random bits, or a chain of
    functions."""
    value = builder.pick(gene.first)
    flag = convert(builder.pick(gene.second), "int32")
    residual = builder.residual(value)
    rare = builder.broadcast(flag, residual, has_lanes=True).array % 7 == gene.variant % 7
    value = builder.broadcast(value, residual, has_lanes=True)
    if gene.variant % 2:
        key = jax.random.fold_in(jax.random.key(0), builder.values[0].array)
        bits = jax.random.bits(key, value.array.shape, "uint32")
    else:
        bits = lax.iota(jnp.uint32, value.array.size).reshape(value.array.shape)
        for _ in range(30):
            bits = (bits ^ (bits >> 13)) * jnp.uint32(0x5BD1E995)
    expensive = convert(Value(bits, has_lanes=True), value.dtype)
    return Value(lax.select(rare, expensive.array, value.array), has_lanes=True)


OPERATIONS: Final[tuple[Callable[[Builder, Gene], Value], ...]] = (
    apply_binary,
    apply_binary,
    apply_unary,
    apply_comparison,
    apply_select,
    apply_select,
    apply_conversion,
    apply_shape_operation,
    apply_reduction,
    apply_near_unary,
    apply_near_binary,
    apply_near_binary,
    apply_constant,
    apply_dynamic_index,
    apply_inner_loop,
    apply_guarded,
)
