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
from fuselane.codegen.arrays import Array, Memory, Place, Scratch, new_scratch, widen
from fuselane.codegen.cuts import per_dimension
from fuselane.codegen.indexing import Index, i64
from fuselane.codegen.loops import emit_for_each
from fuselane.codegen.memory import element_pointer, in_cases
from fuselane.codegen.squares import Lines, side_of_squares, store_columns, turn_in, turn_out


def has_rows(memory: Memory, place: Place) -> bool:
    """Whether each lane's elements lie in runs that squares can be cut from."""
    return _side(memory, place) > 0


def load_rows(place: Place, source: Memory, target: Scratch | None = None) -> Scratch:
    """Returns a copy in scratch memory, where the lanes of the block are neighbours.

    Args:
        place: Where the code goes, with the block.
        source: Memory that has rows.
        target: Where the copy goes; by default there is memory for this block alone.
    """
    builder, element = place.builder, source.shape.element_type
    if target is None:
        target = new_scratch(place, source.shape, source.lane)
    side, run = _side(source, place), _run(source)

    def move(index: tuple[Index, ...]) -> None:
        outer, first = index[0], _first(builder, index[1], side, run)
        rows = Lines(_address(place, source, outer, first), element, run)
        start = indexing.add(builder, indexing.multiply(builder, outer, run), first)
        columns = _columns(builder, target, start)
        in_cases(builder, place.block, lambda block: turn_in(builder, rows, columns, block))

    emit_for_each(builder, (_num_outer(source), math.ceil(run / side)), move)
    return target


def store_rows(place: Place, target: Memory, source: Array) -> None:
    """Stores every element of an array to memory that has rows."""
    builder, element = place.builder, target.shape.element_type
    side, run = _side(target, place), _run(target)
    minor = target.shape.dimensions[-1]
    if isinstance(source, Scratch) or minor < side:
        scratch = source if isinstance(source, Scratch) else _in_scratch(place, source)

        def move_flat(index: tuple[Index, ...]) -> None:
            outer, first = index[0], _first(builder, index[1], side, run)
            start = indexing.add(builder, indexing.multiply(builder, outer, run), first)
            columns = _columns(builder, scratch, start)
            rows = Lines(_address(place, target, outer, first), element, run)
            in_cases(builder, place.block, lambda block: turn_out(builder, columns, rows, block))

        emit_for_each(builder, (_num_outer(target), math.ceil(run / side)), move_flat)
        return
    *outer_cuts, minor_cuts = per_dimension(source)
    stops = [*(cut for cut in minor_cuts if 0 < cut < minor), minor]
    begin = 0
    for stop in stops:
        _store_part(place, target, source, (begin, stop), outer_cuts)
        begin = stop


def _store_part(
    place: Place,
    target: Memory,
    source: Array,
    limits: tuple[int, int],
    cuts: Sequence[Sequence[int]],
) -> None:
    """Stores the elements between two indices of the minor-most dimension."""
    builder, element = place.builder, target.shape.element_type
    side, run = _side(target, place), _run(target)
    begin, stop = limits
    size = stop - begin
    outer_sizes = source.dimensions[:-1]

    def put(number: int, index: tuple[Index, ...]) -> None:
        at = indexing.with_lane((*index, number), source.lane)
        target.put(place, at, source.get(place, at))

    if size < side:
        for number in range(begin, stop):
            put_one = functools.partial(put, number)
            emit_for_each(builder, outer_sizes, put_one, cuts=cuts)
        return

    def move(index: tuple[Index, ...]) -> None:
        *others, chunk = index
        first = _first(builder, chunk, side, size)
        columns = []
        for number in range(side):
            minor = indexing.add(builder, first, begin + number)
            if isinstance(minor, ir.Value):
                indexing.bounded(minor, begin, stop - 1)
            at = indexing.with_lane((*others, minor), source.lane)
            columns.append(widen(place, source.get(place, at)))
        start = indexing.add(builder, first, begin)
        position = indexing.flatten(builder, (*others, start), source.dimensions)
        outer, rest = indexing.divide(builder, position, run)
        rows = Lines(_address(place, target, outer, rest), element, run)
        in_cases(
            builder,
            place.block,
            lambda block: store_columns(builder, columns, rows, block, place.allocate),
        )

    emit_for_each(builder, (*outer_sizes, math.ceil(size / side)), move, cuts=[*cuts, ()])


def _side(memory: Memory, place: Place) -> int:
    """Returns the size of squares; 0 if there are none."""
    if memory.lane is None or place.block.width == 1:
        return 0
    side = side_of_squares(place.block, memory.shape.element_type)
    return side if 0 < side <= _run(memory) else 0


def _run(memory: Memory) -> int:
    """Returns how many neighbours in memory belong to one lane."""
    return memory.strides[memory.lane or 0]


def _num_outer(memory: Memory) -> int:
    """Returns how many runs a lane has."""
    return math.prod(memory.shape.dimensions[: memory.lane])


def _first(builder: ir.IRBuilder, chunk: Index, side: int, run: int) -> Index:
    """Returns where a square starts."""
    return indexing.clamp(builder, indexing.multiply(builder, chunk, side), 0, run - side)


def _address(place: Place, memory: Memory, outer: Index, first: Index) -> ir.Value:
    """Returns the address of an element of a run of the block's first lane."""
    builder, run = place.builder, _run(memory)
    lanes = memory.shape.dimensions[memory.lane or 0]
    base = indexing.multiply(builder, outer, lanes * run)
    lane = indexing.multiply(builder, place.block.offset, run)
    offset = indexing.add(builder, indexing.add(builder, base, lane), first)
    return element_pointer(builder, memory.pointer, i64(offset), memory.shape.element_type)


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
