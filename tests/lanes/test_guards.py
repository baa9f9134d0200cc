"""Guards: what a block of lanes may leave out when no lane needs it."""

from __future__ import annotations

import pytest

from fuselane.lanes.form import form
from fuselane.lanes.guards import MIN_GUARDED_COST, MIN_RARE_COST, get_predicate
from fuselane.lanes.program import Guard, LaneProgram
from tests.lanes.loops import counting_loop, loop_of


def program_of(body: str, results: list[str], carried: list[str], more: str = "") -> LaneProgram:
    module = counting_loop(body, results, carried, trip_count=10_000, more=more)
    return form(module, loop_of(module))


def guards_of(body: str, results: list[str], carried: list[str], more: str = "") -> list[Guard]:
    program = program_of(body, results, carried, more)
    return [guard for guards in program.guards.values() for guard in guards]


def expensive(name: str, operand: str, count: int = 10, shape: str = "f32[64]") -> str:
    """Returns a chain of transcendentals, the last of which has this name."""
    lines = [f"{name}_0 = {shape} sine({operand})"]
    lines += [f"{name}_{k} = {shape} sine({name}_{k - 1})" for k in range(1, count - 1)]
    lines.append(f"{name} = {shape} cosine({name}_{count - 2})")
    return "\n".join(lines) + "\n"


PREDICATE = """zf = f32[] constant(0)
        zb = f32[64] broadcast(zf), dimensions={}
        done = pred[64] compare(e0, zb), direction=LT
        next_x = f32[64] add(e0, e0)
"""


def test_expensive_side_of_a_select() -> None:
    body = PREDICATE + expensive("work", "e0") + "y = f32[64] select(done, work, next_x)"
    (guard,) = guards_of(body, ["y"], ["f32[64]"])
    assert guard.predicate.name == "done"
    assert guard.side == 1
    assert [s.name for s in guard.selects] == ["y"]
    assert len(guard.instructions) == 10
    assert guard.cost >= MIN_GUARDED_COST
    names = [i.name for i in guard.instructions]
    assert names == sorted(names, key=lambda name: 9 if name == "work" else int(name[5:]))


def test_the_other_side() -> None:
    body = PREDICATE + expensive("work", "e0") + "y = f32[64] select(done, next_x, work)"
    (guard,) = guards_of(body, ["y"], ["f32[64]"])
    assert guard.side == 2


@pytest.mark.parametrize(("source", "expected"), [("e1", True), ("e0", False), ("next_x", False)])
def test_lanes_begin_anew_where_state_is_replaced_unread(source: str, expected: bool) -> None:
    """As at the end of an episode, from a key, and unlike steps of lanes that go on."""
    body = PREDICATE + expensive("work", source) + "y = f32[64] select(done, work, next_x)"
    (guard,) = guards_of(body, ["y", "e1"], ["f32[64]", "f32[64]"])
    assert guard.begins_anew == expected


def test_most_of_what_is_replaced_counts() -> None:
    body = (
        PREDICATE
        + expensive("work", "e1")
        + "y = f32[64] select(done, work, next_x)\n"
        + "half = f32[64] cosine(work)\nz = f32[64] select(done, half, e2)\n"
        + "seed = f32[64] sine(work)\nkey = f32[64] select(done, seed, e1)"
    )
    (guard,) = guards_of(body, ["y", "key", "z"], ["f32[64]"] * 3)
    assert len(guard.selects) == 3
    assert guard.begins_anew


def test_cheap_work_is_not_guarded() -> None:
    body = PREDICATE + expensive("work", "e0", 3) + "y = f32[64] select(done, work, next_x)"
    assert not guards_of(body, ["y"], ["f32[64]"])


def test_less_is_guarded_where_only_nans_need_it() -> None:
    body = (
        "is_nan = pred[64] compare(e0, e0), direction=NE\nnext_x = f32[64] add(e0, e0)\n"
        + expensive("work", "next_x", 3)
        + "y = f32[64] select(is_nan, work, e0)"
    )
    (guard,) = guards_of(body, ["y"], ["f32[64]"])
    assert MIN_RARE_COST <= guard.cost < MIN_GUARDED_COST


@pytest.mark.parametrize("part", ["direction=NE", "direction=LT"])
def test_of_a_rare_predicate_only_a_rare_part_is_asked(part: str) -> None:
    (guard,) = guards_of(
        "is_nan = pred[64] compare(e0, e0), direction=NE\n"
        f"other = pred[64] compare(e1, e1), {part}\n"
        "both = pred[64] and(other, is_nan)\n"
        + expensive("work", "e0")
        + "y = f32[64] select(both, work, e0)",
        ["y", "e1"],
        ["f32[64]", "f32[64]"],
    )
    assert guard.predicate.opcode == "and"
    assert guard.asked is not None
    assert guard.asked.comparison_direction == "NE"


def test_predicates_that_are_not_rare_are_asked_for_as_a_whole() -> None:
    (guard,) = guards_of(
        "below = pred[64] compare(e0, e1), direction=LT\n"
        "above = pred[64] compare(e1, e0), direction=LT\n"
        "both = pred[64] and(below, above)\n"
        + expensive("work", "e0")
        + "y = f32[64] select(both, work, e0)",
        ["y", "e1"],
        ["f32[64]", "f32[64]"],
    )
    assert guard.asked is None


def test_work_with_another_use_is_not_guarded() -> None:
    body = PREDICATE + expensive("work", "e0") + "y = f32[64] select(done, work, next_x)"
    assert not guards_of(body, ["y", "work"], ["f32[64]", "f32[64]"])


