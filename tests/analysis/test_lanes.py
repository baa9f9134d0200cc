"""Dimension classes: what keeps lanes apart, what mixes them, and which dimension is chosen."""

from __future__ import annotations

import pytest

from fuselane.analysis.dimension_rules import find_classes, matching_dimensions
from fuselane.analysis.lanes import LaneAnalysis, find_lanes
from fuselane.analysis.meeting_lanes import find_meeting_lanes
from fuselane.decisions import Decision, Reason
from fuselane.errors import UnsupportedError
from fuselane.hlo.computation import HloComputation
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.shape import PrimitiveType, Shape
from fuselane.lanes.normalise import normalise
from tests.lanes.loops import counting_loop, loop_of


def analyse(body: str, results: list[str], carried: list[str], **more: str) -> LaneAnalysis:
    module = counting_loop(body, results, carried, **more)
    return find_lanes(normalise(loop_of(module)).region)


def by_name(analysis: LaneAnalysis) -> dict[str, int | None]:
    return {i.name: dimension for i, dimension in analysis.lane_dimensions.items()}


# What maps lanes to lanes: body, carried shape of e0, and the lane dimension of `y`.
PARALLEL = {
    "elementwise": ("y = f32[8,3] sine(e0)", "f32[8,3]", 0),
    "transpose": ("y = f32[3,8] transpose(e0), dimensions={1,0}", "f32[8,3]", 1),
    "reshape_keeps": ("y = f32[1,8,1,3] reshape(e0)", "f32[8,3]", 1),
    "reshape_merges_others": ("y = f32[8,6] reshape(e0)", "f32[8,2,3]", 0),
    "slice_of_other": ("y = f32[8,2] slice(e0), slice={[0:8], [1:3]}", "f32[8,3]", 0),
    "pad_other": (
        "z = f32[] constant(0)\ny = f32[8,5] pad(e0, z), padding=0_0x1_1",
        "f32[8,3]",
        0,
    ),
    "reverse_other": (
        "c = f32[8,3] cosine(e0)\ny = f32[8,3] reverse(c), dimensions={1}",
        "f32[8,3]",
        0,
    ),
    "concatenate_other": ("y = f32[8,6] concatenate(e0, e0), dimensions={1}", "f32[8,3]", 0),
    "reduce_other": (
        "z = f32[] constant(0)\ny = f32[8] reduce(e0, z), dimensions={1}, to_apply=add_f32",
        "f32[8,3]",
        0,
    ),
    "dynamic_slice_of_other": (
        "y = f32[8,1] dynamic-slice(e0, i, i), dynamic_slice_sizes={8,1}",
        "f32[8,3]",
        0,
    ),
    "dynamic_update_of_other": (
        """s = f32[8,1] slice(e0), slice={[0:8], [0:1]}
        y = f32[8,3] dynamic-update-slice(e0, s, i, i)""",
        "f32[8,3]",
        0,
    ),
    "broadcast_to_other": (
        """s = f32[8,1] slice(e0), slice={[0:8], [0:1]}
        v = f32[8] reshape(s)
        y = f32[5,8] broadcast(v), dimensions={1}""",
        "f32[8,3]",
        1,
    ),
}


@pytest.mark.parametrize("name", PARALLEL)
def test_parallel(name: str) -> None:
    body, shape, expected = PARALLEL[name]
    # A reversed copy of the other dimensions keeps them from being lanes too.
    rank = shape.count(",") + 1
    others = ",".join(str(d) for d in range(1, rank))
    body += f"""
        other = {shape} reverse(e0), dimensions={{{others}}}
        size = s32[] constant(0)
        used = s32[] add(size, zero)
        keep = {shape} add(other, e0)"""
    elements = ["f32[8]"]
    text = body + "\n" + _keep_alive(body)
    analysis = analyse(text, ["keep", "sum"], [shape, *elements])
    assert analysis.num_lanes == 8
    assert by_name(analysis)["y"] == expected


