"""Rows: what a lane holds of an array lies in one long run, and the next lane's behind it.

    x f32[4096,512]{1,0}, lanes along dimension 0, a block of 8 lanes: 8 runs of 512 neighbours

A load for one element of every lane would take a piece of eight cache lines, and come back to each
of them fifteen times. So squares of as many elements as a register holds are moved: each row of a
square is a load, or a store, of neighbours, and it is transposed in between. A last square that
would reach over the end of the run overlaps the one before.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

from llvmlite import ir

from fuselane.codegen import indexing
from fuselane.codegen.arrays import (
    Array,
    Memory,
    Place,
    Scratch,
    Written,
    new_scratch,
    row_major_strides,
    widen,
)
from fuselane.codegen.cuts import per_dimension
from fuselane.codegen.indexing import LANE, Index
from fuselane.codegen.loops import emit_for_each
from fuselane.codegen.memory import in_cases
from fuselane.codegen.squares import (
    Lines,
    row_of_squares,
    square_start,
    store_columns,
    turn_in,
    turn_out,
)
from fuselane.hlo.shape import Shape


def has_rows(memory: Memory, place: Place) -> bool:
    """Whether each lane's elements lie in runs that squares can be cut from."""
    return _row(memory, place) > 0


def are_rows(memory: Memory, window: Shape, place: Place) -> bool:
    """Whether the elements of a window do: those of all lanes, of each run all or none."""
    lane = memory.lane or 0
    return window.dimensions[lane:] == memory.shape.dimensions[lane:] and has_rows(memory, place)


def load_rows(place: Place, source: Memory, target: Scratch, starts: Sequence[Index]) -> None:
    """Copies whole runs to scratch memory, where the lanes of the block are neighbours.

    Args:
        place: Where the code goes, with the block.
        source: Memory that has rows.
        target: Where the copy goes, of the shape of what is copied.
        starts: Where that starts in the source, within bounds.
    """
    builder = place.builder
    row, run = _row(source, place), _run(source)

    def move(index: tuple[Index, ...]) -> None:
        outer, first = index[0], square_start(builder, index[1], row, run)
        rows = _rows(place, source, target.shape, starts, outer, first)
        start = indexing.add(builder, indexing.multiply(builder, outer, run), first)
        columns = _columns(builder, target, start)
        in_cases(
            builder,
            place.block,
            lambda block: turn_in(builder, rows, columns, block, place.allocate),
        )

    squares = _num_outer(target.shape, source), math.ceil(run / row)
    emit_for_each(builder, squares, move, max_tail=1)


def store_rows(place: Place, target: Memory, source: Array, starts: Sequence[Index]) -> None:
    """Stores whole runs.

    Args:
        place: Where the code goes, with the block.
        target: Memory that has rows.
        source: What is stored; each element may be worked out of the one that it replaces.
        starts: Where it goes in the target, within bounds.
    """
    builder, shape = place.builder, source.shape
    row, run = _row(target, place), _run(target)
    minor = shape.dimensions[-1]
    *outer_cuts, minor_cuts = per_dimension(source)
    stops = [*(cut for cut in minor_cuts if 0 < cut < minor), minor]
    # Squares that overlap would read what has been written.
    is_changed = target.written is Written.ANY_TIME and any(stop % row for stop in stops)
    if isinstance(source, Scratch) or minor < row or is_changed:
        scratch = source if isinstance(source, Scratch) else _in_scratch(place, source)

        def move_flat(index: tuple[Index, ...]) -> None:
            outer, first = index[0], square_start(builder, index[1], row, run)
            start = indexing.add(builder, indexing.multiply(builder, outer, run), first)
            columns = _columns(builder, scratch, start)
            rows = _rows(place, target, shape, starts, outer, first)
            in_cases(
                builder,
                place.block,
                lambda block: turn_out(builder, columns, rows, block, place.allocate),
            )

        squares = _num_outer(shape, target), math.ceil(run / row)
        emit_for_each(builder, squares, move_flat, max_tail=1)
        return
    begin = 0
    for stop in stops:
        _store_part(place, target, source, starts, (begin, stop), outer_cuts)
        begin = stop