def test_work_that_decides_is_not_guarded() -> None:
    body = (
        expensive("work", "e0")
        + """zf = f32[] constant(0)
        zb = f32[64] broadcast(zf), dimensions={}
        done = pred[64] compare(work, zb), direction=LT
        y = f32[64] select(done, work, e0)"""
    )
    assert not guards_of(body, ["y"], ["f32[64]"])


def test_work_on_both_sides_is_not_guarded() -> None:
    body = (
        PREDICATE
        + expensive("work", "e0")
        + """more = f32[64] negate(work)
        y = f32[64] select(done, work, more)"""
    )
    assert not guards_of(body, ["y"], ["f32[64]"])


def test_selects_of_one_predicate_share_a_guard() -> None:
    body = (
        PREDICATE
        + expensive("work", "e0")
        + """twice = f32[64] add(work, work)
        y = f32[64] select(done, work, next_x)
        w = f32[64] select(done, twice, e1)"""
    )
    (guard,) = guards_of(body, ["y", "w"], ["f32[64]", "f32[64]"])
    assert {s.name for s in guard.selects} == {"y", "w"}
    assert len(guard.instructions) == 11


def test_predicates_are_seen_through_broadcasts() -> None:
    body = (
        PREDICATE
        + "wide = f32[4,64] broadcast(e0), dimensions={1}\n"
        + expensive("work", "wide", shape="f32[4,64]")
        + """wide_done = pred[4,64] broadcast(done), dimensions={1}
        picked = f32[4,64] select(wide_done, work, wide)
        y = f32[64] reduce(picked, zf), dimensions={0}, to_apply=add_f32"""
    )
    (guard,) = guards_of(body, ["y"], ["f32[64]"])
    assert guard.predicate.name == "done"
    assert get_predicate(guard.selects[0]) is guard.predicate
    assert guard.cost >= 4 * MIN_GUARDED_COST


def test_uniform_predicates_guard_too() -> None:
    body = (
        expensive("work", "e0")
        + """early = pred[] compare(i, one), direction=LT
        all = pred[64] broadcast(early), dimensions={}
        y = f32[64] select(all, work, e0)"""
    )
    (guard,) = guards_of(body, ["y"], ["f32[64]"])
    assert guard.predicate.name == "early"


def test_uniform_selects_are_left_alone() -> None:
    body = (
        expensive("work", "e1", shape="f32[5]")
        + """early = pred[] compare(i, one), direction=LT
        all = pred[5] broadcast(early), dimensions={}
        w = f32[5] select(all, work, e1)
        y = f32[64] negate(e0)"""
    )
    assert not guards_of(body, ["y", "w"], ["f32[64]", "f32[5]"])


def test_a_select_that_needs_another_of_its_guard() -> None:
    """The second select's work starts from the first one's result: two guards, not one."""
    body = (
        PREDICATE
        + expensive("work", "e0")
        + "y = f32[64] select(done, work, next_x)\n"
        + expensive("again", "y")
        + "w = f32[64] select(done, again, e0)"
    )
    guards = guards_of(body, ["y", "w"], ["f32[64]", "f32[64]"])
    assert sorted(guard.selects[0].name for guard in guards) == ["w", "y"]
    assert all(len(guard.selects) == 1 for guard in guards)


def test_one_guard_per_select() -> None:
    """Both sides are expensive: only the costlier one is guarded."""
    body = (
        PREDICATE
        + expensive("work", "e0", 12)
        + expensive("other", "next_x", 10)
        + "y = f32[64] select(done, work, other)"
    )
    (guard,) = guards_of(body, ["y"], ["f32[64]"])
    assert guard.side == 1


LOOP = """
inner_body {
  q = (s32[], f32[64]) parameter(0)
  j = s32[] get-tuple-element(q), index=0
  x = f32[64] get-tuple-element(q), index=1
  c1 = s32[] constant(1)
  j1 = s32[] add(j, c1)
  z = f32[64] sine(x)
  ROOT r = (s32[], f32[64]) tuple(j1, z)
}
inner_condition {
  q1 = (s32[], f32[64]) parameter(0)
  k = s32[] get-tuple-element(q1), index=0
  five = s32[] constant(50)
  ROOT go1 = pred[] compare(k, five), direction=LT
}
"""


def test_whole_loops_are_guarded() -> None:
    body = (
        PREDICATE
        + """start = (s32[], f32[64]) tuple(zero, e0)
        inner = (s32[], f32[64]) while(start), condition=inner_condition, body=inner_body
        work = f32[64] get-tuple-element(inner), index=1
        y = f32[64] select(done, work, next_x)"""
    )
    (guard,) = guards_of(body, ["y"], ["f32[64]"], LOOP)
    assert "while" in {i.opcode for i in guard.instructions}
    assert guard.cost >= 50 * 15


@pytest.mark.parametrize("size", [64, 100])
def test_reads_of_streams_stay_where_they_are(size: int) -> None:
    """A read put off behind the write of the same array would see too much."""
    body = (
        PREDICATE
        + f"""old = f32[1,64] dynamic-slice(e1, i, zero), dynamic_slice_sizes={{1,64}}
        flat = f32[64] reshape(old)
        row = f32[1,64] reshape(e0)
        up = f32[{size},64] dynamic-update-slice(e1, row, i, zero)
"""
        + expensive("work", "flat")
        + "y = f32[64] select(done, work, next_x)"
    )
    program = program_of(body, ["y", "up"], ["f32[64]", f"f32[{size},64]"])
    (guard,) = next(iter(program.guards.values()))
    is_stream = size > 64
    assert ("old" in {i.name for i in guard.instructions}) is not is_stream
    assert bool(program.mutable) is is_stream