def _keep_alive(body: str) -> str:
    """Returns a use of `y` that brings it back to f32[8], so that it is not dead."""
    line = next(line for line in body.splitlines() if line.strip().startswith("y ="))
    shape = line.split("=")[1].split()[0]
    sizes = [int(size) for size in shape.removeprefix("f32[").removesuffix("]").split(",")]
    reduced = ",".join(str(d) for d, size in enumerate(sizes) if size != 8)
    if not reduced:
        return "sum = f32[8] add(y, e1)"
    return f"""
        alive_z = f32[] constant(0)
        alive = f32[8] reduce(y, alive_z), dimensions={{{reduced}}}, to_apply=add_f32
        sum = f32[8] add(alive, e1)"""


# What mixes lanes: body (of e0: f32[8]), and the instruction that is blamed.
MIXING = {
    "slice": (
        "s = f32[4] slice(e0), slice={[0:4]}\ny = f32[8] concatenate(s, s), dimensions={0}",
        "s",
    ),
    "stride": (
        "s = f32[4] slice(e0), slice={[0:8:2]}\ny = f32[8] concatenate(s, s), dimensions={0}",
        "s",
    ),
    "pad": (
        """z = f32[] constant(0)
        p1 = f32[9] pad(e0, z), padding=1_0
        y = f32[8] slice(p1), slice={[0:8]}""",
        "p1",
    ),
    "reverse": ("y = f32[8] reverse(e0), dimensions={0}", "y"),
    "reshape": (
        """r = f32[2,4] reshape(e0)
        t = f32[4,2] transpose(r), dimensions={1,0}
        y = f32[8] reshape(t)""",
        "r",
    ),
    "reduce": (
        """z = f32[] constant(0)
        s = f32[] reduce(e0, z), dimensions={0}, to_apply=add_f32
        b = f32[8] broadcast(s), dimensions={}
        y = f32[8] add(e0, b)""",
        "s",
    ),
    "pairs": (
        """a = f32[8,8] broadcast(e0), dimensions={0}
        b = f32[8,8] broadcast(e0), dimensions={1}
        c = f32[8,8] add(a, b)
        z = f32[] constant(0)
        y = f32[8] reduce(c, z), dimensions={1}, to_apply=add_f32""",
        "a",
    ),
    "dynamic_slice": (
        """s = f32[1] dynamic-slice(e0, i), dynamic_slice_sizes={1}
        t = f32[] reshape(s)
        b = f32[8] broadcast(t), dimensions={}
        y = f32[8] add(e0, b)""",
        "s",
    ),
    "dynamic_update_slice": (
        """c = f32[1] constant({1})
        y = f32[8] dynamic-update-slice(e0, c, i)""",
        "y",
    ),
}


def obstacle(analysis: LaneAnalysis) -> Decision:
    """Returns why there are no lanes; every value has to be uniform then."""
    assert analysis.obstacle is not None
    assert analysis.num_lanes == 1
    assert set(analysis.lane_dimensions.values()) == {None}
    assert not analysis.splits
    assert not analysis.mergeable
    return analysis.obstacle.decision


@pytest.mark.parametrize("name", MIXING)
def test_mixing(name: str) -> None:
    body, culprit = MIXING[name]
    decision = obstacle(analyse(body, ["y"], ["f32[8]"]))
    assert decision.reason is Reason.CROSS_LANE
    assert decision.instruction == culprit
    assert "size 8" in decision.sentence


def test_pairs_of_rows_and_columns() -> None:
    """All along both dimensions is paired with all: neither runs in parallel."""
    body = """a = f32[8,6,8,6] broadcast(e0), dimensions={0,1}
        b = f32[8,6,8,6] broadcast(e0), dimensions={2,3}
        c = f32[8,6,8,6] add(a, b)
        y = f32[8,6] sine(e0)"""
    decision = obstacle(analyse(body, ["y", "c"], ["f32[8,6]", "f32[8,6,8,6]"]))
    assert decision.reason is Reason.CROSS_LANE


def test_the_dimension_of_the_steps_is_not_what_stands_in_the_way() -> None:
    """It is the longest one, but has an element for each step."""
    body = """z = s32[] constant(0)
        c = f32[8] reverse(e0), dimensions={0}
        y = f32[8] cosine(c)
        row = f32[1,8] reshape(y)
        stack = f32[10,8] dynamic-update-slice(e1, row, i, z)"""
    decision = obstacle(analyse(body, ["y", "stack"], ["f32[8]", "f32[10,8]"]))
    assert decision.instruction == "c"
    assert "size 8" in decision.sentence


