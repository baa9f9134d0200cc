"""Arrays updated in place: which loop elements are, and which are wholly overwritten."""

from __future__ import annotations

import pytest

from fuselane.analysis.lanes import find_lanes
from fuselane.analysis.streams import Stream, find_streams, is_fully_overwritten
from fuselane.decisions import Reason
from fuselane.errors import UnsupportedError
from fuselane.hlo.instruction import HloInstruction
from fuselane.lanes.normalise import normalise
from tests.lanes.loops import counting_loop, loop_of


def streams_of(
    body: str, results: list[str], carried: list[str], trip_count: int = 10, more: str = ""
) -> tuple[HloInstruction, list[Stream]]:
    module = counting_loop(body, results, carried, trip_count=trip_count, more=more)
    region = normalise(loop_of(module)).region
    loop = next(i for i in region.instructions if i.opcode == "while")
    return loop, find_streams(loop, find_lanes(region).lane_dimensions)


ROW = "y = f32[8] sine(e0)\nrow = f32[1,8] reshape(y)"
STORE = "up = f32[10,8] dynamic-update-slice(e1, row, at, zero)"

# How a stacked output is written: instructions for the index `at`, trip count, whether all of it.
WRITES = {
    "forward": ("at = s32[] add(i, zero)", 10, True),
    "forward_wrapped": (
        """ten = s32[] constant(10)
        negative = pred[] compare(i, zero), direction=LT
        wrapped = s32[] add(i, ten)
        at = s32[] select(negative, wrapped, i)""",
        10,
        True,
    ),
    "reverse": ("nine = s32[] constant(9)\nat = s32[] subtract(nine, i)", 10, True),
    "too_few_steps": ("at = s32[] add(i, zero)", 9, False),
    "more_steps_than_rows": ("at = s32[] add(i, zero)", 11, False),
    "shifted": ("at = s32[] add(i, one)", 10, False),
    "every_other": ("two = s32[] constant(2)\nat = s32[] multiply(i, two)", 10, False),
    "always_the_same": ("at = s32[] add(zero, one)", 10, False),
    "ring": ("five = s32[] constant(5)\nat = s32[] remainder(i, five)", 10, False),
}


@pytest.mark.parametrize("name", WRITES)
def test_stacked_output(name: str) -> None:
    index, trip_count, is_whole = WRITES[name]
    body = "\n".join((ROW, index, STORE))
    loop, (stream,) = streams_of(body, ["y", "up"], ["f32[8]", "f32[10,8]"], trip_count)
    assert stream.elements == [(loop, 2)]
    assert [v.opcode for v in stream.versions] == ["get-tuple-element", "dynamic-update-slice"]
    assert not stream.readers
    assert is_fully_overwritten(loop, stream) is is_whole


def test_several_rows_a_step() -> None:
    body = """y = f32[8] sine(e0)
        two = s32[] constant(2)
        at = s32[] multiply(i, two)
        rows = f32[2,8] broadcast(y), dimensions={1}
        up = f32[20,8] dynamic-update-slice(e1, rows, at, zero)"""
    loop, (stream,) = streams_of(body, ["y", "up"], ["f32[8]", "f32[20,8]"])
    assert is_fully_overwritten(loop, stream)


def test_one_step_writes_one_row() -> None:
    body = "\n".join((ROW, "up = f32[1,8] add(row, row)"))
    _, streams = streams_of(body, ["y", "up"], ["f32[8]", "f32[1,8]"], trip_count=1)
    assert not streams


def test_inner_dimensions_must_be_written_too() -> None:
    body = """y = f32[8] sine(e0)
        part = f32[1,1,8] reshape(y)
        up = f32[10,2,8] dynamic-update-slice(e1, part, i, zero, zero)"""
    loop, (stream,) = streams_of(body, ["y", "up"], ["f32[8]", "f32[10,2,8]"])
    assert not is_fully_overwritten(loop, stream)


READ = """old = f32[1,8] dynamic-slice(e1, i, zero), dynamic_slice_sizes={1,8}
        y = f32[8] reshape(old)
        row = f32[1,8] add(old, old)"""


