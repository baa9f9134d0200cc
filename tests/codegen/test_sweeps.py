"""Cuts of long bodies: every sweep has what it needs, and few rows of streams."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Final

import pytest

from fuselane.codegen.schedule import (
    Schedule,
    Step,
    make_schedule,
    needs_lanes,
    parts_of,
    results_of,
)
from fuselane.codegen.sweeps import MAX_ROWS, Sweep, count_rows, cut_into_sweeps
from fuselane.hlo.instruction import HloInstruction
from fuselane.lanes.program import ElementKind, Guard, LaneProgram
from tests.codegen.kernels import form_program
from tests.lanes.loops import counting_loop

LANES: Final = 64
ROW: Final = f"f32[{LANES}]"
ROWS: Final = f"f32[1000,{LANES}]"
WINDOW: Final = f"f32[1,{LANES}]"


def cut(program: LaneProgram) -> list[Sweep]:
    """Returns the sweeps of a loop's body, after checking that they can be emitted."""
    body = program.loop.instruction.body
    schedule: Schedule = make_schedule(body, program)
    steps = [step for step in schedule.per_lane(program) if step is not body.root]
    results = [
        body.root.operands[element.index]
        for element in program.loop.elements
        if element.kind is ElementKind.STATE and element.lane_dimension is not None
    ]
    sweeps = cut_into_sweeps(steps, results, program)
    check_sweeps(sweeps, steps, results, program)
    return sweeps


def check_sweeps(
    sweeps: Sequence[Sweep],
    steps: Sequence[Step],
    results: Sequence[HloInstruction],
    program: LaneProgram,
) -> None:
    order = {id(step): number for number, step in enumerate(steps)}
    passed: set[HloInstruction] = set()
    in_memory: set[HloInstruction] = set()
    emitted: list[int] = []
    for number, sweep in enumerate(sweeps):
        assert sweep.is_last == (number == len(sweeps) - 1)
        numbers = [order[id(step)] for step in sweep.steps]
        assert numbers == sorted(set(numbers)), "out of order"
        emitted += numbers
        assert set(sweep.received) <= passed, "received what nobody left"
        at_hand = set(sweep.received) | in_memory
        for step in sweep.steps:
            inside = set(parts_of(step))
            for part in parts_of(step):
                for operand in part.operands:
                    known = operand in at_hand or operand in inside
                    assert known or not needs_lanes(operand, program) or is_parameter(operand)
            at_hand.update(results_of(step))
            in_memory.update(program.mutable.intersection(results_of(step)))
        assert set(sweep.left) <= at_hand - set(sweep.received), "left what it has not made"
        assert set(sweep.left).isdisjoint(passed), "left twice"
        assert not any(value in program.mutable for value in sweep.left)
        assert all(value.shape.is_array for value in sweep.left)
        passed.update(sweep.left)
    assert set(emitted) == set(range(len(steps))), "a step is missing"
    once = [n for n in range(len(steps)) if emitted.count(n) == 1]
    assert all(count_rows(step, program) == 0 for n, step in enumerate(steps) if n not in once), (
        "rows are touched twice"
    )
    assert all(result in at_hand or not needs_lanes(result, program) for result in results), (
        "a result is missing"
    )


def is_parameter(instruction: HloInstruction) -> bool:
    return instruction.opcode == "parameter"