def test_lanes_that_meet_in_most_of_it() -> None:
    """A counter for each lane beside state that they meet in is not worth being the lanes."""
    body = """z = f32[] constant(0)
        s = f32[] reduce(e0, z), dimensions={0}, to_apply=max_f32
        b = f32[8,2] broadcast(s), dimensions={}
        y = f32[8,2] subtract(e1, b)
        o = f32[8] constant({1,1,1,1,1,1,1,1})
        c = f32[8] add(e2, o)
        w = f32[8,1] slice(y), slice={[0:8], [0:1]}
        v = f32[8] reshape(w)"""
    module = counting_loop(body, ["v", "y", "c"], ["f32[8]", "f32[8,2]", "f32[8]"])
    region = normalise(loop_of(module)).region
    decision = obstacle(find_lanes(region))
    assert decision.reason is Reason.CROSS_LANE
    assert decision.instruction == "s"
    meeting = find_meeting_lanes(region)
    assert meeting is not None
    assert {by_name(meeting)[name] for name in ("v", "y", "c")} == {0}


def test_what_has_an_element_for_each_step_and_nothing_else_is_no_lanes() -> None:
    body = """y = f32[] multiply(e0, e0)
        row = f32[1] reshape(y)
        stack = f32[10] dynamic-update-slice(e1, row, i)"""
    decision = obstacle(analyse(body, ["y", "stack"], ["f32[]", "f32[10]"]))
    assert decision.reason is Reason.NO_LANES
    assert "each step reads or writes a part" in decision.sentence


def test_condition_that_reduces_the_lanes() -> None:
    decision = obstacle(
        analyse(
            "y = f32[8] multiply(e0, e0)",
            ["y"],
            ["f32[8]"],
            condition="""z = f32[] constant(0)
            s = f32[] reduce(e0, z), dimensions={0}, to_apply=add_f32
            ROOT go = pred[] compare(s, z), direction=LT""",
        )
    )
    assert decision.reason is Reason.DATA_DEPENDENT_TRIP_COUNT
    assert decision.instruction == "s"


def test_condition_that_depends_on_the_lanes_of_the_step_before() -> None:
    """The body reduces the lanes to a flag that the next condition reads."""
    decision = obstacle(
        analyse(
            """y = f32[8] multiply(e0, e0)
            z = f32[] constant(0)
            s = f32[] reduce(y, z), dimensions={0}, to_apply=max_f32
            flag = pred[] compare(s, z), direction=GT""",
            ["y", "flag"],
            ["f32[8]", "pred[]"],
            condition="ROOT go = pred[] and(e1, e1)",
        )
    )
    assert decision.reason is Reason.DATA_DEPENDENT_TRIP_COUNT


def test_condition_that_reduces_something_uniform() -> None:
    analysis = analyse(
        """y = f32[8] multiply(e0, e0)
        w = f32[5] add(e1, e1)""",
        ["y", "w"],
        ["f32[8]", "f32[5]"],
        condition="""z = f32[] constant(100)
            s = f32[] reduce(e1, z), dimensions={0}, to_apply=add_f32
            ROOT go = pred[] compare(s, z), direction=LT""",
    )
    assert analysis.num_lanes == 8
    assert by_name(analysis)["w"] is None


def test_scalar_loop_has_no_lanes() -> None:
    decision = obstacle(analyse("y = f32[] sine(e0)", ["y"], ["f32[]"]))
    assert decision.reason is Reason.NO_LANES
    assert decision.instruction == "loop"


def test_one_lane_is_no_lane() -> None:
    decision = obstacle(analyse("y = f32[1] sine(e0)", ["y"], ["f32[1]"]))
    assert decision.reason is Reason.NO_LANES


