"""Squares: as many neighbouring words as lanes, a register for each lane, to be transposed.

    x f32[4096,512]{1,0}, lanes along dimension 0: rows 512 elements apart, of which the next 8
    elements of 8 lanes are a square; two of them, 16 lanes, are a group

Each row of a square is a load, or a store, of neighbours; its columns are vectors of lanes. A group
is transposed between memory and registers. More of them would hardly stay in registers, and LLVM's
time goes by the code, so they are moved in a loop, between memory where the elements of a lane are
neighbours and memory of the kernel's own where the lanes of an element are. The last square of a
run ends where the run does, so it may move again what the one before it did.

A word is an element, or as many short ones as four bytes hold: a row of 32 bytes has 8 words. Those
are taken apart after, and put together before, from memory to memory and in a loop of its own: done
in one go with the rest, LLVM looks for shuffles to join through all of it, which took most of its
time. Squares of 32 by 32 bytes would be moved by twenty times the code, and few programs have as
many lanes in a vector.

Programs have many arrays of the same shape, and elements are moved as they are: what moves a square
is a function of the module, made once for all that are alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias, final

from llvmlite import ir

from fuselane.codegen import indexing
from fuselane.codegen.builder import KernelBuilder
from fuselane.codegen.function import own_function
from fuselane.codegen.indexing import I64, Index, continue_block, i64
from fuselane.codegen.loops import counted_loop
from fuselane.codegen.memory import (
    I1,
    LaneBlock,
    address_of_lane,
    element_pointer,
    load,
    load_lanes,
    store,
    store_neighbours,
)
from fuselane.codegen.types import integer_constant, join, memory_type, shuffle, vector_of
from fuselane.hlo.shape import PrimitiveType

Allocate: TypeAlias = Callable[[ir.Type, int], ir.Value]
"""Returns the address of memory of the kernel's own for so many elements."""

_ROW_BYTES: Final = 32
"""What a row of a square has. Two of them fill a register of AVX-512, at the cost of a shuffle."""

_WORD_BYTES: Final = 4
"""The least that is moved from one place of a register to another."""

_UNSIGNED: Final = {
    1: PrimitiveType.U8,
    2: PrimitiveType.U16,
    4: PrimitiveType.U32,
    8: PrimitiveType.U64,
}
"""What is moved instead of elements of as many bytes."""

_WORD: Final = ir.IntType(8 * _WORD_BYTES)

_COLUMN_BYTES: Final = 64
"""What a column of a group has: a whole register, so that loads of such need not wait until what
several stores have left is together."""


@final
@dataclass(frozen=True, slots=True)
class Lines:
    """Lines of neighbours in memory: the elements of a lane, or the lanes of an element.

    pointer: Address of the first one's first.
    element: Their type.
    pitch: Elements from one line to the next.
    """

    pointer: ir.Value
    element: PrimitiveType
    pitch: int

    def address(self, builder: ir.IRBuilder, line: Index, place: Index) -> ir.Value:
        """Returns the address of a place in a line."""
        offset = indexing.add(builder, indexing.multiply(builder, line, self.pitch), place)
        return element_pointer(builder, self.pointer, i64(offset), self.element)

    def at(self, builder: ir.IRBuilder, line: Index, place: Index) -> Lines:
        """Returns the lines from one of them on, from a place in each."""
        return replace(self, pointer=self.address(builder, line, place))


def row_of_squares(block: LaneBlock, element: PrimitiveType) -> int:
    """Returns how many elements of a lane a square has, 0 if the block's lanes fill none."""
    squares, rest = divmod(block.width, _side(element))
    return _ROW_BYTES // element.byte_size if squares.bit_count() == 1 and not rest else 0


def load_columns(
    builder: ir.IRBuilder,
    source: Lines,
    length: int,
    block: LaneBlock,
    allocate: Allocate,
    *,
    invariant: bool = False,
) -> list[ir.Value]:
    """Loads neighbouring elements of every lane, no fewer than a square has.

    Returns:
        One vector of lanes for each element.
    """
    element, width = source.element, block.width
    size = row_of_squares(block, element)
    if length == size and _are_one_group(block, element):
        return _load_group(builder, source, block, invariant=invariant)
    target = Lines(allocate(memory_type(element), length * width), element, width)

    def move(square: Index) -> None:
        first = square_start(builder, square, size, length)
        rows, columns = source.at(builder, 0, first), target.at(builder, first, 0)
        turn_in(builder, rows, columns, block, allocate, invariant=invariant)

    before = builder.block
    _repeat(builder, math.ceil(length / size), move)
    continue_block(before, builder.block)
    return [
        load(builder, target.address(builder, number, 0), element, width)
        for number in range(length)
    ]


