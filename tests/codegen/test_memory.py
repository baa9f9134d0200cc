"""Vectors of lanes to and from memory: every layout, every type, and nothing beyond the lanes."""

from __future__ import annotations

import itertools
import re
from typing import Final

import numpy as np
import pytest
from llvmlite import ir

from fuselane.codegen import memory
from fuselane.codegen.indexing import known_values
from fuselane.codegen.llvm import assembly
from fuselane.codegen.memory import (
    all_lanes,
    element_pointer,
    in_cases,
    lane_numbers,
    load,
    load_lanes,
    store,
    store_lanes,
)
from fuselane.codegen.runs import load_runs, store_runs
from fuselane.hlo.shape import PrimitiveType
from tests.codegen.functions import Function, NumpyArray, make_block, run

TYPES: Final = [
    PrimitiveType.PRED,
    PrimitiveType.S8,
    PrimitiveType.U16,
    PrimitiveType.F16,
    PrimitiveType.BF16,
    PrimitiveType.S32,
    PrimitiveType.F32,
    PrimitiveType.U64,
    PrimitiveType.F64,
]
OF_EACH_SIZE: Final = [
    PrimitiveType.PRED,
    PrimitiveType.BF16,
    PrimitiveType.S32,
    PrimitiveType.F64,
]
BEFORE: Final = 0x5A
"""What bytes hold that nothing has written."""

types = pytest.mark.parametrize("element", TYPES, ids=lambda element: element.lower)
blocks = pytest.mark.parametrize(("width", "lanes"), [(2, None), (16, None), (16, 11), (8, 1)])
RUNS: Final = [
    *itertools.product(((2, None), (16, None), (16, 11), (8, 1)), (2, 3, 4, 5, 8, 12, 16)),
    *itertools.product(((8, None), (16, None), (16, 11)), (10, 15, 17, 31)),
    *itertools.product(((32, None), (64, 41), (128, 97)), (16,)),
    *itertools.product(((8, None), (16, 11), (64, 41)), (64,)),
]
"""Widths and lanes, and lengths."""

runs = pytest.mark.parametrize(
    ("element", "width", "lanes", "length"),
    [
        (element, *block, length)
        for element in TYPES
        for block, length in RUNS
        if element in OF_EACH_SIZE or (block, length) in (((16, 11), 3), ((16, None), 16))
    ],
)


def numbered(element: PrimitiveType, size: int) -> NumpyArray:
    """Returns values that differ from their neighbours, as memory holds them."""
    numbers = np.arange(size) * 7 % 23
    if element is PrimitiveType.PRED:
        return (numbers % 3 == 0).astype(np.uint8)
    return numbers.astype(element.dtype)


def untouched(element: PrimitiveType, size: int) -> NumpyArray:
    stored = np.dtype(np.uint8) if element is PrimitiveType.PRED else element.dtype
    return np.full(size * stored.itemsize, BEFORE, np.uint8).view(stored)


def assert_same_bytes(actual: NumpyArray, expected: NumpyArray) -> None:
    assert actual.view(np.uint8).tolist() == expected.view(np.uint8).tolist()


@types
@blocks
@pytest.mark.parametrize(("source_stride", "target_stride"), [(1, 3), (3, 1)])
def test_lanes_moved(
    element: PrimitiveType, width: int, lanes: int | None, source_stride: int, target_stride: int
) -> None:
    source = numbered(element, 64)
    target = untouched(element, 64)

    def emit(function: Function, start: ir.Value, end: ir.Value) -> None:
        block = make_block(function, width, lanes=lanes)
        value = load_lanes(function.builder, start, element, source_stride, block)
        store_lanes(function.builder, value, end, element, target_stride, block)

    expected = target.copy()
    for lane in range(width if lanes is None else lanes):
        expected[lane * target_stride] = source[lane * source_stride]
    run(emit, source, target)
    assert_same_bytes(target, expected)


@runs
def test_runs_loaded(element: PrimitiveType, width: int, lanes: int | None, length: int) -> None:
    """A run of every lane becomes one vector for each place in the run."""
    source = numbered(element, width * length)
    target = untouched(element, width * length)

    def emit(function: Function, start: ir.Value, end: ir.Value) -> None:
        builder = function.builder
        block = make_block(function, width, lanes=lanes)
        values = load_runs(builder, start, element, length, block, function.allocate)
        for number, value in enumerate(values):
            offset = ir.Constant(ir.IntType(64), number * width)
            place = element_pointer(builder, end, offset, element)
            store_lanes(builder, value, place, element, 1, block)

    expected = target.copy()
    for number in range(length):
        for lane in range(width if lanes is None else lanes):
            expected[number * width + lane] = source[lane * length + number]
    run(emit, source, target)
    assert_same_bytes(target, expected)


