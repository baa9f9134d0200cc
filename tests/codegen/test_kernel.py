"""Kernels of small loops against NumPy, in every layout of their work."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest

from fuselane.codegen.kernel import build
from fuselane.codegen.llvm import HostTarget, Vectors, assembly
from fuselane.config import Options
from fuselane.errors import UnsupportedError
from fuselane.hlo.module import HloModule
from fuselane.lanes.program import ElementKind
from tests.codegen.kernels import (
    DEVICE,
    NumpyArray,
    Settings,
    assert_equal,
    check,
    compile_loop,
    form_program,
    iterate,
    layouts,
    replace_row,
    run_at_page_ends,
    some,
)
from tests.hlo.xla import module_of
from tests.lanes.loops import counting_loop


@layouts
def test_state_of_one_element(lanes: int, options: Settings) -> None:
    shape = f"f32[{lanes}]"
    module = counting_loop(f"y = {shape} add(e0, e1)", ["y", "e0"], [shape] * 2)

    def step(i: int, x: NumpyArray, y: NumpyArray) -> Sequence[NumpyArray]:
        return x + y, x

    check(module, step, 10, some([lanes]), some([lanes], seed=1), **options)


@layouts
def test_rows_of_lanes(lanes: int, options: Settings) -> None:
    """Lanes are not the minor dimension: their elements lie between those of other lanes."""
    body = f"""
      z = f32[] constant(0)
      sum = f32[{lanes}] reduce(e0, z), dimensions={{1}}, to_apply=add_f32
      sums = f32[{lanes},4] broadcast(sum), dimensions={{0}}
      back = f32[{lanes},4] reverse(e0), dimensions={{1}}
      y = f32[{lanes},4] subtract(back, sums)
      top = f32[{lanes}] reduce(y, z), dimensions={{1}}, to_apply=max_f32"""
    module = counting_loop(body, ["y", "top"], [f"f32[{lanes},4]", f"f32[{lanes}]"], trip_count=5)

    def step(i: int, x: NumpyArray, top: NumpyArray) -> Sequence[NumpyArray]:
        y = x[:, ::-1] - x.sum(axis=1, keepdims=True)
        return y, np.maximum(y.max(axis=1), 0)

    check(module, step, 5, some([lanes, 4]), some([lanes]), **options)


@layouts
def test_lanes_in_the_middle(lanes: int, options: Settings) -> None:
    body = f"""
      first = s32[1,{lanes},3] slice(e0), slice={{[0:1], [0:{lanes}], [0:3]}}
      second = s32[1,{lanes},3] slice(e0), slice={{[1:2], [0:{lanes}], [0:3]}}
      sum = s32[1,{lanes},3] add(first, second)
      y = s32[2,{lanes},3] concatenate(second, sum), dimensions={{0}}
      t = s32[{lanes},3,2] transpose(y), dimensions={{1,2,0}}"""
    shapes = [f"s32[2,{lanes},3]", f"s32[{lanes},3,2]"]
    module = counting_loop(body, ["y", "t"], shapes, trip_count=7)

    def step(i: int, x: NumpyArray, t: NumpyArray) -> Sequence[NumpyArray]:
        y = np.stack([x[1], x[0] + x[1]])
        return y, y.transpose(1, 2, 0)

    check(module, step, 7, some([2, lanes, 3], np.int32), some([lanes, 3, 2], np.int32), **options)


@pytest.mark.skipif(not HostTarget.host().triple.startswith("x86_64"), reason="x86-64 assembly")
def test_registers_are_spilled_within_lines_of_the_cache() -> None:
    count = 24
    body = "\n".join(f"y{k} = f32[64] multiply(e{k}, e{(k + 5) % count})" for k in range(count))
    module = counting_loop(body, [f"y{k}" for k in range(count)], ["f32[64]"] * count, trip_count=9)
    code = build(form_program(module), Options(unroll=4), DEVICE)
    target = HostTarget(triple=HostTarget.host().triple, cpu="skylake-avx512", features="")
    text = assembly(code.ir, target)
    assert re.search(r"vmovaps\s.*%zmm\d+, -?\d+\(%rsp\)", text)
    assert not re.search(r"vmovups\s.*(%zmm\d+, -?\d*\(%rsp\)|\(%rsp\), %zmm)", text)


@layouts
def test_more_elements_than_registers(lanes: int, options: Settings) -> None:
    """Large states swap places, through scratch memory of their own."""
    shape = f"s32[{lanes},100]"
    body = f"""
      turned = {shape} reverse(e1), dimensions={{1}}
      y = {shape} add(e0, turned)
      s = s32[{lanes}] reduce(y, zero), dimensions={{1}}, to_apply=add_s32"""
    more = "add_s32 { l = s32[] parameter(0) r = s32[] parameter(1) ROOT o = s32[] add(l, r) }"
    carried = [shape, shape, f"s32[{lanes}]"]
    module = counting_loop(body, ["y", "e0", "s"], carried, trip_count=4, more=more)

    def step(i: int, x: NumpyArray, y: NumpyArray, s: NumpyArray) -> Sequence[NumpyArray]:
        new = x + y[:, ::-1]
        return new, x, new.sum(axis=1)

    big = some([lanes, 100], np.int32), some([lanes, 100], np.int32, seed=1)
    check(module, step, 4, *big, some([lanes], np.int32), **options)


@layouts
def test_a_few_numbers_read_by_a_loop_over_many(lanes: int, options: Settings) -> None:
    """An outer product: no selection among the numbers of each factor, they are loaded."""
    factors, square = f"f32[4,{lanes},7]", f"f32[{lanes},7,7]"
    body = f"""
      x1 = f32[1,{lanes},7] dynamic-slice(e0, i, zero, zero), dynamic_slice_sizes={{1,{lanes},7}}
      x = f32[{lanes},7] reshape(x1)
      z = f32[{lanes},7] negate(x)
      rows = {square} broadcast(x), dimensions={{0,1}}
      columns = {square} broadcast(z), dimensions={{0,2}}
      product = {square} multiply(rows, columns)
      y = {square} add(e1, product)"""
    module = counting_loop(body, ["e0", "y"], [factors, square], trip_count=4)

    def step(i: int, xs: NumpyArray, y: NumpyArray) -> Sequence[NumpyArray]:
        return xs, y - xs[i, :, :, None] * xs[i, :, None]

    compiled = check(module, step, 4, some([4, lanes, 7]), some([lanes, 7, 7], seed=2), **options)
    assert not re.search(r" select +i1 .* x float>", compiled.code.ir)


@layouts
def test_streams_in_and_out(lanes: int, options: Settings) -> None:
    """Rows are read and written; the memory written to holds rubbish before."""
    rows, row = f"f32[6,{lanes}]", f"f32[{lanes}]"
    body = f"""
      x1 = f32[1,{lanes}] dynamic-slice(e1, i, zero), dynamic_slice_sizes={{1,{lanes}}}
      x = {row} reshape(x1)
      y = {row} add(e0, x)
      y1 = f32[1,{lanes}] reshape(y)
      five = s32[] constant(5)
      back = s32[] subtract(five, i)
      ys = {rows} dynamic-update-slice(e2, y1, back, zero)"""
    module = counting_loop(body, ["y", "e1", "ys"], [row, rows, rows], trip_count=6)

    def step(i: int, c: NumpyArray, xs: NumpyArray, ys: NumpyArray) -> Sequence[NumpyArray]:
        y = c + xs[i]
        return y, xs, replace_row(ys, 5 - i, y)

    xs, ys = some([6, lanes], seed=1), some([6, lanes], seed=2)
    compiled = check(module, step, 6, some([lanes]), xs, ys, **options)
    kinds = [element.kind for element in compiled.program.loop.elements]
    assert kinds[2:] == [ElementKind.INVARIANT, ElementKind.STREAM]
    assert compiled.program.loop.elements[3].is_fully_overwritten


@layouts
def test_rows_read_and_written_in_place(lanes: int, options: Settings) -> None:
    """A table of 100 rows per lane: the next row is made from this one and the last."""
    rows = f"s32[100,{lanes}]"
    body = f"""
      sizes = s32[] constant(98)
      at = s32[] subtract(sizes, i)
      here = s32[1,{lanes}] dynamic-slice(e0, i, zero), dynamic_slice_sizes={{1,{lanes}}}
      there = s32[1,{lanes}] dynamic-slice(e0, at, zero), dynamic_slice_sizes={{1,{lanes}}}
      y = s32[1,{lanes}] subtract(here, there)
      ys = {rows} dynamic-update-slice(e0, y, next, zero)"""
    module = counting_loop(body, ["ys"], [rows], trip_count=90)

    def step(i: int, ys: NumpyArray) -> Sequence[NumpyArray]:
        return [replace_row(ys, i + 1, ys[i] - ys[98 - i])]

    compiled = check(module, step, 90, some([100, lanes], np.int32), **options)
    assert compiled.program.loop.elements[1].kind is ElementKind.STREAM


def long_rows(lanes: int, length: int, dtype: str = "f32", steps: int = 6) -> HloModule:
    """Returns a loop that reads and writes a long row of each lane in a step."""
    row, rows = f"{dtype}[{lanes},{length}]", f"{dtype}[{steps},{lanes},{length}]"
    step = f"{dtype}[1,{lanes},{length}]"
    body = f"""
      x1 = {step} dynamic-slice(e1, i, zero, zero), dynamic_slice_sizes={{1,{lanes},{length}}}
      x = {row} reshape(x1)
      turned = {row} reverse(x), dimensions={{1}}
      y = {row} add(e0, turned)
      double = {row} add(y, y)
      y1 = {step} reshape(double)
      last = s32[] constant({steps - 1})
      back = s32[] subtract(last, i)
      ys = {rows} dynamic-update-slice(e2, y1, back, zero, zero)"""
    return counting_loop(body, ["y", "e1", "ys"], [row, rows, rows], trip_count=steps)


def long_rows_step(i: int, c: NumpyArray, xs: NumpyArray, ys: NumpyArray) -> Sequence[NumpyArray]:
    y = c + xs[i, :, ::-1]
    return y, xs, replace_row(ys, len(ys) - 1 - i, y + y)


@layouts
@pytest.mark.parametrize("length", [64, 100])
def test_long_rows_stream_in_and_out(lanes: int, options: Settings, length: int) -> None:
    """Whole squares of each lane's elements, and a last one that is cut short."""
    xs, ys = some([6, lanes, length], seed=1), some([6, lanes, length], seed=2)
    module = long_rows(lanes, length)
    compiled = check(module, long_rows_step, 6, some([lanes, length]), xs, ys, **options)
    assert compiled.program.loop.elements[3].kind is ElementKind.STREAM


