"""Which reductions over lanes only leave the loop."""

from __future__ import annotations

import pytest

from fuselane.analysis.lanes import LaneAnalysis, find_lanes
from fuselane.analysis.leaving import find_reductions, reshape_groups
from fuselane.lanes.normalise import normalise
from tests.lanes.loops import counting_loop, loop_of

ADD = """add_bf16 { x = bf16[] parameter(0)  y = bf16[] parameter(1)  ROOT z = bf16[] add(x, y) }"""
STAGES = """
  z = bf16[] constant(0)
  y = bf16[90] sine(e0)
  padded = bf16[96] pad(y, z), padding=0_6
  q = bf16[3,32] reshape(padded)
  r = bf16[3] reduce(q, z), dimensions={1}, to_apply=add_bf16
  s = bf16[] reduce(r, z), dimensions={0}, to_apply=add_bf16
"""


def analyse(body: str, results: list[str], carried: list[str], **more: str) -> LaneAnalysis:
    module = counting_loop(body, results, carried, **more)
    return find_lanes(normalise(loop_of(module)).region, with_leaving=True)


def test_stages_are_one_reduction() -> None:
    """XLA takes a sum of 90 values apart: padded, split into 3 times 32, added up twice."""
    body = STAGES + "t = bf16[] add(e1, s)"
    analysis = analyse(body, ["y", "t"], ["bf16[90]", "bf16[]"], more=ADD)
    assert analysis.num_lanes == 90
    (leaving,) = analysis.leaving
    names = [member.name for member in leaving.reduction.members]
    assert names == ["s", "r", "q", "padded"]
    assert leaving.reduction.source.name == "y.1"
    assert leaving.reduction.combiner == "add"
    assert leaving.lanes == (0,)


def test_stage_that_is_wanted_itself() -> None:
    """The three sums of 32 values go out, too: the lanes are not what is reduced."""
    body = STAGES + "t = bf16[] add(e1, s)\nu = bf16[3] add(r, e2)"
    module = counting_loop(body, ["y", "t", "u"], ["bf16[90]", "bf16[]", "bf16[3]"], more=ADD)
    region = normalise(loop_of(module)).region
    loop = next(i for i in region.instructions if i.opcode == "while")
    sources = {r.root.name: r.source.name for r in find_reductions(loop.body)}
    assert sources == {"s": "r", "r": "q"}


STOPS = {
    "lanes": "w = f32[8] broadcast(s), dimensions={}\ny = f32[8] add(e0, w)\nt = f32[] add(e1, s)",
    "later_lanes": (
        "w = f32[8] broadcast(e1), dimensions={}\ny = f32[8] add(e0, w)\nt = f32[] add(e1, s)"
    ),
    "slice_of_lanes": (
        "y = f32[8] sine(e0)\nk = s32[] convert(s)\n"
        "v = f32[1] dynamic-slice(e0, k), dynamic_slice_sizes={1}\nt = f32[] reshape(v)"
    ),
}


@pytest.mark.parametrize("case", STOPS)
def test_what_lanes_see_does_not_leave(case: str) -> None:
    body = """z = f32[] constant(0)
    s = f32[] reduce(e0, z), dimensions={0}, to_apply=add_f32
    """
    analysis = analyse(body + STOPS[case], ["y", "t"], ["f32[8]", "f32[]"])
    assert not analysis.leaving
    assert analysis.obstacle is not None


def test_what_decides_when_to_stop_does_not_leave() -> None:
    body = """z = f32[] constant(0)
    y = f32[8] sine(e0)
    s = f32[] reduce(y, z), dimensions={0}, to_apply=add_f32"""
    analysis = analyse(
        body,
        ["y", "s"],
        ["f32[8]", "f32[]"],
        condition="c = f32[] constant(3)\nROOT go = pred[] compare(e1, c), direction=LT",
    )
    assert not analysis.leaving


def test_largest_dimension_is_chosen() -> None:
    """The sum over the 100 leaves the loop, that over the 8 stays in each lane."""
    body = """z = f32[] constant(0)
    y = f32[8,100] sine(e0)
    s = f32[8] reduce(y, z), dimensions={1}, to_apply=add_f32
    t = f32[8] add(e1, s)"""
    analysis = analyse(body, ["y", "t"], ["f32[8,100]", "f32[8]"])
    assert analysis.num_lanes == 100
    assert [leaving.reduction.root.name for leaving in analysis.leaving] == ["s"]


def test_dots_that_contract_lanes() -> None:
    body = """y = f32[50,3] sine(e0)
    d = f32[3,4] dot(y, e1), lhs_contracting_dims={0}, rhs_contracting_dims={0}
    t = f32[3,4] add(e2, d)"""
    analysis = analyse(body, ["y", "e1", "t"], ["f32[50,3]", "f32[50,4]", "f32[3,4]"])
    (leaving,) = analysis.leaving
    assert (analysis.num_lanes, leaving.lanes) == (50, (0, 0))


@pytest.mark.parametrize(
    ("source", "target", "groups"),
    [
        ((4, 90, 1, 5), (4, 3, 30, 5), [([0], [0]), ([1], [1, 2]), ([3], [3])]),
        ((6, 4), (3, 8), [([0, 1], [0, 1])]),
        ((1, 7), (7,), [([1], [0])]),
        ((2, 3, 4), (24,), [([0, 1, 2], [0])]),
    ],
)
def test_reshape_groups(
    source: tuple[int, ...], target: tuple[int, ...], groups: list[tuple[list[int], list[int]]]
) -> None:
    assert list(reshape_groups(source, target)) == groups