def _store_part(
    place: Place,
    target: Memory,
    source: Array,
    starts: Sequence[Index],
    limits: tuple[int, int],
    cuts: Sequence[Sequence[int]],
) -> None:
    """Stores the elements between two indices of the minor-most dimension."""
    builder, shape = place.builder, source.shape
    row, run = _row(target, place), _run(target)
    begin, stop = limits
    size = stop - begin
    outer_sizes = source.dimensions[:-1]

    def put(number: int, index: tuple[Index, ...]) -> None:
        at = indexing.with_lane((*index, number), source.lane)
        target.put(place, indexing.shift(builder, at, starts), source.get(place, at))

    if size < row:
        for number in range(begin, stop):
            put_one = functools.partial(put, number)
            emit_for_each(builder, outer_sizes, put_one, cuts=cuts)
        return

    def move(index: tuple[Index, ...]) -> None:
        *others, chunk = index
        first = square_start(builder, chunk, row, size)
        columns = []
        for number in range(row):
            minor = indexing.add(builder, first, begin + number)
            if isinstance(minor, ir.Value):
                indexing.bounded(minor, begin, stop - 1)
            at = indexing.with_lane((*others, minor), source.lane)
            columns.append(widen(place, source.get(place, at)))
        start = indexing.add(builder, first, begin)
        position = indexing.flatten(builder, (*others, start), source.dimensions)
        outer, rest = indexing.divide(builder, position, run)
        rows = _rows(place, target, shape, starts, outer, rest)
        in_cases(
            builder,
            place.block,
            lambda block: store_columns(builder, columns, rows, block, place.allocate),
        )

    squares = *outer_sizes, math.ceil(size / row)
    emit_for_each(builder, squares, move, max_tail=1, cuts=[*cuts, ()])


def _row(memory: Memory, place: Place) -> int:
    """Returns how many neighbours of each lane a square has; 0 if there are none."""
    if memory.lane is None or place.block.width == 1 or not _is_row_major(memory, memory.lane):
        return 0
    row = row_of_squares(place.block, memory.shape.element_type)
    return row if 0 < row <= _run(memory) else 0


def _is_row_major(memory: Memory, lane: int) -> bool:
    """Whether what lies between two lanes is the first one's elements, the last dimension's side by
    side. What lanes share has their writers innermost; see `codegen.meetings`."""
    return memory.strides[lane:] == row_major_strides(memory.shape.dimensions[lane:])


def _run(memory: Memory) -> int:
    """Returns how many neighbours in memory belong to one lane."""
    return memory.strides[memory.lane or 0]


def _num_outer(window: Shape, memory: Memory) -> int:
    """Returns how many runs a lane has in a window."""
    return math.prod(window.dimensions[: memory.lane])


def _rows(
    place: Place,
    memory: Memory,
    window: Shape,
    starts: Sequence[Index],
    outer: Index,
    first: Index,
) -> Lines:
    """Returns the runs of a window of the block's lanes, from an element on.

    Args:
        place: Where the code goes, with the block.
        memory: What the window is of.
        window: Its shape.
        starts: Where it starts.
        outer: Which run of each lane.
        first: Which element of it.
    """
    builder, lane = place.builder, memory.lane or 0
    before = indexing.unflatten(builder, outer, window.dimensions[:lane])
    inside = [0] * (window.rank - lane - 2)
    index = indexing.shift(builder, (*before, LANE, *inside, first), starts)
    return Lines(memory.address(place, index), memory.shape.element_type, _run(memory))


def _columns(builder: ir.IRBuilder, scratch: Scratch, start: Index) -> Lines:
    """Returns scratch memory from an element on, by its row-major position."""
    lanes = Lines(scratch.pointer, scratch.shape.element_type, scratch.pitch)
    return lanes.at(builder, start, 0 if scratch.start is None else scratch.start)


def _in_scratch(place: Place, source: Array) -> Scratch:
    scratch = new_scratch(place, source.shape, source.lane)

    def move(index: tuple[Index, ...]) -> None:
        at = indexing.with_lane(index, source.lane)
        scratch.put(place, at, source.get(place, at))

    emit_for_each(place.builder, source.dimensions, move, cuts=per_dimension(source))
    return scratch
