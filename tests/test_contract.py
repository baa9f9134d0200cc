"""What counts as rounding, and what a difference is called."""

from __future__ import annotations

import dataclasses
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from fuselane.contract import Check, CheckedElement, Rows, find_wrong

ELEMENT = CheckedElement(
    name="element 1, f32[4,3]", source="a.py:2 (f)", dimensions=(4, 3), minor_to_major=(1, 0)
)
LANES = dataclasses.replace(ELEMENT, lane_stride=1, num_lanes=3)
STACK = dataclasses.replace(LANES, rows=Rows(stride=3, count=4, first=0, slope=1))


def wrong(right: Any, got: Any, *varied: Any, dtype: Any = np.float32, **options: Any) -> list[int]:
    arrays = [np.asarray(values, dtype).reshape(-1) for values in (right, got, *varied)]
    return [int(i) for i in find_wrong(arrays[0], arrays[1], arrays[2:], **options)]


@pytest.mark.parametrize(
    ("dtype", "near", "far"),
    [
        (np.float64, 1e-12, 1e-11),
        (np.float32, 1e-5, 1e-4),
        (np.float16, 1e-2, 3e-2),
        (ml_dtypes.bfloat16, 3e-2, 0.1),
        (np.complex64, 1e-5, 1e-4),
        (np.complex128, 1e-12, 1e-11),
    ],
)
@pytest.mark.parametrize("value", [1.0, -1000.0])
def test_bounds_are_relative(dtype: Any, near: float, far: float, value: float) -> None:
    assert wrong([value, value], [value, value * (1 + near)], dtype=dtype) == []
    assert wrong([value, value], [value, value * (1 + far)], dtype=dtype) == [1]


def test_small_values_are_compared_to_their_neighbours() -> None:
    assert wrong([1e-9], [5e-7]) == []
    assert wrong([1e-9], [5e-6]) == [0]
    assert wrong([1e-9, 1e3, 1e3], [5e-4, 1e3, 1e3]) == []
    assert wrong([1e-9, 1e3, 1e3], [5e-3, 1e3, 1e3]) == [0]


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16])
def test_special_values(dtype: Any) -> None:
    inf, nan = np.inf, np.nan
    right = [0.0, -0.0, inf, -inf, nan, 1.0]
    assert wrong(right, [-0.0, 0.0, inf, -inf, -nan, 1.0], dtype=dtype) == []
    assert wrong(right, [nan, inf, -inf, inf, inf, -inf], dtype=dtype) == [0, 1, 2, 3, 4, 5]
    assert wrong(right, [0, 0, 1e4, -1e4, 1, nan], dtype=dtype) == [2, 3, 4, 5]


def test_parts_of_complex_numbers() -> None:
    nan = np.nan
    right, got = [1 + 1j, complex(nan, 1), complex(1, nan)], [1 - 1j, complex(nan, 1), nan + 0j]
    assert wrong(right, got, dtype=np.complex64) == [0, 2]


def test_what_varied_runs_move_may_move() -> None:
    assert wrong([1.0, 1.0], [1.3, 1.3], [1.1, 1.0]) == [1]
    assert wrong([1.0, 1.0], [1.5, 1.3], [1.1, 1.1]) == [0]
    assert wrong([1.0, 1.0], [1.3, 1.3], [1.1, 1.0], [1.0, 0.9]) == []
    assert wrong([1.0, np.nan], [9.0, 9.0], [np.nan, 1.0]) == []


def test_what_moves_half_of_an_array_may_move_all_of_it() -> None:
    right, moved = [1.0, 2.0, 4.0, 8.0], [1.0, 2.02, 4.04, 8.0]
    assert wrong(right, [1.03, 2.0, 4.0, 8.0], moved, moved) == []
    assert wrong(right, [1.05, 2.0, 4.0, 8.0], moved, moved) == [0]
    assert wrong(right, [1.03, 2.0, 4.0, 8.0], [1.0, 2.0, 4.04, 8.0]) == [0]


def test_integers_may_differ_where_varied_runs_do() -> None:
    for dtype in (np.int32, np.bool_):
        assert wrong([1, 1, 0], [0, 1, 1], dtype=dtype) == [0, 2]
        assert wrong([1, 1, 0], [0, 1, 1], [0, 0, 0], dtype=dtype) == [2]
        assert wrong([1, 1, 0], [0, 1, 1], [0, 1, 0], [1, 1, 1], dtype=dtype) == []


def test_after_many_steps_lanes_answer_for_each_other() -> None:
    right, got, varied = np.ones((4, 3)), np.ones((4, 3)), np.ones((4, 3))
    got[2, 0], varied[2, 2] = 1.3, 1.1
    assert wrong(right, got, varied) == [6]
    assert wrong(right, got, varied, run=ELEMENT) == [6]
    assert wrong(right, got, varied, run=LANES) == []
    got[2, 0] = 1.5
    assert wrong(right, got, varied, run=LANES) == [6]


