"""The order in which a computation's instructions are emitted.

Post order, with three additions: an array updated in place is read before it is written; the work
of a guard or a piecewise cluster stands together, right where its results are; and instructions
whose value all lanes share can be told apart from those that need a lane block.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import final

from fuselane.analysis.cost import UNKNOWN_TRIP_COUNT
from fuselane.analysis.opcodes import UPDATING_OPCODES
from fuselane.hlo.computation import HloComputation
from fuselane.hlo.instruction import HloInstruction
from fuselane.lanes.program import ElementKind, Guard, LaneProgram, Piecewise

Group = Guard | Piecewise
Step = HloInstruction | Group


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Steps of a computation in the order of emission; a guard or a piecewise cluster is one."""

    steps: tuple[Step, ...]

    def uniform(self, program: LaneProgram) -> Iterator[Step]:
        """Yields the steps whose values all lanes share."""
        return (step for step in self.steps if not needs_lanes(step, program))

    def per_lane(self, program: LaneProgram) -> Iterator[Step]:
        """Yields the steps that need a lane block."""
        return (step for step in self.steps if needs_lanes(step, program))


def parts_of(step: Step) -> tuple[HloInstruction, ...]:
    """Returns the instructions of a step."""
    return (step,) if isinstance(step, HloInstruction) else step.parts


def results_of(step: Step) -> tuple[HloInstruction, ...]:
    """Returns the instructions of a step that others may need."""
    return (step,) if isinstance(step, HloInstruction) else step.results


def steps_for(values: Iterable[HloInstruction], steps: Sequence[Step]) -> list[Step]:
    """Returns those of some steps in order that values need."""
    needed = set(values)
    found = []
    for step in reversed(steps):
        if not needed.isdisjoint(results_of(step)):
            found.append(step)
            needed.update(operand for part in parts_of(step) for operand in part.operands)
    return found[::-1]


def number_parts(steps: Iterable[Step]) -> dict[HloInstruction, int]:
    """Numbers the instructions of steps in order; what stands there several times by the last."""
    parts = itertools.chain.from_iterable(map(parts_of, steps))
    return {part: place for place, part in enumerate(parts)}


def needs_lanes(step: Step, program: LaneProgram) -> bool:
    """Returns whether a step needs a lane block: whether its values (of a tuple: any element), or
    what they are reduced from, differ from lane to lane."""
    if not isinstance(step, HloInstruction):
        return True
    if step.opcode == "while":
        return any(element.lane_dimension is not None for element in program.loops[step].elements)
    if step.opcode == "conditional":
        return any(needs_lanes(branch.root, program) for branch in step.called_computations)
    if step.opcode in ("copy", "tuple", "reduce", "reduce-window", "scatter", "sort"):
        return any(_differs(operand, program) for operand in step.operands)
    return program.lane_dimensions.get(step) is not None


def _differs(value: HloInstruction, program: LaneProgram) -> bool:
    """Returns whether a value differs from lane to lane; what lanes met for does not."""
    if value.shape.is_array:
        return program.lane_dimensions.get(value) is not None
    return needs_lanes(value, program)


def inner_runs(
    instruction: HloInstruction, program: LaneProgram
) -> Iterator[tuple[HloComputation, float]]:
    """Yields the computations that an instruction runs and, by estimate, how often each."""
    if instruction.opcode == "while":
        trips = program.loops[instruction].trip_count
        yield instruction.body, float(UNKNOWN_TRIP_COUNT if trips is None else trips)
    elif instruction.opcode == "conditional":
        for branch in instruction.called_computations:
            yield branch, 1 / len(instruction.called_computations)


def make_schedule(computation: HloComputation, program: LaneProgram) -> Schedule:
    """Returns the order of emission of a computation.

    A guard that cannot stand in one place (its work and its selects need each other's
    surroundings) is dropped: its instructions become steps of their own.
    """
    groups: list[Group] = [
        *(_without_uniform(guard, program) for guard in program.guards.get(computation, ())),
        *program.pieces.get(computation, ()),
    ]
    while True:
        try:
            return Schedule(steps=tuple(_order(computation, groups, program)))
        except _CycleError as cycle:
            groups = [group for group in groups if group is not cycle.group]


class _CycleError(Exception):
    """A group that would have to stand in two places."""

    def __init__(self, group: Group) -> None:
        super().__init__("group")
        self.group = group


def _without_uniform(guard: Guard, program: LaneProgram) -> Guard:
    """What all lanes share is computed once per step: it must not sink into a block's branch."""
    if not program.has_lanes:
        return guard
    return replace(
        guard, instructions=tuple(i for i in guard.instructions if needs_lanes(i, program))
    )


def _order(
    computation: HloComputation, groups: Sequence[Group], program: LaneProgram
) -> Iterator[Step]:
    members: dict[HloInstruction, Group] = {}
    for group in groups:
        for instruction in group.parts:
            members.setdefault(instruction, group)
    readers = _readers_before_writer(computation, program)
    done: set[int] = set()
    active: dict[int, Step] = {}

    def dependencies(step: Step) -> Iterator[Step]:
        for part in parts_of(step):
            for before in (*part.operands, *readers.get(part, ())):
                owner = members.get(before, before)
                if owner is not step:
                    yield owner

    def visit(start: Step) -> Iterator[Step]:
        stack: list[tuple[Step, Iterator[Step]]] = [(start, dependencies(start))]
        active[id(start)] = start
        while stack:
            step, remaining = stack[-1]
            following = next(remaining, None)
            if following is None:
                stack.pop()
                active.pop(id(step))
                done.add(id(step))
                yield step
            elif id(following) in active:
                raise _CycleError(_group_on_cycle(stack, following))
            elif id(following) not in done:
                active[id(following)] = following
                stack.append((following, dependencies(following)))

    for instruction in computation.instructions:
        step = members.get(instruction, instruction)
        if id(step) not in done:
            yield from visit(step)


def _group_on_cycle(stack: Sequence[tuple[Step, object]], start: Step) -> Group:
    steps = [step for step, _ in stack]
    for step in steps[steps.index(start) :]:
        if not isinstance(step, HloInstruction):
            return step
    raise AssertionError("an array is written before it is read: lanes.form must refuse this")


def _readers_before_writer(
    computation: HloComputation, program: LaneProgram
) -> Mapping[HloInstruction, list[HloInstruction]]:
    """Maps each in-place writer to the other users of the array it writes."""
    order: dict[HloInstruction, list[HloInstruction]] = {}
    for version in computation.instructions:
        if version not in program.mutable:
            continue
        writers = [user for user in version.users if _writes(user, version, program)]
        for writer in writers:
            others = with_takers(user for user in version.users if user not in writers)
            order.setdefault(writer, []).extend(o for o in others if o is not computation.root)
    return order


def with_takers(readers: Iterable[HloInstruction]) -> Iterator[HloInstruction]:
    """Yields readers, and of tuples the loops and conditionals that take them."""
    for reader in readers:
        yield reader
        if reader.opcode == "tuple":
            yield from reader.users


def _writes(user: HloInstruction, version: HloInstruction, program: LaneProgram) -> bool:
    if user.opcode in UPDATING_OPCODES:
        return user.operands[0] is version
    if user.opcode != "tuple":
        return False
    for loop in (loop for loop in user.users if loop.opcode == "while"):
        for element in program.loops[loop].elements:
            if element.kind is ElementKind.STREAM and user.operands[element.index] is version:
                return True
    return False
