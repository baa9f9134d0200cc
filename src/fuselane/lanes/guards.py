"""Finding work that is needed only in lanes where a predicate has one value.

    %r = f32[4,8] (random numbers: hundreds of operations)
    %d = pred[8] (which environments are done)
    %s = f32[4,8] select(broadcast(%d), %r, %x)

Nothing but `%s` needs `%r`, and only in lanes where `%d` is true. All that leads to `%r` alone is a
*guard* of `%d`: a block of lanes in which no lane is done may leave it out, since `select` then
takes `%x` in every lane.

Numerics: bitwise-equal.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Final

from fuselane.analysis.cost import TripCount, instruction_cost
from fuselane.analysis.lane_conditions import LaneCondition
from fuselane.hlo.computation import HloComputation
from fuselane.hlo.instruction import HloInstruction
from fuselane.lanes.program import Guard

MIN_GUARDED_COST: Final = 60.0
"""Vector operations a guard must save at least; a test and a branch cost about five, and one that
is not foreseen costs as much as sixty."""

MIN_RARE_COST: Final = 30.0
"""The same where the predicate is hardly ever true, so that the branch is foreseen."""


def find_guards(
    computation: HloComputation,
    lane_dimensions: Mapping[HloInstruction, int | None],
    trip_count: TripCount,
    is_movable: Callable[[HloInstruction], bool],
    *,
    has_lanes: bool = True,
    going_on: LaneCondition | None = None,
) -> tuple[Guard, ...]:
    """Returns the guards of a computation, costliest first; they don't overlap.

    A guard's instructions and selects may be put next to each other: nothing outside that they need
    depends on one of its selects.

    Args:
        computation: The body of a loop in normal form.
        lane_dimensions: Lane dimension of every value.
        trip_count: Trip counts of nested loops.
        is_movable: Whether an instruction may be skipped and moved; false for what touches streams.
        has_lanes: Whether the program has lanes; what they all share is then not worth a guard.
        going_on: What lanes of the loop go by: it guards nothing, as a block of lanes where it
            holds in none has left the loop, and what it is made from is needed in all lanes.
    """
    needed_by_all = frozenset[HloInstruction]() if going_on is None else going_on.cone

    def is_counted(instruction: HloInstruction) -> bool:
        return not has_lanes or _has_lanes(instruction, lane_dimensions)

    def can_skip(instruction: HloInstruction) -> bool:
        return is_movable(instruction) and instruction not in needed_by_all

    def cost_of(instructions: Iterable[HloInstruction]) -> float:
        counted = (i for i in instructions if is_counted(i))
        return sum(instruction_cost(i, lane_dimensions.get, trip_count) for i in counted)

    candidates: list[Guard] = []
    for predicate, selects in _group_selects(computation, is_counted).items():
        for side in (1, 2):
            if going_on is not None and predicate is going_on.in_body:
                continue
            if side == 2 and is_rare(predicate):
                continue
            least = MIN_RARE_COST if is_rare(predicate) else MIN_GUARDED_COST
            needed = needed_only_by(selects, side, can_skip)
            if cost_of(needed) < least:
                continue
            for group in _independent_groups(computation, selects, needed):
                inside = needed_only_by(group, side, can_skip)
                cost = cost_of(inside)
                if cost >= least:
                    candidates.append(
                        Guard(
                            predicate=predicate,
                            selects=tuple(s for s in group if s.operands[side] in inside),
                            side=side,
                            instructions=tuple(i for i in computation.instructions if i in inside),
                            cost=cost,
                            asked=_rare_part(predicate) if side == 1 else None,
                            begins_anew=_begins_anew(computation, group, inside),
                            keeps_state=_keeps_state(computation, group, side),
                        )
                    )
    return _without_overlap(sorted(candidates, key=lambda guard: -guard.cost))


def get_predicate(select: HloInstruction) -> HloInstruction:
    """Returns what a select decides by, seen through broadcasts and reshapes."""
    return see_through(select.operands[0])


def see_through(value: HloInstruction) -> HloInstruction:
    """Returns what broadcasts and reshapes repeat."""
    while value.opcode in ("broadcast", "reshape"):
        value = value.operands[0]
    return value


def is_rare(predicate: HloInstruction) -> bool:
    """Whether a predicate is true for NaNs or for one floating-point number only."""
    if predicate.opcode == "and":
        return any(map(is_rare, predicate.operands))
    if predicate.opcode != "compare" or not predicate.operands[0].shape.element_type.is_floating:
        return False
    direction = predicate.comparison_direction
    is_same = len(set(predicate.operands)) == 1
    return direction == "EQ" or (direction == "NE" and is_same)


def _rare_part(predicate: HloInstruction) -> HloInstruction | None:
    """Returns a comparison that a predicate implies and that is as rare, if there is one."""
    parts = predicate.operands if predicate.opcode == "and" else ()
    return next((part for part in parts if part.opcode == "compare" and is_rare(part)), None)


def _group_selects(
    computation: HloComputation, is_counted: Callable[[HloInstruction], bool]
) -> dict[HloInstruction, list[HloInstruction]]:
    """Returns the selects that count, by what they depend on."""
    groups: dict[HloInstruction, list[HloInstruction]] = {}
    for instruction in computation.instructions:
        if instruction.opcode == "select" and is_counted(instruction):
            groups.setdefault(get_predicate(instruction), []).append(instruction)
    return groups


def needed_only_by(
    selects: Iterable[HloInstruction], side: int, is_movable: Callable[[HloInstruction], bool]
) -> set[HloInstruction]:
    """Returns the instructions whose every use leads to the guarded operands of these selects."""
    missing_uses: dict[HloInstruction, int] = {}
    needed: set[HloInstruction] = set()
    stack: list[HloInstruction] = []

    def count_use(operand: HloInstruction) -> None:
        left = missing_uses.get(operand, len(operand.users)) - 1
        missing_uses[operand] = left
        if left == 0 and not operand.is_root and is_movable(operand):
            needed.add(operand)
            stack.append(operand)

    for select in selects:
        operand = select.operands[side]
        if select.operands.count(operand) == 1:
            count_use(operand)
    while stack:
        for operand in dict.fromkeys(stack.pop().operands):
            count_use(operand)
    return needed


def _has_lanes(
    instruction: HloInstruction, lane_dimensions: Mapping[HloInstruction, int | None]
) -> bool:
    if instruction.shape.is_tuple:
        return any(lane_dimensions.get(user) is not None for user in instruction.users)
    return lane_dimensions.get(instruction) is not None


def _independent_groups(
    computation: HloComputation,
    selects: list[HloInstruction],
    guarded: Collection[HloInstruction],
) -> Iterator[list[HloInstruction]]:
    """Yields the selects in groups in which none needs another's result."""
    remaining = [s for s in selects if any(operand in guarded for operand in s.operands)]
    while len(remaining) > 1:
        needed = computation.fact(_find_needed_selects)
        group: list[HloInstruction] = []
        later: list[HloInstruction] = []
        of_group = 0
        for select in remaining:
            own, others = needed[select]
            if others & of_group:
                later.append(select)
            else:
                group.append(select)
                of_group |= own
        yield group
        remaining = later
    if remaining:
        yield remaining


