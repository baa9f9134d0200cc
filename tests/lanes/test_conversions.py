"""Conversions around data movement: what is done to arrays of the narrow type in normal form."""

from __future__ import annotations

import pytest

from fuselane.hlo.computation import HloComputation
from fuselane.hlo.instruction import HloInstruction
from fuselane.lanes.normalise import normalise
from tests.lanes.loops import counting_loop, loop_of

MORE = """second { l = f32[] parameter(0)  ROOT r = f32[] parameter(1) }
"""


def body_of(body: str, results: list[str], carried: list[str]) -> HloComputation:
    """Returns the body of a loop in normal form."""
    loop = normalise(loop_of(counting_loop(body, results, carried, more=MORE)))
    return next(i for i in loop.region.instructions if i.opcode == "while").body


def find(body: HloComputation, opcode: str) -> HloInstruction:
    (found,) = (i for i in body.instructions if i.opcode == opcode)
    return found


def converted_sizes(body: HloComputation) -> list[int]:
    """Returns the number of elements of everything that is converted."""
    return [i.shape.num_elements for i in body.instructions if i.opcode == "convert"]


@pytest.mark.parametrize("narrow", ["bf16", "f16"])
def test_an_update_of_a_converted_array(narrow: str) -> None:
    body = f"""x = f32[50,8] convert(e0)
        u = f32[1,8] reshape(e1)
        d = f32[50,8] dynamic-update-slice(x, u, i, zero)
        y = {narrow}[50,8] convert(d)"""
    computation = body_of(body, ["y", "e1"], [f"{narrow}[50,8]", "f32[8]"])
    update = find(computation, "dynamic-update-slice")
    assert update is computation.root.operands[1]
    assert update.shape.element_type.lower == narrow
    assert converted_sizes(computation) == [8]


def test_a_slice_of_a_converted_array() -> None:
    body = """x = f32[50,8] convert(e0)
        s = f32[1,8] dynamic-slice(x, i, zero), dynamic_slice_sizes={1,8}
        y = f32[8] reshape(s)"""
    computation = body_of(body, ["e0", "y"], ["bf16[50,8]", "f32[8]"])
    assert find(computation, "dynamic-slice").shape.element_type.lower == "bf16"
    assert converted_sizes(computation) == [8]


def test_through_reshapes_and_transposes() -> None:
    body = """x = f32[50,8] convert(e0)
        t = f32[8,50] transpose(x), dimensions={1,0}
        r = f32[8,5,10] reshape(t)
        s = f32[8,1,10] slice(r), slice={[0:8],[1:2],[0:10]}
        y = f32[80] reshape(s)"""
    computation = body_of(body, ["e0", "y"], ["bf16[50,8]", "f32[80]"])
    assert converted_sizes(computation) == [80]


def test_a_choice_between_old_and_new() -> None:
    body = """x = f32[8] convert(e0)
        n = f32[8] sine(x)
        p0 = pred[8] compare(x, n), direction=LT
        s = f32[8] select(p0, n, x)
        y = bf16[8] convert(s)"""
    computation = body_of(body, ["y"], ["bf16[8]"])
    select = find(computation, "select")
    assert select is computation.root.operands[1]
    assert select.operands[2].opcode == "get-tuple-element"


def test_parts_put_together() -> None:
    body = """x = f32[8,50] convert(e0)
        a = f32[8,49] slice(x), slice={[0:8],[1:50]}
        n = f32[8,1] reshape(e1)
        c = f32[8,50] concatenate(a, n), dimensions={1}
        y = bf16[8,50] convert(c)"""
    computation = body_of(body, ["y", "e1"], ["bf16[8,50]", "f32[8]"])
    assert find(computation, "concatenate").shape.element_type.lower == "bf16"
    assert converted_sizes(computation) == [8]


def test_a_scatter_that_replaces() -> None:
    body = """x = f32[8,50] convert(e0)
        s = f32[8,50] scatter(x, e1, e2), update_window_dims={}, inserted_window_dims={0,1},
          scatter_dims_to_operand_dims={0,1}, index_vector_dim=1, to_apply=second
        y = bf16[8,50] convert(s)"""
    carried = ["bf16[8,50]", "s32[8,2]", "f32[8]"]
    computation = body_of(body, ["y", "e1", "e2"], carried)
    scatter = find(computation, "scatter")
    assert scatter.shape.element_type.lower == "bf16"
    assert scatter.to_apply.root.parameter_number == 1
    assert str(scatter.to_apply.root.shape) == "bf16[]"


@pytest.mark.parametrize(("narrow", "wide"), [("s8", "s32"), ("u8", "f32"), ("pred", "s32")])
def test_integers_that_a_wider_type_holds(narrow: str, wide: str) -> None:
    body = f"""x = {wide}[50,8] convert(e0)
        d = {wide}[50,8] dynamic-update-slice(x, e1, i, zero)
        y = {narrow}[50,8] convert(d)"""
    computation = body_of(body, ["y", "e1"], [f"{narrow}[50,8]", f"{wide}[1,8]"])
    assert converted_sizes(computation) == [8]


@pytest.mark.parametrize(("narrow", "wide"), [("s32", "f32"), ("f32", "bf16"), ("s8", "u32")])
def test_a_conversion_that_loses_something_stays(narrow: str, wide: str) -> None:
    body = f"""x = {wide}[50,8] convert(e0)
        d = {wide}[50,8] dynamic-update-slice(x, e1, i, zero)
        y = {narrow}[50,8] convert(d)"""
    computation = body_of(body, ["y", "e1"], [f"{narrow}[50,8]", f"{wide}[1,8]"])
    assert sorted(converted_sizes(computation)) == [400, 400]


def test_what_is_computed_stays_in_the_wide_type() -> None:
    body = """x = f32[8] convert(e0)
        d = f32[8] multiply(x, x)
        y = bf16[8] convert(d)"""
    computation = body_of(body, ["y"], ["bf16[8]"])
    assert find(computation, "multiply").shape.element_type.lower == "f32"


def test_a_part_read_of_what_was_replaced_keeps_its_digits() -> None:
    """What was put in has more digits than the narrow type."""
    body = """x = f32[50,8] convert(e0)
        d = f32[50,8] dynamic-update-slice(x, e1, i, zero)
        s = f32[1,8] dynamic-slice(d, i, zero), dynamic_slice_sizes={1,8}"""
    computation = body_of(body, ["e0", "s"], ["bf16[50,8]", "f32[1,8]"])
    assert find(computation, "dynamic-slice").operands[0].shape.element_type.lower == "f32"