@runs
def test_runs_stored(element: PrimitiveType, width: int, lanes: int | None, length: int) -> None:
    source = numbered(element, width * length)
    target = untouched(element, width * length)

    def emit(function: Function, start: ir.Value, end: ir.Value) -> None:
        builder = function.builder
        whole, block = make_block(function, width), make_block(function, width, lanes=lanes)
        values = []
        for number in range(length):
            offset = ir.Constant(ir.IntType(64), number * width)
            place = element_pointer(builder, start, offset, element)
            values.append(load_lanes(builder, place, element, 1, whole))
        store_runs(builder, values, end, element, block, function.allocate)

    expected = target.copy()
    for number in range(length):
        for lane in range(width if lanes is None else lanes):
            expected[lane * length + number] = source[number * width + lane]
    run(emit, source, target)
    assert_same_bytes(target, expected)


@pytest.mark.parametrize(("width", "length"), [(16, 16), (64, 16), (16, 5)])
def test_no_address_of_a_lane_that_does_not_exist_is_where_no_memory_is(
    width: int, length: int
) -> None:
    """Not even one through which nothing is moved: of each row, or group of rows, it is chosen."""
    element = PrimitiveType.F32

    def emit(function: Function, start: ir.Value, end: ir.Value) -> None:
        block = make_block(function, width, lanes=1)
        values = load_runs(function.builder, start, element, length, block, function.allocate)
        store_runs(function.builder, values, end, element, block, function.allocate)

    text = run(emit, numbered(element, length), untouched(element, length))
    moved = re.findall(
        r"call .*masked\.(?:load|store)[^(]*\((?:<[^>]*> %[^,]*, )?ptr %(\S+),", text
    )
    chosen = re.findall(r"%(\S+) = select  ?i1 .*, ptr", text)
    assert len(moved) >= 2 and set(moved) <= set(chosen)


@types
@pytest.mark.parametrize("lanes", [16, 11])
@pytest.mark.parametrize("length", [1, 3, 16])
def test_whole_blocks_have_code_without_masks(
    element: PrimitiveType, lanes: int, length: int
) -> None:
    """Both versions are right, each where it runs, and what is loaded is known behind them."""
    width = 16
    source = numbered(element, width * length)
    target = untouched(element, width * length)

    def emit(function: Function, start: ir.Value, end: ir.Value, count: ir.Value) -> None:
        builder = function.builder
        is_whole = builder.icmp_signed("==", count, ir.Constant(count.type, width))
        block = make_block(function, width, lanes=lanes, is_whole=is_whole)
        before = known_values(builder.block)
        values = in_cases(
            builder,
            block,
            lambda case: load_runs(builder, start, element, length, case, function.allocate),
        )
        assert known_values(builder.block) is before
        if length == 1:
            store_lanes(builder, values[0], end, element, 1, block)
        else:
            in_cases(
                builder,
                block,
                lambda case: store_runs(builder, values, end, element, case, function.allocate),
            )

    text = run(emit, source, target, lanes)
    expected = target.copy()
    expected[: lanes * length] = source[: lanes * length]
    expected[lanes * length :] = untouched(element, (width - lanes) * length)
    assert_same_bytes(target, expected)
    assert text.count('call void @"llvm.masked.store') <= text.count("  store <")


@types
@pytest.mark.parametrize("lanes", [16, 11])
def test_whole_blocks_of_narrow_elements_are_loaded_without_masks(
    element: PrimitiveType, lanes: int
) -> None:
    """Without AVX-512, LLVM makes a branch of each lane of a masked load of bytes."""
    width = 16
    source = numbered(element, width)
    target = untouched(element, width)

    def emit(function: Function, start: ir.Value, end: ir.Value, count: ir.Value) -> None:
        builder = function.builder
        is_whole = builder.icmp_signed("==", count, ir.Constant(count.type, width))
        block = make_block(function, width, lanes=lanes, is_whole=is_whole)
        before = known_values(builder.block)
        value = load_lanes(builder, start, element, 1, block, invariant=True)
        assert known_values(builder.block) is before
        store_lanes(builder, value, end, element, 1, make_block(function, width))

    text = run(emit, source, target, lanes)
    expected = np.where(np.arange(width) < lanes, source, 0).astype(source.dtype)
    assert_same_bytes(target, expected)
    assert len(re.findall(r"= load <16 x ", text)) == (element.byte_size < 4)


