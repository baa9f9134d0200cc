"""Forming: what is refused and why, and what a program says about its loops."""

from __future__ import annotations

from types import ModuleType

import pytest

from fuselane.analysis import cuts, lanes, meeting_lanes
from fuselane.analysis.dimension_classes import DimensionClasses
from fuselane.decisions import Decision, Reason
from fuselane.errors import UnsupportedError
from fuselane.hlo.computation import HloComputation
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.module import HloModule
from fuselane.lanes import sharing
from fuselane.lanes.form import form
from fuselane.lanes.fused_decision import describe
from fuselane.lanes.program import ElementKind, LaneProgram
from fuselane.lanes.size import MAX_ELEMENTS_ALONE, MAX_LANE_ELEMENTS
from tests.lanes.loops import counting_loop, loop_of

LINE = 'metadata={source_file="user.py" source_line=7}'
CALLS = """
fused_narrow {
  t0 = f32[8] parameter(0)
  g0 = s4[8] convert(t0), metadata={source_file="user.py" source_line=9}
  ROOT g1 = f32[8] convert(g0)
}
"""

# Body over e0: f32[8] and e1: f32[8,8], then reason, instruction, opcode and line of the refusal.
REFUSED: dict[str, tuple[str, Reason, str, str, int]] = {
    "custom_call": (
        f'y = f32[8] custom-call(e0), custom_call_target="other", {LINE}',
        Reason.UNSUPPORTED_OPCODE,
        "y",
        "custom-call",
        7,
    ),
    "in_a_fusion": (
        "y = f32[8] fusion(e0), kind=kLoop, calls=fused_narrow",
        Reason.UNSUPPORTED_TYPE,
        "g0",
        "convert",
        9,
    ),
    "side_effect": (
        f"""y = f32[8] custom-call(e0), custom_call_target="print",
            custom_call_has_side_effect=true, {LINE}""",
        Reason.SIDE_EFFECT,
        "y",
        "custom-call",
        7,
    ),
    "unused_side_effect": (
        f"""v = f32[8] custom-call(e0), custom_call_target="print",
            custom_call_has_side_effect=true, {LINE}
        y = f32[8] sine(e0)""",
        Reason.SIDE_EFFECT,
        "v",
        "custom-call",
        7,
    ),
    "four_bits": (
        f"""c = s4[8] convert(e0), {LINE}
        d = f32[8] convert(c)
        y = f32[8] add(d, e0)""",
        Reason.UNSUPPORTED_TYPE,
        "c",
        "convert",
        7,
    ),
    "eight_bit_float": (
        f"""c = f8e4m3fn[8] convert(e0), {LINE}
        d = f32[8] convert(c)
        y = f32[8] add(d, e0)""",
        Reason.UNSUPPORTED_TYPE,
        "c",
        "convert",
        7,
    ),
    "bitcast_to_other_width": (
        f"""c = s16[8,2] bitcast-convert(e0), {LINE}
        d = s16[8,1] slice(c), slice={{[0:8], [0:1]}}
        f = s16[8] reshape(d)
        y = f32[8] convert(f)""",
        Reason.UNSUPPORTED_OPCODE,
        "c",
        "bitcast-convert",
        7,
    ),
}


def refusal(module: HloModule) -> Decision:
    before = module.to_bytes()
    with pytest.raises(UnsupportedError) as caught:
        form(module, loop_of(module))
    assert module.to_bytes() == before
    return caught.value.decision


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    body, reason, instruction, opcode, line = REFUSED[name]
    result = "y2" if "y2 =" in body else "y"
    module = counting_loop(
        body, [result, "e1"], ["f32[8]", "f32[8,8]"], more=CALLS, trip_count=100_000
    )
    decision = refusal(module)
    assert decision.reason is reason
    assert (decision.instruction, decision.opcode) == (instruction, opcode)
    assert decision.source == f"user.py:{line}"
    assert decision.sentence.endswith(".")


