"""Finding piecewise work: several selects that decide by one predicate and soon meet again.

    %p = pred[8] compare(%w, 5), direction=LT                erf_inv, by a polynomial in w - 2.5
    %z = f32[8] select(%p, %w - 2.5, sqrt(%w) - 3)           or by another in sqrt(w) - 3
    %a = f32[8] select(%p, 2.8e-8, -2.0e-4)
    %b = f32[8] select(%p, 3.4e-7, 1.0e-4)
    %r = f32[8] add(multiply(%a, %z), %b)                    what all selects lead to

Nothing but `%r` leaves this cluster. It is emitted twice: once for vectors in all lanes of which
the predicate has one value, without selects and without what only the other value needs (`sqrt`),
and once for all others.

Numerics: bitwise-equal. Products that one sum alone needs stand with it in the cluster, as LLVM
contracts the two within a block only.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Final

from fuselane.analysis.cost import OPCODE_COST
from fuselane.analysis.opcodes import ELEMENTWISE_OPCODES
from fuselane.hlo.computation import HloComputation
from fuselane.hlo.instruction import HloInstruction
from fuselane.lanes.guards import is_rare, needed_only_by, see_through
from fuselane.lanes.program import Guard, Piecewise

MIN_SAVED_COST: Final = 20.0
"""Vector operations the usual version must save: the test and the branch cost about five, and one
that is not foreseen costs as much as sixty."""

MAX_INSTRUCTIONS: Final = 200
"""The most instructions that are emitted twice."""

_CONSTANTS_COST: Final = 2.0
"""Operations that bring a second constant to a select and choose, besides the select's own."""

_FREE_OPCODES: Final = frozenset({"broadcast", "constant", "reshape"})

IsMovable = Callable[[HloInstruction], bool]
Parents = Mapping[HloInstruction, HloInstruction | None]


def find_pieces(
    computation: HloComputation,
    lane_dimensions: Mapping[HloInstruction, int | None],
    is_movable: IsMovable,
) -> tuple[Piecewise, ...]:
    """Returns what is worth two versions, best first; they don't overlap.

    Args:
        computation: The body of a loop in normal form.
        lane_dimensions: Lane dimension of every value.
        is_movable: Whether an instruction may be moved and be emitted twice.
    """

    def can_join(instruction: HloInstruction) -> bool:
        is_elementwise = instruction.opcode in ELEMENTWISE_OPCODES
        has_lanes = lane_dimensions.get(instruction) is not None
        return is_elementwise and has_lanes and is_movable(instruction)

    groups: dict[HloInstruction, list[HloInstruction]] = {}
    for instruction in computation.instructions:
        if instruction.opcode == "select" and can_join(instruction):
            predicate = instruction.operands[0]
            if lane_dimensions.get(predicate) is not None:
                groups.setdefault(predicate, []).append(instruction)
    if not groups:
        return ()
    parents = _find_meeting_points(computation, can_join)
    positions = {instruction: n for n, instruction in enumerate(computation.instructions)}
    candidates = [
        pieces
        for predicate, selects in groups.items()
        for last, members in _group_by_end(selects, parents).items()
        for pieces in _describe(positions, predicate, members, last, can_join)
    ]
    return _without_overlap(sorted(candidates, key=_rank))


def without_pieces(guards: Iterable[Guard], pieces: Iterable[Piecewise]) -> tuple[Guard, ...]:
    """Returns the guards but those of work that is piecewise by the same predicate.

    The usual version leaves that work out as well, and votes on each element by itself.
    """
    found = [(see_through(p.predicate), set(p.instructions)) for p in pieces]
    return tuple(
        guard
        for guard in guards
        if not any(
            guard.predicate is predicate
            and all(part in members or part.opcode in _FREE_OPCODES for part in guard.parts)
            for predicate, members in found
        )
    )


def _find_meeting_points(computation: HloComputation, can_join: IsMovable) -> Parents:
    """Maps each instruction to the first one that all its uses lead to, if there is any.

    All in between are elementwise and of one shape, so that they can be emitted element by element.
    """
    parents: dict[HloInstruction, HloInstruction | None] = {}
    depths: dict[HloInstruction, int] = {}

    def meet(a: HloInstruction | None, b: HloInstruction | None) -> HloInstruction | None:
        while a is not b:
            if a is None or b is None:
                return None
            if depths[a] >= depths[b]:
                a = parents[a]
            else:
                b = parents[b]
        return a

    for instruction in reversed(computation.instructions):
        if not can_join(instruction):
            continue
        users = instruction.users
        is_inner = bool(users) and not instruction.is_root
        if is_inner and all(u in depths and _is_like(u, instruction) for u in users):
            parent: HloInstruction | None = users[0]
            for user in users[1:]:
                parent = meet(parent, user)
        else:
            parent = None
        parents[instruction] = parent
        depths[instruction] = 0 if parent is None else depths[parent] + 1
    return parents


def _is_like(a: HloInstruction, b: HloInstruction) -> bool:
    return a.shape.dimensions == b.shape.dimensions


