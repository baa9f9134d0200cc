"""Loops in loops, trip counts and guards: kernels against NumPy, in every layout of their work."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from fuselane.lanes.program import ElementKind
from tests.codegen.kernels import (
    CompiledLoop,
    NumpyArray,
    Settings,
    Step,
    assert_equal,
    check,
    compile_loop,
    iterate,
    layouts,
    some,
)
from tests.lanes.loops import counting_loop


@layouts
def test_loop_in_a_loop(lanes: int, options: Settings) -> None:
    """Of three trips, unrolled, and of thirty, which is not; with the counter's end used too."""
    row = f"s32[{lanes}]"
    inner = f"""
    inner_body {{
      p = (s32[], {row}, {row}) parameter(0)
      k = s32[] get-tuple-element(p), index=0
      a = {row} get-tuple-element(p), index=1
      b = {row} get-tuple-element(p), index=2
      one = s32[] constant(1)
      k1 = s32[] add(k, one)
      ks = {row} broadcast(k), dimensions={{}}
      c = {row} add(b, ks)
      ROOT t = (s32[], {row}, {row}) tuple(k1, c, a)
    }}"""
    conditions = "".join(
        f"""
    stop_{limit} {{
      p = (s32[], {row}, {row}) parameter(0)
      k = s32[] get-tuple-element(p), index=0
      n = s32[] constant({limit})
      ROOT go = pred[] compare(k, n), direction=LT
    }}"""
        for limit in (3, 30)
    )
    body = f"""
      init = (s32[], {row}, {row}) tuple(zero, e0, e1)
      few = (s32[], {row}, {row}) while(init), condition=stop_3, body=inner_body
      x = {row} get-tuple-element(few), index=1
      y = {row} get-tuple-element(few), index=2
      again = (s32[], {row}, {row}) tuple(zero, y, x)
      many = (s32[], {row}, {row}) while(again), condition=stop_30, body=inner_body
      u = {row} get-tuple-element(many), index=1
      v = {row} get-tuple-element(many), index=2"""
    module = counting_loop(body, ["u", "v"], [row, row], trip_count=3, more=inner + conditions)

    def step(i: int, a: NumpyArray, b: NumpyArray) -> Sequence[NumpyArray]:
        for k in range(3):
            a, b = b + k, a
        a, b = b, a
        for k in range(30):
            a, b = b + k, a
        return a, b

    arguments = some([lanes], np.int32), some([lanes], np.int32, seed=1)
    check(module, step, 3, *arguments, **options)


@layouts
def test_trips_known_at_run_time(lanes: int, options: Settings) -> None:
    row, large = f"s32[{lanes}]", f"s32[{lanes},100]"
    body = f"""
      y = {row} add(e0, e1)
      turned = {large} reverse(e3), dimensions={{1}}"""
    module = counting_loop(
        body,
        ["y", "e0", "e2", "turned"],
        [row, row, "s32[]", large],
        condition="ROOT go = pred[] compare(i, e2), direction=LT",
    )

    def step(
        i: int, x: NumpyArray, y: NumpyArray, n: NumpyArray, z: NumpyArray
    ) -> Sequence[NumpyArray]:
        return x + y, x, n, z[:, ::-1]

    compiled = compile_loop(module, **options)
    assert compiled.program.loop.trip_count is None
    states = [some([lanes], np.int32, seed=n) for n in (1, 2)]
    for trips in (0, 1, 6):
        arguments = [*states, np.int32(trips), some([lanes, 100], np.int32)]
        assert_equal(compiled.run(*arguments), iterate(step, trips, *arguments))


def costly(shape: str, count: int = 15) -> str:
    """Returns work from `w0` to `w15` that is worth a guard."""
    return "\n".join(
        f"root{k} = {shape} sqrt(w{k})\n w{k + 1} = {shape} add(root{k}, e0)" for k in range(count)
    )


def do_costly(w: NumpyArray, x: NumpyArray) -> NumpyArray:
    """Does the same, to the bit: square roots are rounded correctly."""
    for _ in range(15):
        w = np.sqrt(w) + x
    return w


def check_guarded(compiled: CompiledLoop, step: Step, state: NumpyArray) -> None:
    """Runs a loop with predicates that hold in no lane, in some, and in all."""
    (guards,) = compiled.program.guards.values()
    assert len(guards) == 1
    for share in (0.0, 0.1, 1.0):
        predicate = np.random.default_rng(0).random(len(state)) < share
        actual = compiled.run(state, predicate)
        assert_equal(actual, iterate(step, 2, state, predicate))