def test_loop_without_lanes() -> None:
    body = f"y = f32[8] reverse(e0), dimensions={{0}}, {LINE}"
    module = counting_loop(body, ["y"], ["f32[8]"])
    program = form(module, loop_of(module))
    assert not program.has_lanes
    assert set(program.lane_dimensions.values()) == {None}
    obstacle = program.obstacle
    assert obstacle is not None
    assert (obstacle.reason, obstacle.instruction) == (Reason.CROSS_LANE, "y")
    assert (obstacle.opcode, obstacle.source) == ("reverse", "user.py:7")
    assert describe(program).sentence == "The loop runs as one native kernel without lanes."


def test_obstacle_is_told_where_a_loop_without_lanes_is_too_large() -> None:
    size = MAX_ELEMENTS_ALONE // 2 + 1
    module = counting_loop(
        f"y = f32[{size}] reverse(e0), dimensions={{0}}", ["y"], [f"f32[{size}]"]
    )
    assert refusal(module).reason is Reason.CROSS_LANE


def test_loops_of_unknown_length() -> None:
    module = counting_loop(
        "y = f32[8] sine(e0)",
        ["y", "e1"],
        ["f32[8]", "s32[]"],
        condition="ROOT go = pred[] compare(i, e1), direction=LT",
    )
    assert form(module, loop_of(module)).loop.trip_count is None


def test_lanes_that_need_too_much() -> None:
    size = MAX_LANE_ELEMENTS + 1
    shape = f"f32[{size},8]"
    # What is reversed cannot be lanes.
    body = f"r = {shape} reverse(e0), dimensions={{0}}\ny = {shape} sine(r)"
    decision = refusal(counting_loop(body, ["y"], [shape]))
    assert decision.reason is Reason.TOO_LARGE


def test_large_streams_need_nothing() -> None:
    size = MAX_LANE_ELEMENTS * 4
    body = f"""y = f32[8] sine(e0)
        row = f32[1,8] reshape(y)
        up = f32[{size},8] dynamic-update-slice(e1, row, i, zero)"""
    module = counting_loop(body, ["y", "up"], ["f32[8]", f"f32[{size},8]"], trip_count=size)
    program = form(module, loop_of(module))
    assert program.loop.elements[2].kind is ElementKind.STREAM
    assert program.loop.elements[2].is_fully_overwritten


def program_of(body: str, results: list[str], carried: list[str], **more: str) -> LaneProgram:
    module = counting_loop(body, results, carried, trip_count=1_000, **more)
    return form(module, loop_of(module))


def test_elements_and_their_kinds() -> None:
    program = program_of(
        """row = f32[1,8] dynamic-slice(e1, i, zero), dynamic_slice_sizes={1,8}
        x = f32[8] reshape(row)
        y = f32[8] add(e0, x)
        out = f32[1,8] reshape(y)
        up = f32[1000,8] dynamic-update-slice(e2, out, i, zero)""",
        ["y", "e1", "up"],
        ["f32[8]", "f32[1000,8]", "f32[1000,8]"],
    )
    loop = program.loop
    kinds = [element.kind for element in loop.elements]
    assert kinds == [
        ElementKind.STATE,
        ElementKind.STATE,
        ElementKind.INVARIANT,
        ElementKind.STREAM,
    ]
    assert [element.lane_dimension for element in loop.elements] == [None, 0, 1, 1]
    assert (loop.trip_count, loop.induction_index) == (1_000, 0)
    assert program.num_lanes == 8
    assert [o.name for o in program.operands] == ["in0", "in1", "in2"]
    assert program.output_indices == (0, 1, 3)
    assert list(program.invariants) == [2]
    names = {i.name for i in program.mutable}
    assert "up" in names
    assert "row" not in names


def test_a_stream_that_is_read_is_always_a_result() -> None:
    """It lives in the memory of a result, even where the program looks at others only."""
    module = counting_loop(
        """old = f32[1,8] dynamic-slice(e1, i, zero), dynamic_slice_sizes={1,8}
        x = f32[8] reshape(old)
        y = f32[8] add(e0, x)
        row = f32[1,8] reshape(y)
        up = f32[1000,8] dynamic-update-slice(e1, row, i, zero)""",
        ["y", "up"],
        ["f32[8]", "f32[1000,8]"],
        trip_count=1_000,
    )
    loop = loop_of(module)
    only_result = HloInstruction.create(
        "get-tuple-element", loop.shape.tuple_shapes[1], [loop], tuple_index=1
    )
    module.entry.root = module.entry.add(only_result)
    program = form(module, loop)
    assert program.output_indices == (1, 2)
    assert [o.tuple_index for o in program.outputs] == [1, 2]
    assert all(output in program.lane_dimensions for output in program.outputs)