@pytest.mark.parametrize(("name", "dtype"), [("f64", np.float64), ("s8", np.int8), ("s64", int)])
def test_long_rows_of_other_types(name: str, dtype: type) -> None:
    lanes, length = 37, 70
    xs, ys = (some([6, lanes, length], dtype, seed=seed) for seed in (1, 2))
    module = long_rows(lanes, length, name)
    check(module, long_rows_step, 6, some([lanes, length], dtype), xs, ys)


@layouts
@pytest.mark.parametrize(("outer", "inner"), [("", "5,15"), ("2,", "2,70"), ("", "3,7")])
def test_long_rows_of_several_dimensions(
    lanes: int, options: Settings, outer: str, inner: str
) -> None:
    dimensions = f"{outer}{lanes},{inner}"
    rows, step = f"s32[6,{dimensions}]", f"s32[1,{dimensions}]"
    zeros = ", zero" * (dimensions.count(",") + 1)
    body = f"""
      x = {step} dynamic-slice(e0, i{zeros}), dynamic_slice_sizes={{1,{dimensions}}}
      turned = {step} reverse(x), dimensions={{{dimensions.count(",") + 1}}}
      y = {step} subtract(turned, x)
      ys = {rows} dynamic-update-slice(e1, y, i{zeros})"""
    module = counting_loop(body, ["e0", "ys"], [rows, rows], trip_count=6)

    def step_of(i: int, xs: NumpyArray, ys: NumpyArray) -> Sequence[NumpyArray]:
        return xs, replace_row(ys, i, xs[i][..., ::-1] - xs[i])

    shape = [6, *map(int, dimensions.split(","))]
    check(module, step_of, 6, some(shape, np.int32), some(shape, np.int32, seed=1), **options)


