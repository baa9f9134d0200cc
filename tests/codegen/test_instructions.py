"""Rules for instructions that move, pick and combine elements of a lane, against NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import pytest

from fuselane.codegen.emitter import Emitter
from fuselane.codegen.instructions import emit_instruction
from fuselane.errors import CodegenError
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.module import HloModule
from fuselane.hlo.shape import PrimitiveType, Shape
from tests.codegen.kernels import (
    NumpyArray,
    Settings,
    assert_equal,
    check,
    compile_loop,
    iterate,
    some,
)
from tests.lanes.loops import counting_loop

LANES: Final = 37

either = pytest.mark.parametrize(
    "options", [{}, {"unroll": 1, "tile_lanes": 64}], ids=["registers", "tiles"]
)
sizes = pytest.mark.parametrize("size", [5, 20, 70])
"""Elements per lane: selected among, put in memory to be picked from, always in memory."""


@either
@sizes
def test_moving_elements(options: Settings, size: int) -> None:
    """What is known while the kernel is built for few elements is worked out in a loop for many.

    Every element of every instruction counts, those at the ends too.
    """
    shape, padded, total = f"s32[{LANES},{size}]", 2 * size + 4, 4 * size + 4
    body = f"""
      v = s32[] constant(9)
      wide = s32[{LANES},{padded}] pad(e0, v), padding=0_0x3_2_1
      back = s32[{LANES},{padded}] reverse(wide), dimensions={{1}}
      less = {shape} slice(back), slice={{[0:{LANES}], [1:{2 * size}:2]}}
      long = s32[{LANES},{total}] concatenate(less, e0, back), dimensions={{1}}
      table = s32[{LANES},2,{total // 2}] reshape(long)
      turned = s32[{LANES},{total // 2},2] transpose(table), dimensions={{0,2,1}}
      flat = s32[{LANES},{total}] reshape(turned)
      shifted = s32[{LANES},{total}] pad(flat, v), padding=0_0x-1_1
      low = {shape} slice(shifted), slice={{[0:{LANES}], [0:{size}]}}
      middle = {shape} slice(shifted), slice={{[0:{LANES}], [{size}:{2 * size}]}}
      high = s32[{LANES},{2 * size + 4}] slice(shifted), slice={{[0:{LANES}], [{2 * size}:{total}]}}
      y = {shape} subtract(low, middle)"""
    carried = [shape, f"s32[{LANES},{2 * size + 4}]"]
    module = counting_loop(body, ["y", "high"], carried, trip_count=3)

    def step(i: int, x: NumpyArray, _: NumpyArray) -> Sequence[NumpyArray]:
        wide = np.full((LANES, padded), 9)
        wide[:, 3 : 2 + 2 * size : 2] = x
        back = wide[:, ::-1]
        long = np.concatenate([back[:, 1 : 2 * size : 2], x, back], axis=1)
        flat = long.reshape(LANES, 2, total // 2).transpose(0, 2, 1).reshape(LANES, total)
        shifted = np.concatenate([flat[:, 1:], np.full((LANES, 1), 9)], axis=1)
        return shifted[:, :size] - shifted[:, size : 2 * size], shifted[:, 2 * size :]

    others = some([LANES, 2 * size + 4], np.int32)
    check(module, step, 3, some([LANES, size], np.int32), others, **options)


@either
@sizes
def test_windows_at_run_time_indices(options: Settings, size: int) -> None:
    """Slices are read and written at indices that leave the array and are held within it."""
    shape = f"s32[{LANES},{size}]"
    body = f"""
      old = s32[{LANES},3] slice(e0), slice={{[0:{LANES}], [1:4]}}
      new = s32[{LANES},3] negate(old)
      a = {shape} dynamic-update-slice(e0, new, zero, i)
      two = s32[{LANES},2] dynamic-slice(a, zero, next), dynamic_slice_sizes={{{LANES},2}}
      b = {shape} dynamic-update-slice(a, two, zero, e1)
      y = {shape} add(b, e0)"""
    module = counting_loop(body, ["y", "e1"], [shape, "s32[]"], trip_count=size + 3)

    def step(i: int, x: NumpyArray, at: int) -> Sequence[object]:
        a = x.copy()
        first = np.clip(i, 0, size - 3)
        a[:, first : first + 3] = -x[:, 1:4]
        first = np.clip(i + 1, 0, size - 2)
        two = a[:, first : first + 2].copy()
        first = np.clip(at, 0, size - 2)
        a[:, first : first + 2] = two
        return a + x, at

    compiled = compile_loop(module, **options)
    state = some([LANES, size], np.int32)
    for at in (-5, 2, 1000):
        expected = iterate(step, size + 3, state, np.int32(at))
        assert_equal(compiled.run(state, np.int32(at)), expected)


@pytest.mark.parametrize("dtype", ["s8", "u8", "s16", "u16", "s32", "u32", "s64", "u64"])
def test_start_indices_of_every_type(dtype: str) -> None:
    """The largest unsigned ones are not negative."""
    body = f"""
      nought = {dtype}[] constant(0)
      at_row = s32[1,{LANES}] dynamic-slice(e1, e2, nought), dynamic_slice_sizes={{1,{LANES}}}
      x = s32[{LANES}] reshape(at_row)
      y = s32[{LANES}] add(e0, x)"""
    carried = [f"s32[{LANES}]", f"s32[6,{LANES}]", f"{dtype}[]"]
    module = counting_loop(body, ["y", "e1", "e2"], carried, trip_count=2)
    compiled = compile_loop(module)
    index_type = module.entry.parameters[2].shape.element_type.dtype
    limits = np.iinfo(index_type)
    state, table = some([LANES], np.int32), some([6, LANES], np.int32, seed=1)
    for start in (0, 3, 7, limits.min, limits.max, limits.max // 2 + 1):
        row = table[min(max(start, 0), 5)]
        actual = compiled.run(state, table, np.array(start, index_type))
        np.testing.assert_array_equal(actual[1], state + 2 * row)


ARGMAX: Final = """
argmax {
  a = f32[] parameter(0)
  i = s32[] parameter(1)
  b = f32[] parameter(2)
  j = s32[] parameter(3)
  first = pred[] compare(a, b), direction=GE
  m = f32[] select(first, a, b)
  n = s32[] select(first, i, j)
  ROOT t = (f32[], s32[]) tuple(m, n)
}"""


@either
@pytest.mark.parametrize(("rows", "columns"), [(4, 3), (100, 3), (2, 90)])
def test_reduce_of_two_arrays(options: Settings, rows: int, columns: int) -> None:
    """The largest element and where it is: few and many results, of few and many elements."""
    shape, result = f"f32[{LANES},{rows},{columns}]", f"f32[{LANES},{rows}]"
    places, place = shape.replace("f32", "s32"), result.replace("f32", "s32")
    body = f"""
      lowest = f32[] constant(-inf)
      at = {places} iota(), iota_dimension=2
      r = ({result}, {place}) reduce(e0, at, lowest, zero), dimensions={{2}}, to_apply=argmax
      top = {result} get-tuple-element(r), index=0
      where = {place} get-tuple-element(r), index=1
      tops = {shape} broadcast(top), dimensions={{0,1}}
      y = {shape} subtract(tops, e0)"""
    carried = [shape, result, place]
    module = counting_loop(body, ["y", "top", "where"], carried, trip_count=3, more=ARGMAX)

    def step(i: int, x: NumpyArray, *_: NumpyArray) -> Sequence[NumpyArray]:
        return x.max(axis=2, keepdims=True) - x, x.max(axis=2), x.argmax(axis=2)

    state = some([LANES, rows, columns])
    others = some([LANES, rows]), some([LANES, rows], np.int32)
    check(module, step, 3, state, *others, **options)


@either
@pytest.mark.parametrize("size", [7, 100])
def test_reduce_over_several_dimensions(options: Settings, size: int) -> None:
    """In row-major order: with a subtraction, every other order gives something else."""
    shape = f"f32[2,{LANES},{size}]"
    less = """
    alternate {
      a = f32[] parameter(0)
      b = f32[] parameter(1)
      n = f32[] negate(a)
      ROOT d = f32[] subtract(n, b)
    }"""
    body = f"""
      start = f32[] constant(1)
      r = f32[{LANES}] reduce(e0, start), dimensions={{0,2}}, to_apply=alternate
      y = f32[{LANES}] add(r, e1)"""
    module = counting_loop(body, ["e0", "y"], [shape, f"f32[{LANES}]"], trip_count=2, more=less)

    def step(i: int, x: NumpyArray, y: NumpyArray) -> Sequence[NumpyArray]:
        total = np.ones(LANES, np.float32)
        for row in (*x[0].T, *x[1].T):
            total = -total - row
        return x, total + y

    check(module, step, 2, some([2, LANES, size]), some([LANES], seed=1), **options)


def test_table_is_in_the_kernel_once() -> None:
    """However many of its elements are read."""
    table = ", ".join(str(number * 7 % 1000) for number in range(1000))
    body = f"""
      table = s32[1000] constant({{{table}}})
      part = s32[32] dynamic-slice(table, e1), dynamic_slice_sizes={{32}}
      parts = s32[{LANES},32] broadcast(part), dimensions={{1}}
      y = s32[{LANES},32] add(e0, parts)"""
    module = counting_loop(body, ["y", "e1"], [f"s32[{LANES},32]", "s32[]"], trip_count=2)

    def step(i: int, x: NumpyArray, at: int) -> Sequence[object]:
        return x + np.arange(at, at + 32) * 7 % 1000, at

    compiled = check(module, step, 2, some([LANES, 32], np.int32), np.int32(500))
    assert compiled.code.ir.count("private constant") == 1


def test_unknown_opcode_is_refused() -> None:
    operand = HloInstruction.create("parameter", Shape.array(PrimitiveType.F32, (8, 8)))
    unknown = HloInstruction.create("cholesky", operand.shape, [operand])
    program = compile_loop(counting_loop("y = f32[8] add(e0, e0)", ["y"], ["f32[8]"])).program
    emitter = Emitter(
        program=program,
        place=None,  # type: ignore[arg-type]
        max_unrolled=64,
        vectors_in_registers=16,
    )
    with pytest.raises(CodegenError, match="no rule to emit cholesky"):
        emit_instruction(emitter, unknown)


def test_many_long_reductions_of_pairs_are_a_loop() -> None:
    """Sixteen of sixteen elements each, with a place: thousands of instructions if unrolled."""
    larger = """
    larger {
      a = f32[] parameter(0)
      j = s32[] parameter(1)
      b = f32[] parameter(2)
      k = s32[] parameter(3)
      first = pred[] compare(a, b), direction=GE
      value = f32[] select(first, a, b)
      place = s32[] select(first, j, k)
      ROOT both = (f32[], s32[]) tuple(value, place)
    }"""
    row, square = "f32[32,16]", "f32[32,16,16]"
    body = f"""
      columns = {square} broadcast(e0), dimensions={{0,2}}
      sums = {square} add(columns, e1)
      n = s32[32,16,16] iota(), iota_dimension=2
      least = f32[] constant(-inf)
      best = ({row}, s32[32,16]) reduce(sums, n, least, zero), dimensions={{2}}, to_apply=larger
      y = {row} get-tuple-element(best), index=0
      place = s32[32,16] get-tuple-element(best), index=1"""
    carried = [row, square, "s32[32,16]"]
    module = counting_loop(body, ["y", "e1", "place"], carried, trip_count=3, more=larger)

    def step(i: int, x: NumpyArray, w: NumpyArray, _: NumpyArray) -> list[NumpyArray]:
        sums = x[:, None, :] + w
        return [sums.max(2), w, sums.argmax(2)]

    arguments = some([32, 16]), some([32, 16, 16], seed=1), some([32, 16], np.int32)
    assert check(module, step, 3, *arguments).code.num_instructions < 2500


def all_pairs(opcode: str, lanes: int = 64) -> HloModule:
    """Returns a loop in which each of 32 numbers of a lane becomes a sum over itself and all."""
    row, square = f"s32[{lanes},32]", f"s32[{lanes},32,32]"
    body = f"""
      rows = {square} broadcast(e0), dimensions={{0,2}}
      columns = {square} broadcast(e0), dimensions={{0,1}}
      pairs = {square} {opcode}(rows, columns)
      sums = {row} reduce(pairs, zero), dimensions={{2}}, to_apply=sum
      odd = s32[] constant(1)
      ones = {row} broadcast(odd), dimensions={{}}
      y = {row} or(sums, ones)"""
    more = """
    sum {
      a = s32[] parameter(0)
      b = s32[] parameter(1)
      ROOT c = s32[] add(a, b)
    }"""
    return counting_loop(body, ["y"], [row], trip_count=3, more=more)


@pytest.mark.parametrize("lanes", [64, 37])
def test_long_code_that_a_reduction_takes_in_is_a_loop(lanes: int) -> None:
    """A remainder takes dozens of instructions, and 32 of them went into one sum."""

    def step(i: int, x: NumpyArray) -> list[NumpyArray]:
        return [np.fmod(x[:, None, :], x[:, :, None]).sum(2, dtype=np.int32) | 1]

    state = some([lanes, 32], np.int32) | 1
    long = check(all_pairs("remainder", lanes), step, 3, state).code
    assert long.num_instructions < compile_loop(all_pairs("xor")).code.num_instructions


def test_rows_of_a_state_in_registers_are_squares() -> None:
    """Each of 32 elements would be a gather and a scatter."""
    text = compile_loop(all_pairs("xor")).code.ir
    assert "gather" not in text and "scatter" not in text
