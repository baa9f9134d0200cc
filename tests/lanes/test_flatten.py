"""Two parallel dimensions made one: every opcode keeps its meaning."""

from __future__ import annotations

import numpy as np
import pytest

from fuselane.lanes.form import form
from tests.lanes.loops import counting_loop, loop_of
from tests.lanes.oracle import as_module, run_module

# Bodies over e0: f32[4,6] and e1: f32[4,6,3] whose 4 and 6 run in parallel.
BODIES = {
    "elementwise": "y = f32[4,6] sine(e0)\nw = f32[4,6,3] cosine(e1)",
    "iota_of_other": """n = f32[4,6,3] iota(), iota_dimension=2
        y = f32[4,6] sine(e0)
        w = f32[4,6,3] add(e1, n)""",
    "broadcast_and_reduce": """z = f32[] constant(0)
        r = f32[4,6] reduce(e1, z), dimensions={2}, to_apply=add_f32
        y = f32[4,6] maximum(e0, r)
        w = f32[4,6,3] broadcast(y), dimensions={0,1}""",
    "broadcast_in_front": """b = f32[5,4,6] broadcast(e0), dimensions={1,2}
        n = f32[5] iota(), iota_dimension=0
        nb = f32[5,4,6] broadcast(n), dimensions={0}
        c = f32[5,4,6] multiply(b, nb)
        z = f32[] constant(0)
        y = f32[4,6] reduce(c, z), dimensions={0}, to_apply=max_f32
        w = f32[4,6,3] negate(e1)""",
    "transpose": """t = f32[3,4,6] transpose(e1), dimensions={2,0,1}
        v = f32[3,4,6] reverse(t), dimensions={0}
        w = f32[4,6,3] transpose(v), dimensions={1,2,0}
        y = f32[4,6] negate(e0)""",
    "slice_and_concatenate": """a = f32[4,6,1] slice(e1), slice={[0:4], [0:6], [1:2]}
        b = f32[4,6,2] slice(e1), slice={[0:4], [0:6], [0:3:2]}
        w = f32[4,6,3] concatenate(a, b), dimensions={2}
        y = f32[4,6] reshape(a)""",
    "pad": """z = f32[] constant(0)
        a = f32[4,6,2] slice(e1), slice={[0:4], [0:6], [1:3]}
        w = f32[4,6,3] pad(a, z), padding=0_0x0_0x1_0
        y = f32[4,6] negate(e0)""",
    "dynamic_slice_and_update": """a = f32[4,6,1] dynamic-slice(e1, zero, zero, i),
            dynamic_slice_sizes={4,6,1}
        d = f32[4,6,1] add(a, a)
        w = f32[4,6,3] dynamic-update-slice(e1, d, zero, i, one)
        y = f32[4,6] reshape(a)""",
    "reshape": """a = f32[1,4,6] reshape(e0)
        b = f32[1,4,6] exponential(a)
        y = f32[4,6] reshape(b)
        w = f32[4,6,3] negate(e1)""",
    "nested_loop": """t = (s32[], f32[4,6]) tuple(zero, e0)
        inner = (s32[], f32[4,6]) while(t), condition=inner_condition, body=inner_body
        y = f32[4,6] get-tuple-element(inner), index=1
        w = f32[4,6,3] negate(e1)""",
}

# Bodies over e0: f32[4,6] and elements that don't change: f32[4], f32[6], f32[3,4] and f32[6,2].
ALONE = {
    "rows": "b = f32[4,6] broadcast(e1), dimensions={0}\ny = f32[4,6] add(e0, b)",
    "columns": "b = f32[4,6] broadcast(e2), dimensions={1}\ny = f32[4,6] add(e0, b)",
    "both": """b = f32[4,6] broadcast(e1), dimensions={0}
        d = f32[4,6] broadcast(e2), dimensions={1}
        c = f32[4,6] subtract(b, d)
        y = f32[4,6] add(e0, c)""",
    "computed": """k = f32[] convert(i)
        kb = f32[6] broadcast(k), dimensions={}
        s = f32[6] multiply(e2, kb)
        m = f32[6] sine(s)
        b = f32[4,6] broadcast(m), dimensions={1}
        y = f32[4,6] add(e0, b)""",
    "not_first": """b = f32[3,4,6] broadcast(e3), dimensions={0,1}
        z = f32[] constant(0)
        r = f32[4,6] reduce(b, z), dimensions={0}, to_apply=add_f32
        y = f32[4,6] add(e0, r)""",
    "several_each": """b = f32[4,6,2] broadcast(e4), dimensions={1,2}
        z = f32[] constant(0)
        r = f32[4,6] reduce(b, z), dimensions={2}, to_apply=max_f32
        y = f32[4,6] add(e0, r)""",
    "counted": """n = f32[6] iota(), iota_dimension=0
        c = f32[6] cosine(n)
        b = f32[4,6] broadcast(c), dimensions={1}
        y = f32[4,6] add(e0, b)""",
    "counted_of_both": """n = f32[4,6] iota(), iota_dimension=1
        m = f32[4,6] iota(), iota_dimension=0
        c = f32[4,6] subtract(n, m)
        y = f32[4,6] add(e0, c)""",
    "constant": """n = f32[4] constant({1, -2, 3, 0.5})
        b = f32[4,6] broadcast(n), dimensions={0}
        y = f32[4,6] add(e0, b)""",
    "nested_loop": """t = (s32[], f32[4,6], f32[6]) tuple(zero, e0, e2)
        inner = (s32[], f32[4,6], f32[6]) while(t), condition=inner_condition, body=inner_body
        y = f32[4,6] get-tuple-element(inner), index=1""",
}

