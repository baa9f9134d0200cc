"""Large arrays that loops and branches get to change: where they lie, if nobody else reads them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest

from fuselane.hlo.module import HloModule
from tests.codegen.kernels import NumpyArray, check, compile_loop, some
from tests.lanes.loops import counting_loop

ROWS: Final = "f32[40,33]"
ROW: Final = "f32[1,33]"
STATE: Final = f"(s32[], {ROWS}, {ROWS})"

MORE: Final = f"""
    writing {{
      p = {STATE} parameter(0)
      k = s32[] get-tuple-element(p), index=0
      a = {ROWS} get-tuple-element(p), index=1
      b = {ROWS} get-tuple-element(p), index=2
      one = s32[] constant(1)
      zero = s32[] constant(0)
      k1 = s32[] add(k, one)
      old = {ROW} dynamic-slice(a, k, zero), dynamic_slice_sizes={{1,33}}
      other = {ROW} dynamic-slice(b, k1, zero), dynamic_slice_sizes={{1,33}}
      row = {ROW} add(old, other)
      u = {ROWS} dynamic-update-slice(a, row, k, zero)
      ROOT t = {STATE} tuple(k1, u, b)
    }}
    below_six {{
      p = {STATE} parameter(0)
      k = s32[] get-tuple-element(p), index=0
      n = s32[] constant(6)
      ROOT go = pred[] compare(k, n), direction=LT
    }}
    updating {{
      p = {STATE} parameter(0)
      k = s32[] get-tuple-element(p), index=0
      a = {ROWS} get-tuple-element(p), index=1
      b = {ROWS} get-tuple-element(p), index=2
      zero = s32[] constant(0)
      old = {ROW} dynamic-slice(a, k, zero), dynamic_slice_sizes={{1,33}}
      other = {ROW} dynamic-slice(b, k, zero), dynamic_slice_sizes={{1,33}}
      row = {ROW} add(old, other)
      u = {ROWS} dynamic-update-slice(a, row, k, zero)
      d = {ROWS} add(b, b)
      ROOT t = ({ROWS}, {ROWS}) tuple(u, d)
    }}
    passing {{
      p = {STATE} parameter(0)
      a = {ROWS} get-tuple-element(p), index=1
      b = {ROWS} get-tuple-element(p), index=2
      ROOT t = ({ROWS}, {ROWS}) tuple(a, b)
    }}
    writing_on {{
      p = {STATE} parameter(0)
      b = {ROWS} get-tuple-element(p), index=2
      w = {STATE} while(p), condition=below_six, body=writing
      x = {ROWS} get-tuple-element(w), index=1
      ROOT t = ({ROWS}, {ROWS}) tuple(x, b)
    }}
    changing_places {{
      p = {STATE} parameter(0)
      a = {ROWS} get-tuple-element(p), index=1
      b = {ROWS} get-tuple-element(p), index=2
      ROOT t = ({ROWS}, {ROWS}) tuple(b, a)
    }}
    turning {{
      p = {STATE} parameter(0)
      a = {ROWS} get-tuple-element(p), index=1
      b = {ROWS} get-tuple-element(p), index=2
      r = {ROWS} reverse(a), dimensions={{0}}
      ROOT t = ({ROWS}, {ROWS}) tuple(r, a)
    }}
