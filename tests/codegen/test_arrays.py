"""Arrays as the emitter holds them: the same elements wherever they live."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import pytest
from llvmlite import ir

from fuselane.codegen.arrays import (
    Array,
    Discarded,
    Memory,
    Place,
    Registers,
    Scratch,
    View,
    Written,
    new_scratch,
    row_major_strides,
    widen,
)
from fuselane.codegen.indexing import I64, LANE, i64
from fuselane.codegen.literals import Literal
from fuselane.codegen.memory import load, store
from fuselane.codegen.types import constant, is_vector
from fuselane.hlo.shape import PrimitiveType, Shape
from tests.codegen.functions import Function, NumpyArray, make_block, make_place, run

S32: Final = PrimitiveType.S32
WIDTH: Final = 4


def shape_of(*dimensions: int, element: PrimitiveType = S32) -> Shape:
    return Shape.array(element, dimensions)


def as_registers(place: Place, memory: Memory) -> Registers:
    elements = tuple(memory.get(place, memory.flat(place, n)) for n in range(memory.size))
    return Registers(shape=memory.shape, lane=memory.lane, elements=elements)


def as_scratch(place: Place, memory: Memory) -> Scratch:
    scratch = new_scratch(place, memory.shape, memory.lane)
    for position in range(memory.size):
        index = memory.flat(place, position)
        scratch.put(place, index, memory.get(place, index))
    return scratch


def as_view(place: Place, memory: Memory) -> View:
    return View(
        shape=memory.shape, lane=memory.lane, element=lambda index: memory.get(place, index)
    )


def as_memory(place: Place, memory: Memory) -> Memory:
    return memory


KINDS: Final[list[Callable[[Place, Memory], Array]]] = [
    as_memory,
    as_registers,
    as_scratch,
    as_view,
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("lane", [0, 1, 2, None])
@pytest.mark.parametrize("is_known", [True, False])
@pytest.mark.parametrize("written", [Written.NEVER, Written.ANY_TIME])
def test_elements(
    kind: Callable[[Place, Memory], Array], lane: int | None, is_known: bool, written: Written
) -> None:
    """Each element of what a lane holds, at known indices and at run-time ones."""
    sizes = [2, 3, 2]
    if lane is not None:
        sizes[lane] = WIDTH
    source = np.arange(np.prod(sizes), dtype=np.int32).reshape(sizes)
    moved = source if lane is None else np.moveaxis(source, lane, -1)
    target = np.zeros(moved.shape, np.int32)

    def emit(function: Function, start: ir.Value, end: ir.Value, zero: ir.Value) -> None:
        place = make_place(function, make_block(function, WIDTH))
        memory = Memory(
            shape=shape_of(*sizes),
            lane=lane,
            pointer=start,
            strides=row_major_strides(sizes),
            written=written,
        )
        array = kind(place, memory)
        for position in range(array.size):
            at = position if is_known else function.builder.add(zero, i64(position))
            value = array.lanes(place, array.flat(place, at))
            assert is_vector(value) == (lane is not None)
            offset = i64(position * (1 if lane is None else WIDTH))
            store(function.builder, value, gep(function, end, offset), S32)

    run(emit, source, target, 0)
    np.testing.assert_array_equal(target, moved)


def gep(function: Function, base: ir.Value, offset: ir.Value) -> ir.Value:
    return function.builder.gep(base, [offset], source_etype=ir.IntType(32))


@pytest.mark.parametrize("lane", [0, 1, 2])
def test_memory_is_written_where_it_is_read(lane: int) -> None:
    sizes = [2, 3, 2]
    sizes[lane] = WIDTH
    source = np.arange(np.prod(sizes), dtype=np.int32).reshape(sizes)
    target = np.zeros_like(source)

    def emit(function: Function, start: ir.Value, end: ir.Value) -> None:
        place = make_place(function, make_block(function, WIDTH))
        strides = row_major_strides(sizes)
        shape = shape_of(*sizes)
        memory = Memory(
            shape=shape, lane=lane, pointer=start, strides=strides, written=Written.NEVER
        )
        result = Memory(
            shape=shape, lane=lane, pointer=end, strides=strides, written=Written.ANY_TIME
        )
        for position in range(memory.size):
            index = memory.flat(place, position)
            result.put(place, index, memory.get(place, index))

    run(emit, source, target)
    np.testing.assert_array_equal(target, source)


@pytest.mark.parametrize("is_first", [0, 1])
def test_shared_elements_are_written_by_the_first_block_alone(is_first: int) -> None:
    target = np.zeros(3, np.int32)

    def emit(function: Function, end: ir.Value, flag: ir.Value) -> None:
        first = function.builder.trunc(flag, ir.IntType(1))
        place = make_place(function, make_block(function, WIDTH, is_first=first))
        memory = Memory(
            shape=shape_of(3), lane=None, pointer=end, strides=(1,), written=Written.ANY_TIME
        )
        memory.put(place, (2,), constant(S32, 7))

    run(emit, target, is_first)
    assert target.tolist() == [0, 0, 7 * is_first]


@pytest.mark.parametrize(
    ("dimensions", "lane", "strides", "run_length"),
    [
        ((8, 4), 0, (4, 1), 4),
        ((8, 2, 3), 0, (6, 3, 1), 6),
        ((2, 8, 3), 1, (24, 3, 1), 3),
        ((8, 4), 0, (1, 8), 1),
        ((4, 8), 1, (8, 1), 1),
        ((8, 3), 1, (3, 1), 1),
        ((8, 1, 5), 0, (5, 5, 1), 5),
        ((8, 33), 0, (33, 1), 1),
        ((8,), 0, (1,), 1),
        ((8,), None, (1,), 1),
    ],
)
def test_runs(
    dimensions: tuple[int, ...], lane: int | None, strides: tuple[int, ...], run_length: int
) -> None:
    """What a lane holds between its neighbours, if it is dense and short."""
    memory = Memory(
        shape=shape_of(*dimensions),
        lane=lane,
        pointer=i64(0),
        strides=strides,
        written=Written.NEVER,
    )
    block = make_block(Function([]), 16)
    assert memory.run(block) == run_length
    wide = make_block(Function([]), 1024)
    assert memory.run(wide) == 1


@pytest.mark.parametrize(("length", "run_length"), [(17, 17), (31, 31), (33, 1)])
def test_long_runs_are_squares(length: int, run_length: int) -> None:
    """Of any length that a square has room in, up to where a lane's share of registers ends."""
    memory = Memory(
        shape=shape_of(8, length),
        lane=0,
        pointer=i64(0),
        strides=(length, 1),
        written=Written.NEVER,
    )
    assert memory.run(make_block(Function([]), 16)) == run_length