def test_decision_to_fuse() -> None:
    decision = describe(program_of("y = f32[8] sine(e0)", ["y"], ["f32[8]"]), "user.py:7 (f)")
    assert decision.fused
    assert decision.sentence == "The loop runs as one native kernel over 8 lanes."
    assert decision.source == "user.py:7 (f)"
    assert decision.numbers["trip_count"] == 1_000
    assert decision.numbers["lanes"] == 8
    assert decision.numbers["cost_per_step"] > 0


def test_shared_zeros_get_a_copy() -> None:
    program = program_of(
        """f = f32[] constant(0)
        zeros = f32[8] broadcast(f), dimensions={}
        y = f32[8] maximum(e0, zeros)
        o = f32[1] constant({1})
        w = f32[8] add(e1, zeros)
        v = f32[8] dynamic-update-slice(w, o, i)""",
        ["y", "v"],
        ["f32[8]", "f32[8]"],
    )
    body = program.loop.instruction.body
    zeros = [i for i in body.instructions if i.opcode == "broadcast"]
    assert sorted(str(program.lane_dimensions[z]) for z in zeros) == ["0", "None"]
    for zero in zeros:
        for user in zero.users:
            assert program.lane_dimensions[user] == program.lane_dimensions[zero]


def test_few_values_that_meet_in_stages_are_one_lane() -> None:
    """The stages are joined for lanes that meet, then there turn out to be too few of them."""
    program = program_of(
        """z = f32[] constant(0)
        some = f32[4,1] reduce(e0, z), dimensions={2}, to_apply=add_f32
        all = f32[] reduce(some, z), dimensions={0,1}, to_apply=add_f32
        b = f32[4,1,2] broadcast(all), dimensions={}
        y = f32[4,1,2] add(e0, b)""",
        ["y"],
        ["f32[4,1,2]"],
    )
    assert not program.has_lanes
    (total,) = (i for i in program.loop.instruction.body.instructions if i.opcode == "reduce")
    assert set(total.dimensions) == {0, 1, 2}


def test_lanes_of_a_loop_of_scalars_are_looked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing in it can be cut, met in or shared."""
    looked: list[str] = []

    def watch(module: ModuleType) -> None:
        find = module.find_classes

        def find_classes(region: HloComputation) -> DimensionClasses:
            looked.append(module.__name__)
            return find(region)

        monkeypatch.setattr(module, "find_classes", find_classes)

    for module in (lanes, meeting_lanes, cuts, sharing):
        watch(module)
    program_of("y = f32[] sine(e0)", ["y"], ["f32[]"])
    assert looked == [lanes.__name__]


SQUARED = "y = f32[32,32] dot(e0, e0), lhs_contracting_dims={1}, rhs_contracting_dims={0}"
MOVED = """
    row = f32[1,24] reshape(e0)
    column = f32[24,1] reshape(e0)
    b = f32[24,24] broadcast(e0), dimensions={0}
    c = f32[24,24] broadcast(e0), dimensions={1}
    apart = f32[24,24] subtract(b, c)
    f0 = f32[] constant(0)
    y = f32[24] reduce(apart, f0), dimensions={1}, to_apply=add_f32"""


@pytest.mark.parametrize(("body", "shape"), [(SQUARED, "f32[32,32]"), (MOVED, "f32[24]")])
def test_what_one_thread_would_run_is_left_out_on_demand(body: str, shape: str) -> None:
    """Without lanes, and with lanes that see each other; the refusal says what is in the way."""
    module = counting_loop(body, ["y"], [shape])
    form(module, loop_of(module))
    with pytest.raises(UnsupportedError) as caught:
        form(module, loop_of(module), is_for_one_thread=lambda _: False)
    assert caught.value.decision.reason is Reason.CROSS_LANE


def test_lanes_that_do_without_each_other_are_found_on_demand_as_well() -> None:
    module = counting_loop("y = f32[64] sine(e0)", ["y"], ["f32[64]"])
    assert form(module, loop_of(module), is_for_one_thread=lambda _: False).num_lanes == 64
