"""Complex numbers in normal form: what of a region is left of them."""

from __future__ import annotations

import pytest

from fuselane.analysis.opcodes import LANE_OPCODES
from fuselane.errors import UnsupportedError
from fuselane.hlo.computation import HloComputation, reachable_computations
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.shape import PrimitiveType, Shape
from fuselane.lanes.complex_parts import component_shape, joined_shape
from fuselane.lanes.normal_loop import NormalLoop
from fuselane.lanes.normalise import normalise
from tests.hlo.xla import to_text
from tests.lanes.loops import counting_loop, loop_of
from tests.lanes.oracle import as_module


def normal(body: str, results: list[str], carried: list[str], more: str = "") -> NormalLoop:
    """Returns a loop in normal form, which must be one that XLA accepts and hold real arrays."""
    loop = normalise(loop_of(counting_loop(body, results, carried, more=more)))
    for computation in reachable_computations([loop.region]):
        for instruction in computation.instructions:
            assert instruction.opcode in LANE_OPCODES
            assert not instruction.shape.element_type.is_complex
    assert "while" in to_text(as_module(loop.region).to_bytes())
    return loop


def body_of(loop: NormalLoop) -> HloComputation:
    return next(i for i in loop.region.instructions if i.opcode == "while").body


def opcodes(computation: HloComputation) -> list[str]:
    return [i.opcode for i in computation.instructions]


def result_of(loop: NormalLoop) -> HloInstruction:
    return body_of(loop).root.operands[1]


def test_shapes_keep_their_memory() -> None:
    shape = Shape(PrimitiveType.C64, (3, 5), (), (0, 1))
    joined = joined_shape(shape)
    assert str(joined) == "f32[3,5,2]{2,0,1}"
    assert joined.byte_size == shape.byte_size
    assert [s * 4 for s in joined.strides[:2]] == [s * 8 for s in shape.strides]
    assert str(component_shape(shape)) == "f32[3,5]{0,1}"
    assert str(joined_shape(Shape.array(PrimitiveType.C128, ()))) == "f64[2]{0}"


def test_what_is_carried_is_one_real_array() -> None:
    loop = normal("y = c64[8] multiply(e0, e0)", ["y"], ["c64[8]"])
    assert str(loop.region.parameters[0].shape) == "f32[8,2]{1,0}"
    result = result_of(loop)
    assert result.opcode == "concatenate"
    assert [o.opcode for o in result.operands] == ["reshape", "reshape"]
    assert opcodes(body_of(loop)).count("multiply") == 4


def test_parts_are_joined_only_where_they_leave() -> None:
    body = """a = c64[8] multiply(e0, e0)
        b = c64[8] add(a, e0)
        r = c64[2,4] reshape(b)
        t = c64[4,2] transpose(r), dimensions={1,0}
        s = c64[8] reshape(t)
        y = c64[8] negate(s)"""
    found = opcodes(body_of(normal(body, ["y"], ["c64[8]"])))
    assert found.count("concatenate") == 1
    assert found.count("slice") == 2


def test_an_array_that_is_passed_on_stays_joined() -> None:
    found = opcodes(body_of(normal("y = c64[8] copy(e1)", ["y", "e0"], ["c64[8]", "c64[8]"])))
    assert "concatenate" not in found
    assert "slice" not in found


@pytest.mark.parametrize(
    "update",
    [
        "y = c64[9,8] dynamic-update-slice(e0, x, i, zero)",
        "t = c64[8,9] transpose(e0), dimensions={1,0}\n"
        "u = c64[8,1] reshape(x)\nv = c64[8,9] dynamic-update-slice(t, u, zero, i)\n"
        "y = c64[9,8] transpose(v), dimensions={1,0}",
    ],
)
def test_updates_replace_pairs(update: str) -> None:
    body = "x = c64[1,8] dynamic-slice(e1, i, zero), dynamic_slice_sizes={1,8}\n" + update
    loop = normal(body, ["y", "e1"], ["c64[9,8]", "c64[9,8]"])
    found = opcodes(body_of(loop))
    assert found.count("dynamic-update-slice") == found.count("dynamic-slice") == 1
    assert "concatenate" not in found


def test_a_select_of_old_and_new_stays_one_of_joined_arrays() -> None:
    """So that it is seen that a lane keeps what it had."""
    body = """r = f32[8] real(e0)
        p0 = pred[8] compare(r, r), direction=EQ
        n = c64[8] multiply(e0, e0)
        y = c64[8] select(p0, n, e0)"""
    result = result_of(normal(body, ["y"], ["c64[8]"]))
    assert result.opcode == "select"
    assert result.operands[2].opcode == "get-tuple-element"


def test_a_select_is_taken_apart_where_its_parts_are_wanted() -> None:
    body = """r = f32[8] real(e0)
        p0 = pred[8] compare(r, r), direction=EQ
        n = c64[8] multiply(e0, e0)
        s = c64[8] select(p0, n, e0)
        y = c64[8] add(s, s)"""
    loop = normal(body, ["y"], ["c64[8]"])
    selects = [i for i in body_of(loop).instructions if i.opcode == "select"]
    assert [str(s.shape) for s in selects] == ["f32[8]{0}"] * 2


SUM = """sum { l = c64[] parameter(0)  r = c64[] parameter(1)  ROOT o = c64[] add(l, r) }
    product { m = c64[] parameter(0)  n = c64[] parameter(1)  ROOT q = c64[] multiply(m, n) }
"""


@pytest.mark.parametrize(("function", "count"), [("sum", 2), ("product", 1)])
def test_sums_are_two_and_products_one_reduce(function: str, count: int) -> None:
    body = f"""z = c64[] constant((1, 0))
        s = c64[8] reduce(e0, z), dimensions={{1}}, to_apply={function}
        y = c64[8,3] broadcast(s), dimensions={{0}}"""
    loop = normal(body, ["y"], ["c64[8,3]"], more=SUM)
    assert opcodes(body_of(loop)).count("reduce") == count


def test_layouts() -> None:
    body = """a = c64[8,3]{1,0} copy(e0)
        b = c64[8,3]{0,1} copy(a)
        y = c64[8,3]{0,1} multiply(b, e0)"""
    loop = normal(body, ["y"], ["c64[8,3]{0,1}"])
    assert str(loop.region.parameters[0].shape) == "f32[3,8,2]{2,1,0}"
    assert "transpose" not in opcodes(body_of(loop))


def test_constants_stay_out_of_what_is_carried() -> None:
    body = """k = c64[] constant((1, 2))
        b = c64[8] broadcast(k), dimensions={}
        y = c64[8] add(e0, b)"""
    loop = normal(body, ["y"], ["c64[8]"])
    constants = [i for i in body_of(loop).instructions if i.opcode == "constant"]
    values = sorted(float(i.literal) for i in constants if i.shape.element_type.is_floating)
    assert values == [1.0, 2.0]


@pytest.mark.parametrize(
    "body",
    [
        "y = c64[8] log(e0)",
        "y = c64[8] atan2(e0, e0)",
        "y = c64[8] fft(e0), fft_type=FFT, fft_length={8}",
    ],
)
def test_what_is_not_known_is_refused(body: str) -> None:
    with pytest.raises(UnsupportedError, match="complex"):
        normal(body, ["y"], ["c64[8]"])