def test_long_rows_are_neither_gathered_nor_scattered() -> None:
    text = compile_loop(long_rows(64, 64)).code.ir
    assert "gather" not in text and "scatter" not in text


def test_few_squares_are_moved_in_a_loop_as_many_are() -> None:
    """LLVM's time goes by the code: that of three squares a row is as long as that of eight."""
    texts = [compile_loop(long_rows(64, count * 32, "s8")).code.ir for count in (3, 8)]
    assert texts[0].count("shufflevector") == texts[1].count("shufflevector") > 0


@pytest.mark.parametrize("lanes", [64, 70])
def test_arrays_alike_share_what_moves_their_squares(lanes: int) -> None:
    """Integers and floats are of one size; where accesses are traced, each array has its own."""
    floats, integers = f"f32[{lanes},48]", f"s32[{lanes},48]"
    body = f"""
      y = {floats} add(e0, e0)
      n = {integers} add(e1, e1)
      m = {integers} reverse(e2), dimensions={{1}}"""
    module = counting_loop(body, ["y", "n", "m"], [floats, integers, integers], trip_count=3)

    def step(i: int, x: NumpyArray, n: NumpyArray, m: NumpyArray) -> Sequence[NumpyArray]:
        return x + x, n + n, m[:, ::-1]

    integer = np.arange(lanes * 48, dtype=np.int32).reshape(lanes, 48)
    code = check(module, step, 3, some([lanes, 48]), integer, integer[::-1]).code
    moves = Counter(re.findall(r'(define|call) .*@"fuselane.squares.(in|out)', code.ir))
    assert moves["define", "in"] == moves["define", "out"] == 1
    assert moves["call", "in"] == moves["call", "out"] == 3
    guarded = build(form_program(module), Options(bounds_checks=True), DEVICE).ir
    assert "fuselane.squares" not in guarded


@layouts
def test_long_rows_read_in_parts(lanes: int, options: Settings) -> None:
    """Real and imaginary parts are apart by one, but make a whole."""
    rows, part = f"f32[6,{lanes},40,2]", f"f32[1,{lanes},40,1]"
    sizes = f"dynamic_slice_sizes={{1,{lanes},40,2}}"
    body = f"""
      x = f32[1,{lanes},40,2] dynamic-slice(e1, i, zero, zero, zero), {sizes}
      real = {part} slice(x), slice={{[0:1], [0:{lanes}], [0:40], [0:1]}}
      imaginary = {part} slice(x), slice={{[0:1], [0:{lanes}], [0:40], [1:2]}}
      product = {part} multiply(real, imaginary)
      y = {part} add(e0, product)"""
    module = counting_loop(body, ["y", "e1"], [part, rows], trip_count=6)

    def step_of(i: int, y: NumpyArray, xs: NumpyArray) -> Sequence[NumpyArray]:
        return y + xs[i : i + 1, ..., :1] * xs[i : i + 1, ..., 1:], xs

    xs = some([6, lanes, 40, 2], seed=1)
    compiled = check(module, step_of, 6, some([1, lanes, 40, 1]), xs, **options)
    assert "gather.v16f32" not in compiled.code.ir and "gather.v8f32" not in compiled.code.ir


@layouts
@pytest.mark.parametrize("length", [64, 70])
def test_long_rows_changed_where_they_are(lanes: int, options: Settings, length: int) -> None:
    """No element is made of one that has been changed already."""
    rows, step = f"s32[6,{lanes},{length}]", f"s32[1,{lanes},{length}]"
    body = f"""
      x = {step} dynamic-slice(e0, i, zero, zero), dynamic_slice_sizes={{1,{lanes},{length}}}
      y = {step} add(x, x)
      ys = {rows} dynamic-update-slice(e0, y, i, zero, zero)"""
    module = counting_loop(body, ["ys"], [rows], trip_count=6)

    def step_of(i: int, ys: NumpyArray) -> Sequence[NumpyArray]:
        return [replace_row(ys, i, 2 * ys[i])]

    check(module, step_of, 6, some([6, lanes, length], np.int32), **options)


@layouts
def test_streams_all_lanes_share(lanes: int, options: Settings) -> None:
    """Weights read step by step, and a log of the weights, which only one block may write."""
    row = f"f32[{lanes}]"
    body = f"""
      w1 = f32[1] dynamic-slice(e1, i), dynamic_slice_sizes={{1}}
      w = f32[] reshape(w1)
      total = f32[] add(e3, w)
      ws = {row} broadcast(w), dimensions={{}}
      y = {row} add(e0, ws)
      t1 = f32[1] reshape(total)
      log = f32[8] dynamic-update-slice(e2, t1, i)"""
    results = ["y", "e1", "log", "total"]
    module = counting_loop(body, results, [row, "f32[8]", "f32[8]", "f32[]"], trip_count=8)

    def step(
        i: int, x: NumpyArray, weights: NumpyArray, log: NumpyArray, total: NumpyArray
    ) -> Sequence[NumpyArray]:
        new = total + weights[i]
        return x + weights[i], weights, replace_row(log, i, new), new

    arguments = some([lanes]), some([8], seed=1), some([8], seed=2), np.float32(3)
    compiled = check(module, step, 8, *arguments, **options)
    assert compiled.program.loop.elements[3].lane_dimension is None