@pytest.mark.parametrize("lanes", [None, 11])
def test_no_branch_for_each_lane(lanes: int | None) -> None:
    """LLVM makes branches of strided loads and stores with masks where there are none such."""

    def emit(function: Function, start: ir.Value, end: ir.Value) -> None:
        block = make_block(function, 16, lanes=lanes)
        value = load_lanes(function.builder, start, PrimitiveType.S32, 3, block)
        store_lanes(function.builder, value, end, PrimitiveType.S32, 3, block)

    text = run(emit, numbered(PrimitiveType.S32, 48), untouched(PrimitiveType.S32, 48))
    machine_code = assembly(text)
    assert not re.search(r"^\s+j[a-z]+\s", machine_code, re.MULTILINE)


def test_squares_of_runs_are_transposed() -> None:
    """One instruction for each register and bit of a row's number: 4 * 8 * 3 for 16 by 16."""
    count, element = 16, PrimitiveType.F32

    def emit(function: Function, start: ir.Value, end: ir.Value) -> None:
        block = make_block(function, count)
        values = load_runs(function.builder, start, element, count, block, function.allocate)
        store_runs(function.builder, values[::-1], end, element, block, function.allocate)

    source, target = numbered(element, count * count), untouched(element, count * count)
    text = run(emit, source, target)
    joins_and_splits = 2 * count + count
    assert text.count("shufflevector") <= 2 * 96 + joins_and_splits
    expected = source.reshape(count, count)[:, ::-1]
    assert_same_bytes(target, np.ascontiguousarray(expected).ravel())


@pytest.mark.parametrize(("width", "stride"), [(1, 1), (8, 1), (8, 2)])
def test_every_byte_but_zero_is_true(width: int, stride: int) -> None:
    """Whatever a byte holds, what is stored is 0 or 1."""
    source = np.tile(np.array([0, 1, 2, 128, 255], np.uint8), 4)[:16]
    target = np.full(8, BEFORE, np.uint8)

    def emit(function: Function, start: ir.Value, end: ir.Value) -> None:
        builder = function.builder
        if width == 1:
            value = memory.load(builder, start, PrimitiveType.PRED)
            assert value.type == ir.IntType(1)
            memory.store(builder, value, end, PrimitiveType.PRED)
            return
        block = make_block(function, width)
        value = load_lanes(builder, start, PrimitiveType.PRED, stride, block)
        store_lanes(builder, value, end, PrimitiveType.PRED, 1, block)

    run(emit, source, target)
    expected = (source[: width * stride : stride] != 0).astype(np.uint8)
    assert target[:width].tolist() == expected.tolist()
    assert (target[width:] == BEFORE).all()


@types
def test_one_element(element: PrimitiveType) -> None:
    source, target = numbered(element, 8), untouched(element, 8)

    def emit(function: Function, start: ir.Value, end: ir.Value, at: ir.Value) -> None:
        builder = function.builder
        value = memory.load(builder, element_pointer(builder, start, at, element), element)
        memory.store(builder, value, end, element)

    run(emit, source, target, 5)
    assert target[0] == source[5]
    assert_same_bytes(target[1:], untouched(element, 7))


def test_lanes_that_do_not_exist_are_zero() -> None:
    """What a masked load puts in their place must not trap or be poison."""
    source, target = numbered(PrimitiveType.S32, 16) + 1, untouched(PrimitiveType.S32, 32)

    def emit(function: Function, start: ir.Value, end: ir.Value) -> None:
        builder = function.builder
        part, whole = make_block(function, 8, lanes=3), make_block(function, 8)
        for number, stride in enumerate((1, 2)):
            value = load_lanes(builder, start, PrimitiveType.S32, stride, part)
            offset = ir.Constant(ir.IntType(64), number * 8)
            place = element_pointer(builder, end, offset, PrimitiveType.S32)
            store_lanes(builder, value, place, PrimitiveType.S32, 1, whole)

    run(emit, source, target)
    assert target[:8].tolist() == [*source[:3], 0, 0, 0, 0, 0]
    assert target[8:16].tolist() == [*source[:6:2], 0, 0, 0, 0, 0]


