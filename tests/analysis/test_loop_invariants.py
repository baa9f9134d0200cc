"""Flags a loop carries that imply what its lanes go on by: what is proven, what only looks so."""

from __future__ import annotations

from typing import Final

import pytest

from fuselane.analysis.lanes import find_lanes
from fuselane.hlo.module import HloModule
from fuselane.lanes.normalise import normalise
from tests.hlo.xla import module_of

INNER: Final = "(f32[8], s32[8], pred[8], f32[20], s32[], f32[8,8])"
OUTER: Final = "(f32[8], s32[8], f32[20], s32[], f32[8,8])"
CONSTANTS: Final = """
  one = s32[] constant(1)
  ones = s32[8] broadcast(one), dimensions={}
  two = s32[] constant(2)
  twos = s32[8] broadcast(two), dimensions={}
  few = s32[] constant(20)
  fews = s32[8] broadcast(few), dimensions={}
  zero = s32[] constant(0)
  zeros = s32[8] broadcast(zero), dimensions={}
  no = pred[] constant(false)
  point = f32[] constant(0.5)
  points = f32[8] broadcast(point), dimensions={}
"""
ELEMENTS: Final = (
    """
  x = f32[8] get-tuple-element(p), index=0
  n = s32[8] get-tuple-element(p), index=1
  d = pred[8] get-tuple-element(p), index=2
  t = f32[20] get-tuple-element(p), index=3
  i = s32[] get-tuple-element(p), index=4
  v = f32[8,8] get-tuple-element(p), index=5
"""
    + CONSTANTS
)


def at(name: str, index: str) -> str:
    """Returns an entry of the table, with an index as JAX writes it."""
    return f"""
  {name}_low = pred[8] compare({index}, zeros), direction=LT
  {name}_end = s32[8] add({index}, fews)
  {name}_index = s32[8] select({name}_low, {name}_end, {index})
  {name}_column = s32[8,1] reshape({name}_index)
  {name} = f32[8] gather(t, {name}_column), offset_dims={{}}, collapsed_slice_dims={{0}},
    start_index_map={{0}}, index_vector_dim=1, slice_sizes={{1}}
"""


def below(name: str, index: str, limit: str = "fews") -> str:
    """Returns whether an index is inside and the entry there is small."""
    return f"""{at(f"{name}_entry", index)}
  {name}_small = pred[8] compare({name}_entry, points), direction=LE
  {name}_inside = pred[8] compare({index}, {limit}), direction=LT
  {name} = pred[8] and({name}_small, {name}_inside)
"""


STEP: Final = f"""
  following = s32[8] add(n, ones)
{below("next", "following")}
  flag = pred[8] and(d, next)
  m = s32[8] select(d, following, n)
  more = f32[8] add(x, points)
  y = f32[8] select(d, more, x)
"""


def loops(
    body: str = STEP,
    *,
    go: str = below("go", "n"),
    entry: str = below("start", "n"),
    initial: str = "start",
    first: str = "n",
    x: str = "y",
    n: str = "m",
    d: str = "flag",
    t: str = "t",
    v: str = "v",
) -> HloModule:
    """Returns a loop of three steps with a loop in it that lanes may leave one by one."""
    text = f"""
HloModule test
put {{ old = f32[] parameter(0)  ROOT new = f32[] parameter(1) }}
plus {{ old = f32[] parameter(0)  new = f32[] parameter(1)  ROOT sum = f32[] add(old, new) }}
any {{ l = pred[] parameter(0)  r = pred[] parameter(1)  ROOT o = pred[] or(l, r) }}
inner_body {{
  p = {INNER} parameter(0)
{ELEMENTS}{body}
  ROOT root = {INNER} tuple({x}, {n}, {d}, {t}, i, {v})
}}
inner_condition {{
  p = {INNER} parameter(0)
{ELEMENTS}{go}
  ROOT any = pred[] reduce(go, no), dimensions={{0}}, to_apply=any
}}
body {{
  p = {OUTER} parameter(0)
  x = f32[8] get-tuple-element(p), index=0
  n = s32[8] get-tuple-element(p), index=1
  t = f32[20] get-tuple-element(p), index=2
  i = s32[] get-tuple-element(p), index=3
  v = f32[8,8] get-tuple-element(p), index=4
{CONSTANTS}{entry}
  init = {INNER} tuple(x, {first}, {initial}, t, i, v)
  loop = {INNER} while(init), condition=inner_condition, body=inner_body
  y = f32[8] get-tuple-element(loop), index=0
  m = s32[8] get-tuple-element(loop), index=1
  w = f32[8,8] get-tuple-element(loop), index=5
  j = s32[] add(i, one)
  ROOT root = {OUTER} tuple(y, m, t, j, w)
}}
condition {{
  p = {OUTER} parameter(0)
  i = s32[] get-tuple-element(p), index=3
  three = s32[] constant(3)
  ROOT go_on = pred[] compare(i, three), direction=LT
}}
ENTRY main {{
  a = f32[8] parameter(0)
  b = s32[8] parameter(1)
  c = f32[20] parameter(2)
  k = s32[] constant(0)
  e = f32[8,8] parameter(3)
  init = {OUTER} tuple(a, b, c, k, e)
  ROOT loop = {OUTER} while(init), condition=condition, body=body
}}
"""
    return module_of(text)


