"""After how many steps a loop had better ask whether its state is what it was then."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from fuselane.hlo.module import HloModule
from fuselane.lanes.form import form
from tests.lanes.loops import counting_loop, loop_of

NEWTON = """
  two = f32[] constant(2)
  half = f32[] constant(0.5)
  halves = f32[64] broadcast(half), dimensions={}
  twos = f32[64] broadcast(two), dimensions={}
  square = f32[64] multiply(e0, e0)
  error = f32[64] subtract(square, twos)
  slope = f32[64] multiply(twos, e0)
  way = f32[64] divide(error, slope)
  newton = f32[64] subtract(e0, way)
  work = f32[64] sine(newton)
  more = f32[64] cosine(work)
  settled = f32[64] multiply(more, halves)
  passes = pred[64] compare(e0, twos), direction=LT
  count = s32[64] convert(passes)
  ones = s32[64] broadcast(one), dimensions={}
"""


def compared_after(body: str, results: Sequence[str], carried: Sequence[str], **more: Any) -> int:
    module: HloModule = counting_loop(
        NEWTON + body,
        results,
        carried,
        **{"trip_count": 200, "returned": "but the counter", **more},
    )
    return form(module, loop_of(module)).loop.compared_after


@pytest.mark.parametrize(
    ("trip_count", "steps"),
    [(11, 0), (12, 4), (64, 4), (65, 8), (129, 16), (1000, 64), (100_000, 64)],
)
def test_number_of_steps(trip_count: int, steps: int) -> None:
    """A sixteenth of all, but neither few nor many; not if there are hardly more."""
    assert compared_after("", ["settled"], ["f32[64]"], trip_count=trip_count) == steps


SETTLING = {
    "counts what holds": ("n = s32[64] add(e1, count)", ["settled", "n"], ["f32[64]", "s32[64]"]),
    "keeps the largest": (
        "m = s32[64] maximum(e1, count)",
        ["settled", "m"],
        ["f32[64]", "s32[64]"],
    ),
    "passes along": ("", ["settled", "e0"], ["f32[64]", "f32[64]"]),
    "a predicate": ("", ["settled", "passes"], ["f32[64]", "pred[64]"]),
    "Newton's method": ("slow = f32[64] subtract(e1, way)", ["settled", "slow"], ["f32[64]"] * 2),
}

GOING_ON = {
    "counts all": ("n = s32[64] add(e1, ones)", ["settled", "n"], ["f32[64]", "s32[64]"]),
    "a hash": ("n = s32[64] xor(e1, count)", ["settled", "n"], ["f32[64]", "s32[64]"]),
    "time": ("t = f32[64] add(e1, halves)", ["settled", "t"], ["f32[64]"] * 2),
    "moves on": (
        "v = f32[64] multiply(e0, halves)\n x = f32[64] add(e1, v)",
        ["settled", "x"],
        ["f32[64]"] * 2,
    ),
    "asks for the step": (
        "f = f32[] convert(i)\n fs = f32[64] broadcast(f), dimensions={}\n"
        "x = f32[64] multiply(settled, fs)",
        ["x"],
        ["f32[64]"],
    ),
    "the counter twice": ("", ["settled", "next"], ["f32[64]", "s32[]"]),
}


@pytest.mark.parametrize("name", SETTLING)
def test_may_settle(name: str) -> None:
    assert compared_after(*SETTLING[name]) > 0


@pytest.mark.parametrize("name", GOING_ON)
def test_does_not_settle(name: str) -> None:
    assert compared_after(*GOING_ON[name]) == 0


def test_little_work() -> None:
    """What a comparison costs is a share of the work of the steps in between."""
    little = "x = f32[64] multiply(e0, e0)\n y = f32[64] multiply(e1, e1)"
    carried = ["f32[64]", "f32[64]"]
    module = counting_loop(little, ["x", "y"], carried, trip_count=1000, returned="but the counter")
    assert form(module, loop_of(module)).loop.compared_after == 0


def test_rows_are_written() -> None:
    """A step that leaves something behind can't be left out."""
    body = """
  row = f32[1,64] reshape(e0)
  rows = f32[200,64] dynamic-update-slice(e1, row, i, zero)
"""
    assert compared_after(body, ["settled", "rows"], ["f32[64]", "f32[200,64]"]) == 0


def test_lanes_meet() -> None:
    """What a block of lanes makes depends on what others have."""
    body = """
  z = f32[] constant(0)
  sum = f32[] reduce(settled, z), dimensions={0}, to_apply=add_f32
  sums = f32[64] broadcast(sum), dimensions={}
  y = f32[64] divide(settled, sums)
"""
    assert compared_after(body, ["y"], ["f32[64]"]) == 0