def test_what_never_changes_is_marked_so() -> None:
    """Only then may LLVM move loads over stores."""
    array = np.zeros(64, np.float32)

    def emit(function: Function, start: ir.Value) -> None:
        for stride in (1, 2):
            for lanes in (None, 3):
                block = make_block(function, 4, lanes=lanes)
                for invariant in (False, True):
                    load_lanes(
                        function.builder,
                        start,
                        PrimitiveType.F32,
                        stride,
                        block,
                        invariant=invariant,
                    )

    assert run(emit, array).count("!invariant.load") == 4


def test_selects_are_stored_whole() -> None:
    """What LLVM would make a masked store of, which some processors are slow at."""
    module = ir.Module("test")
    signature = ir.FunctionType(ir.VoidType(), [ir.PointerType(), ir.PointerType()])
    function = ir.Function(module, signature, "function")
    builder = ir.IRBuilder(function.append_basic_block())
    old, new = (load(builder, pointer, PrimitiveType.F32, 8) for pointer in function.args)
    mask = builder.fcmp_ordered("<", old, new)
    store(builder, builder.select(mask, new, old), function.args[0], PrimitiveType.F32)
    builder.ret_void()
    assert "maskmov" not in assembly(module)


def test_lane_constants() -> None:
    function = Function([])
    assert str(lane_numbers(3, 32)) == "<3 x i32> <i32 0, i32 1, i32 2>"
    assert "splat (i1 1)" in str(all_lanes(make_block(function, 2)))
    block = make_block(function, 2, lanes=1)
    assert all_lanes(block) is block.mask


def test_many_squares_are_moved_in_a_loop() -> None:
    """LLVM's time goes by the code: that of 128 lanes is as long as that of 32."""
    element, length = PrimitiveType.F32, 16
    shuffles = []
    for width in (32, 128):

        def emit(function: Function, start: ir.Value, end: ir.Value, width: int = width) -> None:
            block = make_block(function, width)
            values = load_runs(function.builder, start, element, length, block, function.allocate)
            store_runs(function.builder, values[::-1], end, element, block, function.allocate)

        source = numbered(element, width * length)
        target = untouched(element, width * length)
        shuffles.append(run(emit, source, target).count("shufflevector"))
        reversed_runs = source.reshape(width, length)[:, ::-1]
        assert_same_bytes(target, np.ascontiguousarray(reversed_runs).ravel())
    assert shuffles[0] == shuffles[1]


@pytest.mark.parametrize("element", [PrimitiveType.PRED, PrimitiveType.S8, PrimitiveType.BF16])
def test_short_elements_are_transposed_by_words(element: PrimitiveType) -> None:
    """Squares of as many bytes as a row has would take ten times the instructions."""
    width, length = 64, 32 // element.byte_size

    def emit(function: Function, start: ir.Value, end: ir.Value) -> None:
        block = make_block(function, width)
        values = load_runs(function.builder, start, element, length, block, function.allocate)
        store_runs(function.builder, values[::-1], end, element, block, function.allocate)

    source = numbered(element, width * length)
    target = untouched(element, width * length)
    text = run(emit, source, target)
    reversed_runs = source.reshape(width, length)[:, ::-1]
    assert_same_bytes(target, np.ascontiguousarray(reversed_runs).ravel())
    transposes, joins_and_splits = 2 * 2 * 24, 8 + 2 * 8
    assert text.count("shufflevector") <= transposes + joins_and_splits


@pytest.mark.parametrize("width", [16, 64])
def test_rows_of_any_bytes_hold_booleans(width: int) -> None:
    """Every byte but zero is true, and stored as one, whichever way it takes."""
    source = np.tile(np.array([0, 1, 2, 128, 255, 0, 0], np.uint8), width * 32)[: width * 32]
    target = np.full(width * 32, BEFORE, np.uint8)

    def emit(function: Function, start: ir.Value, end: ir.Value) -> None:
        builder, element, block = function.builder, PrimitiveType.PRED, make_block(function, width)
        values = load_runs(builder, start, element, 32, block, function.allocate)
        store_runs(builder, values, end, element, block, function.allocate)

    run(emit, source, target)
    assert target.tolist() == (source != 0).tolist()
