"""Loops of so many steps whose lanes freeze, and those whose lanes only look as if they did."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from fuselane.hlo.module import HloModule
from fuselane.lanes.form import form
from tests.lanes.loops import counting_loop, loop_of

SIN = "".join(f"w{k + 1} = f32[{{n}}] sine(w{k})\n" for k in range(3))
WORK = """
  four = f32[] constant(4)
  limit = f32[{n}] broadcast(four), dimensions={{}}
  k = pred[{n}] compare(e0, limit), direction=LT
  w0 = f32[{n}] add(e0, limit)
  {sin}
  y = f32[{n}] select(k, w3, e0)
"""


def loop(body: str, results: Sequence[str], carried: Sequence[str], **more: Any) -> HloModule:
    work = WORK.format(n=64, sin=SIN.format(n=64))
    return counting_loop(work + body, results, carried, **{"returned": "but the counter", **more})


def ends_early(module: HloModule) -> bool:
    program = form(module, loop_of(module))
    assert (program.loop.trip_count is None) == (program.loop.lane_condition is not None)
    return program.loop.lane_condition is not None


FREEZING = {
    "select": ("", ["y"], ["f32[64]"]),
    "count": (
        "c = s32[64] convert(k)\n m = s32[64] add(c, e1)",
        ["y", "m"],
        ["f32[64]", "s32[64]"],
    ),
    "opposite": (
        "q = pred[64] not(k)\n z = f32[64] select(q, e1, w2)",
        ["y", "z"],
        ["f32[64]", "f32[64]"],
    ),
    "array": (
        "b = pred[64,3] broadcast(k), dimensions={0}\n d = f32[64,3] add(e1, e1)\n"
        "z = f32[64,3] select(b, d, e1)",
        ["y", "z"],
        ["f32[64]", "f32[64,3]"],
    ),
    "invariant": ("", ["y", "e1"], ["f32[64]", "f32[64]"]),
}

GOING_ON = {
    "another changes": ("z = f32[64] add(e1, w1)", ["y", "z"], ["f32[64]", "f32[64]"]),
    "other side": ("z = f32[64] select(k, e1, w1)", ["y", "z"], ["f32[64]", "f32[64]"]),
    "other predicate": (
        "q = pred[64] compare(e1, limit), direction=LT\n z = f32[64] select(q, w1, e1)",
        ["y", "z"],
        ["f32[64]", "f32[64]"],
    ),
    "swapped": (
        "z = f32[64] select(k, w1, e0)\n x = f32[64] select(k, w2, e1)",
        ["x", "z"],
        ["f32[64]", "f32[64]"],
    ),
    "counts all": (
        "q = pred[64] not(k)\n c = s32[64] convert(q)\n m = s32[64] add(c, e1)",
        ["y", "m"],
        ["f32[64]", "s32[64]"],
    ),
    "shared": ("z = f32[] multiply(e1, e1)", ["y", "z"], ["f32[64]", "f32[]"]),
}


@pytest.mark.parametrize("name", FREEZING)
def test_ends_with_the_last_lane(name: str) -> None:
    assert ends_early(loop(*FREEZING[name]))


@pytest.mark.parametrize("name", GOING_ON)
def test_goes_on_while_anything_changes(name: str) -> None:
    assert not ends_early(loop(*GOING_ON[name]))


def test_what_changes_by_the_step_does_not_freeze() -> None:
    body = (
        "t = f32[] convert(i)\n u = f32[64] broadcast(t), dimensions={}\n"
        "q = pred[64] compare(e0, u), direction=LT\n z = f32[64] select(q, w3, e0)"
    )
    assert not ends_early(loop(body, ["z"], ["f32[64]"]))


def test_the_number_of_steps_is_not_lost() -> None:
    assert not ends_early(loop(*FREEZING["select"], returned="all"))


def test_short_steps_are_not_worth_asking() -> None:
    body = (
        "four = f32[] constant(4)\n limit = f32[64] broadcast(four), dimensions={}\n"
        "k = pred[64] compare(e0, limit), direction=LT\n d = f32[64] add(e0, e0)\n"
        "y = f32[64] select(k, d, e0)"
    )
    assert not ends_early(counting_loop(body, ["y"], ["f32[64]"], returned="but the counter"))