def test_large_array_read_and_written_is_a_stream() -> None:
    body = READ + "\nup = f32[100,8] dynamic-update-slice(e1, row, i, zero)"
    loop, (stream,) = streams_of(body, ["y", "up"], ["f32[8]", "f32[100,8]"], trip_count=100)
    assert [r.name for r in stream.readers] == ["old"]
    assert stream.hazard is None
    assert not is_fully_overwritten(loop, stream)


def test_small_array_read_and_written_is_state() -> None:
    body = READ + "\nup = f32[64,8] dynamic-update-slice(e1, row, i, zero)"
    _, streams = streams_of(body, ["y", "up"], ["f32[8]", "f32[64,8]"])
    assert not streams


def test_many_small_arrays_read_and_written_are_streams() -> None:
    names = [f"up{n}" for n in range(4)]
    body = "\n".join(
        f"""old{n} = f32[1,8] dynamic-slice(e{n}, i, zero), dynamic_slice_sizes={{1,8}}
        row{n} = f32[1,8] sine(old{n})
        {name} = f32[60,8] dynamic-update-slice(e{n}, row{n}, zero, zero)"""
        for n, name in enumerate(names)
    )
    _, streams = streams_of(body, names, ["f32[60,8]"] * 4)
    assert len(streams) == 2


def test_uniform_array_is_a_stream_only_if_nobody_reads_it() -> None:
    written = """y = f32[8] sine(e0)
        c = f32[] convert(i)
        d = f32[1] reshape(c)"""
    store = "\nup = f32[100] dynamic-update-slice(e1, d, i)"
    read = "\nold = f32[1] dynamic-slice(e1, i), dynamic_slice_sizes={1}\nv = f32[] reshape(old)"
    carried = ["f32[8]", "f32[100]", "f32[]"]
    _, streams = streams_of(written + store, ["y", "up", "e2"], carried)
    assert len(streams) == 1
    _, streams = streams_of(written + read + store, ["y", "up", "v"], carried)
    assert not streams


# What makes an array a value rather than a stream.
VALUES = {
    "used_as_a_whole": (
        "a = f32[100,8] dynamic-update-slice(e1, row, i, zero)\nup = f32[100,8] negate(a)"
    ),
    "two_updates_of_one_version": (
        """a = f32[100,8] dynamic-update-slice(e1, row, i, zero)
        b = f32[100,8] dynamic-update-slice(e1, row, zero, zero)
        up = f32[100,8] add(a, b)"""
    ),
    "replaced": "up = f32[100,8] broadcast(y), dimensions={1}",
    "update_is_of_another": (
        """zf = f32[] constant(0)
        fresh = f32[100,8] broadcast(zf), dimensions={}
        up = f32[100,8] dynamic-update-slice(fresh, row, i, zero)"""
    ),
}


@pytest.mark.parametrize("name", VALUES)
def test_values_are_no_streams(name: str) -> None:
    body = ROW + "\n" + VALUES[name]
    _, streams = streams_of(body, ["y", "up"], ["f32[8]", "f32[100,8]"])
    assert not streams


def test_arrays_that_change_places_are_no_streams() -> None:
    body = ROW + "\nup = f32[100,8] dynamic-update-slice(e1, row, i, zero)"
    carried = ["f32[8]", "f32[100,8]", "f32[100,8]"]
    _, streams = streams_of(body, ["y", "e2", "up"], carried)
    assert not streams


def test_several_updates_in_a_row() -> None:
    body = (
        ROW
        + """
        first = f32[100,8] dynamic-update-slice(e1, row, i, zero)
        seen = f32[1,8] dynamic-slice(first, one, zero), dynamic_slice_sizes={1,8}
        up = f32[100,8] dynamic-update-slice(first, seen, zero, zero)"""
    )
    loop, (stream,) = streams_of(body, ["y", "up"], ["f32[8]", "f32[100,8]"])
    assert [v.name for v in stream.versions[1:]] == ["first", "up"]
    assert [r.name for r in stream.readers] == ["seen"]
    assert not is_fully_overwritten(loop, stream)


LATE = """first = f32[{size},8] dynamic-update-slice(e1, row, i, zero)
        new = f32[1,8] dynamic-slice(first, one, zero), dynamic_slice_sizes={{1,8}}
        late = f32[1,8] dynamic-slice(e1, at, zero), dynamic_slice_sizes={{1,8}}
        sum = f32[1,8] add(late, new)
        up = f32[{size},8] dynamic-update-slice(first, sum, zero, zero)"""