def store_columns(
    builder: ir.IRBuilder,
    values: Sequence[ir.Value],
    target: Lines,
    block: LaneBlock,
    allocate: Allocate,
) -> None:
    """Stores neighbouring elements of every lane, no fewer than a square has."""
    element, width, length = target.element, block.width, len(values)
    size = row_of_squares(block, element)
    if length == size and _are_one_group(block, element):
        _store_group(builder, values, target, block)
        return
    source = Lines(allocate(memory_type(element), length * width), element, width)
    for number, value in enumerate(values):
        store(builder, value, source.address(builder, number, 0), element)

    def move(square: Index) -> None:
        first = square_start(builder, square, size, length)
        columns, rows = source.at(builder, first, 0), target.at(builder, 0, first)
        turn_out(builder, columns, rows, block, allocate)

    _repeat(builder, math.ceil(length / size), move)


def square_start(builder: ir.IRBuilder, square: Index, size: int, length: int) -> Index:
    """Returns which element of a run is a square's first: the last square ends where the run does,
    and repeats some of the one before if it would go beyond."""
    first = indexing.multiply(builder, square, size)
    return first if length % size == 0 else indexing.clamp(builder, first, 0, length - size)


def turn_in(
    builder: ir.IRBuilder,
    source: Lines,
    target: Lines,
    block: LaneBlock,
    allocate: Allocate,
    *,
    invariant: bool = False,
) -> None:
    """Copies as many neighbouring elements of every lane as a square has.

    Args:
        builder: Where.
        source: A line for each lane.
        target: A line for each element, in memory that holds all lanes of the block.
        block: The lanes; those that don't exist become zeros.
        allocate: Gives memory of the kernel's own, for words that are taken apart.
        invariant: Whether nothing writes to the source while the kernel runs.
    """

    def emit(builder: ir.IRBuilder, lines: Sequence[Lines], block: LaneBlock) -> None:
        source, target, *apart = lines
        words = apart[0] if apart else target

        def move(group: LaneBlock, lane: Index) -> None:
            rows = replace(source, pointer=_row_address(builder, source, lane, group, 0))
            columns = _load_group(builder, rows, group, invariant=invariant)
            for number, column in enumerate(columns):
                store(builder, column, words.address(builder, number, lane), words.element)

        _for_each_group(builder, block, source.element, move)
        if apart:
            _take_apart(builder, words, target, block.width)

    lines = [source, target, *_lines_of_words(target, block, allocate)]
    _call(builder, "in.invariant" if invariant else "in", lines, block, emit)


def turn_out(
    builder: ir.IRBuilder, source: Lines, target: Lines, block: LaneBlock, allocate: Allocate
) -> None:
    """Copies back what `turn_in` brought: from a line for each element to one for each lane."""

    def emit(builder: ir.IRBuilder, lines: Sequence[Lines], block: LaneBlock) -> None:
        source, target, *apart = lines
        words = apart[0] if apart else source
        if apart:
            _put_together(builder, source, words, block.width)

        def move(group: LaneBlock, lane: Index) -> None:
            columns = [
                load(builder, words.address(builder, number, lane), words.element, group.width)
                for number in range(_side(source.element))
            ]
            rows = replace(target, pointer=_row_address(builder, target, lane, group, 0))
            _store_group(builder, columns, rows, group)

        _for_each_group(builder, block, source.element, move)

    lines = [source, target, *_lines_of_words(source, block, allocate)]
    _call(builder, "out", lines, block, emit)