@pytest.mark.parametrize(("lanes", "size"), [(4, 64), (5, 64), (4, 63), (2, 8192), (2, 8193)])
def test_few_lanes_of_many_elements_are_none(lanes: int, size: int) -> None:
    shape = f"f32[{lanes},{size}]"
    analysis = analyse(f"y = {shape} reverse(e0), dimensions={{1}}", ["y"], [shape])
    are_none = (lanes, size) in ((4, 64), (2, 8192))
    assert analysis.num_lanes == (1 if are_none else lanes)
    assert analysis.obstacle is None


def test_few_lanes_of_a_scalar_each_stay_beside_a_long_stack() -> None:
    body = """y = f32[2] negate(e0)
    r = f32[1,2] reshape(y)
    s = f32[900,2] dynamic-update-slice(e1, r, i, zero)"""
    assert analyse(body, ["y", "s"], ["f32[2]", "f32[900,2]"]).num_lanes == 2


def test_largest_dimension_wins() -> None:
    body = """a = f32[7,9] sine(e0)
        z = f32[] constant(0)
        r = f32[7] reduce(a, z), dimensions={1}, to_apply=add_f32
        s = f32[9] reduce(a, z), dimensions={0}, to_apply=add_f32
        b = f32[5] cosine(e1)"""
    analysis = analyse(body + "\nc = f32[7] add(r, r)", ["a", "b"], ["f32[7,9]", "f32[5]"])
    assert analysis.num_lanes == 9
    assert by_name(analysis)["b"] is None


def test_minor_dimension_wins_a_tie() -> None:
    body = """n = f32[8] iota(), iota_dimension=0
        q = f32[8] cosine(n)
        b = f32[8,8] broadcast(q), dimensions={0}
        y = f32[8,8] add(e0, b)"""
    analysis = analyse(body, ["y"], ["f32[8,8]"])
    assert by_name(analysis)["y"] == 1
    assert by_name(analysis)["q"] is None


@pytest.mark.parametrize(("heads", "num_lanes"), [(4, 8), (1, 16)])
def test_few_lanes_are_more_where_two_dimensions_can_be_one(heads: int, num_lanes: int) -> None:
    """Rows of attention: 8 of 4 heads make 32 lanes, more than a value's 16 elements are."""
    sizes = f"8,{heads},16"
    body = f"""n = f32[{sizes},16] broadcast(e1), dimensions={{0,1,2}}
        y = f32[{sizes},16] add(e0, n)
        w = f32[{sizes}] reverse(e1), dimensions={{2}}"""
    analysis = analyse(body, ["y", "w"], [f"f32[{sizes},16]", f"f32[{sizes}]"])
    assert analysis.num_lanes == num_lanes
    assert (analysis.mergeable is not None) == (heads > 1)


def test_zeros_shared_by_lanes_and_by_something_else_of_the_same_size() -> None:
    """As many steps as lanes: the same zeros start the state and a table that is indexed."""
    body = """zeros = f32[8] broadcast(f), dimensions={}
        y = f32[8] maximum(e0, zeros)
        o = f32[1] constant({1})
        w = f32[8] add(e1, zeros)
        v = f32[8] dynamic-update-slice(w, o, i)"""
    analysis = analyse("f = f32[] constant(0)\n" + body, ["y", "v"], ["f32[8]", "f32[8]"])
    assert analysis.num_lanes == 8
    assert by_name(analysis)["y"] == 0
    assert by_name(analysis)["v"] is None
    (split,) = analysis.splits
    assert split.leaf.name == "zeros"
    assert {analysis.lane_dimensions[split.leaf], split.lane_dimension} == {0, None}


def test_iota_along_the_lanes() -> None:
    body = "n = f32[8] iota(), iota_dimension=0\ny = f32[8] add(e0, n)"
    assert by_name(analyse(body, ["y"], ["f32[8]"]))["n"] == 0


def test_two_dimensions_that_can_be_one() -> None:
    analysis = analyse("y = f32[4,6] sine(e0)", ["y"], ["f32[4,6]"])
    assert analysis.mergeable is not None
    assert {i.name: first for i, first in analysis.mergeable.first.items()}["y"] == 0
    assert not analysis.mergeable.alone