def is_proven(module: HloModule) -> bool:
    """Whether lanes may leave the inner loop one by one."""
    loop = next(i for i in module.entry.instructions if i.opcode == "while")
    analysis = find_lanes(normalise(loop).region)
    return analysis.obstacle is None and len(analysis.conditions) == 1


def step(flag: str, index: str = "following", more: str = "") -> str:
    """Returns a step whose flag and next index are made otherwise."""
    lines = STEP.replace("flag = pred[8] and(d, next)", f"flag = pred[8] {flag}")
    return more + lines.replace("select(d, following, n)", f"select(d, {index}, n)")


MASKS: Final = """
  mask = pred[8] constant({1,0,1,0,1,0,1,0})
  across = pred[8,8] broadcast(mask), dimensions={0}
  other = pred[8] constant({1,0,1,0,1,0,1,0})
  along = pred[8,8] broadcast(other), dimensions={1}
  wide = pred[8,8] broadcast(d), dimensions={0}
  turned = f32[8,8] reverse(v), dimensions={1}
  more_turned = f32[8,8] negate(turned)
  moved = f32[8,8] select(wide, more_turned, turned)
  inside = f32[8,8] select(along, v, moved)
  outside = f32[8,8] select(across, inside, v)
"""
FURTHER: Final = "  further = s32[8] add(following, ones)\n"


def write(
    *, windows: str = "windows", read_at: str = "n_column", read: str = "v", how: str = "put"
) -> str:
    """Returns a step that writes to a row of `v` at `n`, in lanes that are done what is there."""
    dimensions = "index_vector_dim=1"
    gathered = f"""offset_dims={{}}, collapsed_slice_dims={{1}}, start_index_map={{1}},
    operand_batching_dims={{0}}, start_indices_batching_dims={{0}}, slice_sizes={{1,1}},
    {dimensions}"""
    scattered = f"""update_window_dims={{}}, inserted_window_dims={{1}},
    scatter_dims_to_operand_dims={{1}}, input_batching_dims={{0}},
    scatter_indices_batching_dims={{0}}, {dimensions}, to_apply={how}"""
    return f"""{STEP}
  n_column = s32[8,1] reshape(n)
  m_column = s32[8,1] reshape(following)
  changed = f32[8,8] negate(v)
  there = f32[8] gather({read}, {read_at}), {gathered}
  windows = f32[8] select(d, x, there)
  always = f32[8] select(next, x, there)
  written = f32[8,8] scatter(v, n_column, {windows}), {scattered}
"""


GOOD: Final = "  good = pred[8] compare(x, points), direction=LT\n"
SHUT_OUT: Final = f"{GOOD}  begun = s32[8] select(good, n, fews)\n"
COUNTED: Final = step("and(d, inside)").replace(
    "  flag", "  inside = pred[8] compare(following, fews), direction=LT\n  flag", 1
)
PROVEN: Final = {
    "writes_what_is_there": loops(write(), v="written"),
    "flag_of_the_next_step": loops(),
    "constants_added_in_two_steps": loops(
        STEP.replace(
            "following = s32[8] add(n, ones)",
            """second = s32[8] add(n, twos)
            following = s32[8] subtract(second, ones)
            also = s32[8] add(ones, n)""",
        ).replace("select(d, following, n)", "select(d, also, n)")
    ),
    "stronger_flag": loops(
        step("and(d, both)", more="").replace(
            "  flag",
            """  small = pred[8] compare(x, points), direction=LT
            both = pred[8] and(next, small)
            flag""",
            1,
        ),
        entry=below("begin", "n")
        + """  lower = pred[8] compare(x, points), direction=LT
          start = pred[8] and(begin, lower)
        """,
    ),
    "flag_of_lanes_that_are_done": loops(
        STEP.replace("select(d, following, n)", "select(d, n, following)")
        .replace("select(d, more, x)", "select(d, x, more)")
        .replace(
            "flag = pred[8] and(d, next)",
            """past = pred[8] not(next)
            flag = pred[8] or(d, past)""",
        ),
        entry=below("begin", "n") + "  start = pred[8] not(begin)\n",
    ),
    "known_at_the_start": loops(
        COUNTED,
        go="  go = pred[8] compare(n, fews), direction=LT\n",
        entry="  start = pred[8] constant({1,1,1,1,1,1,1,1})\n",
        first="zeros",
    ),
    "shut_out_at_the_start": loops(
        entry=SHUT_OUT + below("begin", "begun") + "  start = pred[8] and(good, begin)\n",
        first="begun",
    ),
    "masks_along_the_same_dimension": loops(
        STEP + MASKS.replace("dimensions={1}\n  wide", "dimensions={0}\n  wide"), v="outside"
    ),
    "never_again": loops(step("constant({0,0,0,0,0,0,0,0})")),
}


