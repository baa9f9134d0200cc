"""Reshapes that merge dimensions are moved behind what uses them."""

from __future__ import annotations

import numpy as np
import pytest

from fuselane.hlo.shape import PrimitiveType
from fuselane.lanes.builder import ComputationBuilder, array_shape
from fuselane.lanes.merges import merged_groups
from fuselane.lanes.normalise import normalise
from tests.lanes.loops import counting_loop, loop_of
from tests.lanes.oracle import as_module, run_module


@pytest.mark.parametrize(
    ("source", "target", "groups"),
    [
        ((8, 3, 5), (24, 5), ((0, 1), (2,))),
        ((8, 3, 5), (8, 15), ((0,), (1, 2))),
        ((8, 1, 3), (1, 24), ((), (0, 1, 2))),
        ((8, 3, 1), (24,), ((0, 1, 2),)),
        ((8, 3), (8, 3), None),
        ((8, 1, 3), (8, 3), None),
        ((8, 6), (24, 2), None),
        ((24,), (8, 3), None),
        ((1, 1), (), None),
    ],
)
def test_merged_groups(
    source: tuple[int, ...], target: tuple[int, ...], groups: tuple[tuple[int, ...], ...] | None
) -> None:
    assert merged_groups(source, target) == groups


BODIES = {
    "elementwise": """m = f32[24,5] reshape(e0)
        s = f32[24,5] sine(m)
        half = f32[] constant(0.5)
        h = f32[24,5] broadcast(half), dimensions={}
        r = f32[5] iota(), iota_dimension=0
        b = f32[24,5] broadcast(r), dimensions={1}
        t = f32[24,5] multiply(s, h)
        u = f32[24,5] add(t, b)
        z = f32[] constant(-0.25)
        c = f32[24,5] clamp(z, u, half)
        y = f32[8,3,5] reshape(c)""",
    "broadcast": """a = f32[8,3,1] slice(e0), slice={[0:8], [0:3], [2:3]}
        m = f32[24] reshape(a)
        b = f32[5,24] broadcast(m), dimensions={1}
        t = f32[24,5] transpose(b), dimensions={1,0}
        y = f32[8,3,5] reshape(t)""",
    "transpose": """m = f32[8,15] reshape(e0)
        t = f32[15,8] transpose(m), dimensions={1,0}
        s = f32[15,8] sine(t)
        q = f32[3,5,8] reshape(s)
        y = f32[8,3,5] transpose(q), dimensions={2,0,1}""",
}


@pytest.mark.parametrize("name", BODIES)
def test_merges_vanish(name: str) -> None:
    module = counting_loop(BODIES[name], ["y"], ["f32[8,3,5]"], trip_count=2)
    loop = normalise(loop_of(module))
    body = next(i for i in loop.region.instructions if i.opcode == "while").body
    merged = {(24, 5), (24,), (5, 24), (8, 15), (15, 8)}
    assert not any(i.shape.dimensions in merged for i in body.instructions if i.shape.is_array)
    value = np.random.default_rng(0).standard_normal((8, 3, 5)).astype(np.float32)
    expected = run_module(module, [value])[1]
    actual = run_module(as_module(loop.region), [value])[1]
    np.testing.assert_array_equal(actual, expected)


def test_what_does_not_come_apart_stays() -> None:
    """The other operand would have to be split."""
    builder = ComputationBuilder("test")
    x = builder.parameter(0, array_shape(PrimitiveType.F32, (8, 3)), None)
    other = builder.parameter(1, array_shape(PrimitiveType.F32, (24,)), None)
    merged = builder.reshape(x, (24,))
    both = builder.elementwise("add", merged.shape, [merged, other])
    assert both.operands == [merged, other]
    stretched = builder.broadcast(other, (24, 2), (0,))
    wide = builder.broadcast(merged, (24, 2), (0,))
    assert wide.opcode == "reshape"
    assert builder.elementwise("add", wide.shape, [wide, stretched]).operands == [wide, stretched]
