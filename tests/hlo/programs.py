"""Modules for the tests, as HLO text."""

from __future__ import annotations

from typing import Final

COUNTING_LOOP: Final = """
HloModule counting
body {
  p = (s32[], f32[4,8]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  one = s32[] constant(1)
  next = s32[] add(i, one)
  x = f32[4,8] get-tuple-element(p), index=1
  y = f32[4,8] sine(x)
  ROOT r = (s32[], f32[4,8]) tuple(next, y)
}
condition {
  p = (s32[], f32[4,8]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  n = s32[] constant(10)
  ROOT less = pred[] compare(i, n), direction=LT
}
ENTRY main {
  input = f32[4,8] parameter(0)
  zero = s32[] constant(0)
  init = (s32[], f32[4,8]) tuple(zero, input)
  loop = (s32[], f32[4,8]) while(init), condition=condition, body=body
  ROOT out = f32[4,8] get-tuple-element(loop), index=1
}
"""

SCHEDULED: Final = """
HloModule scheduled, is_scheduled=true
ENTRY main {
  x = f32[8] parameter(0)
  a = f32[8] sine(x)
  b = f32[8] cosine(x)
  ROOT c = f32[8] add(b, a)
}
"""

_ELEMENTWISE = """
HloModule elementwise, entry_computation_layout={(f32[2,3]{0,1}, s32[])->f32[2,3]{1,0}}
ENTRY main {
  x = f32[2,3]{0,1} parameter(0), sharding={replicated}
  k = s32[] parameter(1), frontend_attributes={a="1",b="two"}
  c = f32[2,3]{1,0} copy(x), metadata={op_name="jit(f)/copy" source_file="f.py" source_line=3}
  rp = f32[2,3]{1,0} reduce-precision(c), exponent_bits=5, mantissa_bits=7
  n = f32[2,3]{1,0} negate(rp), control-predecessors={k}
  hole = f32[] constant(nan)
  pad = f32[5,4]{1,0} pad(n, hole), padding=1_2x-1_2_0
  s = f32[2,2]{1,0} slice(pad), slice={[0:4:2], [1:3]}
  z = f32[] constant(-0)
  ds = f32[1,2]{1,0} dynamic-slice(s, k, k), dynamic_slice_sizes={1,2}
  e = f32[1,2]{1,0} exponential(ds), result_accuracy={mode=highest}
  b = f32[2,3]{1,0} broadcast(z), dimensions={}
  ROOT o = f32[2,3]{1,0} add(n, b)
}
"""

_CALLS = """
HloModule calls, input_output_alias={ {0}: (0, {}, may-alias) }, buffer_donor={ (1, {}) }
add { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT c = f32[] add(a, b) }
less {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = pred[] compare(a, b), direction=LT, type=TOTALORDER
}
fused { a = f32[8] parameter(0)  ROOT b = f32[8] multiply(a, a) }
yes { a = f32[8] parameter(0)  ROOT b = f32[8] negate(a) }
no { a = f32[8] parameter(0)  ROOT b = f32[8] abs(a) }
ENTRY main {
  x = f32[8] parameter(0)
  y = f32[8] parameter(1)
  z = f32[] constant(0)
  r = f32[] reduce(x, z), dimensions={0}, to_apply=add
  w = f32[7] reduce-window(x, z), window={size=2 stride=1}, to_apply=add
  s = f32[8] sort(x), dimensions={0}, is_stable=true, to_apply=less
  f = f32[8] fusion(s), kind=kLoop, calls=fused, backend_config={"a":[1]}
  p = pred[] compare(r, z), direction=GE
  c = f32[8] conditional(p, f, y), true_computation=yes, false_computation=no
  m = f32[8] map(c), dimensions={0}, to_apply={ q = f32[] parameter(0)  ROOT t = f32[] tanh(q) }
  ROOT o = (f32[8], f32[7]) tuple(m, w)
}
"""

_CUSTOM_CALLS = """
HloModule custom
ENTRY main {
  x = f32[4,4]{1,0} parameter(0)
  t = token[] after-all()
  a = (f32[4,4]{1,0}, s32[2]{0}) custom-call(x), custom_call_target="kernel",
      operand_layout_constraints={f32[4,4]{1,0}}, custom_call_has_side_effect=true,
      output_to_operand_aliasing={{0}: (0, {})}, api_version=API_VERSION_TYPED_FFI,
      backend_config={n = 1 : i64}
  g = f32[4,4]{1,0} get-tuple-element(a), index=0
  b = f32[4,4]{1,0} custom-call(g), custom_call_target="TopK"
  i = ((f32[3], pred[]), token[]) infeed(t), infeed_config="abc"
  q = f32[4,4]{1,0} all-reduce(b), replica_groups={{0}}, channel_id=1, to_apply={
    l = f32[] parameter(0)
    r = f32[] parameter(1)
    ROOT s = f32[] add(l, r)
  }
  ROOT o = f32[4,4]{1,0} dot(q, g), lhs_contracting_dims={1}, rhs_contracting_dims={0},
      operand_precision={highest,default}
}
"""

_INDEXED = """
HloModule indexed
second { a = f32[] parameter(0)  ROOT b = f32[] parameter(1) }
ENTRY main {
  x = f32[5,6] parameter(0)
  i = s32[3,1] parameter(1)
  u = f32[3,6] gather(x, i), offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0},
      index_vector_dim=1, slice_sizes={1,6}
  s = f32[5,6] scatter(x, i, u), update_window_dims={1}, inserted_window_dims={0},
      scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=second
  k = s32[] constant(1)
  d = f32[5,6] dynamic-update-slice(s, u, k, k)
  r = f32[5,6] reverse(d), dimensions={1}
  t = f32[6,5] transpose(r), dimensions={1,0}
  n = s32[6,5] iota(), iota_dimension=1
  v = f32[6,5] convert(n)
  ROOT c = f32[12,5] concatenate(t, v), dimensions={0}
}
"""

_SHAPES = """
HloModule shapes
ENTRY main {
  a = f32[<=8,4]{1,0} parameter(0)
  b = bf16[128,128]{1,0:T(8,128)(2,1)} parameter(1)
  c = s4[16]{0:E(4)} parameter(2)
  d = f32[4]{0:S(1)} parameter(3)
  e = ((f32[], (pred[0], c64[1,2])), u8[3]) parameter(4)
  f = f32[4] constant({1, -2.5, inf, nan})
  g = bf16[2,2] constant({{1,2},{3,4}})
  h = (s32[], f32[2]) constant((7, {1,2}))
  ROOT o = (f32[4], bf16[2,2], (s32[], f32[2])) tuple(f, g, h)
}
"""

ALL: Final = {
    "counting_loop": COUNTING_LOOP,
    "scheduled": SCHEDULED,
    "elementwise": _ELEMENTWISE,
    "calls": _CALLS,
    "custom_calls": _CUSTOM_CALLS,
    "indexed": _INDEXED,
    "shapes": _SHAPES,
}