@layouts
@pytest.mark.parametrize("side", [1, 2])
def test_guarded_work(lanes: int, options: Settings, side: int) -> None:
    row = f"f32[{lanes}]"
    body = f"""
      w0 = {row} multiply(e0, e0)
      {costly(row)}
      cheap = {row} add(e0, e0)
      y = {row} select(e1, {"w15, cheap" if side == 1 else "cheap, w15"})"""
    module = counting_loop(body, ["y", "e1"], [row, f"pred[{lanes}]"], trip_count=2)

    def step(i: int, x: NumpyArray, p: NumpyArray) -> Sequence[NumpyArray]:
        return np.where(p == (side == 1), do_costly(x * x, x), x + x), p

    compiled = compile_loop(module, **options)
    assert "needed:" in compiled.code.ir
    check_guarded(compiled, step, np.abs(some([lanes])))


@layouts
@pytest.mark.parametrize("size", [2, 100])
def test_guarded_work_on_arrays(lanes: int, options: Settings, size: int) -> None:
    """Results in registers, and in scratch memory where they are too large for that."""
    shape = f"f32[{lanes},{size}]"
    body = f"""
      w0 = {shape} multiply(e0, e0)
      {costly(shape)}
      p_all = pred[{lanes},{size}] broadcast(e1), dimensions={{0}}
      z = {shape} select(p_all, w15, e0)
      y = {shape} reverse(z), dimensions={{1}}"""
    module = counting_loop(body, ["y", "e1"], [shape, f"pred[{lanes}]"], trip_count=2)

    def step(i: int, x: NumpyArray, p: NumpyArray) -> Sequence[NumpyArray]:
        return np.where(p[:, None], do_costly(x * x, x), x)[:, ::-1], p

    compiled = compile_loop(module, **options)
    assert "needed:" in compiled.code.ir
    check_guarded(compiled, step, np.abs(some([lanes, size])))


def test_guard_of_several_elements() -> None:
    """Needed where any of them is true."""
    shape = "f32[40,2]"
    body = f"""
      w0 = {shape} multiply(e0, e0)
      {costly(shape)}
      y = {shape} select(e1, w15, e0)
      turned = {shape} reverse(y), dimensions={{1}}"""
    module = counting_loop(body, ["turned", "e1"], [shape, "pred[40,2]"], trip_count=2)

    def step(i: int, x: NumpyArray, p: NumpyArray) -> Sequence[NumpyArray]:
        return np.where(p, do_costly(x * x, x), x)[:, ::-1], p

    compiled = compile_loop(module)
    assert "needed:" in compiled.code.ir
    state = np.abs(some([40, 2]))
    for truths in ([], [(3, 0)], [(3, 1)], [(3, 0), (17, 1)]):
        predicate = np.zeros((40, 2), bool)
        for place in truths:
            predicate[place] = True
        assert_equal(compiled.run(state, predicate), iterate(step, 2, state, predicate))


@layouts
def test_guarded_loop(lanes: int, options: Settings) -> None:
    """A block in which no lane needs the loop runs none of it."""
    row = f"s32[{lanes}]"
    body = f"""
      init = (s32[], {row}) tuple(zero, e0)
      w = (s32[], {row}) while(init), condition=stop, body=inner_body
      x = {row} get-tuple-element(w), index=1
      y = {row} select(e1, x, e0)"""
    carried = [row, f"pred[{lanes}]"]
    module = counting_loop(body, ["y", "e1"], carried, trip_count=2, more=counting_by_three(row))

    def step(i: int, x: NumpyArray, p: NumpyArray) -> Sequence[NumpyArray]:
        return np.where(p, x + sum(range(0, 400, 3)), x), p

    compiled = compile_loop(module, **options)
    assert "needed:" in compiled.code.ir
    check_guarded(compiled, step, some([lanes], np.int32))


def counting_by_three(row: str, limit: int | str = 400) -> str:
    """Returns a loop `while k < limit: x += k; k += 3`."""
    return f"""
    inner_body {{
      p = (s32[], {row}) parameter(0)
      k = s32[] get-tuple-element(p), index=0
      a = {row} get-tuple-element(p), index=1
      three = s32[] constant(3)
      k1 = s32[] add(k, three)
      ks = {row} broadcast(k), dimensions={{}}
      c = {row} add(a, ks)
      ROOT t = (s32[], {row}) tuple(k1, c)
    }}
    stop {{
      p = (s32[], {row}) parameter(0)
      k = s32[] get-tuple-element(p), index=0
      n = s32[] constant({limit})
      ROOT go = pred[] compare(k, n), direction=LT
    }}"""