@pytest.mark.parametrize("slope", [1, -1])
def test_drift_counts_for_later_steps_only(slope: int) -> None:
    rows = Rows(stride=3, count=4, first=0 if slope == 1 else 3, slope=slope)
    stack = dataclasses.replace(STACK, rows=rows)
    right, got, varied = np.ones((4, 3)), np.ones((4, 3)), np.ones((4, 3))
    got[[0, 3], 0], varied[2, 2] = 1.3, 1.1
    assert wrong(right, got, varied, run=stack) == [0 if slope == 1 else 9]


def test_as_many_integers_may_differ_as_in_varied_runs() -> None:
    right, got, varied = (np.zeros((4, 3), np.int32) for _ in range(3))
    varied[1, 1] = 7
    got[2:] = [[1, 0, 1], [0, 1, 1]]
    assert wrong(right, got, varied, dtype=np.int32, run=STACK) == []
    got[2, 1] = 1
    assert wrong(right, got, varied, dtype=np.int32, run=STACK) == [10, 11]
    got[0, 0] = 1
    assert wrong(right, got, varied, dtype=np.int32, run=STACK)[0] == 0


def test_rows_know_their_steps() -> None:
    forward = Rows(stride=6, count=5, first=1, slope=2)
    assert forward.steps(6 * np.arange(1, 5) + 5).tolist() == [0, 0, 1, 1]
    backward = Rows(stride=1, count=4, first=3, slope=-1)
    assert backward.steps(np.array([3, 2, 1, 0])).tolist() == [0, 1, 2, 3]


def test_places_follow_the_layout() -> None:
    element = dataclasses.replace(ELEMENT, minor_to_major=(0, 1), lane_stride=4, num_lanes=3)
    assert element.place(0) == "[0, 0] (lane 0)"
    assert element.place(9) == "[1, 2] (lane 2)"
    assert ELEMENT.place(9) == "[3, 0]"
    scalar = dataclasses.replace(ELEMENT, dimensions=(), minor_to_major=())
    assert scalar.place(0) == "[]"


def check(**changes: Any) -> Check:
    fields: dict[str, Any] = {
        "module": "jit_f",
        "loop": "while.1",
        "source": 'a"b.py:1 (f)',
        "is_step": True,
        "is_exact": False,
        "num_variations": 0,
        "elements": (STACK,),
    }
    return Check(**(fields | changes))


def test_checks_travel_as_text() -> None:
    text = check().to_text()
    assert text.isalnum()
    assert Check.from_text(text) == check()
    exact = check(elements=(ELEMENT, LANES), num_variations=2)
    assert Check.from_text(exact.to_text()) == exact


def compare(given: Check, num_different: int, size: int, *, step: int = 0, before: int = 0) -> Any:
    right = np.zeros(size, np.int32)
    got = right.copy()
    got[:num_different] = 1
    varied = [[right]] * given.num_variations
    return given.compare([right], [got], varied, step, before)


@pytest.mark.parametrize("variations", [0, 2])
def test_few_unexplained_differences_pass(variations: int) -> None:
    given = check(num_variations=variations, elements=(ELEMENT,))
    size, allowed = 10_240, 10 if variations else 40
    outcome = compare(given, allowed, size)
    assert outcome.message == "" and outcome.num_wrong == allowed
    assert "disagree" in compare(given, allowed + 1, size).message
    assert "disagree" in compare(given, 1, size, before=allowed).message
    assert compare(given, 1, size, before=allowed, step=100_000).message == ""
    assert compare(given, 0, size, before=allowed).num_wrong == allowed
    assert "disagree" in compare(given, 1, 100).message


def test_exact_loops_and_whole_runs_are_stricter() -> None:
    assert "disagree" in compare(check(is_exact=True), 1, 12_000).message
    run = check(is_step=False, elements=(ELEMENT,))
    assert compare(run, 100, 10_000).message == ""
    assert "disagree" in compare(run, 101, 10_000).message


def test_message_names_the_first_wrong_step() -> None:
    other = dataclasses.replace(LANES, name="element 0")
    right = [np.zeros(12, np.float32), np.zeros(12, np.float32)]
    got = [np.ones(12, np.float32), np.zeros(12, np.float32)]
    got[1][5:] = 0.25
    given = check(is_step=False, elements=(other, STACK))
    message = given.compare(right, got, [], 4, 0).message
    assert 'loop while.1 at a"b.py:1 (f) of jit_f, in step 1: element 1, f32[4,3]' in message
    assert (
        "computed at a.py:2 (f), is 0.25 by the kernel and 0.0 by XLA at [1, 2] (lane 2)" in message
    )
    assert "7 of 12 values differ" in message
    message = check(is_step=False, elements=(other,)).compare(right[:1], got[:1], [], 4, 0).message
    assert "after 4 steps: element 0" in message
    message = check(elements=(other,)).compare(right[:1], got[:1], [], 4, 0).message
    assert "in step 4: element 0" in message
