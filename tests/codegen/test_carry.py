"""Large state: made where it lies, exchanged with spare memory, or copied; never read too late."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pytest

from fuselane.hlo.module import HloModule
from tests.codegen.kernels import NumpyArray, assert_equal, check, compile_loop, iterate, some
from tests.lanes.loops import counting_loop

GRID: Final = "f32[40,50]"


def _shift(x: NumpyArray, start: int) -> NumpyArray:
    """Returns x, all but its first row and column replaced by half of what starts elsewhere."""
    y = x.copy()
    y[1:, 1:] = x[start : start + 39, start : start + 49] * np.float32(0.5)
    return y


def _set(x: NumpyArray, value: float) -> NumpyArray:
    y = x.copy()
    y[3, 3] = value
    return y


def _shifted(source: str, start: int) -> str:
    return f"""
      s = f32[39,49] slice({source}), slice={{[{start}:{start + 39}], [{start}:{start + 49}]}}
      half = f32[] constant(0.5)
      halves = f32[39,49] broadcast(half), dimensions={{}}
      m = f32[39,49] multiply(s, halves)
      y = {GRID} dynamic-update-slice(e0, m, one, one)"""


_CHANGED: Final = f"""
      two = f32[1,1] constant({{{{2}}}})
      three = s32[] constant(3)
      d = {GRID} add(e0, e0)
      y = {GRID} dynamic-update-slice(d, two, three, three)"""

_TURNED: Final = f"t = {GRID} reverse(e0), dimensions={{0, 1}}\ny = {GRID} add(t, e0)"
_LEAPFROG: Final = f"""
      t = {GRID} reverse(e1), dimensions={{0, 1}}
      y = {GRID} subtract(t, e0)"""

Case = tuple[str, list[str], Callable[..., Any], int]
CASES: Final[dict[str, Case]] = {
    "changed_in_place": (_CHANGED, ["y"], lambda i, x: [_set(x + x, 2)], 4),
    "updated_where_read": (_shifted("e0", 1), ["y"], lambda i, x: [_shift(x, 1)], 3),
    "updated_from_elsewhere": (_shifted("e0", 0), ["y"], lambda i, x: [_shift(x, 0)], 6),
    "exchanged_with_a_spare": (_TURNED, ["y"], lambda i, x: [x[::-1, ::-1] + x], 3),
    "leapfrog": (_LEAPFROG, ["e1", "y"], lambda i, p, u: [u, u[::-1, ::-1] - p], 5),
    "changing_places": ("", ["e1", "e0"], lambda i, x, y: [y, x], 4),
    "both_the_same": (
        f"y = {GRID} add(e0, e1)",
        ["y", "y"],
        lambda i, x, y: [x + y, x + y],
        6,
    ),
    "only_moved": (
        f"y = {GRID} reverse(e0), dimensions={{0, 1}}",
        ["y"],
        lambda i, x: [x[::-1, ::-1]],
        3,
    ),
    "first_of_two": (
        f"t = {GRID} reverse(e1), dimensions={{0, 1}}\ny = {GRID} add(t, e0)",
        ["y", "e0"],
        lambda i, x, y: [y[::-1, ::-1] + x, x],
        5,
    ),
    "old_state_needed_behind_the_update": (
        f"""{_CHANGED}
      z = {GRID} maximum(e0, e1)""",
        ["y", "z"],
        lambda i, x, y: [_set(x + x, 2), np.maximum(x, y)],
        7,
    ),
}


def _loop(name: str, **more: Any) -> HloModule:
    body, results, _, _ = CASES[name]
    return counting_loop(body, results, [GRID] * len(results), **more)


@pytest.mark.parametrize("name", CASES)
def test_large_state(name: str) -> None:
    """Whatever number of steps it takes: what changes places is elsewhere after each."""
    _, results, step, _ = CASES[name]
    arguments = [some([40, 50], seed=n) for n in range(len(results))]
    for trips in (1, 2, 5):
        check(_loop(name, trip_count=trips), step, trips, *arguments, bounds_checks=True)


@pytest.mark.parametrize("name", CASES)
def test_large_state_while_it_takes(name: str) -> None:
    body, results, step, _ = CASES[name]
    count = len(results)
    module = counting_loop(
        body,
        [*results, f"e{count}"],
        [*[GRID] * count, "s32[]"],
        condition=f"ROOT go = pred[] compare(i, e{count}), direction=LT",
    )
    compiled = compile_loop(module)
    states = [some([40, 50], seed=n) for n in range(count)]

    def with_limit(i: int, *elements: Any) -> list[Any]:
        return [*step(i, *elements[:-1]), elements[-1]]

    for trips in (0, 1, 4):
        arguments = [*states, np.int32(trips)]
        assert_equal(compiled.run(*arguments), iterate(with_limit, trips, *arguments))


@pytest.mark.parametrize("name", CASES)
def test_nothing_is_stored_twice(name: str) -> None:
    """Each element is copied in and out, and stored once for each instruction that makes it: by
    four parts of the code if that is an array whose first row and column stay as they are."""
    *_, num_stores = CASES[name]
    assert compile_loop(_loop(name)).code.ir.count("store float") <= num_stores


def test_large_state_of_lanes() -> None:
    """Each lane's array is in memory too."""
    shape = "f32[33,100]"
    body = f"t = {shape} reverse(e1), dimensions={{1}}\ny = {shape} subtract(t, e0)"
    module = counting_loop(body, ["e1", "y"], [shape, shape], trip_count=3)
    arguments = [some([33, 100], seed=n) for n in range(2)]
    for options in ({"unroll": 1, "tile_lanes": 1}, {"unroll": 1, "tile_lanes": 64}):
        check(module, lambda i, p, u: [u, u[:, ::-1] - p], 3, *arguments, **options)


