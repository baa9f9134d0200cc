"""Random programs for one lane, run for many with `vmap` in a loop: a strategy that draws their
description, and the programs the descriptions stand for.

As in `random_programs`, a program is described by genes, and every list of genes is a valid
program. Here the genes say what one lane does, so that whatever is done at a place or as often as a
value says differs from lane to lane: gathers and scatters, loops, branches. All floats are exact
ones, see there, so that every bit of every result is determined.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, final

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st
from jax import lax

from tests.differential.random_lane_operations import OPERATIONS, LaneBuilder, cast, fit
from tests.differential.random_programs import GRIDS, OPTIONS, Gene
from tests.differential.values import NumpyArray, is_floating, needs_x64

DTYPES: Final = ("int32", "int32", "float32", "uint32", "int8", "uint16", "bool", "complex64")
WIDE_DTYPES: Final = ("int64", "float64", "int32", "uint64", "complex128")
SHAPES: Final = ((), (), (3,), (7,), (1,), (65,), (130,), (2, 3), (5, 13), (3, 1))
LANES: Final = ((33,), (5,), (100,), (2,), (1,), (33,), (7, 5), (2, 33), ())
OUTER_LOOPS: Final = ("scan", "scan", "counted", "while")
REDUCTIONS: Final[tuple[Callable[..., jax.Array], ...]] = (
    jnp.sum,
    jnp.max,
    jnp.min,
)


@final
@dataclass(frozen=True, slots=True)
class Slot:
    """A carry or stream: its dtype, the shape each lane has, where its lanes stand in the array (by
    a number per lane dimension), and whether it has lanes."""

    dtype: str
    shape: tuple[int, ...]
    place: int = 0
    has_lanes: bool = True


@final
@dataclass(frozen=True, slots=True)
class LaneDescription:
    """A whole random program, and the options under which it is compiled.

    Attributes:
        lanes: The sizes of the dimensions of lanes; none for a program that has no lanes.
        outer: The outer loop: `scan`, `counted` with a trip count known at run time, or
            `while` with one per lane.
        updates: Numbers of the values that become the carries.
        results: Numbers of the values that are stacked.
        reductions: Number of a value and of what is done with it over all lanes; odd numbers
            accumulate it over the run.
    """

    lanes: tuple[int, ...]
    outer: str
    steps: int
    reverse: bool
    carries: tuple[Slot, ...]
    streams: tuple[Slot, ...]
    genes: tuple[Gene, ...]
    inner_genes: tuple[Gene, ...]
    updates: tuple[int, ...]
    results: tuple[int, ...]
    reductions: tuple[tuple[int, int], ...]
    seed: int
    options: Mapping[str, Any]

    @property
    def x64(self) -> bool:
        """Whether a carry or stream needs 64-bit types."""
        dtypes = [slot.dtype for slot in self.carries + self.streams]
        return needs_x64(*dtypes) or "complex128" in dtypes


@st.composite
def lane_descriptions(draw: st.DrawFn, dtypes: Sequence[str]) -> LaneDescription:
    """Draws a program of up to three carries, two streams and ten operations."""
    small = st.integers(0, 30)
    genes = st.builds(Gene, st.integers(0, len(OPERATIONS) - 1), small, small, small)
    slots = st.sampled_from(dtypes), st.sampled_from(SHAPES), st.integers(0, 3)
    carries = st.builds(Slot, *slots)
    streams = st.builds(Slot, *slots, st.booleans())
    return LaneDescription(
        lanes=draw(st.sampled_from(LANES)),
        outer=draw(st.sampled_from(OUTER_LOOPS)),
        steps=draw(st.sampled_from((3, 2, 1, 4, 70))),
        reverse=draw(st.booleans()),
        carries=tuple(draw(st.lists(carries, min_size=1, max_size=3))),
        streams=tuple(draw(st.lists(streams, max_size=2))),
        genes=tuple(draw(st.lists(genes, min_size=2, max_size=10))),
        inner_genes=tuple(draw(st.lists(genes, min_size=1, max_size=3))),
        updates=tuple(draw(st.lists(small, min_size=3, max_size=3))),
        results=tuple(draw(st.lists(small, max_size=3))),
        reductions=tuple(draw(st.lists(st.tuples(small, small), max_size=2))),
        seed=draw(st.integers(0, 1000)),
        options=draw(OPTIONS),
    )


def lane_axes(slot: Slot, lanes: Sequence[int]) -> list[int | None]:
    """Returns the axis of each `vmap` for a slot, outermost first."""
    if not slot.has_lanes:
        return [None] * len(lanes)
    ranks = [len(slot.shape) + n for n in range(len(lanes), 0, -1)]
    return [(slot.place >> n) % rank for n, rank in enumerate(ranks)]


def full_shape(slot: Slot, lanes: Sequence[int]) -> tuple[int, ...]:
    """Returns the shape of a slot's array, lanes included."""
    shape = list(slot.shape)
    if slot.has_lanes:
        for size, axis in zip(reversed(lanes), reversed(lane_axes(slot, lanes)), strict=True):
            assert axis is not None
            shape.insert(axis, size)
    return tuple(shape)


