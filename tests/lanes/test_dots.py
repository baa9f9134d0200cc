"""Dots in normal form: layouts, reshapes around them, which dimensions can be lanes, refusals."""

from __future__ import annotations

import numpy as np
import pytest

from fuselane.decisions import Decision, Reason
from fuselane.errors import UnsupportedError
from fuselane.hlo.dots import DotDimensions
from fuselane.hlo.instruction import HloInstruction
from fuselane.lanes.form import form
from fuselane.lanes.normalise import normalise
from fuselane.lanes.program import LaneProgram
from tests.lanes.loops import counting_loop, loop_of
from tests.lanes.oracle import as_module, from_memory, run_module, to_memory

A = "f32[5,4,3]{0,2,1}"
"""Shape and layout of e0; the bodies below make `y` of the same shape."""

BODIES = {
    "free_dimensions_apart": f"""w = f32[3,3]{{0,1}} constant({{{{1,2,3}},{{4,5,6}},{{7,8,9}}}})
        y = {A} dot(e0, w), lhs_contracting_dims={{2}}, rhs_contracting_dims={{0}}""",
    "batch": """k = f32[5,4,4]{1,0,2} dot(e0, e0), lhs_batch_dims={0}, rhs_batch_dims={0},
            lhs_contracting_dims={2}, rhs_contracting_dims={2}
        y = f32[5,4,3]{0,2,1} dot(k, e0), lhs_batch_dims={0}, rhs_batch_dims={0},
            lhs_contracting_dims={1}, rhs_contracting_dims={1}""",
    "two_batch_dimensions": """c = f32[3,5,4]{1,2,0} transpose(e0), dimensions={2,0,1}
        h = f32[5,3]{0,1} dot(e0, c), lhs_batch_dims={0,2}, rhs_batch_dims={1,0},
            lhs_contracting_dims={1}, rhs_contracting_dims={2}
        y = f32[5,4,3]{0,2,1} broadcast(h), dimensions={0,2}""",
    "two_contracting_dimensions": """w = f32[3,2,4]{0,2,1} iota(), iota_dimension=1
        h = f32[2,5]{0,1} dot(w, e0), lhs_contracting_dims={0,2}, rhs_contracting_dims={2,1}
        q = f32[2,5]{1,0} dot(w, e0), lhs_contracting_dims={0,2}, rhs_contracting_dims={2,1}
        r = f32[2,5]{1,0} copy(h)
        s = f32[2,5]{1,0} add(q, r)
        v = f32[1,5]{1,0} slice(s), slice={[1:2], [0:5]}
        t = f32[5]{0} reshape(v)
        y = f32[5,4,3]{0,2,1} broadcast(t), dimensions={0}""",
    "no_contracting_dimension": """a0 = f32[5,4,1]{1,0,2} slice(e0), slice={[0:5], [0:4], [1:2]}
        a = f32[5,4]{1,0} reshape(a0)
        b0 = f32[5,1,3]{0,2,1} slice(e0), slice={[0:5], [2:3], [0:3]}
        b = f32[5,3]{0,1} reshape(b0)
        y = f32[5,4,3]{0,2,1} dot(a, b), lhs_batch_dims={0}, rhs_batch_dims={0}""",
    "merged": """c = f32[5,4,3]{2,1,0} copy(e0)
        m = f32[20,3]{1,0} reshape(c)
        w = f32[3,3]{1,0} constant({{1,2,3},{4,5,6},{7,8,9}})
        d = f32[20,3]{1,0} dot(m, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
        s = f32[5,4,3]{2,1,0} reshape(d)
        y = f32[5,4,3]{0,2,1} copy(s)""",
}


def program_of(body: str, shapes: list[str], results: list[str] | None = None) -> LaneProgram:
    kept = [f"e{k}" for k in range(len(shapes))]
    module = counting_loop(body, results or ["y", *kept[1:]], shapes, trip_count=100_000)
    return form(module, loop_of(module))


def dot_of(program: LaneProgram) -> HloInstruction:
    body = program.loop.instruction.body
    return next(i for i in body.instructions if i.opcode == "dot")


@pytest.mark.parametrize("name", BODIES)
def test_region_means_the_same(name: str) -> None:
    module = counting_loop(BODIES[name], ["y"], [A], trip_count=2)
    loop = normalise(loop_of(module))
    value = np.random.default_rng(0).integers(-3, 4, (5, 4, 3)).astype(np.float32)
    (expected,) = run_module(module, [value])[1:]
    shape = loop.operands[0].shape
    (actual,) = run_module(as_module(loop.region), [to_memory(value, shape)])[1:]
    np.testing.assert_array_equal(from_memory(actual, shape), expected)


