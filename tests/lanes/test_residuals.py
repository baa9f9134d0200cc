"""Rows that a loop computes instead of reading them."""

from __future__ import annotations

from typing import Final

from fuselane.lanes.form import form
from fuselane.lanes.residuals import find_residuals, reads_stacks
from tests.hlo.xla import module_of

_STACKS: Final = "f32[9,64], f32[9,64]"
_FORWARD_AND_BACKWARD: Final = f"""HloModule gradient

less {{
  p = (s32[], f32[64], {_STACKS}) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  n = s32[] constant(9)
  ROOT go = pred[] compare(i, n), direction=LT
}}

forward {{
  p = (s32[], f32[64], {_STACKS}) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  x = f32[64] get-tuple-element(p), index=1
  ys = f32[9,64] get-tuple-element(p), index=2
  ds = f32[9,64] get-tuple-element(p), index=3
  zero = s32[] constant(0)
  step = s32[] constant(1)
  one = f32[] constant(1)
  ones = f32[64] broadcast(one), dimensions={{}}
  y = f32[64] tanh(x)
  d = f32[64] subtract(ones, y)
  y_row = f32[1,64] reshape(y)
  d_row = f32[1,64] reshape(d)
  new_ys = f32[9,64] dynamic-update-slice(ys, y_row, i, zero)
  new_ds = f32[9,64] dynamic-update-slice(ds, d_row, i, zero)
  j = s32[] add(i, step)
  ROOT t = (s32[], f32[64], {_STACKS}) tuple(j, y, new_ys, new_ds)
}}

backward {{
  p = (s32[], f32[64], {_STACKS}) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  x = f32[64] get-tuple-element(p), index=1
  ys = f32[9,64] get-tuple-element(p), index=2
  ds = f32[9,64] get-tuple-element(p), index=3
  zero = s32[] constant(0)
  step = s32[] constant(1)
  last = s32[] constant(8)
  k = s32[] subtract(last, i)
  y_row = f32[1,64] dynamic-slice(ys, k, zero), dynamic_slice_sizes={{1,64}}
  d_row = f32[1,64] dynamic-slice(ds, k, zero), dynamic_slice_sizes={{1,64}}
  y = f32[64] reshape(y_row)
  d = f32[64] reshape(d_row)
  by_y = f32[64] multiply(x, y)
  by_both = f32[64] multiply(by_y, d)
  j = s32[] add(i, step)
  ROOT t = (s32[], f32[64], {_STACKS}) tuple(j, by_both, ys, ds)
}}

ENTRY main {{
  start = f32[64] parameter(0)
  zero = s32[] constant(0)
  nothing = f32[] constant(0)
  stack = f32[9,64] broadcast(nothing), dimensions={{}}
  first = (s32[], f32[64], {_STACKS}) tuple(zero, start, stack, stack)
  there = (s32[], f32[64], {_STACKS}) while(first), condition=less, body=forward
  y = f32[64] get-tuple-element(there), index=1
  ys = f32[9,64] get-tuple-element(there), index=2
  ds = f32[9,64] get-tuple-element(there), index=3
  then = (s32[], f32[64], {_STACKS}) tuple(zero, y, ys, ds)
  back = (s32[], f32[64], {_STACKS}) while(then), condition=less, body=backward
  ROOT x = f32[64] get-tuple-element(back), index=1
}}"""


def test_a_row_is_read_once_for_all_that_follows_from_it() -> None:
    module = module_of(_FORWARD_AND_BACKWARD)
    (reader,) = filter(reads_stacks, module.entry.instructions)
    residuals = find_residuals(reader, {})
    assert residuals is not None
    program = form(module, reader, residuals)
    assert program.num_recomputed == 1
    body = program.loop.instruction.body
    assert [i.opcode for i in body.instructions].count("dynamic-slice") == 1
