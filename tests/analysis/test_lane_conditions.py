"""Loops that lanes leave one by one: what is proven, and what is missing where it is not."""

from __future__ import annotations

from typing import Final

import pytest

from fuselane.analysis.lanes import LaneAnalysis, find_lanes
from fuselane.decisions import Reason
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.module import HloModule
from fuselane.lanes.normalise import normalise
from tests.hlo.xla import module_of

APPLIED: Final = """
any { l = pred[] parameter(0)  r = pred[] parameter(1)  ROOT o = pred[] or(l, r) }
any_too { l2 = pred[] parameter(0)  r2 = pred[] parameter(1)  ROOT o2 = pred[] or(r2, l2) }
all { l3 = pred[] parameter(0)  r3 = pred[] parameter(1)  ROOT o3 = pred[] and(l3, r3) }
"""
ELEMENTS: Final = """
  x = f32[8] get-tuple-element(p), index=0
  n = s32[8] get-tuple-element(p), index=1
  d = pred[8] get-tuple-element(p), index=2
  i = s32[] get-tuple-element(p), index=3
  v = f32[8,3] get-tuple-element(p), index=4
  no = pred[] constant(false)
  yes = pred[] constant(true)
  hundred = f32[] constant(100)
  hundreds = f32[8] broadcast(hundred), dimensions={}
  one = s32[] constant(1)
  ones = s32[8] broadcast(one), dimensions={}
  zero = s32[] constant(0)
  zeros = s32[8] broadcast(zero), dimensions={}
  two = f32[] constant(2)
  twos = f32[8] broadcast(two), dimensions={}
  more = f32[8] multiply(x, twos)
  counted = s32[8] add(n, ones)
  next = s32[] add(i, one)
  below = pred[8] compare(x, hundreds), direction=LT
"""
SHAPE: Final = "(f32[8], s32[8], pred[8], s32[], f32[8,3])"


def loop(
    body: str,
    *,
    x: str = "x",
    n: str = "n",
    d: str = "d",
    i: str = "i",
    v: str = "v",
    condition: str = "ROOT go = pred[] reduce(below, no), dimensions={0}, to_apply=any",
    more: str = "",
    result: str = "x = f32[8] get-tuple-element(loop), index=0\nROOT o = (f32[8]) tuple(x)",
) -> HloModule:
    text = f"""
HloModule test
{APPLIED}{more}
body {{
  p = {SHAPE} parameter(0)
{ELEMENTS}
{body}
  ROOT root = {SHAPE} tuple({x}, {n}, {d}, {i}, {v})
}}
condition {{
  p = {SHAPE} parameter(0)
{ELEMENTS}
  {condition}
}}
ENTRY main {{
  a = f32[8] parameter(0)
  b = s32[8] parameter(1)
  c = pred[8] parameter(2)
  k = s32[] parameter(3)
  w = f32[8,3] parameter(4)
  init = {SHAPE} tuple(a, b, c, k, w)
  loop = {SHAPE} while(init), condition=condition, body=body
  {result}
}}
"""
    return module_of(text)


def analyse(module: HloModule) -> LaneAnalysis:
    user_loop = next(i for i in module.entry.instructions if i.opcode == "while")
    return find_lanes(normalise(user_loop).region)


def loops_of(analysis: LaneAnalysis) -> list[HloInstruction]:
    return list(analysis.conditions)


STEP = "y = f32[8] select(below, more, x)"


def sliced(where: str) -> str:
    """A predicate of rows of two of an array's three columns."""
    return f"""w = f32[8,2] slice(v), slice={{[0:8], [{where}]}}
        q = f32[8,2] multiply(w, w)
        none = f32[] constant(0)
        length = f32[8] reduce(q, none), dimensions={{1}}, to_apply=sum
        short = pred[8] compare(length, hundreds), direction=LT
        """


SLICED: Final = {
    "condition": sliced("0:2") + "ROOT go = pred[] reduce(short, no), dimensions={0}, to_apply=any",
    "more": "sum { l4 = f32[] parameter(0)  r4 = f32[] parameter(1)  ROOT o4 = f32[] add(l4, r4) }",
}
OF_SLICE: Final = "y = f32[8] select(short, more, x)"


