"""The rule for sort: the elements of one lane put in order, all lanes of a block at once.

A sorting network compares the same places in every lane, so lanes of different order go through it
together: `swap = before(right, left)`, then both places select. Few elements are sorted in
registers by exchanges of neighbours, which is stable as it is. More are sorted in scratch memory by
Batcher's merge exchange, which takes far fewer exchanges but is unstable, so that it also compares
where elements came from. Where the comparator orders integers of at most 32 bits, as those do that
have been given keys (`lanes.sorting`), one word of 64 is all that is exchanged:

    word = key << 32 | place        then each result is looked up where its element came from

Numerics: bitwise-equal to a stable sort.
Source: D. E. Knuth, The Art of Computer Programming 3, 5.2.2, Algorithm M.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, final

from llvmlite import ir

from fuselane.analysis.cost import exchanges_neighbours, packed_key
from fuselane.codegen import indexing
from fuselane.codegen.arrays import Array, Registers, Scratch, View, new_scratch
from fuselane.codegen.elemental import emit_elemental
from fuselane.codegen.emitter import Emitter
from fuselane.codegen.independent import mark_loop
from fuselane.codegen.indexing import Element, Index
from fuselane.codegen.loops import counted_loop, emit_for_each, emit_while_loop
from fuselane.codegen.reduction import apply_computation
from fuselane.codegen.types import (
    call_intrinsic,
    integer_constant,
    is_vector,
    like,
    llvm_type,
    splat,
    width_of,
)
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.shape import PrimitiveType, Shape

Row = list[ir.Value]
"""What stands at one place of a sequence: an element of every sorted array."""

_RANK: Final = PrimitiveType.S32
_WORD: Final = PrimitiveType.S64
_PLACE_BITS: Final = 32


def emit_sort(emitter: Emitter, instruction: HloInstruction) -> None:
    """Emits a sort of one array or of several; several give a tuple.

    %s = f32[8,5] sort(%x), dimensions={1}, to_apply=%before     s[lane] = x[lane] in order
    """
    sort = _Sort(
        emitter=emitter,
        instruction=instruction,
        arrays=[emitter.array(operand) for operand in instruction.operands],
        axis=instruction.dimensions[0],
    )
    results = sort.emit()
    emitter.values[instruction] = results if instruction.shape.is_tuple else results[0]


@final
@dataclass(slots=True, kw_only=True)
class _Sort:
    """One sort on its way: arrays of the same dimensions, sorted along an axis."""

    emitter: Emitter
    instruction: HloInstruction
    arrays: list[Array]
    axis: int

    def emit(self) -> list[Array]:
        """Emits the sort and returns the sorted arrays."""
        first = self.arrays[0]
        if exchanges_neighbours(self.instruction) and first.size <= self.emitter.max_unrolled:
            return self._in_registers()
        key = packed_key(self.instruction)
        return self._in_scratch() if key is None else self._in_words(key)

    @property
    def _length(self) -> int:
        return self.arrays[0].shape.dimensions[self.axis]

    def _outer_dimensions(self) -> tuple[int, ...]:
        """Returns the sizes of what is sorted line by line, per lane."""
        sizes = list(self.arrays[0].shape.dimensions)
        sizes[self.axis] = 1
        return indexing.residual_dimensions(tuple(sizes), self.arrays[0].lane)

    def _at(self, line: tuple[Index, ...], place: Index) -> Element:
        """Returns the index of a place in a line."""
        index = list(indexing.with_lane(line, self.arrays[0].lane))
        index[self.axis] = place
        return tuple(index)

    # In registers.

    def _in_registers(self) -> list[Array]:
        columns: list[dict[tuple[Index, ...], ir.Value]] = [{} for _ in self.arrays]
        here = self.emitter.place

        def sort_line(line: tuple[Index, ...]) -> None:
            places = [self._at(line, place) for place in range(self._length)]
            rows = [[array.lanes(here, at) for array in self.arrays] for at in places]
            for end in range(len(rows) - 1, 0, -1):
                for left in range(end):
                    rows[left : left + 2] = self._exchange(*rows[left : left + 2])
            for at, row in zip(places, rows, strict=True):
                for column, value in zip(columns, row, strict=True):
                    column[indexing.without_lane(at)] = value

        outer = self._outer_dimensions()
        emit_for_each(self.emitter.builder, outer, sort_line, max_unrolled=self.arrays[0].size)
        return [self._registers(*pair) for pair in zip(self.arrays, columns, strict=True)]

    def _registers(self, array: Array, column: dict[tuple[Index, ...], ir.Value]) -> Registers:
        here = self.emitter.place
        indices = (array.flat(here, position) for position in range(array.size))
        elements = tuple(column[indexing.without_lane(index)] for index in indices)
        return Registers(shape=array.shape, lane=array.lane, elements=elements)

    def _exchange(self, left: Row, right: Row) -> list[Row]:
        """Returns two rows with the one that comes first in front; equal ones stay."""
        return self._select(self._compare(right, left), left, right)

    def _select(self, swap: ir.Value, left: Row, right: Row) -> list[Row]:
        builder = self.emitter.builder
        pairs = list(zip(left, right, strict=True))
        return [
            [builder.select(swap, b, a) for a, b in pairs],
            [builder.select(swap, a, b) for a, b in pairs],
        ]

    def _compare(self, left: Row, right: Row) -> ir.Value:
        """Returns whether the comparator puts `left` in front of `right`."""
        arguments = [value for pair in zip(left, right, strict=True) for value in pair]
        return apply_computation(self.emitter, self.instruction.to_apply, arguments)[0]

    # In scratch memory.

    def _in_scratch(self) -> list[Array]:
        place, builder = self.emitter.place, self.emitter.builder
        sorted_arrays = [self._copied(array) for array in self.arrays]
        rank = self._rank_scratch()

        def start(index: Element, at: ir.Value) -> None:
            rank.put(place, index, builder.trunc(at, llvm_type(_RANK)))

        self._merge([*sorted_arrays, rank], start, self._is_behind)
        return [*sorted_arrays]

    def _merge(
        self,
        columns: Sequence[Scratch],
        start: Callable[[Element, ir.Value], None],
        is_behind: Callable[[Row, Row], ir.Value],
    ) -> None:
        """Sorts every line of some columns together.

        Args:
            columns: What is exchanged.
            start: Emits what is put into a place first, given its index and its number in the line.
            is_behind: Whether a row belongs behind another.
        """
        place, builder = self.emitter.place, self.emitter.builder

        def sort_line(line: tuple[Index, ...]) -> None:
            with counted_loop(builder, 0, self._length, name="start") as at:
                start(self._at(line, at), at)
            if self._length > 1:
                _emit_merge_exchange(
                    builder, self._length, lambda left, right: exchange(line, left, right)
                )

        def exchange(line: tuple[Index, ...], left: ir.Value, right: ir.Value) -> None:
            places = [self._at(line, left), self._at(line, right)]
            rows = [[column.get(place, at) for column in columns] for at in places]
            for at, row in zip(places, self._select(is_behind(*rows), *rows), strict=True):
                for column, value in zip(columns, row, strict=True):
                    column.put(place, at, value)

        emit_for_each(builder, self._outer_dimensions(), sort_line)

    def _copied(self, array: Array) -> Scratch:
        scratch = new_scratch(self.emitter.place, array.shape, array.lane)
        self.emitter.copy(array, scratch)
        return scratch

    def _rank_scratch(self) -> Scratch:
        first = self.arrays[0]
        shape = Shape.array(_RANK, first.shape.dimensions)
        return new_scratch(self.emitter.place, shape, first.lane)

    # In words of keys and places.

    def _in_words(self, key: int) -> list[Array]:
        place, builder = self.emitter.place, self.emitter.builder
        first = self.arrays[0]
        words = new_scratch(place, Shape.array(_WORD, first.shape.dimensions), first.lane)

        def start(index: Element, at: ir.Value) -> None:
            words.put(place, index, self._word(self.arrays[key].lanes(place, index), at))

        def is_behind(left: Row, right: Row) -> ir.Value:
            return builder.icmp_signed("<", right[0], left[0])

        self._merge([words], start, is_behind)
        read = self._read_results()
        results: list[Array] = []
        for number, array in enumerate(self.arrays):
            element = self._look_up(number, key, words, is_read=number in read)
            view = View(shape=array.shape, lane=words.lane, element=element)
            results.append(self.emitter.in_scratch(view) if number in read else view)
        return results

    def _word(self, key: ir.Value, at: ir.Value) -> ir.Value:
        """Returns what is compared, as a signed integer, in place of a key."""
        builder = self.emitter.builder
        ordered = self._turned(key)
        wide = builder.sext(ordered, like(key, llvm_type(_WORD)))
        high = builder.shl(wide, integer_constant(wide.type, _PLACE_BITS))
        return builder.or_(high, splat(builder, at, width_of(wide)))

    def _turned(self, key: ir.Value) -> ir.Value:
        """Returns a key as a signed integer of which the lesser comes first, or the key again."""
        builder, root = self.emitter.builder, self.instruction.to_apply.root
        element = root.operands[0].shape.element_type
        bits = -1 if root.comparison_direction == "GT" else 0
        if not element.is_signed:
            bits ^= 1 << element.bits - 1
        return builder.xor(key, integer_constant(key.type, bits)) if bits else key

    def _look_up(
        self, number: int, key: int, words: Scratch, *, is_read: bool
    ) -> Callable[[Element], ir.Value]:
        """Returns how an element of a result comes about, once all words are in order."""
        place, builder = self.emitter.place, self.emitter.builder
        array, operand = self.arrays[number], self.instruction.operands[number]
        is_iota = operand.opcode == "iota" and operand.dimensions[0] == self.axis

        def key_at(index: Element) -> ir.Value:
            word = words.get(place, index)
            high = builder.ashr(word, integer_constant(word.type, _PLACE_BITS))
            return self._turned(
                builder.trunc(high, like(high, llvm_type(array.shape.element_type)))
            )

        def place_at(index: Element) -> ir.Value:
            word = words.get(place, index)
            return builder.trunc(word, like(word, llvm_type(_RANK)))

        if number == key:
            return key_at
        if is_iota and array.shape.element_type is _RANK:
            return place_at
        source = self._copied(array) if is_read and not isinstance(array, Scratch) else array

        def value_at(index: Element) -> ir.Value:
            rank = place_at(index)
            at = list(index)
            at[self.axis] = rank if is_vector(rank) else builder.zext(rank, indexing.I64)
            return source.get(place, tuple(at))

        return value_at

    def _read_results(self) -> frozenset[int]:
        """Returns the numbers of the results that anybody reads."""
        users = self.instruction.users
        if self.instruction.shape.is_tuple and all(u.opcode == "get-tuple-element" for u in users):
            return frozenset(user.tuple_index for user in users)
        return frozenset(range(len(self.arrays)))

    def _is_behind(self, left: Row, right: Row) -> ir.Value:
        """Returns whether `left`, with its rank last, belongs behind `right`."""
        builder = self.emitter.builder
        *left_values, left_rank = left
        *right_values, right_rank = right
        behind = self._compare(right_values, left_values)
        in_front = self._compare(left_values, right_values)
        types = [_RANK, _RANK]
        came_later = emit_elemental(
            builder, "compare", [left_rank, right_rank], types, PrimitiveType.PRED, direction="GT"
        )
        return builder.or_(behind, builder.and_(builder.not_(in_front), came_later))


def _emit_merge_exchange(
    builder: ir.IRBuilder, size: int, exchange: Callable[[ir.Value, ir.Value], None]
) -> None:
    """Emits the loops that sort `size` elements, two or more.

    A stage exchanges the places `i` and `i + distance` for all i with `i & bit == rest`. No place
    has part in two exchanges of a stage, so that LLVM may do them side by side.

    Args:
        builder: Positioned where the loops start; left behind them.
        size: Number of places.
        exchange: Emits the exchange of two places, the first of which is in front.
    """
    top = indexing.i64(1 << (size - 1).bit_length() - 1)
    zero, one = indexing.i64(0), indexing.i64(1)

    def emit_stage(values: list[ir.Value]) -> list[ir.Value]:
        bit, rest, distance, outer = values
        stop = builder.sub(indexing.i64(size), distance)
        step = builder.shl(bit, one)

        def emit_block(carried: list[ir.Value]) -> list[ir.Value]:
            (start,) = carried
            end = call_intrinsic(builder, "llvm.smin", [builder.add(start, bit), stop])
            before = len(builder.function.blocks)
            with counted_loop(builder, start, end, name="exchange") as counter:
                left = indexing.bounded(counter, 0, size - 2)
                right = builder.add(left, distance, flags=("nsw", "nuw"))
                exchange(left, indexing.bounded(right, 1, size - 1))
                last = builder.block
            mark_loop(builder.module, builder.function.blocks[before:], last)
            return [builder.add(start, step)]

        emit_while_loop(
            builder,
            [rest],
            lambda values: builder.icmp_signed("<", values[0], stop),
            emit_block,
            name="blocks",
        )
        is_last = builder.icmp_signed("==", outer, bit)
        half = builder.lshr(bit, one)
        return [
            builder.select(is_last, half, bit),
            builder.select(is_last, zero, bit),
            builder.select(is_last, half, builder.sub(outer, bit)),
            builder.select(is_last, top, builder.lshr(outer, one)),
        ]

    emit_while_loop(
        builder,
        [top, zero, top, top],
        lambda values: builder.icmp_signed("!=", values[0], zero),
        emit_stage,
        name="stages",
    )