def make_lane_inputs(description: LaneDescription) -> tuple[list[NumpyArray], list[NumpyArray]]:
    """Returns the first values of the carries and the streams."""
    generator = np.random.default_rng(description.seed)
    draw = functools.partial(_draw_values, generator)
    carries = [
        draw(slot.dtype, full_shape(slot, description.lanes)) for slot in description.carries
    ]
    streams = [
        draw(slot.dtype, (description.steps, *full_shape(slot, description.lanes)))
        for slot in description.streams
    ]
    return carries, streams


def _draw_values(generator: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> NumpyArray:
    if dtype.startswith("complex"):
        part = "float32" if dtype == "complex64" else "float64"
        real, imaginary = (_draw_values(generator, part, shape) for _ in range(2))
        return (real + 1j * imaginary).astype(dtype)
    if dtype == "bool":
        return generator.integers(0, 2, shape).astype(bool)
    if is_floating(dtype):
        step, bound = GRIDS[dtype]
        count = int(bound / step) // 2
        return (generator.integers(-count, count + 1, shape) * step).astype(dtype)
    info = np.iinfo(dtype)
    wide = generator.integers(info.min, info.max, shape, dtype=dtype, endpoint=True)
    small = generator.integers(0, 9, shape).astype(dtype)
    return np.where(generator.integers(0, 3, shape) == 0, wide, small)


def make_lane_program(description: LaneDescription) -> Callable[..., Any]:
    """Returns the program as a function of the carries' first values and the streams.

    Its results are the last carries, what was accumulated, and what was stacked.
    """
    lanes = description.lanes
    slots = (*description.carries, *description.streams)
    axes = [lane_axes(slot, lanes) for slot in slots]
    carried_axes = axes[: len(description.carries)]
    num_others = len(description.results) + len(description.reductions)

    def one_lane(number: jax.Array, *inputs: jax.Array) -> list[jax.Array]:
        builder = LaneBuilder(description.inner_genes, [number, *inputs])
        builder.run(description.genes)
        pick = [builder.values[-1 - update % len(builder.values)] for update in description.updates]
        updated = [
            fit(value, slot.dtype, slot.shape)
            for value, slot in zip(pick, description.carries, strict=False)
        ]
        others = [*description.results, *(value for value, _ in description.reductions)]
        return updated + [builder.values[-1 - i % len(builder.values)] for i in others]

    def all_lanes(number: jax.Array, *inputs: jax.Array) -> list[jax.Array]:
        program: Callable[..., Any] = one_lane
        for level in range(len(lanes) - 1, -1, -1):
            program = jax.vmap(
                program,
                in_axes=(None, *(axis[level] for axis in axes)),
                out_axes=[*(axis[level] for axis in carried_axes), *[0] * num_others],
                axis_size=lanes[level],
            )
        results: list[jax.Array] = program(number, *inputs)
        return results

    def step(state: Any, inputs: tuple[jax.Array, list[jax.Array]]) -> Any:
        carries, totals = state
        number, rows = inputs
        values = all_lanes(number, *carries, *rows)
        carries, values = values[: len(carries)], values[len(carries) :]
        stacked = values[: len(description.results)]
        combined = []
        reduced = values[len(description.results) :]
        for (_, kind), value, total in zip(description.reductions, reduced, totals, strict=True):
            over_lanes = _reduce_lanes(value, kind // 2, len(lanes))
            combined.append(total + over_lanes if kind % 2 else total)
            stacked = stacked if kind % 2 else [*stacked, over_lanes]
        return (carries, combined), stacked

    def one_run(carries: list[jax.Array], streams: list[jax.Array]) -> Any:
        def goes_on(state: Any) -> jax.Array:
            number, current = state
            return number < jnp.minimum(1 + count_of_steps(description, current[0]), 5)

        def onward(state: Any) -> Any:
            number, current = state
            rows = [stream[number] for stream in streams]
            return number + 1, one_lane(number, *current, *rows)[: len(carries)]

        return lax.while_loop(goes_on, onward, (jnp.int32(0), carries))

    def whole_runs(carries: list[jax.Array], streams: list[jax.Array]) -> Any:
        program = one_run
        carried, streamed = axes[: len(carries)], axes[len(carries) :]
        for level in range(len(lanes) - 1, -1, -1):
            rows = [None if (axis := found[level]) is None else axis + 1 for found in streamed]
            program = jax.vmap(
                program,
                in_axes=([axis[level] for axis in carried], rows),
                out_axes=(0, [axis[level] for axis in carried]),
                axis_size=lanes[level],
            )
        return program(carries, streams)

    def program(carries: list[jax.Array], streams: list[jax.Array]) -> Any:
        numbers = jnp.arange(description.steps, dtype=jnp.int32)
        first = (numbers[0], [stream[0] for stream in streams])
        shapes = jax.eval_shape(all_lanes, first[0], *carries, *first[1])
        reduced = shapes[len(carries) + len(description.results) :]
        totals = [
            jnp.zeros(shape.shape[len(lanes) :], _total_dtype(shape.dtype)) for shape in reduced
        ]
        if description.outer == "while":
            return whole_runs(carries, streams)
        if description.outer == "scan":
            return lax.scan(
                step, (carries, totals), (numbers, streams), reverse=description.reverse
            )

        def counted(number: jax.Array, state: Any) -> Any:
            return step(state, (number, [stream[number] for stream in streams]))[0]

        count = jnp.asarray(count_of_steps(description, carries[0]))
        return lax.fori_loop(0, count, counted, (carries, totals))

    return program


def count_of_steps(description: LaneDescription, carry: jax.Array) -> jax.Array:
    """Returns a number of steps that is known at run time only: all or some of them."""
    return description.steps - (cast(carry.reshape(-1)[0], "int32") & 1)


def _total_dtype(dtype: Any) -> Any:
    return jnp.dtype("int32") if jnp.issubdtype(dtype, jnp.bool_) else dtype


def _reduce_lanes(value: jax.Array, kind: int, num_lanes: int) -> jax.Array:
    """Reduces over the lanes; the values are so few and small that no sum is rounded."""
    axes = tuple(range(num_lanes))
    if value.dtype == jnp.bool_:
        value = value.astype(jnp.int32)
    if jnp.iscomplexobj(value):
        return jnp.sum(value.real, axes).astype(value.dtype)
    return REDUCTIONS[kind % len(REDUCTIONS)](value, axis=axes).astype(value.dtype)