def _group_by_end(
    selects: Iterable[HloInstruction], parents: Parents
) -> dict[HloInstruction, list[HloInstruction]]:
    """Returns for each instruction that several selects lead to, or one of them is, these."""
    leading: dict[HloInstruction, list[HloInstruction]] = {}
    ways: dict[HloInstruction, set[HloInstruction]] = {}
    for select in selects:
        start, end = select, parents[select]
        leading.setdefault(select, []).append(select)
        ways.setdefault(select, set()).update((select, *select.operands))
        while end is not None:
            leading.setdefault(end, []).append(select)
            ways.setdefault(end, set()).add(start)
            start, end = end, parents[end]
    groups: dict[HloInstruction, list[HloInstruction]] = {}
    for end, members in leading.items():
        is_meeting = len(ways[end]) > 1
        last = _with_sum(end)
        if is_meeting and len(members) > len(groups.get(last, ())):
            groups[last] = members
    return groups


def _with_sum(end: HloInstruction) -> HloInstruction:
    """Returns the sum an instruction is contracted with, or else the instruction."""
    while end.opcode in ("multiply", "negate") and len(end.users) == 1 and not end.is_root:
        (user,) = end.users
        if user.opcode not in ("add", "subtract", "negate") or not _is_like(user, end):
            break
        end = user
    return end


def _describe(
    positions: Mapping[HloInstruction, int],
    predicate: HloInstruction,
    selects: Collection[HloInstruction],
    last: HloInstruction,
    can_join: IsMovable,
) -> Iterator[Piecewise]:
    """Yields the cluster that ends with an instruction if one of its versions is worth it."""
    if not can_join(last):
        return
    selects = frozenset(selects)
    between = _between(selects, last)
    for side in (2,) if is_rare(predicate) else (1, 2):
        members = between | needed_only_by(selects, 3 - side, can_join)
        members |= _products(members, can_join)
        if len(members) > MAX_INSTRUCTIONS:
            continue
        instructions = tuple(sorted(members, key=positions.__getitem__))
        usual = _usual(instructions, selects, side)
        saved = sum(map(_cost, set(instructions).difference(usual)))
        # Where it leaves nothing to do the work is a guard's.
        if usual and saved >= MIN_SAVED_COST:
            yield Piecewise(
                predicate=predicate,
                selects=selects,
                side=side,
                instructions=instructions,
                usual=usual,
                saved=saved,
            )


def _between(selects: Collection[HloInstruction], last: HloInstruction) -> set[HloInstruction]:
    """Returns the selects and what is made from them, as far as the last instruction needs it."""
    reached = set(selects)
    stack = list(reached)
    while stack:
        top = stack.pop()
        if top is not last:
            new = [user for user in top.users if user not in reached]
            reached.update(new)
            stack += new
    needed: set[HloInstruction] = set()
    stack = [last]
    while stack:
        top = stack.pop()
        if top in reached and top not in needed:
            needed.add(top)
            stack.extend(top.operands)
    return needed


def _products(members: Collection[HloInstruction], can_join: IsMovable) -> set[HloInstruction]:
    """Returns the products that one sum among the members alone needs."""
    found: set[HloInstruction] = set()
    stack = [m for m in members if m.opcode in ("add", "subtract", "negate")]
    while stack:
        top = stack.pop()
        for operand in top.operands:
            is_product = operand.opcode in ("multiply", "negate") and len(operand.users) == 1
            if is_product and can_join(operand) and _is_like(operand, top):
                found.add(operand)
                if operand.opcode == "negate":
                    stack.append(operand)
    return found


def _usual(
    instructions: tuple[HloInstruction, ...], selects: Collection[HloInstruction], side: int
) -> tuple[HloInstruction, ...]:
    """Returns what the usual version consists of: what is needed where selects take one side."""
    needed: set[HloInstruction] = set()
    stack = [instructions[-1]]
    while stack:
        top = stack.pop()
        if top not in needed:
            needed.add(top)
            stack.extend([top.operands[side]] if top in selects else top.operands)
    return tuple(i for i in instructions if i in needed and i not in selects)


def _cost(instruction: HloInstruction) -> float:
    cost = OPCODE_COST[instruction.opcode]
    if instruction.opcode == "select" and all(map(_is_constant, instruction.operands[1:])):
        cost += _CONSTANTS_COST
    return cost


def _is_constant(value: HloInstruction) -> bool:
    return see_through(value).opcode == "constant"


def _rank(pieces: Piecewise) -> tuple[float, int]:
    """Most saved comes first; of equals what repeats least."""
    return -pieces.saved, len(pieces.instructions)


def _without_overlap(candidates: Iterable[Piecewise]) -> tuple[Piecewise, ...]:
    taken: set[HloInstruction] = set()
    result: list[Piecewise] = []
    for pieces in candidates:
        if taken.isdisjoint(pieces.instructions):
            taken.update(pieces.instructions)
            result.append(pieces)
    return tuple(result)