"""


def _write(a: NumpyArray, b: NumpyArray, start: int) -> NumpyArray:
    """What the inner loop makes of two arrays."""
    a = a.copy()
    for k in range(start, 6):
        a[k] += b[k + 1]
    return a


def _update(i: int, a: NumpyArray, b: NumpyArray) -> list[NumpyArray]:
    a = a.copy()
    a[i] += b[i]
    return [a, b + b]


def _looped(a: str, b: str, name: str = "w") -> str:
    return f"""
      {name}_start = {STATE} tuple(i, {a}, {b})
      {name} = {STATE} while({name}_start), condition=below_six, body=writing
      {name}_a = {ROWS} get-tuple-element({name}), index=1"""


def _chosen(when_even: str, when_odd: str) -> str:
    return f"""
      two = s32[] constant(2)
      rest = s32[] remainder(i, two)
      is_even = pred[] compare(rest, zero), direction=EQ
      given = {STATE} tuple(i, e0, e1)
      c = ({ROWS}, {ROWS}) conditional(is_even, given, given), true_computation={when_even}, false_computation={when_odd}
      x = {ROWS} get-tuple-element(c), index=0
      y = {ROWS} get-tuple-element(c), index=1"""  # noqa: E501


_READ_BEHIND: Final = f"""
      last = s32[] get-tuple-element(w), index=0
      old = {ROW} dynamic-slice(e0, last, zero), dynamic_slice_sizes={{1,33}}
      y = {ROWS} dynamic-update-slice(e1, old, zero, zero)"""

Case = tuple[str, list[str], Callable[[int, NumpyArray, NumpyArray], list[NumpyArray]], int]


def _read_behind(i: int, a: NumpyArray, b: NumpyArray) -> list[NumpyArray]:
    c = b.copy()
    c[0] = a[max(i, 6)]
    return [_write(a, b, i), c]


def _added(i: int, a: NumpyArray, b: NumpyArray) -> list[NumpyArray]:
    written = _write(a, b, i)
    return [written + b, written]


def _twice(i: int, a: NumpyArray, b: NumpyArray) -> list[NumpyArray]:
    first = _write(a, b, i)
    return [_write(first, b, i), b]


def _set_row(a: NumpyArray, row: NumpyArray) -> NumpyArray:
    a = a.copy()
    a[0] = row
    return a


def _updated_behind(i: int, a: NumpyArray, b: NumpyArray) -> list[NumpyArray]:
    return [_set_row(_write(a, b, i), b[i]), b]


_UPDATED_BEHIND: Final = f"""
      row = {ROW} dynamic-slice(e1, i, zero), dynamic_slice_sizes={{1,33}}
      y = {ROWS} dynamic-update-slice(w_a, row, zero, zero)"""

# For each: the body, its results, what it does, and how many stores of lanes the code has.
CASES: Final[dict[str, Case]] = {
    "loop": (_looped("e0", "e1"), ["w_a", "e1"], lambda i, a, b: [_write(a, b, i), b], 2),
    "loops_in_a_row": (
        _looped("e0", "e1") + _looped("w_a", "e1", "v"),
        ["v_a", "e1"],
        _twice,
        3,
    ),
    "updated_behind_a_loop": (
        _looped("e0", "e1") + _UPDATED_BEHIND,
        ["y", "e1"],
        _updated_behind,
        3,
    ),
    "read_behind_a_loop": (_looped("e0", "e1") + _READ_BEHIND, ["w_a", "y"], _read_behind, 8),
    "made_before_the_result_is_named": (
        _chosen("writing_on", "passing").replace("x =", f"z = {ROWS} add(e1, e1)\n      x =")
        + _UPDATED_BEHIND.replace("w_a", "x").replace("y =", "u ="),
        ["u", "z"],
        lambda i, a, b: [_set_row(a if i % 2 else _write(a, b, i), b[i]), b + b],
        5,
    ),
    "viewed_in_a_loop": (
        f"r = {ROWS} reverse(e0), dimensions={{0}}" + _looped("e0", "r"),
        ["w_a", "e1"],
        lambda i, a, b: [_write(a, a[::-1], i), b],
        4,
    ),
    "needed_behind_a_loop": (
        _looped("e0", "e1") + f"\nx = {ROWS} add(w_a, e1)",
        ["x", "w_a"],
        _added,
        7,
    ),
    "passed_on_or_updated": (
        _chosen("updating", "passing"),
        ["x", "y"],
        lambda i, a, b: [a, b] if i % 2 else _update(i, a, b),
        4,
    ),
    "passed_on_or_written": (
        _chosen("writing_on", "passing"),
        ["x", "y"],
        lambda i, a, b: [a, b] if i % 2 else [_write(a, b, i), b],
        2,
    ),
    "changing_places_or_updated": (
        _chosen("changing_places", "updating"),
        ["x", "y"],
        lambda i, a, b: _update(i, a, b) if i % 2 else [b, a],
        7,
    ),
    "turned_or_passed_on": (
        _chosen("turning", "passing"),
        ["x", "y"],
        lambda i, a, b: [a, b] if i % 2 else [a[::-1], a],
        7,
    ),
    "old_value_read_behind_branches": (
        _chosen("updating", "passing") + f"\nz = {ROWS} add(x, e0)",
        ["z", "y"],
        lambda i, a, b: [a + a, b] if i % 2 else [_update(i, a, b)[0] + a, b + b],
        7,
    ),
}


def _loop(name: str, trips: int) -> HloModule:
    body, results, *_ = CASES[name]
    return counting_loop(body, results, [ROWS, ROWS], trip_count=trips, more=MORE)


@pytest.mark.parametrize("name", CASES)
def test_results(name: str) -> None:
    step: Callable[..., Any] = CASES[name][2]
    arguments = [some([40, 33], seed=n) for n in range(2)]
    for trips in (1, 2, 5, 9):
        for options in ({}, {"unroll": 1, "tile_lanes": 1}, {"unroll": 1, "tile_lanes": 64}):
            check(_loop(name, trips), step, trips, *arguments, bounds_checks=True, **options)


@pytest.mark.parametrize("name", CASES)
def test_stores(name: str) -> None:
    """What is copied has to be; at least one store is of an array on its way in."""
    assert compile_loop(_loop(name, 9)).code.ir.count(" store <") == CASES[name][3]
