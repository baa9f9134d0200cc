"""Layouts: regions hold row-major arrays only, and still mean the same."""

from __future__ import annotations

import numpy as np
import pytest

from fuselane.decisions import Reason
from fuselane.errors import UnsupportedError
from fuselane.hlo.computation import reachable_computations
from fuselane.hlo.shape import PrimitiveType
from fuselane.lanes.builder import ComputationBuilder, array_shape
from fuselane.lanes.normalise import normalise
from tests.lanes.loops import counting_loop, loop_of
from tests.lanes.oracle import as_module, compile_module, from_memory, run_module, to_memory

A = "f32[5,4,3]{0,2,1}"
"""Shape and layout of e0; the bodies below make `y` of the same shape."""

BODIES = {
    "elementwise": f"y = {A} sine(e0)",
    "mixed_elementwise": f"""c = f32[5,4,3]{{2,1,0}} copy(e0)
        s = f32[5,4,3]{{2,1,0}} sine(c)
        y = {A} add(e0, s)""",
    "transpose": """t = f32[3,5,4]{0,1,2} transpose(e0), dimensions={2,0,1}
        u = f32[3,5,4]{0,1,2} exponential(t)
        v = f32[4,3,5]{1,0,2} transpose(u), dimensions={2,0,1}
        w = f32[5,4,3]{1,2,0} transpose(v), dimensions={2,0,1}
        y = f32[5,4,3]{0,2,1} copy(w)""",
    "reshape": """r = f32[20,3]{0,1} reshape(e0)
        s = f32[20,3]{0,1} cosine(r)
        t = f32[5,12]{1,0} reshape(s)
        y = f32[5,4,3]{0,2,1} reshape(t)""",
    "broadcast": """a = f32[1,4,1]{1,0,2} slice(e0), slice={[0:1], [0:4], [1:2]}
        b = f32[4]{0} reshape(a)
        c = f32[3,4]{0,1} broadcast(b), dimensions={1}
        d = f32[5,4,3]{0,2,1} broadcast(c), dimensions={2,1}
        y = f32[5,4,3]{0,2,1} add(d, e0)""",
    "slice_pad": """z = f32[] constant(0.5)
        s = f32[2,2,3]{1,2,0} slice(e0), slice={[1:5:2], [1:3], [0:3]}
        p1 = f32[5,4,3]{2,0,1} pad(s, z), padding=1_1_1x0_2x1_-1
        y = f32[5,4,3]{0,2,1} copy(p1)""",
    "reverse": "y = f32[5,4,3]{0,2,1} reverse(e0), dimensions={0,2}",
    "reverse_relaid": """r = f32[5,4,3]{1,0,2} reverse(e0), dimensions={1}
        y = f32[5,4,3]{0,2,1} copy(r)""",
    "concatenate": """s = f32[5,1,3]{2,1,0} slice(e0), slice={[0:5], [3:4], [0:3]}
        t = f32[5,3,3]{0,2,1} slice(e0), slice={[0:5], [0:3], [0:3]}
        y = f32[5,4,3]{0,2,1} concatenate(s, t), dimensions={1}""",
    "dynamic_slice": """s = f32[5,2,1]{2,0,1} dynamic-slice(e0, zero, i, one),
            dynamic_slice_sizes={5,2,1}
        t = f32[5,4,1]{0,2,1} concatenate(s, s), dimensions={1}
        u = f32[5,4]{0,1} reshape(t)
        y = f32[5,4,3]{0,2,1} broadcast(u), dimensions={0,1}""",
    "dynamic_update_slice": """s = f32[2,4,1]{1,2,0} slice(e0), slice={[0:2], [0:4], [1:2]}
        y = f32[5,4,3]{0,2,1} dynamic-update-slice(e0, s, i, zero, one)""",
    "reduce": """z = f32[] constant(0)
        r = f32[5,3]{0,1} reduce(e0, z), dimensions={1}, to_apply=max_f32
        r2 = f32[5,3]{1,0} reduce(e0, z), dimensions={1}, to_apply=max_f32
        m = f32[5,3]{1,0} copy(r)
        s = f32[5,3]{1,0} add(m, r2)
        y = f32[5,4,3]{0,2,1} broadcast(s), dimensions={0,2}""",
    "iota": """n = f32[5,4,3]{0,2,1} iota(), iota_dimension=0
        m = f32[5,4,3]{0,2,1} iota(), iota_dimension=2
        nm = f32[5,4,3]{0,2,1} subtract(n, m)
        y = f32[5,4,3]{0,2,1} add(e0, nm)""",
    "constant": """k = f32[4,3]{0,1} constant({{1,2,3},{4,5,6},{7,8,9},{10,11,12}})
        kb = f32[5,4,3]{0,2,1} broadcast(k), dimensions={1,2}
        y = f32[5,4,3]{0,2,1} add(e0, kb)""",
    "scalar_operands": """lo = f32[] constant(-0.5)
        hi = f32[] constant(0.5)
        y = f32[5,4,3]{0,2,1} clamp(lo, e0, hi)""",
    "windows": """z = f32[] constant(0)
        w = f32[5,2,1]{1,0,2} reduce-window(e0, z), window={size=1x2x3 stride=1x2x3},
            to_apply=max_f32
        b = f32[5,2]{0,1} reshape(w)
        c = f32[5,2,2,3]{3,0,2,1} broadcast(b), dimensions={0,1}
        y = f32[5,4,3]{0,2,1} reshape(c)""",
}