@layouts
@pytest.mark.parametrize(("start", "limit"), [("e1", 7), ("zero", 7), ("zero", 100)])
def test_what_all_lanes_share_leaves_a_loop_of_lanes(
    lanes: int, options: Settings, start: str, limit: int
) -> None:
    """The inner loop's counter, as it ends, is used per lane and carried to the next step.

    The loop runs as often as the counter's start says, three times (unrolled), or 34 times.
    """
    row = f"s32[{lanes}]"
    body = f"""
      init = (s32[], {row}) tuple({start}, e0)
      w = (s32[], {row}) while(init), condition=stop, body=inner_body
      k = s32[] get-tuple-element(w), index=0
      x = {row} get-tuple-element(w), index=1
      two = s32[] constant(2)
      odd = s32[] remainder(k, two)
      odds = {row} broadcast(odd), dimensions={{}}
      y = {row} add(x, odds)"""
    module = counting_loop(
        body, ["y", "odd"], [row, "s32[]"], trip_count=3, more=counting_by_three(row, limit)
    )

    def step(i: int, x: NumpyArray, k: int) -> Sequence[object]:
        k = 0 if start == "zero" else k
        while k < limit:
            x, k = x + k, k + 3
        return x + k % 2, k % 2

    check(module, step, 3, some([lanes], np.int32), np.int32(1), **options)


@layouts
def test_rows_updated_in_place_by_a_loop_in_a_loop(lanes: int, options: Settings) -> None:
    """A running sum down a table of 100 rows, starting one row later each time."""
    row, rows, window = f"s32[{lanes}]", f"s32[100,{lanes}]", f"s32[1,{lanes}]"
    more = f"""
    inner_body {{
      p = (s32[], {rows}, {row}) parameter(0)
      k = s32[] get-tuple-element(p), index=0
      a = {rows} get-tuple-element(p), index=1
      v = {row} get-tuple-element(p), index=2
      one = s32[] constant(1)
      zero = s32[] constant(0)
      k1 = s32[] add(k, one)
      here = {window} dynamic-slice(a, k, zero), dynamic_slice_sizes={{1,{lanes}}}
      x = {row} reshape(here)
      c = {row} add(v, x)
      c1 = {window} reshape(c)
      u = {rows} dynamic-update-slice(a, c1, k1, zero)
      ROOT t = (s32[], {rows}, {row}) tuple(k1, u, c)
    }}
    stop {{
      p = (s32[], {rows}, {row}) parameter(0)
      k = s32[] get-tuple-element(p), index=0
      n = s32[] constant(98)
      ROOT go = pred[] compare(k, n), direction=LT
    }}"""
    body = f"""
      init = (s32[], {rows}, {row}) tuple(i, e0, e1)
      w = (s32[], {rows}, {row}) while(init), condition=stop, body=inner_body
      x = {rows} get-tuple-element(w), index=1
      v = {row} get-tuple-element(w), index=2
      v1 = {window} reshape(v)
      y = {rows} dynamic-update-slice(x, v1, zero, zero)"""
    module = counting_loop(body, ["y", "v"], [rows, row], trip_count=3, more=more)

    def step(i: int, table: NumpyArray, v: NumpyArray) -> Sequence[NumpyArray]:
        table = table.copy()
        for k in range(i, 98):
            v = v + table[k]
            table[k + 1] = v
        table[0] = v
        return table, v

    compiled = check(
        module, step, 3, some([100, lanes], np.int32), some([lanes], np.int32), **options
    )
    assert compiled.program.loop.elements[1].kind is ElementKind.STREAM


@layouts
def test_no_trips(lanes: int, options: Settings) -> None:
    """Results are the initial values, in whatever memory they are carried."""
    row, large, rows = f"f32[{lanes}]", f"f32[{lanes},80]", f"f32[5,{lanes}]"
    body = f"""
      y = {row} add(e0, e0)
      z = {large} reverse(e1), dimensions={{1}}
      window = f32[1,{lanes}] reshape(y)
      ys = {rows} dynamic-update-slice(e2, window, i, zero)"""
    module = counting_loop(body, ["y", "z", "ys"], [row, large, rows], trip_count=0)
    arguments = some([lanes]), some([lanes, 80]), some([5, lanes])
    check(module, lambda i, *elements: elements, 0, *arguments, **options)