def _call(
    builder: ir.IRBuilder,
    name: str,
    lines: Sequence[Lines],
    block: LaneBlock,
    emit: Callable[[ir.IRBuilder, Sequence[Lines], LaneBlock], None],
) -> None:
    """Calls the function that does for some lines what `emit` does, made for the first of those
    alike; or emits it here, where accesses are traced back to the memory they lie in.

    Elements are moved as they are, so those of one size are alike.
    """
    lines = [replace(line, element=_UNSIGNED[line.element.byte_size]) for line in lines]
    if not (isinstance(builder, KernelBuilder) and builder.calls):
        emit(builder, lines, block)
        return
    conditions = {
        field: value
        for field, value in (("mask", block.mask), ("is_whole", block.is_whole))
        if value is not None
    }
    arguments = [*(line.pointer for line in lines), *conditions.values()]
    kinds = [*(f"{line.element.lower}x{line.pitch}" for line in lines), *conditions]
    full_name = ".".join(("fuselane.squares", name, str(block.width), *kinds))
    function = builder.module.globals.get(full_name)
    if function is None:
        function = own_function(builder.module, full_name, [a.type for a in arguments])
        inner = KernelBuilder(function.append_basic_block("entry"))
        pointers, given = function.args[: len(lines)], function.args[len(lines) :]
        lines = [replace(line, pointer=at) for line, at in zip(lines, pointers, strict=True)]
        there = dict(zip(conditions, given, strict=True))
        emit(inner, lines, replace(block.elsewhere, **there))
        inner.ret_void()
    builder.call(function, arguments)


def _lines_of_words(columns: Lines, block: LaneBlock, allocate: Allocate) -> list[Lines]:
    """Returns memory with a line for each word; none where each is an element, as in the columns'
    own."""
    if _words_of(columns.element) == 1:
        return []
    pointer = allocate(_WORD, _side(columns.element) * block.width)
    return [Lines(pointer, PrimitiveType.U32, block.width)]


def _take_apart(builder: ir.IRBuilder, words: Lines, columns: Lines, width: int) -> None:
    """Emits a loop over words that stores the elements of each."""
    element = columns.element
    count, bits = _words_of(element), 8 * element.byte_size
    narrow = vector_of(ir.IntType(bits), width)
    with counted_loop(builder, 0, _side(element), name="words") as number:
        word = load(builder, words.address(builder, number, 0), words.element, width)
        first = indexing.multiply(builder, number, count)
        for place in range(count):
            moved = builder.lshr(word, integer_constant(word.type, place * bits)) if place else word
            address = columns.address(builder, indexing.add(builder, first, place), 0)
            builder.store(builder.trunc(moved, narrow), address, align=element.byte_size)


def _put_together(builder: ir.IRBuilder, columns: Lines, words: Lines, width: int) -> None:
    """Emits a loop over words that makes each of its elements."""
    element = columns.element
    count, bits = _words_of(element), 8 * element.byte_size
    narrow, wide = vector_of(ir.IntType(bits), width), vector_of(_WORD, width)
    with counted_loop(builder, 0, _side(element), name="words") as number:
        first = indexing.multiply(builder, number, count)
        word: ir.Value | None = None
        for place in range(count):
            address = columns.address(builder, indexing.add(builder, first, place), 0)
            part = builder.load(address, typ=narrow, align=element.byte_size)
            part = builder.zext(part, wide)
            if word is not None:
                part = builder.or_(word, builder.shl(part, integer_constant(wide, place * bits)))
            word = part
        store(builder, word, words.address(builder, number, 0), words.element)


def _are_one_group(block: LaneBlock, element: PrimitiveType) -> bool:
    """Whether a square's columns can stay in registers: words of the block's lanes."""
    return block.width == _group_lanes(block, element) and _words_of(element) == 1