def _stacking(lanes: int) -> HloModule:
    """A loop of thirty steps in one of two: each reads an element of one array at its number and
    writes one of another."""
    row, whole = f"f32[{lanes}]", f"f32[{lanes},30]"
    shape = f"(s32[], {whole}, {whole}, {row})"
    inner = f"""
    inner_body {{
      p = {shape} parameter(0)
      k = s32[] get-tuple-element(p), index=0
      x = {whole} get-tuple-element(p), index=1
      y = {whole} get-tuple-element(p), index=2
      a = {row} get-tuple-element(p), index=3
      one = s32[] constant(1)
      zero = s32[] constant(0)
      k1 = s32[] add(k, one)
      s = f32[{lanes},1] dynamic-slice(x, zero, k), dynamic_slice_sizes={{{lanes},1}}
      v = {row} reshape(s)
      b = {row} add(a, v)
      u = f32[{lanes},1] reshape(b)
      z = {whole} dynamic-update-slice(y, u, zero, k)
      ROOT t = {shape} tuple(k1, x, z, b)
    }}
    inner_stop {{
      p = {shape} parameter(0)
      k = s32[] get-tuple-element(p), index=0
      n = s32[] constant(30)
      ROOT go = pred[] compare(k, n), direction=LT
    }}"""
    body = f"""
      nothing = f32[] constant(0)
      start = {row} broadcast(nothing), dimensions={{}}
      empty = {whole} broadcast(nothing), dimensions={{}}
      doubled = {whole} add(e0, e0)
      init = {shape} tuple(zero, doubled, empty, start)
      w = {shape} while(init), condition=inner_stop, body=inner_body
      y = {whole} get-tuple-element(w), index=2"""
    return counting_loop(body, ["y"], [whole], trip_count=2, more=inner)


@pytest.mark.parametrize("lanes", [32, 64])
def test_arrays_that_inner_loops_index_are_in_memory(lanes: int) -> None:
    """Few enough elements for registers, of which every step would select one among all."""

    def step(i: int, x: NumpyArray) -> list[NumpyArray]:
        return [np.cumsum(x + x, axis=1, dtype=np.float32)]

    compiled = check(_stacking(lanes), step, 2, some([lanes, 30]))
    assert compiled.code.ir.count(" select ") < 30