@pytest.mark.parametrize("name", PROVEN)
def test_flags_that_imply_the_predicate(name: str) -> None:
    assert is_proven(PROVEN[name])


UNPROVEN: Final = {
    "writes_what_is_elsewhere": loops(write(read_at="m_column"), v="written"),
    "writes_what_was_there_negated": loops(write(read="changed"), v="written"),
    "writes_where_done": loops(write(windows="always"), v="written"),
    "adds_what_is_there": loops(write(how="plus"), v="written"),
    "any_flag_at_the_start": loops(
        entry="  start = pred[8] compare(x, points), direction=LT\n",
    ),
    "set_at_the_start": loops(entry="  start = pred[8] constant({1,1,1,1,1,1,1,1})\n"),
    "known_to_be_wrong_at_the_start": loops(
        COUNTED,
        go="  go = pred[8] compare(n, fews), direction=LT\n",
        entry="  start = pred[8] constant({1,1,1,1,1,1,1,1})\n",
        first="fews",
    ),
    "weaker_at_the_start": loops(
        entry=below("begin", "n")
        + """  lower = pred[8] compare(x, points), direction=LT
          start = pred[8] or(begin, lower)
        """,
    ),
    "others_shut_out_at_the_start": loops(
        entry=SHUT_OUT.replace("select(good, n, fews)", "select(good, fews, n)")
        + below("begin", "n")
        + "  start = pred[8] and(good, begin)\n",
        first="begun",
    ),
    "one_late_at_the_start": loops(
        entry="  before = s32[8] subtract(n, ones)\n" + below("start", "before")
    ),
    "asks_for_this_step": loops(
        STEP + below("now", "n") + "  late = pred[8] and(d, now)\n", d="late"
    ),
    "goes_further_than_it_asks": loops(
        STEP.replace("select(d, following, n)", "select(d, further, n)").replace(
            "  flag", FURTHER + "  flag", 1
        )
    ),
    "comes_back": loops(step("or(d, next)")),
    "forgets_who_was_done": loops(step("and(next, next)")),
    "another_table_limit": loops(
        STEP.replace("compare(following, fews)", "compare(following, most)").replace(
            "  following =",
            """  nearly = s32[] constant(21)
            most = s32[8] broadcast(nearly), dimensions={}
            following =""",
            1,
        )
    ),
    "goes_by_something_else": loops(
        STEP.replace("select(d, more, x)", "select(before, more, x)").replace(
            "  more", "  before = pred[8] compare(x, points), direction=LT\n  more", 1
        )
    ),
    "the_table_changes": loops(STEP + "  u = f32[20] negate(t)\n", t="u"),
    "flags_of_neighbours": loops(
        STEP + "  turned = pred[8] reverse(flag), dimensions={0}\n", d="turned"
    ),
    "not_a_number": loops(
        # not (entry > 0.5) is weaker than entry <= 0.5
        STEP.replace(
            "next_small = pred[8] compare(next_entry, points), direction=LE",
            """next_large = pred[8] compare(next_entry, points), direction=GT
            next_small = pred[8] not(next_large)""",
        )
    ),
    "masks_along_other_dimensions": loops(STEP + MASKS, v="outside"),
}


@pytest.mark.parametrize("name", UNPROVEN)
def test_flags_that_do_not(name: str) -> None:
    assert not is_proven(UNPROVEN[name])
