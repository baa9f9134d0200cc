"""The order of emission: what must hold of it, and where guards end up."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from fuselane.codegen.schedule import (
    Schedule,
    Step,
    make_schedule,
    needs_lanes,
    parts_of,
)
from fuselane.hlo.instruction import HloInstruction
from fuselane.lanes.program import Guard, LaneProgram
from tests.codegen.kernels import NumpyArray, check, form_program, some
from tests.lanes.loops import counting_loop


def program_of(
    body: str, results: Sequence[str], carried: Sequence[str], more: str = ""
) -> LaneProgram:
    return form_program(counting_loop(body, results, carried, more=more))


def body_schedule(program: LaneProgram) -> Schedule:
    return make_schedule(program.loop.instruction.body, program)


def positions(schedule: Schedule) -> Mapping[str, int]:
    """Returns the number of the step each instruction is in, by name."""
    return {
        part.name: number for number, step in enumerate(schedule.steps) for part in parts_of(step)
    }


def check_schedule(program: LaneProgram) -> Schedule:
    """Returns the schedule of a loop's body: every instruction once, after all it needs."""
    body = program.loop.instruction.body
    schedule = body_schedule(program)
    emitted: set[HloInstruction] = set()
    for step in schedule.steps:
        inside = set(parts_of(step))
        assert emitted.isdisjoint(inside)
        for part in parts_of(step):
            assert all(operand in emitted or operand in inside for operand in part.operands)
        emitted |= inside
    assert emitted == set(body.instructions)
    return schedule


ROW = "s32[64]"
ROWS = "s32[100,64]"
WINDOW = "s32[1,64]"


def test_rows_are_read_before_they_are_written() -> None:
    """Whatever the order in the text."""
    body = f"""
      negated = {ROW} negate(e1)
      new = {WINDOW} reshape(negated)
      written = {ROWS} dynamic-update-slice(e0, new, i, zero)
      old = {WINDOW} dynamic-slice(e0, i, zero), dynamic_slice_sizes={{1,64}}
      x = {ROW} reshape(old)
      y = {ROW} add(x, e1)"""
    module = counting_loop(body, ["written", "y"], [ROWS, ROW])
    program = form_program(module)
    names = [instruction.name for instruction in program.loop.instruction.body.instructions]
    at = positions(check_schedule(program))
    assert at["old"] < at["written"]
    assert names.index("written") < len(names)

    def step(i: int, rows: NumpyArray, row: NumpyArray) -> Sequence[NumpyArray]:
        after = rows.copy()
        after[i] = -row
        return after, rows[i] + row

    check(module, step, 10, some([100, 64], np.int32), some([64], np.int32))


def test_chains_of_writes_are_in_order() -> None:
    """Each version is read before the next one is made, and after the last one was."""
    lines = []
    for k in range(4):
        source = f"v{k - 1}" if k else "e0"
        lines += [
            f"at{k} = s32[] constant({k})",
            f"v{k} = {ROWS} dynamic-update-slice({source}, new, at{k}, zero)",
            f"old{k} = {WINDOW} dynamic-slice({source}, at{k}, zero), dynamic_slice_sizes={{1,64}}",
        ]
    body = f"""
      new = {WINDOW} reshape(e1)
      {chr(10).join(lines)}
      s0 = {WINDOW} add(old0, old1)
      s1a = {WINDOW} add(old2, old3)
      total = {WINDOW} add(s0, s1a)
      y = {ROW} reshape(total)"""
    at = positions(check_schedule(program_of(body, ["v3", "y"], [ROWS, ROW])))
    for k in range(4):
        assert at[f"old{k}"] < at[f"v{k}"]
        assert k == 0 or at[f"v{k - 1}"] < at[f"old{k}"]


def test_rows_are_read_before_a_loop_writes_them() -> None:
    more = f"""
    inner_body {{
      p = (s32[], {ROWS}, {ROW}) parameter(0)
      k = s32[] get-tuple-element(p), index=0
      a = {ROWS} get-tuple-element(p), index=1
      v = {ROW} get-tuple-element(p), index=2
      one = s32[] constant(1)
      zero = s32[] constant(0)
      k1 = s32[] add(k, one)
      w = {WINDOW} reshape(v)
      u = {ROWS} dynamic-update-slice(a, w, k, zero)
      ROOT t = (s32[], {ROWS}, {ROW}) tuple(k1, u, v)
    }}
    stop {{
      p = (s32[], {ROWS}, {ROW}) parameter(0)
      k = s32[] get-tuple-element(p), index=0
      n = s32[] constant(9)
      ROOT go = pred[] compare(k, n), direction=LT
    }}"""
    body = f"""
      init = (s32[], {ROWS}, {ROW}) tuple(zero, e0, e1)
      w = (s32[], {ROWS}, {ROW}) while(init), condition=stop, body=inner_body
      x = {ROWS} get-tuple-element(w), index=1
      old = {WINDOW} dynamic-slice(e0, i, zero), dynamic_slice_sizes={{1,64}}
      y = {ROW} reshape(old)"""
    schedule = check_schedule(program_of(body, ["x", "y"], [ROWS, ROW], more))
    opcodes = [step.opcode for step in schedule.steps if isinstance(step, HloInstruction)]
    assert opcodes.index("dynamic-slice") < opcodes.index("tuple") < opcodes.index("while")


