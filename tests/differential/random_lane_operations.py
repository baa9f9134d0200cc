"""What one lane of a random program does: operations on arrays of small, odd shapes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final, final

import jax
import jax.numpy as jnp
from jax import lax

from tests.differential.random_programs import (
    BOOLEAN_BINARY,
    COMPARISONS,
    FLOAT_BINARY,
    FLOAT_UNARY,
    INTEGER_BINARY,
    INTEGER_UNARY,
    Gene,
    Value,
    convert,
    quantize,
)
from tests.differential.values import INTEGERS, is_floating

LARGEST: Final = 300
"""Elements a value of one lane has at most."""

GATHER_MODES: Final = ("clip", "fill", "fill", "promise_in_bounds")
SCATTER_MODES: Final = ("drop", "clip", "promise_in_bounds", "drop")


def is_complex(value: jax.Array) -> bool:
    """Whether the values are complex numbers."""
    return bool(jnp.iscomplexobj(value))


def on_grid(value: jax.Array) -> jax.Array:
    """Puts floats and the parts of complex numbers back on their grid."""
    if is_complex(value):
        return lax.complex(quantize(value.real), quantize(value.imag))
    return quantize(value) if is_floating(str(value.dtype)) else value


def cast(value: jax.Array, dtype: str) -> jax.Array:
    """Returns a value in another dtype, by what is defined and exact."""
    if value.dtype == dtype:
        return value
    if is_complex(value):
        value = on_grid(value.real + value.imag)
    if dtype.startswith("complex"):
        part = cast(value, "float32" if dtype == "complex64" else "float64")
        return lax.complex(part, on_grid(1 - part))
    return convert(Value(value, has_lanes=False), dtype).array


def resize(value: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Returns a value in another shape: repeated, cut or reshaped."""
    if value.shape == shape:
        return value
    if value.size == 1:
        return jnp.broadcast_to(value.reshape(()), shape)
    size = math.prod(shape)
    flat = value.reshape(-1)
    repeated = lax.concatenate([flat] * -(-size // value.size), 0) if size > value.size else flat
    return repeated[:size].reshape(shape)


def fit(value: jax.Array, dtype: str, shape: tuple[int, ...]) -> jax.Array:
    """Returns a value in another dtype and shape."""
    return resize(cast(value, dtype), shape)


@final
class LaneBuilder:
    """Builds what one lane does from genes.

    Attributes:
        inner_genes: What the bodies of inner loops and branches do.
        values: All values made so far; the first is the number of the step.
        depth: How many inner loops and branches are around.
    """

    def __init__(
        self, inner_genes: Sequence[Gene], values: Sequence[jax.Array], depth: int = 0
    ) -> None:
        self.inner_genes = inner_genes
        self.values = list(values)
        self.depth = depth

    def run(self, body: Sequence[Gene]) -> None:
        """Applies the genes in order."""
        for gene in body:
            value = OPERATIONS[gene.operation % len(OPERATIONS)](self, gene)
            self.values.append(value if value.size <= LARGEST else value.reshape(-1)[:LARGEST])

    def pick(
        self, number: int, accept: Callable[[jax.Array], bool] = lambda value: True
    ) -> jax.Array:
        """Returns a value that is acceptable, counted from the latest, else the step's number."""
        accepted = [value for value in self.values if accept(value)] or self.values[:1]
        return accepted[-1 - number % len(accepted)]

    def array(self, number: int) -> jax.Array:
        """Returns a value with dimensions; the step's number, repeated, when there is none."""
        value = self.pick(number, lambda value: value.ndim > 0)
        return value if value.ndim else jnp.arange(7) * value

    def index(self, number: int) -> jax.Array:
        """Returns an integer of one lane, most often a small one."""
        value = self.pick(number, lambda value: value.ndim == 0 and value.dtype in INTEGERS)
        # JAX itself fails at indices whose type can't hold the size.
        return value if value.dtype.itemsize >= 4 else value.astype(jnp.int32)

    def number(self, number: int, limit: int) -> jax.Array:
        """Returns an integer between 0 and `limit - 1`."""
        value = self.index(number)
        return (value.astype(jnp.uint32) % limit).astype(jnp.int32)

    def inner(self, extra: Sequence[jax.Array]) -> jax.Array:
        """Returns the last value of the inner genes, which may use all values so far."""
        builder = LaneBuilder(self.inner_genes, [*self.values, *extra], self.depth + 1)
        builder.run(self.inner_genes)
        return builder.values[-1]


def binary(builder: LaneBuilder, gene: Gene) -> jax.Array:
    """Two values, one operation of their dtype."""
    left = builder.pick(gene.first)
    right = fit(builder.pick(gene.second), str(left.dtype), left.shape)
    if is_complex(left):
        return on_grid((lax.add, lax.mul, lax.sub)[gene.variant % 3](left, right))
    table = FLOAT_BINARY if is_floating(str(left.dtype)) else INTEGER_BINARY
    table = BOOLEAN_BINARY if left.dtype == jnp.bool_ else table
    return on_grid(table[gene.variant % len(table)](left, right))


def unary(builder: LaneBuilder, gene: Gene) -> jax.Array:
    """One value, one operation of its dtype."""
    value = builder.pick(gene.first)
    if value.dtype == jnp.bool_:
        return ~value
    if is_complex(value):
        return (jnp.conj, lax.neg, jnp.real, jnp.imag)[gene.variant % 4](value)
    table = FLOAT_UNARY if is_floating(str(value.dtype)) else INTEGER_UNARY
    return on_grid(table[gene.variant % len(table)](value))


def comparison(builder: LaneBuilder, gene: Gene) -> jax.Array:
    """A boolean from two values."""
    left = builder.pick(gene.first)
    right = fit(builder.pick(gene.second), str(left.dtype), left.shape)
    compare = COMPARISONS[2 + gene.variant % 2 if is_complex(left) else gene.variant % 6]
    return compare(left, right)


def select(builder: LaneBuilder, gene: Gene) -> jax.Array:
    """One of two values by a third one's truth."""
    left = builder.pick(gene.first)
    right = fit(builder.pick(gene.second), str(left.dtype), left.shape)
    return lax.select(fit(builder.pick(gene.variant), "bool", left.shape), left, right)


def conversion(builder: LaneBuilder, gene: Gene) -> jax.Array:
    """A value in another dtype, one of those that some value has, or as a small integer."""
    value = builder.pick(gene.first)
    if gene.variant % 3 == 0:
        return cast(value, "int32") & 7
    return cast(value, str(builder.pick(gene.second).dtype))


def movement(builder: LaneBuilder, gene: Gene) -> jax.Array:
    """Moves data along a dimension."""
    value = builder.array(gene.first)
    axis = gene.second % value.ndim
    size = value.shape[axis]
    padding = [(0, 0, 0)] * value.ndim
    padding[axis] = ((1, -1, 1), (2, 3, 0), (-1, 5, 0))[gene.second % 3]
    if size == 1 or gene.second % 3 == 1:
        padding[axis] = (2, 3, 0)
    moves: tuple[Callable[[], jax.Array], ...] = (
        lambda: lax.rev(value, (axis,)),
        lambda: lax.slice_in_dim(value, size // 2, size, axis=axis),
        lambda: lax.concatenate([value, lax.slice_in_dim(value, 0, 1, axis=axis)], axis),
        lambda: lax.pad(value, jnp.zeros((), value.dtype), padding),
        lambda: lax.slice_in_dim(value, 0, size, 2, axis),
        lambda: lax.index_in_dim(value, size - 1, axis, keepdims=False),
        lambda: jnp.roll(value, 1 + gene.second, axis),
        lambda: value.T,
        lambda: value.reshape(-1),
        lambda: value[None] if value.ndim == 1 else jnp.broadcast_to(value, (2, *value.shape)),
        lambda: jnp.repeat(value, 2, axis),
    )
    moved = moves[gene.variant % len(moves)]()
    return moved if 0 < moved.size <= LARGEST else value


def reduction(builder: LaneBuilder, gene: Gene) -> jax.Array:
    """Reduces a value along one dimension or all."""
    value = builder.array(gene.first)
    axes = (gene.second % value.ndim,) if gene.second % 3 else tuple(range(value.ndim))
    if value.dtype == jnp.bool_:
        return (jnp.any, jnp.all)[gene.variant % 2](value, axes)
    if is_complex(value):
        return on_grid(jnp.sum(value, axes))
    if gene.variant % 7 >= 5:
        extreme = (jnp.argmax, jnp.argmin)[gene.variant % 2]
        return extreme(value, axes[0]).astype(jnp.int32)
    if is_floating(str(value.dtype)):
        return on_grid((jnp.max, jnp.min, jnp.sum)[gene.variant % 3](value, axes))
    integers = (lax.reduce_xor, lax.reduce_max, lax.reduce_min, lax.reduce_or, lax.reduce_sum)
    return integers[gene.variant % len(integers)](value, axes)


def constant(builder: LaneBuilder, gene: Gene) -> jax.Array:
    """A number, a small vector, or the numbers from 0."""
    dtype = str(builder.pick(gene.first).dtype)
    numbers = (
        jnp.int32(gene.second),
        jnp.array([5, gene.second, 0], jnp.int32),
        jnp.arange((3, 7, 65)[gene.second % 3], dtype=jnp.int32),
    )
    return cast(numbers[gene.variant % 3], dtype)


def gather(builder: LaneBuilder, gene: Gene) -> jax.Array:
    """Reads at indices of the lane, in and out of range: one place, several, rows, windows."""
    value = builder.array(gene.first)
    index = builder.index(gene.second)
    mode = GATHER_MODES[gene.variant % 4]
    if mode == "promise_in_bounds":
        index = builder.number(gene.second, value.shape[0])
    kind = gene.variant // 4 % 5
    if kind == 1:
        indices = cast(builder.array(gene.second), "int32") % (value.shape[0] + 2) - 1
        if mode == "promise_in_bounds":
            indices = jnp.clip(indices, 0, value.shape[0] - 1)
        return value.at[indices].get(mode=mode)
    if kind == 2:
        size = 1 + gene.second % value.shape[0]
        return lax.dynamic_slice_in_dim(value, index, size, 0)
    if kind == 3 and value.ndim == 2:
        return value.at[index, builder.index(gene.variant)].get(
            mode=mode if mode != "promise_in_bounds" else "clip"
        )
    if kind == 4:
        indices = resize(cast(builder.array(gene.second), "int32"), value.shape)
        return jnp.take_along_axis(
            value, indices, 0, mode=mode if mode != "promise_in_bounds" else "clip"
        )
    return value.at[index].get(mode=mode)


def scatter(builder: LaneBuilder, gene: Gene) -> jax.Array:
    """Changes places given by the lane, in and out of range: one, several, rows, windows."""
    value = builder.array(gene.first)
    index = builder.index(gene.second)
    mode = SCATTER_MODES[gene.variant % 4]
    if mode == "promise_in_bounds":
        index = builder.number(gene.second, value.shape[0])
    new = builder.pick(gene.second + gene.variant)
    kind = gene.variant // 4 % 6
    if kind == 0:
        size = 1 + gene.second % value.shape[0]
        window = fit(new, str(value.dtype), (size, *value.shape[1:]))
        return lax.dynamic_update_slice_in_dim(value, window, index, 0)
    if kind == 1:
        # Differ, since it is not determined which of two writes to one place comes last.
        count = 1 + gene.second % value.shape[0]
        indices = (builder.number(gene.second, 5) - 2) + jnp.arange(count)[
            :: 1 - gene.variant % 2 * 2
        ]
        rows = fit(new, str(value.dtype), (count, *value.shape[1:]))
        return value.at[indices].set(rows, mode="drop", wrap_negative_indices=False)
    row = fit(new, str(value.dtype), value.shape[1:])
    if kind == 2 or value.dtype == jnp.bool_:
        return value.at[index].set(row, mode=mode)
    if kind == 3:
        indices = cast(builder.array(gene.second), "int32") % (value.shape[0] + 2) - 1
        rows = fit(new, str(value.dtype), (*indices.shape, *value.shape[1:]))
        return on_grid(value.at[indices].add(rows, mode="drop"))
    if is_complex(value):
        return on_grid(value.at[index].add(row, mode=mode))
    if kind == 4:
        return value.at[index].max(row, mode=mode)
    return on_grid(value.at[index].add(row, mode=mode))


def dot(builder: LaneBuilder, gene: Gene) -> jax.Array:
    """A matrix times a vector, the matrix shared by all lanes or not."""
    value = builder.array(gene.first)
    vector = cast(value, "float32").reshape(-1)
    limited = jnp.clip(vector, -2, 2)
    rows = (3, 7, 17, 1)[gene.second % 4]
    if gene.variant % 2:
        numbers = jnp.arange(rows * vector.size, dtype=jnp.float32).reshape(rows, -1)
        matrix = numbers % 5 - 2
    else:
        matrix = jnp.clip(fit(builder.pick(gene.second), "float32", (rows, vector.size)), -2, 2)
    return on_grid(jnp.clip(matrix @ limited, -64, 64))


def sort(builder: LaneBuilder, gene: Gene) -> jax.Array:
    """Sorts along a dimension: values, pairs, indices, the largest."""
    value = builder.array(gene.first)
    if is_complex(value):
        value = value.real
    axis = gene.second % value.ndim
    kind = gene.variant % 4
    if kind == 0:
        return lax.sort(value, dimension=axis)
    if kind == 1:
        return jnp.argsort(value, axis, descending=gene.second % 2 == 0).astype(jnp.int32)
    if kind == 2 and value.dtype != jnp.bool_:
        return lax.top_k(value, 1 + gene.second % value.shape[-1])[gene.second % 2]
    other = resize(builder.pick(gene.second), value.shape)
    return lax.sort((value, other), dimension=axis, num_keys=1)[1]


def window(builder: LaneBuilder, gene: Gene) -> jax.Array:
    """Cumulative and windowed reductions."""
    value = cast(builder.array(gene.first), "int32")
    axis = gene.second % value.ndim
    reverse = gene.second % 4 == 0
    cumulative = (lax.cumsum, lax.cummax, lax.cummin, lax.cumprod)
    if gene.variant % 3:
        return cumulative[gene.variant % 4](value, axis, reverse)
    size = [1] * value.ndim
    size[axis] = min(3, value.shape[axis])
    strides = [1] * value.ndim
    strides[axis] = 1 + gene.second % 2
    padding = ("SAME", "VALID")[gene.variant % 2]
    return lax.reduce_window(value, jnp.int32(0), lax.add, size, strides, padding)


def loop(builder: LaneBuilder, gene: Gene) -> jax.Array:
    """A loop of as many trips as the lane's value says, the step's number, or a constant; or one
    over a dimension."""
    value = builder.pick(gene.first)
    if builder.depth > 1:
        return value
    dtype, shape = str(value.dtype), value.shape

    def body(number: jax.Array, carried: jax.Array) -> jax.Array:
        return fit(builder.inner([number, carried]), dtype, shape)

    kind = gene.variant % 4
    if kind == 0:
        return lax.fori_loop(0, builder.number(gene.second, 4), body, value)
    if kind == 1:
        return lax.fori_loop(0, lax.rem(builder.values[0], jnp.int32(3)), body, value)
    if kind == 2:
        limit = builder.index(gene.second).astype(jnp.int32) & 3

        def again(state: tuple[jax.Array, jax.Array]) -> jax.Array:
            number, carried = state
            low = cast(carried.reshape(-1)[0], "int32") & 7
            return (number < limit) | ((low == 3) & (number < 6))

        def onward(state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            return state[0] + 1, body(*state)

        return lax.while_loop(again, onward, (jnp.int32(0), value))[gene.second % 2]
    rows = builder.array(gene.second)[:9]

    def step(carried: jax.Array, row: jax.Array) -> tuple[jax.Array, jax.Array]:
        new = fit(builder.inner([carried, row]), dtype, shape)
        return new, cast(new.reshape(-1)[0], str(row.dtype))

    last, stacked = lax.scan(step, value, rows, reverse=gene.second % 2 == 1)
    return stacked if gene.second % 3 else last


def branch(builder: LaneBuilder, gene: Gene) -> jax.Array:
    """A choice of branches by a value of the lane or the step's number."""
    value = builder.pick(gene.first)
    if builder.depth > 1:
        return value
    dtype, shape = str(value.dtype), value.shape
    index: Any = builder.values[0] if gene.variant % 2 else builder.index(gene.second)
    branches = (
        lambda carried: carried,
        lambda carried: fit(builder.inner([carried]), dtype, shape),
        lambda carried: (
            carried[::-1] if carried.ndim else ~carried if dtype == "bool" else -carried
        ),
    )
    if gene.variant % 3 == 0:
        return lax.cond(index % 2 == 0, branches[1], branches[2], value)
    return lax.switch(index.astype(jnp.int32), branches, value)


def bits(builder: LaneBuilder, gene: Gene) -> jax.Array:
    """The bits of a value as another type, and complex numbers from two values."""
    value = builder.pick(gene.first)
    if gene.variant % 2 or value.dtype == jnp.bool_ or is_complex(value):
        part = cast(value, "float32")
        return lax.complex(part, fit(builder.pick(gene.second), "float32", part.shape))
    if value.dtype.itemsize == 4:
        return lax.bitcast_convert_type(
            value, jnp.uint32 if is_floating(str(value.dtype)) else jnp.int32
        )
    return value


OPERATIONS: Final[tuple[Callable[[LaneBuilder, Gene], jax.Array], ...]] = (
    *(binary, unary, comparison, select, conversion),
    *(movement, movement, reduction, constant),
    *(gather, gather, scatter, scatter, dot, sort, window, loop, loop, branch, bits),
)
