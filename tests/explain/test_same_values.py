"""What became of an instruction, told by the value it computes."""

from __future__ import annotations

import gc
from typing import Final

import pytest

from fuselane import collector
from fuselane.explain.build import build_module
from fuselane.explain.same_values import SameValues
from tests.explain.modules import capture_text
from tests.hlo import xla

EARLIER: Final = """
HloModule m
ENTRY main {
  x = f32[8] parameter(0)
  s.1 = f32[8] sine(x)
  s.2 = f32[8] sine(s.1)
  s.3 = f32[8] sine(s.2)
  ROOT d = f32[8] divide(s.3, s.1)
}
"""
FINAL: Final = """
HloModule m, is_scheduled=true
twice {
  a = f32[8] parameter(0)
  s.7 = f32[8] sine(a)
  ROOT s.8 = f32[8] sine(s.7)
}
over {
  a = f32[8] parameter(0)
  b = f32[8] parameter(1)
  ROOT d.1 = f32[8] divide(a, b)
}
ENTRY main {
  x.1 = f32[8] parameter(0)
  c = f32[8] copy(x.1)
  first = f32[8] sine(x.1)
  f = f32[8] fusion(first), kind=kLoop, calls=twice
  unlike = f32[8] cosine(c)
  ROOT g = f32[8] fusion(f, first), kind=kLoop, calls=over
}
"""


def test_a_value_is_found_through_fusions_and_copies_whatever_its_name() -> None:
    final, earlier = xla.module_of(FINAL), xla.module_of(EARLIER)
    values = SameValues(final, earlier)
    former = {i.name: values.former(i) for c in final.computations for i in c.instructions}
    names = {name: i.name for name, i in former.items() if i is not None}
    expected = {"x.1": "x", "c": "x", "first": "s.1", "s.7": "s.2", "s.8": "s.3", "f": "s.3"}
    assert {name: names.get(name) for name in expected} == expected
    assert names["g"] == "d"
    assert "unlike" not in names


_LOOP: Final = """
body {
  p = (s32[], f32[8]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  one = s32[] constant(1)
  up = s32[] add(i, one)
  v = f32[8] get-tuple-element(p), index=1
  sined = f32[8] sine(v)
  ROOT r = (s32[], f32[8]) tuple(up, sined)
}
condition {
  p = (s32[], f32[8]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  n = s32[] constant(10)
  ROOT test = pred[] compare(i, n), direction=LT
}
"""


def test_a_value_behind_a_loop_that_was_moved_into_a_call() -> None:
    earlier = xla.module_of(
        f"""HloModule m
{_LOOP}
ENTRY main {{
  x = f32[8] parameter(0)
  zero = s32[] constant(0)
  init = (s32[], f32[8]) tuple(zero, x)
  w = (s32[], f32[8]) while(init), condition=condition, body=body
  y = f32[8] get-tuple-element(w), index=1
  ROOT end = f32[8] cosine(y)
}}"""
    )
    final = xla.module_of(
        f"""HloModule m
{_LOOP}
small {{
  a = (s32[], f32[8]) parameter(0)
  ROOT w.9 = (s32[], f32[8]) while(a), condition=condition, body=body
}}
ENTRY main {{
  x = f32[8] parameter(0)
  zero = s32[] constant(0)
  init = (s32[], f32[8]) tuple(zero, x)
  c = (s32[], f32[8]) call(init), to_apply=small
  z = f32[8] get-tuple-element(c), index=1
  ROOT last = f32[8] cosine(z)
}}"""
    )
    former = SameValues(final, earlier).former(final.entry.root)
    assert former is not None and former.name == "end"


UNFUSED: Final = """
HloModule m
less {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT lt = pred[] compare(a, b), direction=LT
}
ENTRY main {
  x = f32[8] parameter(0)
  y = f32[8] parameter(1)
  p.1 = f32[8] add(x, y)
  p.2 = f32[8] add(p.1, x)
  q.1 = f32[8] sort(p.1), dimensions={0}, to_apply=less
  q.2 = f32[8] sort(p.2), dimensions={0}, to_apply=less
  m.1 = f32[8] multiply(p.1, q.1)
  m.2 = f32[8] multiply(p.2, q.2)
  ROOT r = (f32[8], f32[8]) tuple(m.1, m.2)
}
"""


def test_alike_instructions_get_the_numbers_of_their_own() -> None:
    text = UNFUSED.replace("HloModule m", "HloModule m, is_scheduled=true").replace("p.", "w.")
    captured = capture_text(text, ("before", UNFUSED), ("fusion", UNFUSED.replace("p.", "k.")))
    models = [build_module(captured) for _ in range(3)]
    decisions = {(b.producer, b.consumer): b.decision for b in models[0].boundaries}
    assert decisions["w.1", "m.1"].numbers == {"users": 3}
    assert decisions["w.2", "m.2"].numbers == {"users": 2}
    assert "`w.2`" in decisions["w.2", "m.2"].detail
    assert models[0].boundaries == models[1].boundaries == models[2].boundaries


def test_the_collector_is_paused_and_goes_on() -> None:
    assert gc.isenabled()
    with pytest.raises(ValueError), collector.paused():
        with collector.paused():
            pass
        assert not gc.isenabled()
        raise ValueError
    assert gc.isenabled()