@pytest.mark.parametrize(
    "body",
    [
        # One of them alone, and not elementwise:
        """n = f32[1,4] iota(), iota_dimension=1
        c = f32[1,4] cosine(n)
        p1 = f32[2,4] concatenate(c, n), dimensions={0}
        b = f32[2,4,6] broadcast(p1), dimensions={0,1}
        z = f32[] constant(0)
        d = f32[4,6] reduce(b, z), dimensions={0}, to_apply=add_f32
        y = f32[4,6] add(e0, d)""",
        # In both orders:
        """t = f32[6,4] transpose(e0), dimensions={1,0}
        r = f32[6,4] sine(t)
        y = f32[4,6] transpose(r), dimensions={1,0}""",
    ],
)
def test_two_dimensions_that_cannot_be_one(body: str) -> None:
    analysis = analyse(body, ["y"], ["f32[4,6]"])
    assert analysis.num_lanes == 6
    assert not analysis.mergeable


@pytest.mark.parametrize("result", ["e1", "s"])
def test_one_of_two_dimensions_alone(result: str) -> None:
    """It can be widened unless the loop changes it, which would be done over and over then."""
    body = (
        "b = f32[4,6] broadcast(e1), dimensions={0}\ny = f32[4,6] add(e0, b)\ns = f32[4] sine(e1)"
    )
    mergeable = analyse(body, ["y", result], ["f32[4,6]", "f32[4]"]).mergeable
    if result == "s":
        assert mergeable is None
    else:
        assert mergeable is not None
        alone = {i.name: place for i, place in mergeable.alone.items()}
        assert alone["in1"].is_major
        assert (mergeable.major_size, mergeable.minor_size) == (4, 6)


def test_what_goes_round_has_one_of_two_dimensions_alone() -> None:
    """As the parts of many keys do. Nothing is done over and over where it is passed along."""
    body = """r = f32[4] reshape(e1)
        b = f32[4,6] broadcast(r), dimensions={0}
        y = f32[4,6] add(e0, b)"""
    shapes = ["f32[4,6]", "f32[4,1]", "f32[4,1]"]
    mergeable = analyse(body, ["y", "e2", "e1"], shapes, returned="first").mergeable
    assert mergeable is not None
    alone = {i.name: place.is_major for i, place in mergeable.alone.items()}
    assert alone["r"]
    assert alone["in1"]
    assert alone["in2"]


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        ((4, 1, 6, 5), (4, 3, 2, 5), [(0, 0), (3, 3)]),
        ((2, 3, 5), (6, 5), [(2, 1)]),
        ((8,), (1, 8), [(0, 1)]),
        ((8,), (2, 4), []),
        ((6, 4), (4, 6), []),
        ((), (1, 1), []),
        ((7, 8), (7, 8), [(0, 0), (1, 1)]),
        ((2, 2, 3), (2, 6), [(0, 0)]),
        ((3, 4, 5, 2), (3, 20, 2), [(0, 0), (3, 2)]),
    ],
)
def test_matching_dimensions(
    source: tuple[int, ...], target: tuple[int, ...], expected: list[tuple[int, int]]
) -> None:
    assert list(matching_dimensions(source, target)) == expected


def all_instructions(region: HloComputation) -> list[HloInstruction]:
    result = []
    for instruction in region.instructions:
        result.append(instruction)
        if instruction.opcode == "while":
            result += all_instructions(instruction.body)
            result += all_instructions(instruction.condition)
    return result


def test_every_array_has_an_entry() -> None:
    module = counting_loop("y = f32[8] sine(e0)", ["y"], ["f32[8]"])
    region = normalise(loop_of(module)).region
    lanes = find_lanes(region).lane_dimensions
    assert {i for i in all_instructions(region) if i.shape.is_array} == set(lanes)


def test_an_opcode_without_a_rule_is_refused_by_name() -> None:
    region = HloComputation.create("region")
    shape = Shape.array(PrimitiveType.F32, (8,))
    parameter = region.add(HloInstruction.parameter(0, shape))
    region.root = region.add(HloInstruction.create("unheard-of", shape, [parameter]))
    with pytest.raises(UnsupportedError) as refused:
        find_classes(region)
    decision = refused.value.decision
    assert decision.reason is Reason.UNSUPPORTED_OPCODE
    assert "`unheard-of`" in decision.sentence