@layouts
def test_constants_and_lane_numbers(lanes: int, options: Settings) -> None:
    """A constant per lane, a table read at a run-time index, an iota along the lanes."""
    row = f"s32[{lanes}]"
    per_lane = np.arange(lanes) * 7 % 11 - 5
    table = np.arange(300) * 13 % 101
    body = f"""
      own = {row} constant({{{", ".join(map(str, per_lane))}}})
      table = s32[300] constant({{{", ".join(map(str, table))}}})
      t1 = s32[1] dynamic-slice(table, e1), dynamic_slice_sizes={{1}}
      t = s32[] reshape(t1)
      ts = {row} broadcast(t), dimensions={{}}
      number = {row} iota(), iota_dimension=0
      a = {row} multiply(own, ts)
      b = {row} add(a, number)
      y = {row} subtract(b, e0)"""
    module = counting_loop(body, ["y", "t"], [row, "s32[]"], trip_count=9)

    def step(i: int, x: NumpyArray, at: NumpyArray) -> Sequence[NumpyArray]:
        value = table[np.clip(at, 0, 299)]
        return per_lane * value + np.arange(lanes) - x, value

    check(module, step, 9, some([lanes], np.int32), np.int32(290), **options)


@layouts
def test_initial_values_made_in_the_region(lanes: int, options: Settings) -> None:
    """Zeros, constants and lane numbers are made by the kernel; the results still need memory."""
    row = f"f32[{lanes}]"
    text = f"""
    HloModule test
    body {{
      p = (s32[], {row}, {row}, {row}) parameter(0)
      i = s32[] get-tuple-element(p), index=0
      a = {row} get-tuple-element(p), index=1
      b = {row} get-tuple-element(p), index=2
      c = {row} get-tuple-element(p), index=3
      one = s32[] constant(1)
      next = s32[] add(i, one)
      x = {row} add(a, b)
      y = {row} add(x, c)
      ROOT t = (s32[], {row}, {row}, {row}) tuple(next, y, a, x)
    }}
    condition {{
      p = (s32[], {row}, {row}, {row}) parameter(0)
      i = s32[] get-tuple-element(p), index=0
      n = s32[] constant(4)
      ROOT go = pred[] compare(i, n), direction=LT
    }}
    ENTRY main {{
      start = s32[] constant(0)
      two = f32[] constant(2)
      twos = {row} broadcast(two), dimensions={{}}
      numbers = {row} iota(), iota_dimension=0
      in = {row} parameter(0)
      init = (s32[], {row}, {row}, {row}) tuple(start, in, twos, numbers)
      loop = (s32[], {row}, {row}, {row}) while(init), condition=condition, body=body
      i = s32[] get-tuple-element(loop), index=0
      a = {row} get-tuple-element(loop), index=1
      b = {row} get-tuple-element(loop), index=2
      ROOT t = (s32[], {row}, {row}) tuple(i, a, b)
    }}"""
    compiled = compile_loop(module_of(text), **options)
    initial = some([lanes]), np.full(lanes, 2, np.float32), np.arange(lanes, dtype=np.float32)
    expected = iterate(lambda i, a, b, c: (a + b + c, a, a + b), 4, *initial)
    assert_equal(compiled.run(initial[0]), expected[:3])


@layouts
def test_rows_picked_in_front_of_the_loop(lanes: int, options: Settings) -> None:
    """An invariant that is a row of a larger array is read where it lies; which, is an operand."""
    row, table = f"f32[{lanes}]", f"f32[5,{lanes}]"
    carried = f"(s32[], {row}, {row})"
    text = f"""
    HloModule test
    pick {{
      table = {table} parameter(0)
      third = f32[1,{lanes}] slice(table), slice={{[2:3], [0:{lanes}]}}
      ROOT picked = {row} bitcast(third)
    }}
    body {{
      p = {carried} parameter(0)
      i = s32[] get-tuple-element(p), index=0
      x = {row} get-tuple-element(p), index=1
      r = {row} get-tuple-element(p), index=2
      one = s32[] constant(1)
      next = s32[] add(i, one)
      y = {row} subtract(r, x)
      ROOT t = {carried} tuple(next, y, r)
    }}
    condition {{
      p = {carried} parameter(0)
      i = s32[] get-tuple-element(p), index=0
      n = s32[] constant(5)
      ROOT go = pred[] compare(i, n), direction=LT
    }}
    ENTRY main {{
      start = s32[] constant(0)
      in = {row} parameter(0)
      table = {table} parameter(1)
      picked = {row} fusion(table), kind=kLoop, calls=pick
      init = {carried} tuple(start, in, picked)
      loop = {carried} while(init), condition=condition, body=body
      i = s32[] get-tuple-element(loop), index=0
      x = {row} get-tuple-element(loop), index=1
      ROOT t = (s32[], {row}) tuple(i, x)
    }}"""
    compiled = compile_loop(module_of(text), **options)
    assert [p.shape.dimensions for p in compiled.program.inputs] == [(lanes,), (5, lanes), ()]
    state, rows = some([lanes]), some([5, lanes], seed=1)
    expected = iterate(lambda i, x: [rows[2] - x], 5, state)
    assert_equal(compiled.run(state, rows)[:2], expected)