def chain(name: str, source: str, count: int = 10) -> str:
    """Returns work worth a guard, from `source` to `name`."""
    names = [source, *(f"{name}_{k}" for k in range(count)), name]
    return "\n".join(f"{y} = f32[64] sine({x})" for x, y in itertools.pairwise(names))


def guards_in(schedule: Schedule) -> list[Guard]:
    return [step for step in schedule.steps if isinstance(step, Guard)]


def test_guard_stands_between_what_it_needs_and_who_needs_it() -> None:
    body = f"""
      limit = f32[64] negate(e1)
      p1 = pred[64] compare(e0, limit), direction=LT
      {chain("work", "e1")}
      other = f32[64] cosine(e1)
      x = f32[64] select(p1, work, other)
      y = f32[64] add(x, e0)"""
    schedule = check_schedule(program_of(body, ["y", "x"], ["f32[64]"] * 2))
    assert len(guards_in(schedule)) == 1
    at = positions(schedule)
    assert max(at["p1"], at["other"]) < at["work"] == at["work_0"] == at["x"] < at["y"]


def test_what_all_lanes_share_is_no_part_of_a_guard() -> None:
    """It is computed once for all blocks, in front of them."""
    body = f"""
      p1 = pred[64] compare(e0, e1), direction=LT
      rate = f32[] sine(e2)
      rates = f32[64] broadcast(rate), dimensions={{}}
      {chain("work", "rates")}
      x = f32[64] select(p1, work, e1)"""
    program = program_of(body, ["x", "e0", "e2"], ["f32[64]", "f32[64]", "f32[]"])
    (found,) = program.guards[program.loop.instruction.body]
    assert "rate" in [i.name for i in found.instructions]
    schedule = check_schedule(program)
    (guard,) = guards_in(schedule)
    assert "rate" not in [i.name for i in guard.instructions]
    assert "rate" in [i.name for i in schedule.uniform(program) if isinstance(i, HloInstruction)]


def with_guard(program: LaneProgram, guard: Guard) -> LaneProgram:
    return dataclasses.replace(program, guards={program.loop.instruction.body: (guard,)})


def named(program: LaneProgram, *names: str) -> tuple[HloInstruction, ...]:
    by_name = {i.name: i for i in program.loop.instruction.body.instructions}
    return tuple(by_name[name] for name in names)


TWO_SELECTS = """
      p1 = pred[64] compare(e0, e1), direction=LT
      a = f32[64] sine(e1)
      x = f32[64] select(p1, a, e1)
      between = f32[64] cosine(x)
      b = f32[64] sine(e0)
      y = f32[64] select(p1, b, between)"""


def guard_of(program: LaneProgram, selects: Sequence[str], instructions: Sequence[str]) -> Guard:
    (predicate,) = named(program, "p1")
    return Guard(
        predicate=predicate,
        selects=named(program, *selects),
        side=1,
        instructions=named(program, *instructions),
        cost=200.0,
    )


def test_guard_that_would_have_to_stand_in_two_places_is_dropped() -> None:
    """The second select needs something that needs the first: both cannot be in one branch."""
    module = counting_loop(TWO_SELECTS, ["x", "y"], ["f32[64]"] * 2)
    program = form_program(module)
    split = with_guard(program, guard_of(program, ["x", "y"], ["a", "b"]))
    assert not guards_in(check_schedule(split))
    for select, work in (("x", "a"), ("y", "b")):
        whole = with_guard(program, guard_of(program, [select], [work]))
        assert len(guards_in(check_schedule(whole))) == 1


def test_dropping_one_guard_leaves_the_others() -> None:
    body = (
        TWO_SELECTS
        + """
      c = f32[64] sine(y)
      z = f32[64] select(p1, c, e0)"""
    )
    program = program_of(body, ["x", "z"], ["f32[64]"] * 2)
    bad, good = guard_of(program, ["x", "y"], ["a", "b"]), guard_of(program, ["z"], ["c"])
    both = dataclasses.replace(program, guards={program.loop.instruction.body: (bad, good)})
    assert [g.selects[0].name for g in guards_in(check_schedule(both))] == ["z"]


def test_shared_steps_and_those_of_lanes() -> None:
    """Every step is one or the other, and what all lanes share needs nothing of theirs."""
    body = f"""
      rate = f32[] sine(e2)
      rates = f32[64] broadcast(rate), dimensions={{}}
      p1 = pred[64] compare(e0, rates), direction=LT
      {chain("work", "e1")}
      x = f32[64] select(p1, work, rates)"""
    program = program_of(body, ["x", "e0", "rate"], ["f32[64]", "f32[64]", "f32[]"])
    schedule = check_schedule(program)
    shared, per_lane = list(schedule.uniform(program)), list(schedule.per_lane(program))
    assert len(shared) + len(per_lane) == len(schedule.steps)
    assert set(map(id, shared)).isdisjoint(map(id, per_lane))
    assert all(not needs_lanes(operand, program) for operand in operands_of(shared))
    assert any(isinstance(step, Guard) for step in per_lane)


def operands_of(steps: Sequence[Step]) -> Iterator[HloInstruction]:
    for step in steps:
        for part in parts_of(step):
            yield from (operand for operand in part.operands if operand.opcode != "parameter")