def test_lanes_are_a_free_dimension() -> None:
    """The weights stay as they lie; only the dot's numbers change."""
    program = program_of(
        "y = f32[8,6] dot(e0, e1), lhs_contracting_dims={1}, rhs_contracting_dims={1}",
        ["f32[8,6]", "f32[6,6]{0,1}"],
    )
    dot = dot_of(program)
    assert program.num_lanes == 8
    assert [program.lane_dimensions[i] for i in (dot, *dot.operands)] == [0, 0, None]
    assert DotDimensions.of(dot).right_contracting == (0,)
    assert [i.opcode for i in program.inputs] == ["parameter", "parameter"]


def test_lanes_are_a_free_dimension_on_the_right() -> None:
    program = program_of(
        "y = f32[6,8] dot(e1, e0), lhs_contracting_dims={1}, rhs_contracting_dims={0}",
        ["f32[6,8]", "f32[6,6]"],
    )
    dot = dot_of(program)
    assert [program.lane_dimensions[i] for i in (dot, *dot.operands)] == [1, None, 1]


def test_lanes_are_a_batch_dimension() -> None:
    body = """y = f32[8,3,3] dot(e0, e0), lhs_batch_dims={0}, rhs_batch_dims={0},
        lhs_contracting_dims={2}, rhs_contracting_dims={1}"""
    program = program_of(body, ["f32[8,3,3]"])
    dot = dot_of(program)
    assert program.num_lanes == 8
    assert [program.lane_dimensions[i] for i in (dot, *dot.operands)] == [0, 0, 0]


def test_batch_and_free_dimensions_become_one_lane_dimension() -> None:
    batched = """y = f32[8,5,3] dot(e0, e1), lhs_contracting_dims={2}, rhs_contracting_dims={0}"""
    program = program_of(batched, ["f32[8,5,3]", "f32[3,3]"])
    assert program.num_lanes == 40
    assert dot_of(program).shape.dimensions == (40, 3)
    paired = """v = f32[8,5] dot(e0, e0), lhs_batch_dims={0,1}, rhs_batch_dims={0,1},
            lhs_contracting_dims={2}, rhs_contracting_dims={2}
        w = f32[8,5,3] broadcast(v), dimensions={0,1}
        y = f32[8,5,3] add(w, e0)"""
    program = program_of(paired, ["f32[8,5,3]"])
    assert program.num_lanes == 40
    assert DotDimensions.of(dot_of(program)).left_batch == (0,)


def test_a_merge_of_free_dimensions_is_seen_through() -> None:
    """The dimension of size 7 is one of a lane's own as it is mixed elsewhere."""
    body = """m = f32[56,3] bitcast(e0)
        d = f32[56,3] dot(m, e1), lhs_contracting_dims={1}, rhs_contracting_dims={0}
        s = f32[8,7,3] bitcast(d)
        y = f32[8,7,3] reverse(s), dimensions={1}"""
    program = program_of(body, ["f32[8,7,3]", "f32[3,3]"])
    assert program.num_lanes == 8
    assert dot_of(program).shape.dimensions == (8, 7, 3)


@pytest.mark.parametrize(
    ("body", "shapes"),
    [
        (
            """r = f32[8,8] dot(e0, e0), lhs_contracting_dims={1}, rhs_contracting_dims={1}
        y = f32[8,3] slice(r), slice={[0:8], [0:3]}""",
            ["f32[8,3]"],
        ),
        (
            "y = f32[3,8] dot(e1, e0), lhs_contracting_dims={1}, rhs_contracting_dims={1}",
            ["f32[3,8]", "f32[3,8]"],
        ),
    ],
    ids=["all_with_all", "contracted"],
)
def test_mixed_lanes_are_no_lanes(body: str, shapes: list[str]) -> None:
    program = program_of(body, shapes)
    assert program.num_lanes != 8


def test_refused_types_and_algorithms() -> None:
    pred = """m = pred[8,8] compare(e0, e0), direction=LT
        d = pred[8,8] dot(m, m), lhs_contracting_dims={1}, rhs_contracting_dims={0}
        y = f32[8,8] convert(d)"""
    assert refusal(pred).reason is Reason.UNSUPPORTED_TYPE
    prescribed = """y = f32[8,8] dot(e0, e0), lhs_contracting_dims={1}, rhs_contracting_dims={0},
        algorithm=dot_tf32_tf32_f32"""
    decision = refusal(prescribed)
    assert decision.reason is Reason.UNSUPPORTED_OPCODE
    assert "prescribed algorithm" in decision.sentence


def refusal(body: str) -> Decision:
    with pytest.raises(UnsupportedError) as caught:
        normalise(loop_of(counting_loop(body, ["y"], ["f32[8,8]"])))
    return caught.value.decision