PROVEN: Final = {
    "predicate_of_a_slice": loop(sliced("0:2") + OF_SLICE, x="y", **SLICED),
    "select": loop(STEP, x="y"),
    "select_of_not": loop(
        """above = pred[8] not(below)
        y = f32[8] select(above, x, more)""",
        x="y",
    ),
    "mirrored_comparison": loop(
        """below2 = pred[8] compare(hundreds, x), direction=GT
        y = f32[8] select(below2, more, x)""",
        x="y",
    ),
    "opposite_comparison_of_integers": loop(
        """over = pred[8] compare(n, ones), direction=GT
        m = s32[8] select(over, n, counted)""",
        n="m",
        condition="""few = pred[8] compare(n, ones), direction=LE
        ROOT go = pred[] reduce(few, no), dimensions={0}, to_apply=any""",
        result="m = s32[8] get-tuple-element(loop), index=1\nROOT o = (s32[8]) tuple(m)",
    ),
    "nested_selects": loop(
        """even = pred[8] compare(n, zeros), direction=EQ
        inner = f32[8] select(even, more, x)
        y = f32[8] select(below, inner, x)""",
        x="y",
    ),
    "narrower_predicate": loop(
        """even = pred[8] compare(n, zeros), direction=EQ
        both = pred[8] and(even, below)
        y = f32[8] select(both, more, x)""",
        x="y",
    ),
    "conjunction": loop(
        """few = pred[8] compare(n, ones), direction=LT
        both = pred[8] and(below, few)
        y = f32[8] select(both, more, x)
        m = s32[8] select(both, counted, n)""",
        x="y",
        n="m",
        condition="""few = pred[8] compare(n, ones), direction=LT
        both = pred[8] and(few, below)
        ROOT go = pred[] reduce(both, no), dimensions={0}, to_apply=any""",
    ),
    "wider_than_the_lanes": loop(
        """wide = pred[8,3] broadcast(below), dimensions={0}
        more_v = f32[8,3] add(v, v)
        u = f32[8,3] select(wide, more_v, v)
        y = f32[8] select(below, more, x)""",
        x="y",
        v="u",
    ),
    "counted_by_addition": loop(
        """goes = s32[8] convert(below)
        m = s32[8] add(n, goes)
        y = f32[8] select(below, more, x)""",
        x="y",
        n="m",
    ),
    "counted_by_chosen_addition": loop(
        """goes = s32[8] select(below, ones, zeros)
        m = s32[8] add(goes, n)
        y = f32[8] select(below, more, x)""",
        x="y",
        n="m",
    ),
    "flags_of_those_done": loop(
        """large = pred[8] compare(x, hundreds), direction=GE
        e = pred[8] or(d, large)
        y = f32[8] select(d, x, more)""",
        x="y",
        d="e",
        condition="""todo = pred[8] not(d)
        ROOT go = pred[] reduce(todo, no), dimensions={0}, to_apply=any""",
    ),
    "not_all_done": loop(
        """large = pred[8] compare(x, hundreds), direction=GE
        e = pred[8] or(d, large)
        y = f32[8] select(d, x, more)""",
        x="y",
        d="e",
        condition="""every = pred[] reduce(d, yes), dimensions={0}, to_apply=all
        ROOT go = pred[] not(every)""",
    ),
    "common_counter": loop(
        STEP,
        x="y",
        i="next",
        condition="""some = pred[] reduce(below, no), dimensions={0}, to_apply=any
        limit = s32[] constant(50)
        early = pred[] compare(i, limit), direction=LT
        ROOT go = pred[] and(some, early)""",
    ),
    "or_something_uniform": loop(
        STEP,
        x="y",
        condition="""some = pred[] reduce(below, no), dimensions={0}, to_apply=any
        limit = s32[] constant(50)
        early = pred[] compare(i, limit), direction=LT
        ROOT go = pred[] or(some, early)""",
    ),
    "tree_of_reductions": loop(
        STEP,
        x="y",
        condition="""some = pred[3] reduce-window(below, no), window={size=3 stride=3 pad=0_1},
            to_apply=any
        ROOT go = pred[] reduce(some, no), dimensions={0}, to_apply=any_too""",
    ),
    "flag_that_nobody_reads": loop(
        """e = pred[8] not(d)
        both = pred[8] and(below, d)
        y = f32[8] select(both, more, x)""",
        x="y",
        d="e",
    ),
    "reshaped": loop(
        """row_x = f32[1,8] reshape(x)
        row_more = f32[1,8] reshape(more)
        row_below = pred[1,8] reshape(below)
        row_y = f32[1,8] select(row_below, row_more, row_x)
        y = f32[8] reshape(row_y)""",
        x="y",
    ),
}


@pytest.mark.parametrize("name", PROVEN)
def test_lanes_that_stop_one_by_one(name: str) -> None:
    analysis = analyse(PROVEN[name])
    assert analysis.obstacle is None, analysis.obstacle
    assert analysis.num_lanes == 8
    assert len(loops_of(analysis)) == 1