def _find_needed_selects(computation: HloComputation) -> dict[HloInstruction, tuple[int, int]]:
    """Maps each select to a bit of its own, and to those of the selects that it follows from."""
    needed: dict[HloInstruction, tuple[int, int]] = {}
    seen: dict[HloInstruction, int] = {}
    for instruction in computation.post_order():
        others = 0
        for operand in instruction.operands:
            others |= seen[operand]
        own = 0
        if instruction.opcode == "select":
            own = 1 << len(needed)
            needed[instruction] = (own, others)
        seen[instruction] = own | others
    return needed


def _keeps_state(computation: HloComputation, selects: Iterable[HloInstruction], side: int) -> bool:
    """Whether each select's other operand is an element of what a computation is given."""
    others = (see_through(select.operands[3 - side]) for select in selects)
    return all(
        other.opcode == "get-tuple-element" and other.operands[0] is computation.parameters[0]
        for other in others
    )


def _begins_anew(
    computation: HloComputation,
    selects: Collection[HloInstruction],
    needed: Iterable[HloInstruction],
) -> bool:
    """Whether what guarded work is chosen for is mostly state that the work does not read."""
    carried = computation.parameters[0]
    read = {
        value.tuple_index
        for value in _ancestors(needed)
        if value.opcode == "get-tuple-element" and value.operands[0] is carried
    }
    replaced = [
        index
        for index, value in enumerate(computation.root.operands)
        if _unshaped(value) in selects
    ]
    return len(read.intersection(replaced)) < len(replaced) / 2


def _unshaped(value: HloInstruction) -> HloInstruction:
    while value.opcode in ("bitcast", "copy", "reshape", "transpose"):
        value = value.operands[0]
    return value


def _ancestors(values: Iterable[HloInstruction]) -> set[HloInstruction]:
    """Returns values and all that they follow from."""
    found: set[HloInstruction] = set()
    stack = list(values)
    while stack:
        value = stack.pop()
        if value not in found:
            found.add(value)
            stack.extend(value.operands)
    return found


def _without_overlap(guards: list[Guard]) -> tuple[Guard, ...]:
    taken: set[HloInstruction] = set()
    result: list[Guard] = []
    for guard in guards:
        members = (*guard.instructions, *guard.selects)
        if taken.isdisjoint(members):
            taken.update(members)
            result.append(guard)
    return tuple(result)