def unrolled(
    count: int, *, reads: bool = True, writes: bool = True, writes_first: bool = False
) -> LaneProgram:
    """Returns a loop of `count` steps unrolled by hand, each of which reads and writes a row.

    Args:
        count: Steps in a body.
        reads: Whether a row is read in each.
        writes: Whether one is written.
        writes_first: Whether each row is written as soon as it can be, or after all reads.
    """
    lines = [f"count = s32[] constant({count})", "first = s32[] multiply(i, count)"]
    state, rows = ("e2", "e0") if writes_first else ("e0", "e2")
    lines.append(f"x0 = {ROW} negate({state})")
    for k in range(count):
        lines += [f"k{k} = s32[] constant({k})", f"at{k} = s32[] add(first, k{k})"]
        source = f"x{k}"
        if reads:
            lines += [
                f"in_{k} = {WINDOW} dynamic-slice(e1, at{k}, zero), "
                f"dynamic_slice_sizes={{1,{LANES}}}",
                f"v{k} = {ROW} reshape(in_{k})",
            ]
            source = f"v{k}"
        lines.append(f"x{k + 1} = {ROW} add(x{k}, {source})")
        if writes:
            lines += [
                f"out{k} = {WINDOW} reshape(x{k + 1})",
                f"ys{k} = {ROWS} dynamic-update-slice({f'ys{k - 1}' if k else rows}, out{k}, "
                f"at{k}, zero)",
            ]
    written = f"ys{count - 1}" if writes else rows
    # Post order starts at the first result.
    results, carried = [f"x{count}", "e1", written], [ROW, ROWS, ROWS]
    if writes_first:
        results, carried = results[::-1], carried[::-1]
    return form_program(counting_loop("\n".join(lines), results, carried, trip_count=20))