def test_long_runs_of_narrow_elements_have_no_masks() -> None:
    """LLVM makes a branch of each element of a masked load, unless there is an instruction."""
    shape = Shape.array(PrimitiveType.F16, (20, 15))
    memory = Memory(shape=shape, lane=0, pointer=i64(0), strides=(15, 1), written=Written.NEVER)
    function = Function([])
    assert memory.run(make_block(function, 16)) == 15
    assert memory.run(make_block(function, 4, lanes=3)) == 15
    assert memory.run(make_block(function, 16, lanes=3)) == 1


def test_runs_of_bytes_are_as_long_as_those_of_words() -> None:
    """One by one, the elements of 256 lanes would take LLVM seconds."""
    words, short = (
        Memory(
            shape=Shape.array(element, (512, 7)),
            lane=0,
            pointer=i64(0),
            strides=(7, 1),
            written=Written.NEVER,
        )
        for element in (PrimitiveType.S32, PrimitiveType.U8)
    )
    for width, runs in ((128, (7, 7)), (256, (1, 7)), (512, (1, 7)), (1024, (1, 1))):
        block = make_block(Function([]), width)
        assert (words.run(block), short.run(block)) == runs


def test_places_in_a_run() -> None:
    memory = Memory(
        shape=shape_of(5, 8, 2, 3),
        lane=1,
        pointer=i64(0),
        strides=(48, 6, 3, 1),
        written=Written.NEVER,
    )
    places = [memory.place_in_run((4, LANE, j, k)) for j in range(2) for k in range(3)]
    assert places == list(range(6))
    unknown = ir.Constant(I64, 0)
    assert memory.place_in_run((unknown, LANE, 1, 1)) == 4
    assert memory.place_in_run((0, LANE, unknown, 1)) is None


@pytest.mark.parametrize(
    ("written", "loads"),
    [(Written.NEVER, 1), (Written.AFTER_READS, 1), (Written.ANY_TIME, 4)],
)
def test_a_run_is_loaded_once(written: Written, loads: int) -> None:
    """Unless something may be written in between."""

    def emit(function: Function, start: ir.Value) -> None:
        place = make_place(function, make_block(function, WIDTH))
        memory = Memory(
            shape=shape_of(8, 4), lane=0, pointer=start, strides=(4, 1), written=written
        )
        for number in range(4):
            memory.get(place, (LANE, number))

    text = run(emit, np.zeros(32, np.int32))
    assert (
        text.count("load <16 x i32>") + text.count('call <4 x i32> @"llvm.masked.gather') == loads
    )
    assert ("!invariant.load" in text) == (written is Written.NEVER)


def test_a_run_is_loaded_again_in_another_block() -> None:
    """What was loaded for other lanes, or on another path, is something else."""

    def emit(function: Function, start: ir.Value, offset: ir.Value) -> None:
        memory = Memory(
            shape=shape_of(8, 4), lane=0, pointer=start, strides=(4, 1), written=Written.NEVER
        )
        place = make_place(function, make_block(function, WIDTH))
        memory.get(place, (LANE, 0))
        other = make_place(function, make_block(function, WIDTH, offset=offset))
        memory.get(other, (LANE, 0))
        with function.builder.if_then(function.builder.trunc(offset, ir.IntType(1))):
            memory.get(place, (LANE, 1))

    assert run(emit, np.zeros(64, np.int32), 4).count("load <16 x i32>") == 3


