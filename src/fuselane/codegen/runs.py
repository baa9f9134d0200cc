"""Runs: a few neighbouring elements of every lane, lanes lying one behind the other in memory.

    x f32[8,4]{1,0}, a block of 8 lanes: 32 neighbours in memory, 4 vectors of 8 lanes in registers

Short ones are moved as one wide vector and shuffled in one go. LLVM's time for that grows with the
square of the width; longer ones are moved vector by vector, and runs of an even length are taken
apart into the even and the odd elements, again and again. Where both a run and the block's lanes
fill registers, they are squares, of which each register holds a row: those are transposed. For
16 lanes of 16 floats that is a third of the instructions, and of LLVM's time (12 ms for 36).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from llvmlite import ir

from fuselane.codegen.indexing import i64
from fuselane.codegen.memory import (
    LaneBlock,
    element_pointer,
    load_lanes,
    store,
    store_neighbours,
    to_memory,
)
from fuselane.codegen.types import join, shuffle
from fuselane.hlo.shape import PrimitiveType

_MAX_WIDE: Final = 64
"""Elements that are shuffled in one go."""

_ROW_BYTES: Final = 32
"""What a row of a square has. Two of them fill a register of AVX-512, at the cost of a shuffle."""


def load_runs(
    builder: ir.IRBuilder,
    pointer: ir.Value,
    element: PrimitiveType,
    length: int,
    block: LaneBlock,
    *,
    invariant: bool = False,
) -> list[ir.Value]:
    """Loads `length` neighbouring elements of every lane.

    Returns:
        One vector of lanes for each element: what `length` strided loads would give.
    """
    if block.width == 1:
        return [
            load_lanes(builder, at, element, 1, block, invariant=invariant)
            for at in _places_of(builder, pointer, element, length)
        ]
    side = _side_of_squares(length, block, element)
    if side:
        rows = [
            load_lanes(
                builder,
                element_pointer(builder, pointer, i64(lane * length + start), element),
                element,
                1,
                _row(builder, block, lane, side),
                invariant=invariant,
            )
            for lane, start in _places_of_rows(length, block, side)
        ]
        return _take_squares_apart(builder, rows, length, side)
    pieces = _num_pieces(length, block)
    parts = [
        load_lanes(
            builder,
            element_pointer(builder, pointer, i64(piece * _piece_width(length, block)), element),
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
) -> None:
    """Stores neighbouring elements of every lane."""
    length = len(values)
    if block.width == 1:
        for at, value in zip(_places_of(builder, pointer, element, length), values, strict=True):
            store(builder, value, at, element)
        return
    pieces = _num_pieces(length, block)
    raw = [to_memory(builder, value, element) for value in values]
    side = _side_of_squares(length, block, element)
    if side:
        rows = _put_squares_together(builder, raw, block.width, side)
        for (lane, start), row in zip(_places_of_rows(length, block, side), rows, strict=True):
            address = element_pointer(builder, pointer, i64(lane * length + start), element)
            store_neighbours(builder, row, address, element, _row(builder, block, lane, side))
        return
    for piece, mixed in enumerate(_put_together(builder, raw, length // pieces)):
        start = i64(piece * _piece_width(length, block))
        address = element_pointer(builder, pointer, start, element)
        store_neighbours(builder, mixed, address, element, _piece(builder, block, length, piece))


# Squares: as many neighbouring elements as lanes, a register for each lane.


def side_of_squares(block: LaneBlock, element: PrimitiveType) -> int:
    """Returns how many elements and lanes a square has, 0 if the block's lanes fill none."""
    side = _ROW_BYTES // element.byte_size
    groups, rest = divmod(block.width, side)
    return side if groups.bit_count() == 1 and not rest else 0