@layouts
def test_many_rows_in_several_sweeps(lanes: int, options: Settings) -> None:
    """Steps unrolled by hand: thirty rows read and written, so tiles are swept several times."""
    row, rows = f"s32[{lanes}]", f"s32[60,{lanes}]"
    window = f"s32[1,{lanes}]"
    lines = [
        "x0 = " + row + " add(e0, e0)",
        "six = s32[] constant(15)",
        "at = s32[] multiply(i, six)",
    ]
    for k in range(15):
        previous = "e2" if k == 0 else f"ys{k - 1}"
        lines += [
            f"k{k} = s32[] constant({k})",
            f"at{k} = s32[] add(at, k{k})",
            f"in_{k} = {window} dynamic-slice(e1, at{k}, zero), dynamic_slice_sizes={{1,{lanes}}}",
            f"v{k} = {row} reshape(in_{k})",
            f"x{k + 1} = {row} subtract(v{k}, x{k})",
            f"out{k} = {window} reshape(x{k + 1})",
            f"ys{k} = {rows} dynamic-update-slice({previous}, out{k}, at{k}, zero)",
        ]
    results, carried = ["x15", "e1", "ys14"], [row, rows, rows]
    module = counting_loop("\n".join(lines), results, carried, trip_count=4)

    def step(i: int, x: NumpyArray, xs: NumpyArray, ys: NumpyArray) -> Sequence[NumpyArray]:
        x, ys = x + x, ys.copy()
        for k in range(15 * i, 15 * i + 15):
            x = xs[k] - x
            ys[k] = x
        return x, xs, ys

    arguments = [some([lanes], np.int32)] + [some([60, lanes], np.int32, seed=s) for s in (1, 2)]
    compiled = check(module, step, 4, *arguments, **options)
    if compiled.plan.tile_vectors > 1:
        assert compiled.code.ir.count("\nblock:") + compiled.code.ir.count("\nblock.") > 3


@pytest.mark.parametrize(
    ("dtype", "lanes", "options"),
    [
        (dtype, 37, {})
        for dtype in ("pred", "s8", "u8", "s16", "u16", "s64", "u32", "u64", "f16", "bf16", "f64")
    ]
    + [
        (dtype, lanes, options)
        for dtype in ("pred", "s8", "bf16", "f64")
        for lanes, options in ((37, {"tile_lanes": 64}), (64, {}))
    ],
)
def test_types_in_every_memory(dtype: str, lanes: int, options: Settings) -> None:
    """A state in registers, one in runs, one in scratch, and rows, of types of all sizes."""
    shapes = [f"{dtype}[{lanes}]", f"{dtype}[{lanes},3]", f"{dtype}[{lanes},70]"]
    row, rows = f"{dtype}[1,{lanes}]", f"{dtype}[5,{lanes}]"
    opcode = "xor" if dtype == "pred" else "add"
    body = f"""
      a = {shapes[0]} {opcode}(e0, e0)
      last = {dtype}[{lanes},1] slice(e2), slice={{[0:{lanes}], [69:70]}}
      b = {shapes[0]} reshape(last)
      bs = {shapes[1]} broadcast(b), dimensions={{0}}
      y = {shapes[1]} {opcode}(e1, bs)
      flip = {shapes[2]} reverse(e2), dimensions={{1}}
      z = {row} reshape(a)
      zs = {rows} dynamic-update-slice(e3, z, i, zero)
      old = {row} dynamic-slice(e4, i, zero), dynamic_slice_sizes={{1,{lanes}}}
      x1 = {shapes[0]} reshape(old)
      x = {shapes[0]} {opcode}(x1, b)"""
    carried = [*shapes, rows, rows]
    module = counting_loop(body, ["x", "y", "flip", "zs", "e4"], carried, trip_count=5)
    numpy_type = module.entry.parameters[0].shape.element_type.dtype

    def plus(left: NumpyArray, right: NumpyArray) -> NumpyArray:
        return left ^ right if dtype == "pred" else left + right

    def step(i: int, *e: NumpyArray) -> Sequence[NumpyArray]:
        last = e[2][:, 69]
        return (
            plus(e[4][i], last),
            plus(e[1], last[:, None]),
            e[2][:, ::-1],
            replace_row(e[3], i, plus(e[0], e[0])),
            e[4],
        )

    sizes = [[lanes], [lanes, 3], [lanes, 70], [5, lanes], [5, lanes]]
    arguments = [some(size, numpy_type.type, seed=n) for n, size in enumerate(sizes)]
    check(module, step, 5, *arguments, **options)


@pytest.mark.parametrize(("lanes", "options"), [(37, {}), (37, {"tile_lanes": 64}), (64, {})])
def test_other_layouts_in_memory(lanes: int, options: Settings) -> None:
    """The first dimension is the minor one: what is logically rows lies as columns."""
    shape = f"f32[{lanes},3]{{0,1}}"
    body = f"y = {shape} add(e0, e1)"
    module = counting_loop(body, ["y", "e0"], [shape, shape], trip_count=3)
    arguments = some([lanes, 3]), some([lanes, 3], seed=1)
    check(module, lambda i, a, b: (a + b, a), 3, *arguments, **options)


def test_rows_of_lanes_move_whole() -> None:
    """Four elements of sixteen lanes are one load or store, not four gathers or scatters."""
    shape = "f32[64,4]"
    body = f"y = {shape} reverse(e0), dimensions={{1}}"
    text = compile_loop(counting_loop(body, ["y"], [shape]), unroll=1).code.ir
    assert text.count("load <64 x float>") == text.count("store <64 x float>") == 1
    assert "gather" not in text and "scatter" not in text


def test_parts_of_runs_are_written() -> None:
    """A column of each of four rows of a lane: as many elements as a row has, but no row."""
    body = """
      x = f32[4,64,1] broadcast(e0), dimensions={1}
      ys = f32[4,64,4] dynamic-update-slice(e1, x, zero, zero, i)
      one_f = f32[] constant(1)
      ones = f32[64] broadcast(one_f), dimensions={}
      y = f32[64] add(e0, ones)"""
    module = counting_loop(body, ["y", "ys"], ["f32[64]", "f32[4,64,4]"], trip_count=4)

    def step(i: int, x: NumpyArray, ys: NumpyArray) -> Sequence[NumpyArray]:
        written = ys.copy()
        written[:, :, i] = x
        return x + 1, written

    compiled = check(module, step, 4, some([64]), some([4, 64, 4]))
    assert compiled.program.loop.elements[2].kind is ElementKind.STREAM


