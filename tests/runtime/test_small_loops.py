"""Loops that XLA makes one function of, with the loops in them."""

from __future__ import annotations

from typing import Final

import pytest

from fuselane import pipeline
from fuselane.analysis.small_calls import is_small_call
from fuselane.config import Options
from fuselane.decisions import DecisionLog
from fuselane.hlo.module import HloModule
from fuselane.hlo.verifier import verify
from fuselane.runtime.ffi import TARGET
from tests.hlo.xla import module_of

# The outer loop turns the lanes round, so that it stays; the inner one's are apart.
_TEXT: Final = """
HloModule jit_small
inner {
  p = (s32[], f32[1000]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  x = f32[1000] get-tuple-element(p), index=1
  one = s32[] constant(1)
  next = s32[] add(i, one)
  y = f32[1000] sine(x)
  ROOT r = (s32[], f32[1000]) tuple(next, y)
}
inner_condition {
  p = (s32[], f32[1000]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  n = s32[] constant(100)
  ROOT go = pred[] compare(i, n), direction=LT
}
outer {
  p = (s32[], f32[1000]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  x = f32[1000] get-tuple-element(p), index=1
  one = s32[] constant(1)
  zero = s32[] constant(0)
  next = s32[] add(i, one)
  init = (s32[], f32[1000]) tuple(zero, x)
  loop = (s32[], f32[1000]) while(init), condition=inner_condition, body=inner
  y = f32[1000] get-tuple-element(loop), index=1
  z = f32[1000] reverse(y), dimensions={0}
  ROOT r = (s32[], f32[1000]) tuple(next, z)
}
outer_condition {
  p = (s32[], f32[1000]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  n = s32[] constant(7)
  ROOT go = pred[] compare(i, n), direction=LT
}
callee {
  p = (s32[], f32[1000]) parameter(0)
  ROOT loop = (s32[], f32[1000]) while(p), condition=outer_condition, body=outer
}
ENTRY main {
  x = f32[1000] parameter(0)
  zero = s32[] constant(0)
  init = (s32[], f32[1000]) tuple(zero, x)
  small = (s32[], f32[1000]) call(init), to_apply=callee,
      frontend_attributes={xla_cpu_small_call="true"}
  ROOT r = f32[1000] get-tuple-element(small), index=1
}
"""


@pytest.mark.parametrize(("min_gain", "is_fused"), [(1.0, True), (1000.0, False)])
def test_loops_in_a_small_loop_that_stays(min_gain: float, is_fused: bool) -> None:
    """A kernel cannot be called in such a function: then it is none any more."""
    log = DecisionLog()
    result = pipeline.transform(module_of(_TEXT).to_bytes(), Options(min_gain=min_gain), log)
    assert (result is not None) == is_fused
    assert [(loop.trip_count, loop.fused) for loop in log] == [(7, False), (100, is_fused)]
    if result is not None:
        module = HloModule.from_bytes(result)
        verify(module)
        instructions = [i for c in module.computations for i in c.instructions]
        assert not any(map(is_small_call, instructions))
        assert [i.custom_call_target for i in instructions if i.opcode == "custom-call"] == [TARGET]