CHANGED = "may change lanes that are done"
UNPROVEN: Final = {
    "predicate_of_another_slice": (
        loop(sliced("1:3") + OF_SLICE, x="y", **SLICED),
        "more",
        CHANGED,
    ),
    "no_select": (loop("", x="more"), "more", CHANGED),
    "wrong_side": (loop("y = f32[8] select(below, x, more)", x="y"), "more", CHANGED),
    "other_predicate": (loop("y = f32[8] select(d, more, x)", x="y"), "more", CHANGED),
    "weaker_predicate": (
        loop(
            """either = pred[8] or(below, d)
            y = f32[8] select(either, more, x)""",
            x="y",
        ),
        "more",
        CHANGED,
    ),
    "other_element": (loop("y = f32[8] select(below, more, hundreds)", x="y"), "", CHANGED),
    "not_the_opposite_for_nan": (
        loop(
            """above = pred[8] compare(x, hundreds), direction=GE
            y = f32[8] select(above, x, more)""",
            x="y",
        ),
        "more",
        CHANGED,
    ),
    "one_of_two": (
        loop(
            """few = pred[8] compare(n, ones), direction=LT
            both = pred[8] and(below, few)
            y = f32[8] select(both, more, x)""",
            x="y",
            n="counted",
            condition="""few = pred[8] compare(n, ones), direction=LT
            both = pred[8] and(below, few)
            ROOT go = pred[] reduce(both, no), dimensions={0}, to_apply=any""",
        ),
        "counted",
        CHANGED,
    ),
    "flag_that_flips": (
        loop(
            """e = pred[8] not(d)
            both = pred[8] and(below, d)
            y = f32[8] select(both, more, x)""",
            x="y",
            d="e",
            result="""x = f32[8] get-tuple-element(loop), index=0
            d = pred[8] get-tuple-element(loop), index=2
            ROOT o = (f32[8], pred[8]) tuple(x, d)""",
        ),
        "e",
        CHANGED,
    ),
    "depends_on_what_changes_for_all": (
        loop(
            """is = s32[8] broadcast(i), dimensions={}
            few = pred[8] compare(n, is), direction=LT
            m = s32[8] select(few, counted, n)""",
            n="m",
            i="next",
            condition="""is = s32[8] broadcast(i), dimensions={}
            few = pred[8] compare(n, is), direction=LT
            ROOT go = pred[] reduce(few, no), dimensions={0}, to_apply=any""",
            result="m = s32[8] get-tuple-element(loop), index=1\nROOT o = (s32[8]) tuple(m)",
        ),
        "go",
        "which changes for all lanes",
    ),
    "counter_needed_afterwards": (
        loop(
            STEP,
            x="y",
            i="next",
            result="""x = f32[8] get-tuple-element(loop), index=0
            i = s32[] get-tuple-element(loop), index=3
            ROOT o = (f32[8], s32[]) tuple(x, i)""",
        ),
        "",
        "is needed after the loop",
    ),
    "until_any": (
        loop(
            STEP,
            x="y",
            condition="""large = pred[8] compare(x, hundreds), direction=GE
            some = pred[] reduce(large, no), dimensions={0}, to_apply=any
            ROOT go = pred[] not(some)""",
        ),
        "some",
        "reduces it",
    ),
    "all_go_on": (
        loop(
            STEP,
            x="y",
            condition="ROOT go = pred[] reduce(below, yes), dimensions={0}, to_apply=all",
        ),
        "go",
        "reduces it",
    ),
    "two_reductions": (
        loop(
            STEP,
            x="y",
            condition="""some = pred[] reduce(below, no), dimensions={0}, to_apply=any
            small = pred[8] compare(x, twos), direction=LT
            other = pred[] reduce(small, no), dimensions={0}, to_apply=any
            ROOT go = pred[] and(some, other)""",
        ),
        "",
        "both end the loop",
    ),
}


@pytest.mark.parametrize("name", UNPROVEN)
def test_lanes_that_must_wait(name: str) -> None:
    module, culprit, why = UNPROVEN[name]
    obstacle = analyse(module).obstacle
    assert obstacle is not None
    decision = obstacle.decision
    assert decision.reason is Reason.DATA_DEPENDENT_TRIP_COUNT
    assert why in decision.sentence
    assert culprit in ("", decision.instruction)
    assert decision.sentence.startswith("How often the loop runs depends")


def test_the_predicate_is_found_in_the_body() -> None:
    (condition,) = analyse(PROVEN["conjunction"]).conditions.values()
    assert condition.in_body is None, "its operands have another order there"
    (condition,) = analyse(PROVEN["select"]).conditions.values()
    assert condition.in_body is not None
    assert condition.in_body.opcode == "compare"
    assert condition.is_cheap


def test_recurrences_that_never_meet_run_together() -> None:
    text = """
HloModule test
body {
  p = (s32[], f32[8], s32[8], f32[5]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  x = f32[8] get-tuple-element(p), index=1
  n = s32[8] get-tuple-element(p), index=2
  u = f32[5] get-tuple-element(p), index=3
  one = s32[] constant(1)
  next = s32[] add(i, one)
  y = f32[8] multiply(x, x)
  m = s32[8] add(n, n)
  w = f32[5] add(u, u)
  ROOT root = (s32[], f32[8], s32[8], f32[5]) tuple(next, y, m, w)
}
condition {
  p = (s32[], f32[8], s32[8], f32[5]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  ten = s32[] constant(10)
  ROOT go = pred[] compare(i, ten), direction=LT
}
ENTRY main {
  a = f32[8] parameter(0)
  b = s32[8] parameter(1)
  c = f32[5] parameter(2)
  zero = s32[] constant(0)
  init = (s32[], f32[8], s32[8], f32[5]) tuple(zero, a, b, c)
  ROOT loop = (s32[], f32[8], s32[8], f32[5]) while(init), condition=condition, body=body
}
"""
    analysis = analyse(module_of(text))
    lanes = {i.name: d for i, d in analysis.lane_dimensions.items()}
    assert lanes["y"] == 0
    assert lanes["m"] == 0
    assert lanes["w"] is None