@pytest.mark.parametrize("name", BODIES)
def test_region_means_the_same(name: str) -> None:
    module = counting_loop(BODIES[name], ["y"], [A], trip_count=3)
    loop = normalise(loop_of(module))
    for computation in reachable_computations([loop.region]):
        shapes = [i.shape for i in computation.instructions]
        assert all(s.is_row_major for s in shapes if s.is_array)
    value = np.random.default_rng(0).standard_normal((5, 4, 3)).astype(np.float32)
    (expected,) = run_module(module, [value])[1:]
    shape = loop.operands[0].shape
    (actual,) = run_module(as_module(loop.region), [to_memory(value, shape)])[1:]
    np.testing.assert_array_equal(from_memory(actual, shape), expected)


def test_a_bitcast_reads_memory_as_it_lies() -> None:
    body = """b = f32[3,4,5]{2,0,1} bitcast(e0)
        s = f32[3,4,5]{2,0,1} sine(b)
        y = f32[5,4,3]{0,2,1} bitcast(s)"""
    loop = normalise(loop_of(counting_loop(body, ["y"], [A])))
    inner = next(i for i in loop.region.instructions if i.opcode == "while").body
    assert [i.opcode for i in inner.instructions].count("sine") == 1
    assert not any(i.opcode in ("reshape", "transpose") for i in inner.instructions)


def test_a_bitcast_to_another_type_of_one_width() -> None:
    body = """b = s32[8] bitcast(e0)
        c = s32[8] add(b, b)
        y = f32[8] bitcast(c)"""
    module = counting_loop(body, ["y"], ["f32[8]"], trip_count=1)
    loop = normalise(loop_of(module))
    value = np.random.default_rng(0).standard_normal(8).astype(np.float32)
    actual = compile_module(as_module(loop.region))([value])[1]
    np.testing.assert_array_equal(actual.view(np.int32), value.view(np.int32) * 2)


@pytest.mark.parametrize("shape", ["f32[8]{0:T(128)}", "f32[<=8]{0}"])
def test_other_layouts_are_refused(shape: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        normalise(loop_of(counting_loop(f"y = {shape} sine(e0)", ["y"], [shape])))
    assert caught.value.decision.reason is Reason.LAYOUT


def test_arrays_without_elements_are_refused() -> None:
    with pytest.raises(UnsupportedError) as caught:
        normalise(loop_of(counting_loop("y = f32[0,8] sine(e0)", ["y"], ["f32[0,8]"])))
    assert caught.value.decision.reason is Reason.UNSUPPORTED_STRUCTURE


def test_builder_composes_what_only_moves() -> None:
    builder = ComputationBuilder("test")
    shape = array_shape(PrimitiveType.F32, (2, 3, 4))
    x = builder.parameter(0, shape, None)
    assert builder.transpose(builder.transpose(x, (1, 2, 0)), (2, 0, 1)) is x
    assert builder.reshape(builder.reshape(x, (6, 4)), (2, 3, 4)) is x
    once = builder.transpose(builder.transpose(x, (1, 2, 0)), (1, 2, 0))
    assert (once.operands, once.dimensions) == ([x], (2, 0, 1))
    scalar = builder.parameter(1, array_shape(PrimitiveType.F32, ()), None)
    row = builder.broadcast(scalar, (4,), ())
    wide = builder.broadcast(row, (3, 4), (1,))
    assert (wide.operands, wide.dimensions) == ([scalar], ())
    assert builder.reshape(wide, (4, 3)) is builder.broadcast(scalar, (4, 3), ())