@pytest.mark.parametrize("count", [1, 2, 5, MAX_ROWS // 2])
def test_short_bodies_stay_whole(count: int) -> None:
    (sweep,) = cut(unrolled(count))
    assert sweep.is_last
    assert not sweep.received and not sweep.left


@pytest.mark.parametrize("count", [7, 12, 20, 50])
def test_long_bodies_are_cut(count: int) -> None:
    """Rows are counted as they are met, whatever order the steps are in."""
    program = unrolled(count)
    sweeps = cut(program)
    assert len(sweeps) >= 2 * count / MAX_ROWS
    for sweep in sweeps:
        assert sum(count_rows(step, program) for step in sweep.steps) <= MAX_ROWS


def test_streams_do_not_pass() -> None:
    """Written step by step, they are in memory for all sweeps."""
    program = unrolled(30, writes_first=True)
    sweeps = cut(program)
    assert len(sweeps) >= 5
    for sweep in sweeps[:-1]:
        assert len(sweep.left) == 1


@pytest.mark.parametrize(("reads", "writes"), [(True, False), (False, True)])
def test_rows_read_and_rows_written_both_count(reads: bool, writes: bool) -> None:
    assert len(cut(unrolled(MAX_ROWS, reads=reads, writes=writes))) == 1
    assert len(cut(unrolled(MAX_ROWS + 1, reads=reads, writes=writes))) == 2


def test_without_streams_nothing_is_cut() -> None:
    lines = "\n".join(f"x{k + 1} = {ROW} sine({f'x{k}' if k else 'e0'})" for k in range(200))
    program = form_program(counting_loop(lines, ["x200"], [ROW]))
    (sweep,) = cut(program)
    assert len(sweep.steps) == 201


def test_cuts_are_where_little_passes() -> None:
    """Four values are alive where a row is read, one between steps."""
    lines = ["count = s32[] constant(20)", "first = s32[] multiply(i, count)"]
    lines.append(f"x0 = {ROW} negate(e0)")
    for k in range(20):
        lines += [f"k{k} = s32[] constant({k})", f"at{k} = s32[] add(first, k{k})"]
        lines += [f"a{k}_{j} = {ROW} sine({f'a{k}_{j - 1}' if j else f'x{k}'})" for j in range(6)]
        lines += [
            f"in_{k} = {WINDOW} dynamic-slice(e1, at{k}, zero), dynamic_slice_sizes={{1,{LANES}}}",
            f"v{k} = {ROW} reshape(in_{k})",
            f"b{k}_0 = {ROW} add(a{k}_5, a{k}_0)",
            f"b{k}_1 = {ROW} add(b{k}_0, v{k})",
        ]
        lines += [f"b{k}_{j} = {ROW} add(b{k}_{j - 1}, a{k}_{j - 1})" for j in range(2, 5)]
        lines.append(f"x{k + 1} = {ROW} cosine(b{k}_4)")
    sweeps = cut(form_program(counting_loop("\n".join(lines), ["x20", "e1"], [ROW, ROWS])))
    assert len(sweeps) == 2
    assert [len(sweep.left) for sweep in sweeps[:-1]] == [1]


def test_one_step_may_have_too_many_rows() -> None:
    """What is read at once cannot be cut."""
    wide = f"f32[{2 * MAX_ROWS},{LANES}]"
    body = f"""
      many = {wide} dynamic-slice(e1, i, zero), dynamic_slice_sizes={{{2 * MAX_ROWS},{LANES}}}
      nought = f32[] constant(0)
      sum = {ROW} reduce(many, nought), dimensions={{0}}, to_apply=add_f32
      y = {ROW} add(sum, e0)"""
    program = form_program(counting_loop(body, ["y", "e1"], [ROW, ROWS]))
    steps = [step for sweep in cut(program) for step in sweep.steps]
    assert max(count_rows(step, program) for step in steps) == 2 * MAX_ROWS


def test_values_are_passed_over_several_sweeps() -> None:
    """Something made first and needed last is received by the last sweep alone."""
    lines = ["count = s32[] constant(30)", "first = s32[] multiply(i, count)"]
    lines += [f"early = {ROW} sine(e0)", f"x0 = {ROW} negate(early)"]
    for k in range(30):
        lines += [
            f"k{k} = s32[] constant({k})",
            f"at{k} = s32[] add(first, k{k})",
            f"in_{k} = {WINDOW} dynamic-slice(e1, at{k}, zero), dynamic_slice_sizes={{1,{LANES}}}",
            f"v{k} = {ROW} reshape(in_{k})",
            f"x{k + 1} = {ROW} add(x{k}, v{k})",
        ]
    lines.append(f"y = {ROW} add(x30, early)")
    sweeps = cut(form_program(counting_loop("\n".join(lines), ["y", "e1"], [ROW, ROWS])))
    assert len(sweeps) == 3
    names = [{value.name for value in sweep.received} for sweep in sweeps]
    assert "early" not in names[0] | names[1]
    assert "early" in names[2]


def test_what_costs_nothing_is_repeated_instead_of_passed() -> None:
    """The state itself, and what only moves its elements, is read anew by each sweep."""
    lines = [
        "count = s32[] constant(30)",
        "first = s32[] multiply(i, count)",
        f"x0 = {ROW} negate(e0)",
        f"column = f32[{LANES},1] slice(e2), slice={{[0:{LANES}], [1:2]}}",
        f"own = {ROW} reshape(column)",
    ]
    for k in range(30):
        lines += [
            f"k{k} = s32[] constant({k})",
            f"at{k} = s32[] add(first, k{k})",
            f"in_{k} = {WINDOW} dynamic-slice(e1, at{k}, zero), dynamic_slice_sizes={{1,{LANES}}}",
            f"v{k} = {ROW} reshape(in_{k})",
            f"w{k} = {ROW} multiply(v{k}, own)",
            f"x{k + 1} = {ROW} add(x{k}, w{k})",
        ]
    table = f"f32[{LANES},3]"
    back = f"turned = {table} reverse(e2), dimensions={{1}}"
    program = form_program(
        counting_loop("\n".join([*lines, back]), ["x30", "e1", "turned"], [ROW, ROWS, table])
    )
    sweeps = cut(program)
    assert len(sweeps) == 3
    for sweep in sweeps:
        names = [step.name for step in sweep.steps if isinstance(step, HloInstruction)]
        assert {"column", "own"} <= set(names)
    assert all(len(sweep.left) == 1 for sweep in sweeps[:-1])


def test_broadcasts_are_repeated() -> None:
    """What passes is the value with one element, not the array that is made of it."""
    table = f"f32[{LANES},50]"
    lines = [
        "count = s32[] constant(30)",
        "first = s32[] multiply(i, count)",
        f"rate = {ROW} sine(e0)",
        f"rates = {table} broadcast(rate), dimensions={{0}}",
        f"x0 = {ROW} negate(rate)",
        f"first_use = {table} multiply(rates, e2)",
    ]
    for k in range(30):
        lines += [
            f"k{k} = s32[] constant({k})",
            f"at{k} = s32[] add(first, k{k})",
            f"in_{k} = {WINDOW} dynamic-slice(e1, at{k}, zero), dynamic_slice_sizes={{1,{LANES}}}",
            f"v{k} = {ROW} reshape(in_{k})",
            f"x{k + 1} = {ROW} add(x{k}, v{k})",
        ]
    lines += [
        f"ends = {table} broadcast(x30), dimensions={{0}}",
        f"y = {table} multiply(ends, rates)",
        f"z = {table} reverse(y), dimensions={{1}}",
    ]
    results, carried = ["x30", "e1", "z"], [ROW, ROWS, table]
    sweeps = cut(form_program(counting_loop("\n".join(lines), results, carried)))
    assert len(sweeps) == 3
    assert {value.name for sweep in sweeps for value in sweep.left} == {"rate", "x12", "x24"}


def test_guards_are_cut_around() -> None:
    """A guard stays whole; its predicate may come from an earlier sweep."""
    lines = [
        "count = s32[] constant(30)",
        "first = s32[] multiply(i, count)",
        f"p1 = pred[{LANES}] compare(e0, e0), direction=LT",
        f"x0 = {ROW} negate(e0)",
    ]
    for k in range(30):
        lines += [
            f"k{k} = s32[] constant({k})",
            f"at{k} = s32[] add(first, k{k})",
            f"in_{k} = {WINDOW} dynamic-slice(e1, at{k}, zero), dynamic_slice_sizes={{1,{LANES}}}",
            f"v{k} = {ROW} reshape(in_{k})",
            f"x{k + 1} = {ROW} add(x{k}, v{k})",
        ]
    names = ["x30", *(f"work{k}" for k in range(10))]
    lines += [f"{y} = {ROW} sine({x})" for x, y in itertools.pairwise(names)]
    lines.append(f"y = {ROW} select(p1, work9, x30)")
    program = form_program(counting_loop("\n".join(lines), ["y", "e1"], [ROW, ROWS]))
    sweeps = cut(program)
    holders = [s for s in sweeps if any(isinstance(step, Guard) for step in s.steps)]
    assert len(sweeps) == 3 and holders == sweeps[2:]
    assert "p1" in [value.name for value in sweeps[2].received]


@pytest.mark.parametrize("array", ["e1", "changed", "e2"])
def test_rows_of_state_are_no_rows_of_streams(array: str) -> None:
    """A lane's own array is in scratch memory, before and after it is changed."""
    history = f"f32[50,{LANES}]"
    body = f"""
      nought = f32[] constant(0)
      row = {WINDOW} reshape(e0)
      changed = {history} dynamic-update-slice(e1, row, i, zero)
      sum = {ROW} reduce(changed, nought), dimensions={{0}}, to_apply=add_f32
      taken = {WINDOW} dynamic-slice({array}, i, zero), dynamic_slice_sizes={{1,{LANES}}}
      read = {ROW} reshape(taken)
      y = {ROW} add(sum, read)"""
    results, carried = ["y", "changed", "e2"], [ROW, history, history]
    program = form_program(counting_loop(body, results, carried))
    (sweep,) = cut(program)
    assert sum(count_rows(step, program) for step in sweep.steps) == (array == "e2")


@pytest.mark.parametrize(("shape", "expected"), [("1,24,64", 24), ("1,64,24", 1), ("2,64,24", 2)])
def test_runs_behind_the_lanes_are_one_row(shape: str, expected: int) -> None:
    """Elements that lie together, of one lane after the other, are followed as one row."""
    _, *others = shape.split(",")
    arrays, lane = f"f32[100,{','.join(others)}]", others.index("64")
    body = f"""
      nought = f32[] constant(0)
      taken = f32[{shape}] dynamic-slice(e1, i, zero, zero), dynamic_slice_sizes={{{shape}}}
      sum = {ROW} reduce(taken, nought), dimensions={{0,{2 - lane}}}, to_apply=add_f32
      y = {ROW} add(e0, sum)"""
    program = form_program(counting_loop(body, ["y", "e1"], [ROW, arrays]))
    numbers = [count_rows(step, program) for sweep in cut(program) for step in sweep.steps]
    assert sum(numbers) == expected