def test_state_stays_where_it_is_changed() -> None:
    """Sweeps over a tile pass nothing on of a history that the first has written a row of."""
    rows, history, row = "f32[600,64]", "f32[50,64]", "f32[1,64]"
    lines = [
        "nought = f32[] constant(0)",
        f"new = {row} reshape(e0)",
        f"changed = {history} dynamic-update-slice(e1, new, i, zero)",
        "x0 = f32[64] reduce(changed, nought), dimensions={0}, to_apply=add_f32",
        "count = s32[] constant(30)",
        "first = s32[] multiply(i, count)",
    ]
    for k in range(30):
        lines += [
            f"k{k} = s32[] constant({k})",
            f"at{k} = s32[] add(first, k{k})",
            f"in_{k} = {row} dynamic-slice(e2, at{k}, zero), dynamic_slice_sizes={{1,64}}",
            f"v{k} = f32[64] reshape(in_{k})",
            f"x{k + 1} = f32[64] maximum(x{k}, v{k})",
        ]
    results, carried = ["x30", "changed", "e2"], ["f32[64]", history, rows]
    module = counting_loop("\n".join(lines), results, carried, trip_count=20)

    def step(i: int, x: NumpyArray, h: NumpyArray, r: NumpyArray) -> Sequence[NumpyArray]:
        changed = h.copy()
        changed[i] = x
        return np.maximum(changed.sum(axis=0), r[30 * i : 30 * i + 30].max(axis=0)), changed, r

    values = some([64]), np.zeros([50, 64], np.float32), some([600, 64])
    compiled = check(module, step, 20, *values, unroll=1, tile_lanes=64)
    pitch = compiled.code.plan.pitch
    assert compiled.code.plan.tile_vectors > 1
    assert compiled.code.ir.count(f"alloca float, i32 {50 * pitch}") <= 1


@pytest.mark.parametrize("tile_lanes", [16, 64])
def test_windows_are_read_before_they_are_written(tile_lanes: int) -> None:
    """However large: 80 rows, one of which is written before their sum is needed."""
    body = """
      window = s32[80,40] dynamic-slice(e0, i, zero), dynamic_slice_sizes={80,40}
      new = s32[1,40] reshape(e1)
      three = s32[] constant(3)
      at = s32[] add(i, three)
      written = s32[100,40] dynamic-update-slice(e0, new, at, zero)
      after = s32[1,40] dynamic-slice(written, at, zero), dynamic_slice_sizes={1,40}
      sum = s32[40] reduce(window, zero), dimensions={0}, to_apply=add_s32
      last = s32[40] reshape(after)
      y = s32[40] subtract(sum, last)"""
    more = "add_s32 { l = s32[] parameter(0) r = s32[] parameter(1) ROOT o = s32[] add(l, r) }"
    carried = ["s32[100,40]", "s32[40]"]
    module = counting_loop(body, ["written", "y"], carried, trip_count=15, more=more)

    def step(i: int, rows: NumpyArray, x: NumpyArray) -> Sequence[NumpyArray]:
        return replace_row(rows, i + 3, x), rows[i : i + 80].sum(axis=0) - x

    arguments = some([100, 40], np.int32), some([40], np.int32, seed=1)
    check(module, step, 15, *arguments, unroll=1, tile_lanes=tile_lanes)


def test_work_is_done_once() -> None:
    """What is read twice is kept, though it is too large for registers."""
    shape = "f32[40,100]"
    body = f"""
      work = {shape} sqrt(e0)
      turned = {shape} reverse(work), dimensions={{1}}
      y = {shape} add(work, turned)"""
    text = compile_loop(counting_loop(body, ["y"], [shape]), unroll=1).code.ir
    assert text.count('call <16 x float> @"llvm.sqrt') == 1


@layouts
def test_long_code_is_emitted_once_for_all_elements(lanes: int, options: Settings) -> None:
    """Eight sums of eight cosines each, of values in registers: one loop of eight cosines."""
    body = f"""
      z = f32[] constant(0)
      left = f32[{lanes},8,8] broadcast(e0), dimensions={{0,1}}
      right = f32[{lanes},8,8] broadcast(e0), dimensions={{0,2}}
      products = f32[{lanes},8,8] multiply(left, right)
      waves = f32[{lanes},8,8] cosine(products)
      y = f32[{lanes},8] reduce(waves, z), dimensions={{1}}, to_apply=add_f32"""
    module = counting_loop(body, ["y"], [f"f32[{lanes},8]"], trip_count=3)

    def step(i: int, x: NumpyArray) -> Sequence[NumpyArray]:
        return (np.cos(x[:, :, None] * x[:, None, :]).sum(axis=1),)

    compiled, values = compile_loop(module, **options), some([lanes, 8])
    expected = iterate(step, 3, values)[-1]
    np.testing.assert_allclose(compiled.run(values)[-1], expected, atol=1e-3)
    assert compiled.code.ir.count('@"fuselane.cosine.<') == 8 + 1


def test_calls_of_long_routines_are_not_long_code() -> None:
    shape = "f64[64,8]"
    body = f"""
      turned = {shape} reverse(e1), dimensions={{1}}
      y = {shape} power(e0, turned)
      z = {shape} add(y, e0)"""
    text = compile_loop(counting_loop(body, ["z", "y"], [shape] * 2), unroll=1).code.ir
    assert text.count('call <8 x double> @"fuselane.power.<') == 8


def test_loops_of_dots_are_not_simplified_again() -> None:
    """Where most of the work is products of long rows; few products are emitted one by one."""
    has_dots = []
    for size in (4, 64):
        shape, weights = f"f32[64,{size}]", f"f32[{size},{size}]"
        body = f"y = {shape} dot(e0, e1), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}"
        module = counting_loop(body, ["y", "e1"], [shape, weights])
        has_dots.append(compile_loop(module).code.has_dots)
    assert has_dots == [False, True]


