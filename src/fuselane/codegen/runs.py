"""Runs: a few neighbouring elements of every lane, lanes lying one behind the other in memory.

    x f32[8,4]{1,0}, a block of 8 lanes: 32 neighbours in memory, 4 vectors of 8 lanes in registers

Short ones are moved as one wide vector and shuffled in one go. LLVM's time for that grows with the
square of the width; longer ones are moved vector by vector, and runs of an even length are taken
apart into the even and the odd elements, again and again. Where the block's lanes fill registers,
runs that do too, and all long ones, are made of squares (`codegen.squares`), which are transposed.
For 16 lanes of 15 floats, in and out, that is an eighth of the code, six tenths of its time, and a
third of LLVM's (24 ms for 77).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from llvmlite import ir

from fuselane.codegen.indexing import i64
from fuselane.codegen.memory import (
    LaneBlock,
    address_of_lane,
    element_pointer,
    load_lanes,
    store,
    store_neighbours,
    to_memory,
)
from fuselane.codegen.squares import (
    Allocate,
    Lines,
    load_columns,
    row_of_squares,
    store_columns,
)
from fuselane.codegen.types import join, shuffle
from fuselane.hlo.shape import PrimitiveType

_MAX_WIDE: Final = 64
"""Elements that are shuffled in one go."""

_MIN_OVERLAPPING: Final = 10
"""Elements of a run from which on squares that overlap are better than shuffles: about as fast, and
compiled in less time."""


def load_runs(
    builder: ir.IRBuilder,
    pointer: ir.Value,
    element: PrimitiveType,
    length: int,
    block: LaneBlock,
    allocate: Allocate,
    *,
    invariant: bool = False,
) -> list[ir.Value]:
    """Loads `length` neighbouring elements of every lane.

    Args:
        builder: Where.
        pointer: Address of the first lane's first element.
        element: Their type.
        length: How many of each lane.
        block: The lanes.
        allocate: Gives memory of the kernel's own, where it takes some.
        invariant: Whether nothing writes this memory while the kernel runs.
    Returns:
        One vector of lanes for each element: what `length` strided loads would give.
    """
    if block.width == 1:
        return [
            load_lanes(builder, at, element, 1, block, invariant=invariant)
            for at in _places_of(builder, pointer, element, length)
        ]
    if are_squares(length, block, element):
        rows = Lines(pointer, element, length)
        return load_columns(builder, rows, length, block, allocate, invariant=invariant)
    pieces = _num_pieces(length, block)
    parts = [
        load_lanes(
            builder,
            _piece_address(builder, pointer, element, block, length, piece),
            element,
            1,
            _piece(builder, block, length, piece),
            invariant=invariant,
        )
        for piece in range(pieces)
    ]
    return _take_apart(builder, parts, length // pieces)


def store_runs(
    builder: ir.IRBuilder,
    values: Sequence[ir.Value],
    pointer: ir.Value,
    element: PrimitiveType,
    block: LaneBlock,
    allocate: Allocate,
) -> None:
    """Stores neighbouring elements of every lane; see `load_runs`."""
    length = len(values)
    if block.width == 1:
        for at, value in zip(_places_of(builder, pointer, element, length), values, strict=True):
            store(builder, value, at, element)
        return
    if are_squares(length, block, element):
        store_columns(builder, values, Lines(pointer, element, length), block, allocate)
        return
    pieces = _num_pieces(length, block)
    raw = [to_memory(builder, value, element) for value in values]
    for piece, mixed in enumerate(_put_together(builder, raw, length // pieces)):
        address = _piece_address(builder, pointer, element, block, length, piece)
        store_neighbours(builder, mixed, address, element, _piece(builder, block, length, piece))


def are_squares(length: int, block: LaneBlock, element: PrimitiveType) -> bool:
    """Whether the block's runs are made of squares."""
    row = row_of_squares(block, element)
    return row > 0 and (length % row == 0 or length >= max(row, _MIN_OVERLAPPING))


def _places_of(
    builder: ir.IRBuilder, pointer: ir.Value, element: PrimitiveType, length: int
) -> list[ir.Value]:
    """Returns the addresses of the elements of one lane's run."""
    return [element_pointer(builder, pointer, i64(place), element) for place in range(length)]


# Pieces: the memory of all runs of a block, in vectors of some lanes' runs.


def _num_pieces(length: int, block: LaneBlock) -> int:
    """Returns in how many vectors runs are moved: a power of two that divides their length."""
    pieces = 1
    while length % (2 * pieces) == 0 and length * block.width // pieces > _MAX_WIDE:
        pieces *= 2
    return pieces


def _piece_width(length: int, block: LaneBlock) -> int:
    return length * block.width // _num_pieces(length, block)


def _piece_address(
    builder: ir.IRBuilder,
    pointer: ir.Value,
    element: PrimitiveType,
    block: LaneBlock,
    length: int,
    piece: int,
) -> ir.Value:
    """Returns where a piece begins."""
    first = piece * _piece_width(length, block)
    address = element_pointer(builder, pointer, i64(first), element)
    return address_of_lane(builder, address, block, first // length, pointer)


def _piece(builder: ir.IRBuilder, block: LaneBlock, length: int, piece: int) -> LaneBlock:
    """Returns a block with a lane for each element of a piece; its mask says whose exist."""
    width = _piece_width(length, block)
    mask = block.mask
    if mask is not None:
        first = piece * width
        owners = [place // length for place in range(first, first + width)]
        mask = shuffle(builder, mask, mask, owners)
    return replace(block, width=width, mask=mask)


def _take_apart(builder: ir.IRBuilder, parts: Sequence[ir.Value], length: int) -> list[ir.Value]:
    """Returns the elements of runs, given the pieces they lie in.

    Args:
        builder: Where.
        parts: As many as a power of two, in the order of memory.
        length: How many elements of a run lie in one piece of its own.
    """
    if len(parts) == 1:
        (whole,) = parts
        return [
            shuffle(builder, whole, whole, range(first, whole.type.count, length))
            for first in range(length)
        ]
    width = parts[0].type.count
    pairs = list(zip(parts[::2], parts[1::2], strict=True))
    halves = [
        _take_apart(
            builder,
            [shuffle(builder, *pair, range(start, 2 * width, 2)) for pair in pairs],
            length,
        )
        for start in (0, 1)
    ]
    return [value for pair in zip(*halves, strict=True) for value in pair]


def _put_together(builder: ir.IRBuilder, values: Sequence[ir.Value], length: int) -> list[ir.Value]:
    """Returns the pieces that runs lie in, given their elements; undoes `_take_apart`."""
    if len(values) == length:
        return [_interleave(builder, values)]
    evens, odds = (_put_together(builder, values[start::2], length) for start in (0, 1))
    width = evens[0].type.count
    parts = []
    for even, odd in zip(evens, odds, strict=True):
        for first in (0, width // 2):
            places = [first + place // 2 + width * (place % 2) for place in range(width)]
            parts.append(shuffle(builder, even, odd, places))
    return parts


def _interleave(builder: ir.IRBuilder, values: Sequence[ir.Value]) -> ir.Value:
    """Returns one vector with the first lanes of all values, then their second lanes, and so on."""
    length, width = len(values), values[0].type.count
    joined = join(builder, values)
    order = [(place % length) * width + place // length for place in range(length * width)]
    return shuffle(builder, joined, joined, order)