NESTED_ALONE = """
inner_body {
  q = (s32[], f32[4,6], f32[6]) parameter(0)
  j = s32[] get-tuple-element(q), index=0
  x = f32[4,6] get-tuple-element(q), index=1
  v = f32[6] get-tuple-element(q), index=2
  c1 = s32[] constant(1)
  j1 = s32[] add(j, c1)
  vb = f32[4,6] broadcast(v), dimensions={1}
  z9 = f32[4,6] multiply(x, vb)
  ROOT r9 = (s32[], f32[4,6], f32[6]) tuple(j1, z9, v)
}
inner_condition {
  q1 = (s32[], f32[4,6], f32[6]) parameter(0)
  k = s32[] get-tuple-element(q1), index=0
  five = s32[] constant(5)
  ROOT go1 = pred[] compare(k, five), direction=LT
}
"""

NESTED = """
inner_body {
  q = (s32[], f32[4,6]) parameter(0)
  j = s32[] get-tuple-element(q), index=0
  x = f32[4,6] get-tuple-element(q), index=1
  c1 = s32[] constant(1)
  j1 = s32[] add(j, c1)
  z9 = f32[4,6] sine(x)
  ROOT r9 = (s32[], f32[4,6]) tuple(j1, z9)
}
inner_condition {
  q1 = (s32[], f32[4,6]) parameter(0)
  k = s32[] get-tuple-element(q1), index=0
  five = s32[] constant(5)
  ROOT go1 = pred[] compare(k, five), direction=LT
}
"""


@pytest.mark.parametrize("name", BODIES)
def test_flattened_region_does_the_same(name: str) -> None:
    module = counting_loop(
        BODIES[name], ["y", "w"], ["f32[4,6]", "f32[4,6,3]"], trip_count=3, more=NESTED
    )
    random = np.random.default_rng(0)
    inputs = [random.standard_normal(s).astype(np.float32) for s in ((4, 6), (4, 6, 3))]
    expected = run_module(module, inputs)
    program = form(module, loop_of(module))
    assert program.num_lanes == 24
    flat = [x.reshape(p.shape.dimensions) for x, p in zip(inputs, program.inputs, strict=True)]
    actual = run_module(as_module(program.region), flat)
    for value, wanted in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(value.reshape(wanted.shape), wanted)


@pytest.mark.parametrize("name", ALONE)
def test_what_has_one_of_the_dimensions_gets_both(name: str) -> None:
    shapes = ["f32[4,6]", "f32[4]", "f32[6]", "f32[3,4]", "f32[6,2]"]
    results = ["y", "e1", "e2", "e3", "e4"]
    module = counting_loop(ALONE[name], results, shapes, trip_count=3, more=NESTED_ALONE)
    random = np.random.default_rng(0)
    sizes = ((4, 6), (4,), (6,), (3, 4), (6, 2))
    inputs = [random.standard_normal(s).astype(np.float32) for s in sizes]
    expected = run_module(module, inputs)[0]
    program = form(module, loop_of(module))
    assert program.num_lanes == 24
    by_size = {x.size: x for x in inputs}
    flat = [by_size[p.shape.num_elements].reshape(p.shape.dimensions) for p in program.inputs]
    (actual, *_) = run_module(as_module(program.region), flat)
    np.testing.assert_array_equal(actual.reshape(expected.shape), expected)