def load_square(
    builder: ir.IRBuilder, pointer: ir.Value, element: PrimitiveType, stride: int, block: LaneBlock
) -> list[ir.Value]:
    """Loads as many neighbouring elements of every lane as a square has, from any stride.

    Args:
        builder: Where.
        pointer: Address of the first lane's first element.
        element: Its type.
        stride: Elements from one lane to the next.
        block: The lanes; those that don't exist get zeros.
    Returns:
        One vector of lanes for each element.
    """
    side = side_of_squares(block, element)
    rows = [
        load_lanes(
            builder,
            element_pointer(builder, pointer, i64(lane * stride), element),
            element,
            1,
            _row(builder, block, lane, side),
        )
        for lane in range(block.width)
    ]
    return _take_squares_apart(builder, rows, side, side)


def store_square(
    builder: ir.IRBuilder,
    values: Sequence[ir.Value],
    pointer: ir.Value,
    element: PrimitiveType,
    stride: int,
    block: LaneBlock,
) -> None:
    """Stores as many neighbouring elements of every lane as a square has; see `load_square`."""
    side = len(values)
    raw = [to_memory(builder, value, element) for value in values]
    rows = _put_squares_together(builder, raw, block.width, side)
    for lane, row in enumerate(rows):
        address = element_pointer(builder, pointer, i64(lane * stride), element)
        store_neighbours(builder, row, address, element, _row(builder, block, lane, side))


def _side_of_squares(length: int, block: LaneBlock, element: PrimitiveType) -> int:
    """Returns the side of squares that the block's runs are made of, 0 if they are not."""
    side = side_of_squares(block, element)
    return side if side and length % side == 0 else 0


def _places_of_rows(length: int, block: LaneBlock, side: int) -> list[tuple[int, int]]:
    """Returns lane and first element of every row, square by square."""
    return [
        (lane, start)
        for group in range(0, block.width, side)
        for start in range(0, length, side)
        for lane in range(group, group + side)
    ]


def _row(builder: ir.IRBuilder, block: LaneBlock, lane: int, side: int) -> LaneBlock:
    """Returns a block whose lanes are elements of one lane's run."""
    mask = block.mask
    if mask is not None:
        mask = shuffle(builder, mask, mask, [lane] * side)
    return replace(block, width=side, mask=mask)


def _take_squares_apart(
    builder: ir.IRBuilder, rows: Sequence[ir.Value], length: int, side: int
) -> list[ir.Value]:
    """Returns a vector of all lanes for each element of a run, given the rows of all squares."""
    squares = [_transpose(builder, rows[at : at + side]) for at in range(0, len(rows), side)]
    per_group = length // side
    groups = [
        [column for square in squares[at : at + per_group] for column in square]
        for at in range(0, len(squares), per_group)
    ]
    return [join(builder, parts) for parts in zip(*groups, strict=True)]


def _put_squares_together(
    builder: ir.IRBuilder, values: Sequence[ir.Value], width: int, side: int
) -> list[ir.Value]:
    """Returns the rows of all squares, given a vector of all lanes for each element."""
    rows: list[ir.Value] = []
    for group in range(0, width, side):
        lanes = range(group, group + side)
        parts = [v if width == side else shuffle(builder, v, v, lanes) for v in values]
        for at in range(0, len(parts), side):
            rows += _transpose(builder, parts[at : at + side])
    return rows


def _transpose(builder: ir.IRBuilder, rows: Sequence[ir.Value]) -> list[ir.Value]:
    """Returns the columns of a square, whose side is a power of two.

    For each bit of row and place one instruction a row: those without the bit swap what they hold
    at places with it for what those with the bit hold at places without. The highest bit comes
    first, as whole halves of registers may be loaded where they belong.
    """
    side = len(rows)
    bits = [1 << number for number in range(side.bit_length() - 1)]
    values = list(rows)
    for bit in [*bits[-1:], *bits[:-1]]:
        low = [place + side - bit if place & bit else place for place in range(side)]
        high = [place + side if place & bit else place + bit for place in range(side)]
        for row in range(side):
            if not row & bit:
                pair = values[row], values[row + bit]
                values[row] = shuffle(builder, *pair, low)
                values[row + bit] = shuffle(builder, *pair, high)
    return values


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