def test_vectors_are_looked_for_where_there_are_loops_over_elements() -> None:
    """Not where there is nothing but numbers."""
    number = counting_loop("y = f32[] multiply(e0, e0)", ["y"], ["f32[]"])
    array = counting_loop(
        """y = f32[40] dot(e1, e0), lhs_contracting_dims={1}, rhs_contracting_dims={0}""",
        ["y", "e1"],
        ["f32[40]", "f32[40,40]"],
    )
    codes = [build(form_program(module), Options(), DEVICE) for module in (number, array)]
    assert [code.plan.width for code in codes] == [1, 1]
    assert [code.vectors for code in codes] == [Vectors.NOWHERE, Vectors.EVERYWHERE]


def test_dots_that_lanes_lack_in_some_steps_count() -> None:
    """A network's step of all lanes but those that are reset, with bits drawn beside it."""
    shape, row = "f32[64,64]", "f32[64]"
    shifts = "\n".join(
        f"""
      t{n} = u32[64] shift-left(b{n}, seven)
      b{n + 1} = u32[64] xor(b{n}, t{n})"""
        for n in range(40)
    )
    body = f"""
      z = f32[] constant(0)
      c = u32[] constant(7)
      seven = u32[64] broadcast(c), dimensions={{}}
      b0 = u32[64] add(e2, seven){shifts}
      zeros = {row} broadcast(z), dimensions={{}}
      chosen = {row} reduce(e0, z), dimensions={{1}}, to_apply=add_f32
      done = pred[64] compare(chosen, zeros), direction=LT
      all = pred[64,64] broadcast(done), dimensions={{0}}
      start = {shape} broadcast(z), dimensions={{}}
      product = {shape} dot(e0, e1), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
      y = {shape} select(all, start, product)"""
    compiled = compile_loop(counting_loop(body, ["y", "e1", "b40"], [shape, shape, "u32[64]"]))
    assert any(compiled.program.guards.values())
    assert compiled.code.has_dots and not compiled.code.is_bitwise


@pytest.mark.parametrize("columns", [1, 70])
@pytest.mark.parametrize("extra", [{}, {16: 3, 27: 3, 28: 15}])
def test_values_pass_from_sweep_to_sweep(columns: int, extra: dict[int, int]) -> None:
    """In registers or not, each made of the last one in another order, some needed for long."""
    shape, rows = f"s32[40,{columns}]", "s32[1000,40]"
    high, wide = (7, 10) if columns == 70 else (1, 1)
    lines = ["many = s32[] constant(30)", "first = s32[] multiply(i, many)"]
    for k in range(30):
        source = f"x{k - 1}" if k else "e0"
        lines += [
            f"k{k} = s32[] constant({k})",
            f"at{k} = s32[] add(first, k{k})",
            f"in_{k} = s32[1,40] dynamic-slice(e1, at{k}, zero), dynamic_slice_sizes={{1,40}}",
            f"v{k} = s32[40] reshape(in_{k})",
            f"vs{k} = {shape} broadcast(v{k}), dimensions={{0}}",
            f"table{k} = s32[40,{high},{wide}] reshape({source})",
            f"turned{k} = s32[40,{wide},{high}] transpose(table{k}), dimensions={{0,2,1}}",
            f"flat{k} = {shape} reshape(turned{k})",
            f"x{k} = {shape} subtract(flat{k}, vs{k})",
        ]
        if k in extra:
            lines[-1] = lines[-1].replace(f"x{k} =", f"own{k} =")
            lines.append(f"x{k} = {shape} add(own{k}, x{extra[k]})")
    module = counting_loop("\n".join(lines), ["x29", "e1"], [shape, rows], trip_count=2)

    def step(i: int, x: NumpyArray, table: NumpyArray) -> Sequence[NumpyArray]:
        made: list[NumpyArray] = []
        for k in range(30):
            x = x.reshape(40, high, wide).transpose(0, 2, 1).reshape(40, columns)
            x = x - table[30 * i + k][:, None]
            made.append(x + made[extra[k]] if k in extra else x)
            x = made[-1]
        return x, table

    arguments = some([40, columns], np.int32), some([1000, 40], np.int32, seed=1)
    compiled = check(module, step, 2, *arguments, unroll=1, tile_lanes=64)
    assert compiled.code.ir.count("\nblock") > 8


def test_all_tiles_in_one_call() -> None:
    module = counting_loop("y = f32[99] add(e0, e1)", ["y", "e0"], ["f32[99]"] * 2)
    compiled = compile_loop(module, unroll=1, tile_lanes=16)
    arguments = some([99]), some([99], seed=1)
    expected = iterate(lambda i, a, b: (a + b, a), 10, *arguments)
    assert compiled.code.num_tiles == 7
    assert_equal(compiled.run(*arguments, tiles=[(0, 7)]), expected)
    assert_equal(compiled.run(*arguments, tiles=[(5, 7), (3, 3), (0, 5)]), expected)


def test_tiles_that_are_not_run_leave_their_lanes_alone() -> None:
    module = counting_loop("y = f32[64] add(e0, e0)", ["y"], ["f32[64]"], trip_count=1)
    compiled = compile_loop(module, unroll=1, tile_lanes=16)
    before = some([64])
    (_, after) = compiled.run(before, tiles=[(0, 1), (2, 3)])
    expected = before.reshape(4, 16) * np.array([[2], [1], [2], [1]])
    np.testing.assert_array_equal(after, expected.reshape(64))


