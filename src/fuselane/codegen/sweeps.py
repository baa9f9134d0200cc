"""Long loop bodies cut into several sweeps over a tile.

A body that touches many rows of streams (a loop unrolled by the user, say) would walk through all
of them at once, more than a CPU's prefetchers follow. Cut into sweeps, each walks through a few,
and what one sweep leaves for a later one passes through scratch memory. Cuts are made where little
has to pass. Streams need not pass: they are in memory anyway.
"""

from __future__ import annotations

import itertools
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, final

from fuselane.analysis.opcodes import UPDATING_OPCODES
from fuselane.codegen.indexing import residual_size
from fuselane.codegen.schedule import (
    Step,
    make_schedule,
    needs_lanes,
    number_parts,
    parts_of,
    results_of,
    with_takers,
)
from fuselane.hlo.instruction import HloInstruction
from fuselane.lanes.program import ElementKind, Guard, LaneProgram

MAX_ROWS: Final = 12
"""Rows of streams a sweep may walk through, unless nothing can be cut."""

MOVEMENT: Final = frozenset({"broadcast", "iota", "constant", "reshape", "transpose", "slice"})
"""Opcodes that every sweep repeats for itself."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """One pass over the lane blocks of a tile.

    Attributes:
        steps: What it emits. Steps that only pick up what is there anyway stand in every sweep
            that needs them. Meetings come last: lanes meet in what a block has at the end.
        received: Values earlier sweeps left in scratch memory.
        left: Values it leaves there.
        is_last: Whether it ends the step.
    """

    steps: tuple[Step, ...]
    received: tuple[HloInstruction, ...]
    left: tuple[HloInstruction, ...]
    is_last: bool


def cut_into_sweeps(
    steps: Sequence[Step], results: Sequence[HloInstruction], program: LaneProgram
) -> list[Sweep]:
    """Cuts the per-lane steps of a body.

    Args:
        steps: In order of emission.
        results: What the last sweep must have at hand: the body's root operands with lanes.
        program: The program they are part of.
    """
    repeated = set(_repeatable(steps))
    once = [step for step in steps if step not in repeated]
    last_use = _last_uses(once, results, repeated)
    cuts = [*_choose_cuts(once, last_use, program), len(once)]
    groups = [once[start:stop] for start, stop in zip([0, *cuts], cuts, strict=False)]
    return list(_describe(groups, steps, results, repeated, program))


def find_phases(steps: Sequence[Step], program: LaneProgram) -> Mapping[int, int]:
    """Returns, by `id`, the phase that each step of a computation belongs to.

    What a meeting of lanes leads to belongs to a later phase than the meeting. Tuples stand with
    what takes them.
    """
    known: dict[HloInstruction, int] = {}
    phases: dict[int, int] = {}
    for step in steps:
        phase = max((known.get(value, 0) for value in _awaited(step, program)), default=0)
        phases[id(step)] = phase
        is_meeting = step in program.meetings
        known.update((value, phase + is_meeting) for value in results_of(step))
    for step in steps:
        if isinstance(step, HloInstruction) and step.opcode == "tuple" and step.users:
            phases[id(step)] = max(phases.get(id(user), 0) for user in step.users)
    return phases


def _awaited(step: Step, program: LaneProgram) -> Iterator[HloInstruction]:
    """Yields what a step must come after: its operands, and who reads what it overwrites."""
    yield from _needed(step)
    if isinstance(step, HloInstruction) and step in program.mutable:
        for operand in step.operands:
            if operand in program.mutable:
                yield from (user for user in with_takers(operand.users) if user is not step)


def cut_in_phases(
    steps: Sequence[Step],
    phases: Mapping[int, int],
    results: Sequence[HloInstruction],
    program: LaneProgram,
) -> list[Sweep]:
    """Cuts per-lane steps into one sweep for each phase; see `cut_into_sweeps`.

    The last phase is that of the results, even if nothing but repeated steps is left to it.
    """
    repeated = set(_repeatable(steps))
    once = [step for step in steps if step not in repeated]
    count = 1 + max((phases.get(id(step), 0) for step in (*once, *results)), default=0)
    groups = [[step for step in once if phases[id(step)] == number] for number in range(count)]
    return list(_describe(groups, steps, results, repeated, program))


def count_passed_bytes(program: LaneProgram) -> tuple[int, int]:
    """Returns how many bytes all lanes of a loop in which they meet leave for later phases of a
    step, and how many they receive from earlier ones."""
    body = program.loop.instruction.body
    steps = make_schedule(body, program).steps
    results = [
        body.root.operands[element.index]
        for element in program.loop.elements
        if element.kind is ElementKind.STATE and element.lane_dimension is not None
    ]
    per_lane = [step for step in steps if needs_lanes(step, program) and step is not body.root]
    sweeps = cut_in_phases(per_lane, find_phases(steps, program), results, program)

    def count(values: Iterable[HloInstruction]) -> int:
        return sum(value.shape.byte_size for value in values)

    left = sum(count(sweep.left) for sweep in sweeps)
    return left, sum(count(sweep.received) for sweep in sweeps)


def order_of(steps: Sequence[Sequence[Step]], sweeps: Sequence[Sweep]) -> dict[HloInstruction, int]:
    """Returns when each instruction of a computation is emitted for the last time.

    Args:
        steps: All of the computation: those in front of the first sweep if they need no lanes,
            those in front of the next, and so on; the last may be behind all sweeps.
        sweeps: What they were cut into.
    """
    emitted: list[Step] = []
    for group, sweep in itertools.zip_longest(steps, sweeps):
        emitted += group or ()
        emitted += sweep.steps if sweep else ()
    return number_parts(emitted)


def _repeatable(steps: Sequence[Step]) -> Iterator[Step]:
    """Yields the steps that cost nothing: the loop's tuple elements, and what moves their data.

    So are broadcasts of anything: it is cheaper to pass what they repeat.
    """
    found: set[HloInstruction] = set()
    known = {part for step in steps for part in results_of(step)}
    for step in steps:
        if not isinstance(step, HloInstruction):
            continue
        is_element = step.opcode == "get-tuple-element" and step.operands[0].opcode == "parameter"
        is_moved = step.opcode in MOVEMENT and all(
            operand in found or operand not in known for operand in step.operands
        )
        if is_element or is_moved or step.opcode == "broadcast":
            found.add(step)
            yield step


def _needed(step: Step) -> Iterator[HloInstruction]:
    for part in parts_of(step):
        yield from part.operands
    if isinstance(step, Guard):
        yield step.question


def _last_uses(
    steps: Sequence[Step], results: Sequence[HloInstruction], repeated: Container[Step]
) -> Mapping[HloInstruction, int]:
    """Maps each value to the number of the last step that needs it, be it through repeated ones."""
    last: dict[HloInstruction, int] = {}

    def use(value: HloInstruction, number: int) -> None:
        if value not in repeated:
            last[value] = number
            return
        for operand in value.operands:
            use(operand, number)

    for number, step in enumerate(steps):
        for operand in _needed(step):
            use(operand, number)
    for result in results:
        use(result, len(steps))
    return last


def _choose_cuts(
    steps: Sequence[Step], last_use: Mapping[HloInstruction, int], program: LaneProgram
) -> Iterator[int]:
    """Yields where to cut: when the rows are used up, at the cheapest place in the second half."""
    live: dict[HloInstruction, float] = {}
    rows = 0
    best: tuple[float, int, int] | None = None
    for number, step in enumerate(steps):
        added = count_rows(step, program)
        if rows + added > MAX_ROWS and best is not None:
            yield best[1]
            rows -= best[2]
            best = None
        rows += added
        for value in results_of(step):
            if last_use.get(value, -1) > number:
                live[value] = _passing_size(value, program)
        live = {value: size for value, size in live.items() if last_use[value] > number}
        size = sum(live.values())
        if 2 * rows >= MAX_ROWS and size < float("inf") and (best is None or size <= best[0]):
            best = (size, number + 1, rows)


def _passing_size(value: HloInstruction, program: LaneProgram) -> float:
    if value in program.mutable:
        return 0
    if not value.shape.is_array:
        return float("inf")
    return residual_size(value.shape.dimensions, program.lane_dimensions.get(value))


def count_rows(step: Step, program: LaneProgram) -> int:
    """Returns how many rows of streams a step reads and writes per block of lanes."""
    return sum(_rows_of(part, program) for part in parts_of(step))


def _rows_of(instruction: HloInstruction, program: LaneProgram) -> int:
    opcode = instruction.opcode
    reads_stream = opcode == "gather" and instruction.operands[0] in program.mutable
    if opcode == "dynamic-slice" and _is_state(instruction.operands[0], program):
        return 0
    if opcode == "dynamic-slice" or reads_stream:
        moved = instruction
    elif instruction in program.mutable and opcode == "scatter":
        moved = instruction.operands[-1]
    elif instruction in program.mutable and opcode == "dynamic-update-slice":
        moved = instruction.operands[1]
    else:
        return 0
    lane = program.lane_dimensions.get(moved)
    # What lies behind the lanes' dimension is one run of memory with what follows in other lanes.
    return residual_size(moved.shape.dimensions[: None if lane is None else lane], None)


def _is_state(value: HloInstruction, program: LaneProgram) -> bool:
    """Whether a value is state of a loop, changed since the step began or not: that is in registers
    or in scratch memory, where no rows have to be followed."""
    while value.operands and (value.opcode in MOVEMENT or value.opcode in UPDATING_OPCODES):
        value = value.operands[0]
    if value.opcode != "get-tuple-element" or value in program.mutable:
        return False
    body = value.operands[0].computation
    loop = next((loop for loop in program.loops.values() if loop.instruction.body is body), None)
    if loop is None or value.operands[0].opcode != "parameter":
        return False
    return loop.elements[value.tuple_index].kind is ElementKind.STATE


def _describe(
    groups: Sequence[Sequence[Step]],
    steps: Sequence[Step],
    results: Sequence[HloInstruction],
    repeated: set[Step],
    program: LaneProgram,
) -> Iterator[Sweep]:
    made_by = {
        value: number
        for number, group in enumerate(groups)
        for step in group
        for value in results_of(step)
        if value not in program.mutable and value not in program.meetings
    }
    needed = [_needed_by(group, (), steps, repeated) for group in groups[:-1]]
    needed.append(_needed_by(groups[-1], results, steps, repeated))
    for number, group in enumerate(groups):
        members = set(map(id, group))
        wanted = needed[number]
        later = set().union(*needed[number + 1 :]) if number + 1 < len(groups) else set()
        emitted = [s for s in steps if id(s) in members or (s in repeated and s in wanted)]
        yield Sweep(
            steps=tuple(sorted(emitted, key=lambda step: step in program.meetings)),
            received=tuple(v for v in made_by if v in wanted and made_by[v] < number),
            left=tuple(v for v in made_by if made_by[v] == number and v in later),
            is_last=number == len(groups) - 1,
        )


def _needed_by(
    group: Sequence[Step],
    results: Sequence[HloInstruction],
    steps: Sequence[Step],
    repeated: set[Step],
) -> set[HloInstruction]:
    """Returns what a group and these results need, and what the repeated steps in front need."""
    wanted = {operand for step in group for operand in _needed(step)} | set(results)
    for step in reversed(steps):
        if step in repeated and step in wanted:
            wanted.update(_needed(step))
    return wanted