def _group_lanes(block: LaneBlock, element: PrimitiveType) -> int:
    """Returns how many lanes a group has."""
    return min(block.width, _COLUMN_BYTES // _ROW_BYTES * _side(element))


def _side(element: PrimitiveType) -> int:
    """Returns how many words of a lane, and how many lanes, a square has."""
    return _ROW_BYTES // max(element.byte_size, _WORD_BYTES)


def _for_each_group(
    builder: ir.IRBuilder,
    block: LaneBlock,
    element: PrimitiveType,
    move: Callable[[LaneBlock, Index], None],
) -> None:
    """Emits `move` in a loop over a block's groups, for a group's lanes and the first of them."""
    width = _group_lanes(block, element)

    def move_group(number: Index) -> None:
        lane = indexing.multiply(builder, number, width)
        mask = block.mask
        if mask is not None and width < block.width:
            mask = _part(builder, mask, lane, width)
        move(replace(block, width=width, mask=mask), lane)

    _repeat(builder, block.width // width, move_group)


def _repeat(builder: ir.IRBuilder, count: int, body: Callable[[Index], None]) -> None:
    """Emits a loop, however few times it runs."""
    if count == 1:
        body(0)
    else:
        with counted_loop(builder, 0, count, name="squares") as number:
            body(number)


def _part(builder: ir.IRBuilder, mask: ir.Value, lane: Index, width: int) -> ir.Value:
    """Returns the part of a mask that begins with a lane."""
    bits = builder.bitcast(mask, ir.IntType(mask.type.count))
    distance = integer_constant(bits.type, lane) if isinstance(lane, int) else lane
    if isinstance(lane, ir.Value) and bits.type.width != I64.width:
        resize = builder.trunc if bits.type.width < I64.width else builder.zext
        distance = resize(lane, bits.type)
    part = builder.trunc(builder.lshr(bits, distance), ir.IntType(width))
    return builder.bitcast(part, vector_of(I1, width))


def _row_address(
    builder: ir.IRBuilder, lines: Lines, lane: Index, group: LaneBlock, at: int
) -> ir.Value:
    """Returns where the line of a lane is, which has that place in a group; the first line's place
    if the lane does not exist."""
    address = lines.address(builder, lane, 0)
    return address_of_lane(builder, address, group, at, lines.pointer)


def _load_group(
    builder: ir.IRBuilder, source: Lines, block: LaneBlock, *, invariant: bool
) -> list[ir.Value]:
    """Loads a row of a square for every lane of a group; returns the columns, of words."""
    element = source.element
    size, side = row_of_squares(block, element), _side(element)
    rows = [
        load_lanes(
            builder,
            _row_address(builder, source, lane, block, lane),
            element,
            1,
            _row(builder, block, lane, size),
            invariant=invariant,
        )
        for lane in range(block.width)
    ]
    words = [_to_words(builder, row, element) for row in rows]
    squares = [_transpose(builder, words[at : at + side]) for at in range(0, len(words), side)]
    return [join(builder, parts) for parts in zip(*squares, strict=True)]


def _store_group(
    builder: ir.IRBuilder, words: Sequence[ir.Value], target: Lines, block: LaneBlock
) -> None:
    """Stores a row of a square for every lane of a group, given its columns, of words."""
    element, side = target.element, _side(target.element)
    size = row_of_squares(block, element)
    for first in range(0, block.width, side):
        parts = words
        if block.width > side:
            lanes = range(first, first + side)
            parts = [shuffle(builder, column, column, lanes) for column in words]
        for lane, row in enumerate(_transpose(builder, parts), first):
            address = _row_address(builder, target, lane, block, lane)
            raw = _from_words(builder, row, element)
            store_neighbours(builder, raw, address, element, _row(builder, block, lane, size))


def _row(builder: ir.IRBuilder, block: LaneBlock, lane: int, size: int) -> LaneBlock:
    """Returns a block whose lanes are elements of one lane's run."""
    mask = block.mask
    if mask is not None:
        mask = shuffle(builder, mask, mask, [lane] * size)
    return replace(block, width=size, mask=mask)


def _words_of(element: PrimitiveType) -> int:
    """Returns how many elements a word has."""
    return max(1, _WORD_BYTES // element.byte_size)


def _to_words(builder: ir.IRBuilder, row: ir.Value, element: PrimitiveType) -> ir.Value:
    """Returns neighbouring elements of a lane as words."""
    if _words_of(element) == 1:
        return row
    return builder.bitcast(row, vector_of(_WORD, _side(element)))


def _from_words(builder: ir.IRBuilder, row: ir.Value, element: PrimitiveType) -> ir.Value:
    """Returns neighbouring words of a lane as elements."""
    if _words_of(element) == 1:
        return row
    size = _side(element) * _words_of(element)
    return builder.bitcast(row, vector_of(memory_type(element), size))


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