def test_literals() -> None:
    """In the code where the index is known or all elements are the same, else in memory, once."""
    values = np.array([[5, 6, 7], [8, 9, 10]], np.int32)
    table = Literal(shape=shape_of(2, 3), lane=None, values=values)
    same = Literal(shape=shape_of(9), lane=None, values=np.broadcast_to(np.int32(4), (9,)))
    results = np.zeros(5, np.int32)

    def emit(function: Function, end: ir.Value, one: ir.Value) -> None:
        place = make_place(function, make_block(function, WIDTH))
        module = function.builder.module
        known = [table.get(place, (1, 2)), same.get(place, (one,))]
        assert all(isinstance(value, ir.Constant) for value in known)
        assert not list(module.global_values)[1:]
        read = [
            table.get(place, (one, 0)),
            table.get(place, (0, one)),
            table.get(place, (one, one)),
        ]
        again = Literal(shape=shape_of(2, 3), lane=None, values=values.copy())
        again.get(place, (one, one))
        assert len(list(module.global_values)) == 2
        for position, value in enumerate([*known, *read]):
            store(function.builder, value, gep(function, end, i64(position)), S32)

    run(emit, results, 1)
    assert results.tolist() == [10, 4, 8, 6, 9]


@pytest.mark.parametrize("lane", [0, 1, 2])
def test_lanes_of_literals_lie_side_by_side(lane: int) -> None:
    """One load, whichever dimension the lanes are, and no rows to be transposed in each step."""
    sizes = [2, 3, 2]
    sizes[lane] = WIDTH
    values = np.arange(np.prod(sizes), dtype=np.int32).reshape(sizes)
    moved = np.moveaxis(values, lane, -1)
    results = np.zeros(moved.shape, np.int32)

    def emit(function: Function, end: ir.Value) -> None:
        place = make_place(function, make_block(function, WIDTH))
        table = Literal(shape=shape_of(*sizes), lane=lane, values=values).in_memory(place)
        for position in range(table.size):
            value = table.get(place, table.flat(place, position))
            store(function.builder, value, gep(function, end, i64(position * WIDTH)), S32)

    text = run(emit, results)
    np.testing.assert_array_equal(results, moved)
    assert text.count(f"load <{WIDTH} x i32>") == results.size // WIDTH
    assert "gather" not in text


def test_scratch_of_a_tile() -> None:
    """Elements of a tile lie a pitch apart, those of a block at its first lane."""
    results = np.full(40, -1, np.int32)

    def emit(function: Function, memory: ir.Value, start: ir.Value) -> None:
        place = make_place(function, make_block(function, WIDTH))
        tile = Scratch(shape=shape_of(100, 3), lane=0, pointer=memory, pitch=12, start=start)
        tile.put(place, (LANE, 2), constant(S32, 5))
        tile.put(place, (LANE, 0), tile.get(place, (LANE, 2)))

    run(emit, results, 8)
    expected = np.full((3, 12), -1)
    expected[[0, 2], 8:] = 5
    assert results[:36].reshape(3, 12).tolist() == expected.tolist()
    assert (results[36:] == -1).all()


def test_widening() -> None:
    function = Function([I64])
    place = make_place(function, make_block(function, WIDTH))
    (value,) = function.arguments
    wide = widen(place, value)
    assert wide.type == ir.VectorType(I64, WIDTH)
    assert widen(place, wide) is wide
    scalars = Registers(shape=shape_of(8, 1), lane=0, elements=(value,))
    assert scalars.get(place, (LANE, 0)) is value
    assert is_vector(scalars.lanes(place, (LANE, 0)))


def test_registers_mixed_are_selected_as_vectors() -> None:
    """A scalar among vectors, picked at a run-time index."""
    target = np.zeros(WIDTH, np.int32)

    def emit(function: Function, start: ir.Value, end: ir.Value, at: ir.Value) -> None:
        place = make_place(function, make_block(function, WIDTH))
        vector = load(function.builder, start, S32, WIDTH)
        array = Registers(
            shape=shape_of(8, 3), lane=0, elements=(constant(S32, 9), vector, constant(S32, 8))
        )
        store(function.builder, array.get(place, (LANE, at)), end, S32)

    source = np.arange(WIDTH, dtype=np.int32)
    for at, expected in enumerate(([9] * WIDTH, source.tolist(), [8] * WIDTH)):
        run(emit, source, target, at)
        assert target.tolist() == expected


def test_discarded() -> None:
    array = Discarded(shape=shape_of(8), lane=0)
    place = make_place(Function([]), make_block(Function([]), WIDTH))
    array.put(place, (LANE,), i64(0))
    with pytest.raises(AssertionError, match="never read"):
        array.get(place, (LANE,))


@pytest.mark.parametrize(
    ("dimensions", "strides"), [((), ()), ((5,), (1,)), ((4, 2, 3), (6, 3, 1)), ((4, 0), (0, 1))]
)
def test_row_major_strides(dimensions: tuple[int, ...], strides: tuple[int, ...]) -> None:
    assert row_major_strides(dimensions) == strides
    array: NumpyArray = np.zeros(dimensions, np.int8)
    if array.size:
        assert row_major_strides(dimensions) == array.strides
