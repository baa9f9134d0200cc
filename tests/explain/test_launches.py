"""What a run launches: kernels, loops, and how often each."""

from __future__ import annotations

from typing import Final

from fuselane.explain.launches import find_launches
from tests.hlo import xla

NESTED: Final = """
HloModule nested, is_scheduled=true
inner_body {
  p = (s32[], f32[8]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  one = s32[] constant(1)
  next = s32[] add(i, one)
  x = f32[8] get-tuple-element(p), index=1
  y = f32[8] sine(x)
  ROOT r = (s32[], f32[8]) tuple(next, y)
}
inner_condition {
  p = (s32[], f32[8]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  n = s32[] constant(5)
  ROOT less = pred[] compare(i, n), direction=LT
}
outer_body {
  p = (s32[], f32[8]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  one = s32[] constant(1)
  next = s32[] add(i, one)
  x = f32[8] get-tuple-element(p), index=1
  zero = s32[] constant(0)
  start = (s32[], f32[8]) tuple(zero, x)
  inner = (s32[], f32[8]) while(start), condition=inner_condition, body=inner_body
  z = f32[8] get-tuple-element(inner), index=1
  ROOT r = (s32[], f32[8]) tuple(next, z)
}
outer_condition {
  p = (s32[], f32[8]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  n = s32[] constant(3)
  ROOT less = pred[] compare(i, n), direction=LT
}
ENTRY main {
  input = f32[8] parameter(0)
  c = f32[8] cosine(input)
  zero = s32[] constant(0)
  init = (s32[], f32[8]) tuple(zero, c)
  outer = (s32[], f32[8]) while(init), condition=outer_condition, body=outer_body OUTER
  ROOT out = f32[8] get-tuple-element(outer), index=1
}
"""
KNOWN: Final = ', backend_config={"known_trip_count":{"n":"3"}}'


def counts(text: str) -> dict[str, int | None]:
    found = find_launches(xla.module_of(text))
    return {kernel.name: launch.count for kernel, launch in found.kernels.items()}


def test_launches_are_products_of_trip_counts() -> None:
    found = counts(NESTED.replace("OUTER", ""))
    # The counters of both loops, the conditions once more than the bodies they guard.
    assert sorted(v for v in found.values() if v is not None) == [1, 3, 4, 15, 15, 18]
    assert found["c"] == 1
    assert found["y"] == 15


def test_xla_asks_no_condition_whose_answers_it_knows() -> None:
    found = counts(NESTED.replace("OUTER", KNOWN))
    assert sorted(v for v in found.values() if v is not None) == [0, 1, 3, 15, 15, 18]


def test_an_unknown_trip_count_makes_launches_unknown() -> None:
    text = NESTED.replace("OUTER", "").replace("n = s32[] constant(5)", "n = s32[] add(i, i)")
    found = counts(text)
    assert found["y"] is None
    assert found["c"] == 1


def test_loops_come_outermost_first() -> None:
    found = find_launches(xla.module_of(NESTED.replace("OUTER", KNOWN)))
    outer, inner = found.loops.values()
    assert (outer.parent, outer.entries, outer.trip_count) == (None, 1, 3)
    assert (inner.parent, inner.entries, inner.trip_count) == (outer.instruction, 3, 5)


def test_branches_are_taken_to_be_as_likely_as_the_others() -> None:
    text = """
HloModule branches, is_scheduled=true
yes { a = f32[8] parameter(0)  ROOT b = f32[8] negate(a) }
no { a = f32[8] parameter(0)  ROOT b = f32[8] abs(a) }
ENTRY main {
  p = pred[] parameter(0)
  x = f32[8] parameter(1)
  ROOT c = f32[8] conditional(p, x, x), true_computation=yes, false_computation=no
}
"""
    found = find_launches(xla.module_of(text))
    assert [launch.per_iteration for launch in found.kernels.values()] == [0.5, 0.5]
    assert [launch.count for launch in found.kernels.values()] == [1, 1]


def test_a_small_call_is_walked_as_one_function() -> None:
    text = NESTED.replace("OUTER", "").replace(
        "outer = (s32[], f32[8]) while(init), condition=outer_condition, body=outer_body",
        "outer = (s32[], f32[8]) call(init), to_apply=small,"
        ' frontend_attributes={xla_cpu_small_call="true"}',
    )
    text = text.replace(
        "ENTRY",
        "small {\n  a = (s32[], f32[8]) parameter(0)\n  ROOT w = (s32[], f32[8]) while(a),"
        f" condition=outer_condition, body=outer_body {KNOWN}\n}}\nENTRY",
    )
    found = find_launches(xla.module_of(text))
    # A function asks the condition, whatever is known of the trip count.
    assert counts(text) == counts(NESTED.replace("OUTER", ""))
    functions = {k.name: launch.function for k, launch in found.kernels.items()}
    assert functions.pop("c") is None
    assert {call and call.name for call in functions.values()} == {"outer"}
    assert [loop.function and loop.function.name for loop in found.loops.values()] == ["outer"] * 2
    assert [loop.parent and loop.parent.name for loop in found.loops.values()] == [None, "w"]