def test_read_that_can_come_first_is_no_hazard() -> None:
    body = ROW + "\nat = s32[] add(i, one)\n" + LATE.format(size=100)
    _, (stream,) = streams_of(body, ["y", "up"], ["f32[8]", "f32[100,8]"])
    assert stream.hazard is None


# The index of the late read depends on what the first update wrote: through a uniform array.
HAZARD = """row = f32[1] constant({{7}})
        first = f32[{size}] dynamic-update-slice(e1, row, i)
        new = f32[1] dynamic-slice(first, one), dynamic_slice_sizes={{1}}
        newer = f32[] reshape(new)
        at = s32[] convert(newer)
        late = f32[1] dynamic-slice(e1, at), dynamic_slice_sizes={{1}}
        up = f32[{size}] dynamic-update-slice(first, late, zero)
        y = f32[8] sine(e0)"""


def test_hazard_of_a_large_array_is_refused() -> None:
    with pytest.raises(UnsupportedError) as caught:
        streams_of(HAZARD.format(size=5000), ["y", "up"], ["f32[8]", "f32[5000]"])
    decision = caught.value.decision
    assert decision.reason is Reason.STREAM_HAZARD
    assert decision.instruction == "late"
    assert decision.opcode == "dynamic-slice"


def test_hazard_of_a_smaller_array_makes_it_state() -> None:
    _, streams = streams_of(HAZARD.format(size=500), ["y", "up"], ["f32[8]", "f32[500]"])
    assert not streams


NESTED = """
inner_body {
  q = (s32[], f32[8], f32[100,8], s32[]) parameter(0)
  j = s32[] get-tuple-element(q), index=0
  x = f32[8] get-tuple-element(q), index=1
  a = f32[100,8] get-tuple-element(q), index=2
  outer = s32[] get-tuple-element(q), index=3
  c0 = s32[] constant(0)
  c1 = s32[] constant(1)
  j1 = s32[] add(j, c1)
  z = f32[8] sine(x)
  zr = f32[1,8] reshape(z)
  at = s32[] add(outer, j)
  b = f32[100,8] dynamic-update-slice(a, zr, at, c0)
  ROOT r = (s32[], f32[8], f32[100,8], s32[]) tuple(j1, z, b, outer)
}
inner_condition {
  q1 = (s32[], f32[8], f32[100,8], s32[]) parameter(0)
  k = s32[] get-tuple-element(q1), index=0
  five = s32[] constant(5)
  ROOT go1 = pred[] compare(k, five), direction=LT
}
"""


def test_stream_through_a_nested_loop() -> None:
    body = """start = (s32[], f32[8], f32[100,8], s32[]) tuple(zero, e0, e1, i)
        inner = (s32[], f32[8], f32[100,8], s32[]) while(start),
            condition=inner_condition, body=inner_body
        y = f32[8] get-tuple-element(inner), index=1
        up = f32[100,8] get-tuple-element(inner), index=2"""
    loop, (stream,) = streams_of(body, ["y", "up"], ["f32[8]", "f32[100,8]"], more=NESTED)
    inner = next(i for i in loop.body.instructions if i.opcode == "while")
    assert stream.elements == [(loop, 2), (inner, 2)]
    assert [v.opcode for v in stream.versions] == [
        "get-tuple-element",
        "get-tuple-element",
        "dynamic-update-slice",
        "get-tuple-element",
    ]
    assert not is_fully_overwritten(loop, stream)


def test_nested_loop_on_a_fresh_array_is_no_stream() -> None:
    """What an inner scan stacks is a value of the outer loop's body."""
    body = """zf = f32[] constant(0)
        fresh = f32[100,8] broadcast(zf), dimensions={}
        start = (s32[], f32[8], f32[100,8], s32[]) tuple(zero, e0, fresh, i)
        inner = (s32[], f32[8], f32[100,8], s32[]) while(start),
            condition=inner_condition, body=inner_body
        y = f32[8] get-tuple-element(inner), index=1
        all = f32[100,8] get-tuple-element(inner), index=2
        sum = f32[8] reduce(all, zf), dimensions={0}, to_apply=add_f32"""
    _, streams = streams_of(body, ["y", "sum"], ["f32[8]", "f32[8]"], more=NESTED)
    assert not streams