@pytest.mark.parametrize("tile_lanes", [16, 32])
def test_the_first_tile_alone_writes_what_all_lanes_share(tile_lanes: int) -> None:
    """Others would write the same, but at the same time. Loops in the loop are no exception."""
    row, log = "s32[96]", "s32[100]"
    more = f"""
    inner_body {{
      p = (s32[], {log}, {row}) parameter(0)
      k = s32[] get-tuple-element(p), index=0
      a = {log} get-tuple-element(p), index=1
      v = {row} get-tuple-element(p), index=2
      one = s32[] constant(1)
      k1 = s32[] add(k, one)
      seven = s32[1] constant({{7}})
      u = {log} dynamic-update-slice(a, seven, k)
      ks = {row} broadcast(k), dimensions={{}}
      c = {row} add(v, ks)
      ROOT t = (s32[], {log}, {row}) tuple(k1, u, c)
    }}
    stop {{
      p = (s32[], {log}, {row}) parameter(0)
      k = s32[] get-tuple-element(p), index=0
      n = s32[] constant(50)
      ROOT go = pred[] compare(k, n), direction=LT
    }}"""
    body = f"""
      init = (s32[], {log}, {row}) tuple(i, e0, e1)
      w = (s32[], {log}, {row}) while(init), condition=stop, body=inner_body
      x = {log} get-tuple-element(w), index=1
      v = {row} get-tuple-element(w), index=2
      total = s32[] add(e2, i)"""
    carried = [log, row, "s32[]"]
    module = counting_loop(body, ["x", "v", "total"], carried, trip_count=3, more=more)
    compiled = compile_loop(module, unroll=1, tile_lanes=tile_lanes)
    arguments = [some([100], np.int32), some([96], np.int32), np.int32(5)]
    last = compiled.code.num_tiles
    before = compiled.run(*arguments, tiles=[])
    after = compiled.run(*arguments, tiles=[(1, last)])
    for number in (0, 1, 3):
        np.testing.assert_array_equal(after[number], before[number])
    whole = compiled.run(*arguments, tiles=[(0, last)])
    assert whole[1].tolist() == [7] * 50 + before[1][50:].tolist()
    assert whole[3] == 8


def test_a_lane_sees_only_itself() -> None:
    """Another input in one lane changes that lane of the results, and no other."""
    body = """
      z = f32[] constant(0)
      s = f32[50] reduce(e0, z), dimensions={1}, to_apply=add_f32
      b = f32[50,5] broadcast(s), dimensions={0}
      y = f32[50,5] add(e0, b)"""
    compiled = compile_loop(counting_loop(body, ["y"], ["f32[50,5]"], trip_count=3))
    before = some([50, 5])
    for lane in (0, 15, 16, 31, 32, 49):
        changed = before.copy()
        changed[lane, 2] += 1
        differs = (compiled.run(before)[1] != compiled.run(changed)[1]).any(axis=1)
        assert differs.tolist() == [number == lane for number in range(50)]


def test_memory_behind_the_last_lane_is_not_touched() -> None:
    """Inputs end where a page ends, and the next one cannot be read."""
    shapes = ["f32[37]", "f32[37,4]", "f32[3,37]", "f32[37,100]", "pred[37]"]
    body = """
      x1 = f32[1,37] dynamic-slice(e2, i, zero), dynamic_slice_sizes={1,37}
      x = f32[37] reshape(x1)
      y = f32[37] add(e0, x)
      n = pred[37] not(e4)
      ys = f32[37,4] broadcast(y), dimensions={0}
      zs = f32[37,100] broadcast(y), dimensions={0}
      a = f32[37,4] add(e1, ys)
      b = f32[37,100] add(e3, zs)"""
    module = counting_loop(body, ["y", "a", "e2", "b", "n"], shapes, trip_count=3)
    choices: list[Settings] = [{}, {"unroll": 1, "tile_lanes": 64}, {"vector_bits": 256}]
    for options in choices:
        compiled = compile_loop(module, **options)
        run_at_page_ends(compiled)


def large_state(columns: int, lanes: int = 4096) -> HloModule:
    shape = f"f32[{lanes},{columns}]"
    body = f"y = {shape} reverse(e0), dimensions={{1}}"
    return counting_loop(body, ["y"], [shape], trip_count=1)


def test_tiles_too_large_for_a_stack_are_made_smaller() -> None:
    compiled = compile_loop(large_state(500), unroll=1, tile_lanes=4096)
    assert 16 <= compiled.plan.tile_lanes < 1024
    assert compiled.plan.tile_lanes * compiled.plan.num_tiles == 4096
    state = some([4096, 500])
    np.testing.assert_array_equal(compiled.run(state)[1], state[:, ::-1])


def test_lanes_too_large_for_a_stack_have_memory_of_their_callers() -> None:
    """A part for each tile: several may run at once."""
    compiled = compile_loop(large_state(30_000, lanes=40))
    part_bytes = compiled.code.scratch_bytes // compiled.plan.num_tiles
    assert (compiled.plan.tile_vectors, compiled.plan.num_tiles) == (1, 3)
    assert part_bytes > 4 * 16 * 30_000
    state = some([40, 30_000])
    for tiles in (None, [(0, 3)], [(1, 3), (0, 1)]):
        np.testing.assert_array_equal(compiled.run(state, tiles=tiles)[1], state[:, ::-1])


def test_lanes_too_large_for_their_callers_memory_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="or more values at once, more than 32,768"):
        compile_loop(large_state(30_000), unroll=1)


def test_dots_that_are_too_large_are_refused_before_any_is_emitted() -> None:
    """The refusal tells of all of them, not of as many as there is room for."""
    shape, numbers = "f32[4096,32,32]", "lhs_batch_dims={0}, rhs_batch_dims={0}"
    numbers += ", lhs_contracting_dims={2}, rhs_contracting_dims={1}"
    names = ["e0", *(f"d{n}" for n in range(80))]
    body = "\n".join(
        f"{name} = {shape} dot({before}, e0), {numbers}"
        for before, name in itertools.pairwise(names)
    )
    with pytest.raises(UnsupportedError, match="needs 81,920 or more values"):
        compile_loop(counting_loop(body, ["d79"], [shape]))


def test_same_kernel_every_time() -> None:
    """The cache finds a kernel by its text."""
    module = counting_loop("y = f32[64] add(e0, e1)", ["y", "e0"], ["f32[64]"] * 2)
    first = compile_loop(module).code.ir
    assert compile_loop(module).code.ir == first
    assert HostTarget.host().triple not in first