def loop_of_shared_and_lanes(name: str, row: str, limit: int, body: str, results: str) -> str:
    """Returns a counting loop over `u`, which all lanes share, and `a`, which they don't."""
    carried = f"(s32[], s32[], {row})"
    return f"""
    body_{name} {{
      p = {carried} parameter(0)
      k = s32[] get-tuple-element(p), index=0
      u = s32[] get-tuple-element(p), index=1
      a = {row} get-tuple-element(p), index=2
      one = s32[] constant(1)
      zero = s32[] constant(0)
      k1 = s32[] add(k, one)
      {body}
      ROOT t = {carried} tuple(k1, {results})
    }}
    stop_{name} {{
      p = {carried} parameter(0)
      k = s32[] get-tuple-element(p), index=0
      n = s32[] constant({limit})
      ROOT go = pred[] compare(k, n), direction=LT
    }}"""


@layouts
@pytest.mark.parametrize(("outer", "inner"), [(2, 2), (20, 3), (3, 20), (2, 0)])
def test_three_loops_share_a_recurrence(
    lanes: int, options: Settings, outer: int, inner: int
) -> None:
    """A number that all lanes share is changed by the innermost loop and used by all."""
    row = f"s32[{lanes}]"
    carried = f"(s32[], s32[], {row})"
    innermost = f"""
      square = s32[] multiply(u, u)
      sum = s32[] add(square, k)
      mask = s32[] constant(31)
      v = s32[] and(sum, mask)
      us = {row} broadcast(u), dimensions={{}}
      b = {row} add(a, us)"""
    middle = f"""
      init = {carried} tuple(zero, u, a)
      w = {carried} while(init), condition=stop_inner, body=body_inner
      v = s32[] get-tuple-element(w), index=1
      c = {row} get-tuple-element(w), index=2
      vs = {row} broadcast(v), dimensions={{}}
      b = {row} subtract(c, vs)"""
    body = f"""
      init = {carried} tuple(zero, e1, e0)
      w = {carried} while(init), condition=stop_outer, body=body_outer
      v = s32[] get-tuple-element(w), index=1
      b = {row} get-tuple-element(w), index=2"""
    more = loop_of_shared_and_lanes("inner", row, inner, innermost, "v, b")
    more += loop_of_shared_and_lanes("outer", row, outer, middle, "v, b")
    module = counting_loop(body, ["b", "v"], [row, "s32[]"], trip_count=3, more=more)

    def step(i: int, a: NumpyArray, u: int) -> Sequence[object]:
        for _ in range(outer):
            for k in range(inner):
                a, u = a + u, (u * u + k) & 31
            a = a - u
        return a, u

    check(module, step, 3, some([lanes], np.int32), np.int32(3), **options)


@layouts
def test_what_longer_arrays_read_is_in_memory(lanes: int, options: Settings) -> None:
    """32 elements fit the registers, their differences with zeros at both ends do not: a loop over
    these would select each of what it reads among all 32."""
    body = f"""
      three = s32[] constant(3)
      threes = s32[{lanes},32] broadcast(three), dimensions={{}}
      x = s32[{lanes},32] add(e0, threes)
      none = s32[] constant(0)
      padded = s32[{lanes},34] pad(x, none), padding=0_0x1_1
      high = s32[{lanes},33] slice(padded), slice={{[0:{lanes}], [1:34]}}
      low = s32[{lanes},33] slice(padded), slice={{[0:{lanes}], [0:33]}}
      d = s32[{lanes},33] subtract(high, low)
      square = s32[{lanes},33] multiply(d, d)
      after = s32[{lanes},32] slice(square), slice={{[0:{lanes}], [1:33]}}
      before = s32[{lanes},32] slice(square), slice={{[0:{lanes}], [0:32]}}
      y = s32[{lanes},32] subtract(after, before)"""
    module = counting_loop(body, ["y"], [f"s32[{lanes},32]"], trip_count=3)

    def step(_: int, x: NumpyArray) -> tuple[NumpyArray]:
        d = np.diff(np.pad(x + 3, ((0, 0), (1, 1))), axis=1)
        return (np.diff(d * d, axis=1).astype(np.int32),)

    values = np.random.default_rng(0).integers(-9, 9, (lanes, 32)).astype(np.int32)
    compiled = check(module, step, 3, values, **options)
    if compiled.plan.max_unrolled == 32 and lanes % compiled.plan.width == 0:
        assert compiled.code.ir.count(" select ") < 40
