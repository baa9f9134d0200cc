"""Control flow of a lane program: bodies, loops and guards, inside one lane block.

A loop's state is carried in registers (phis) where it is small and in the kernel's own arrays
where it is large; arrays updated in place and invariants are not carried at all.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import final

from llvmlite import ir

from fuselane.analysis.cost import total_cost
from fuselane.codegen.arrays import (
    Array,
    Discarded,
    Place,
    Registers,
    widen,
)
from fuselane.codegen.branches import emit_conditional
from fuselane.codegen.carry import Carry
from fuselane.codegen.combining import without_missing
from fuselane.codegen.emitter import Emitter
from fuselane.codegen.indexed_state import MAX_SELECTED, is_read_by_index
from fuselane.codegen.indexing import Index, all_indices, with_lane
from fuselane.codegen.instructions import emit_instruction
from fuselane.codegen.liveness import find_shared_home
from fuselane.codegen.loops import emit_choice, emit_counted_loop, emit_fold, emit_while_loop
from fuselane.codegen.memory import vector
from fuselane.codegen.pieces import emit_pieces
from fuselane.codegen.rare_guards import emit_in_pieces
from fuselane.codegen.reading_ahead import NOTHING_AHEAD, ReadAhead
from fuselane.codegen.recurring import emit_recurring_loop
from fuselane.codegen.schedule import Step, needs_lanes, steps_for
from fuselane.codegen.types import any_lane, integer_constant
from fuselane.hlo.computation import HloComputation
from fuselane.hlo.instruction import HloInstruction
from fuselane.lanes.program import ElementKind, Guard, LaneLoop, Piecewise

Body = Callable[[list[Array]], list[Array]]

_MAX_UNROLLED_TRIPS = 8
_MAX_UNROLLED_COST = 1500


def emit_steps(emitter: Emitter, steps: Iterable[Step]) -> None:
    """Emits the steps of a schedule; parameters must have their values already."""
    for step in steps:
        if step in emitter.asked:
            continue
        if isinstance(step, Guard):
            _emit_guard(emitter, step)
        elif isinstance(step, Piecewise):
            emit_pieces(emitter, step)
        elif step.opcode == "while":
            emitter.values[step] = emit_loop_here(emitter, step)
        elif step.opcode == "conditional":
            emitter.values[step] = emit_conditional(emitter, step, _emit_branch)
        elif step in emitter.program.folds:
            emitter.values[step] = _emit_fold(emitter, step)
        elif step.opcode != "parameter":
            emit_instruction(emitter, step)


def _emit_fold(emitter: Emitter, fold: HloInstruction) -> Array:
    """Emits a fold where a tile is one block: lanes that don't exist get what changes nothing."""
    value = emitter.array(fold.operands[0])
    return emitter.materialize(without_missing(emitter.place, value, emitter.program.folds[fold]))


def emit_shared_steps(
    emitter: Emitter, computation: HloComputation, only: Sequence[Step] | None = None
) -> None:
    """Emits what all lanes share of a computation, but a root tuple.

    Of a loop that carries both what is shared and what is not, this is a loop of the shared part:

        (i, x) = while(..), i s32[], x f32[8]        here a loop over i alone
        k = get-tuple-element(..), index=0           its end

    Args:
        emitter: Where.
        computation: The computation.
        only: Those of its steps to be emitted; all by default.
    """
    program = emitter.program
    for step in emitter.schedule(computation).steps if only is None else only:
        if not isinstance(step, HloInstruction) or (
            step is computation.root and step.opcode == "tuple"
        ):
            continue
        if not needs_lanes(step, program):
            emit_steps(emitter, [step])
        elif all(needs_lanes(user, program) for user in step.users):
            continue
        elif step.opcode == "while":
            emitter.values[step] = _emit_shared_part(emitter, step)
        elif step.opcode == "conditional":
            emitter.values[step] = emit_conditional(
                emitter, step, emit_shared_steps, shared_only=True
            )


def _emit_shared_part(emitter: Emitter, instruction: HloInstruction) -> list[Array]:
    loop = emitter.program.loops[instruction]
    initial = _shared_arrays(emitter, loop, instruction.operands[0])

    def body(arrays: list[Array]) -> list[Array]:
        emitter.values[instruction.body.parameters[0]] = arrays
        emit_shared_steps(emitter, instruction.body)
        return _shared_arrays(emitter, loop, instruction.body.root)

    others = tuple(e.index for e in loop.elements if e.lane_dimension is not None)
    emit = _emit_unrolled if _should_unroll(emitter, loop) else emit_loop
    return emit(emitter, loop, initial, body, but=others)


def _shared_arrays(emitter: Emitter, loop: LaneLoop, elements: HloInstruction) -> list[Array]:
    """Returns the operands of a tuple, without those that differ from lane to lane."""
    return [
        emitter.array(operand)
        if element.lane_dimension is None
        else Discarded(shape=element.shape, lane=element.lane_dimension)
        for element, operand in zip(loop.elements, elements.operands, strict=True)
    ]


def emit_body(
    emitter: Emitter,
    body: HloComputation,
    arrays: Sequence[Array],
    known: Container[Step] = (),
) -> list[Array]:
    """Emits a loop body on the given loop-carried arrays and returns what it makes of them; `known`
    are steps that have their values already."""
    emitter.values[body.parameters[0]] = list(arrays)
    steps = emitter.schedule(body).steps
    emit_steps(emitter, (step for step in steps if step is not body.root and step not in known))
    return root_arrays(emitter, body)


def root_arrays(emitter: Emitter, body: HloComputation) -> list[Array]:
    """Returns the arrays that an emitted body's root tuple holds."""
    return [emitter.array(operand) for operand in body.root.operands]


def _emit_branch(emitter: Emitter, branch: HloComputation) -> None:
    emit_steps(emitter, (s for s in emitter.schedule(branch).steps if s is not branch.root))


def emit_loop_here(emitter: Emitter, instruction: HloInstruction) -> list[Array]:
    """Emits a `while` inside a lane block and returns its results."""
    loop = emitter.program.loops[instruction]
    initial = emitter.tuple_elements(instruction.operands[0])
    if not _should_unroll(emitter, loop):
        initial = _with_sliced_in_memory(emitter, loop, initial)
    emit = _emit_unrolled if _should_unroll(emitter, loop) else emit_loop
    return emit(emitter, loop, initial, lambda arrays: emit_body(emitter, instruction.body, arrays))


def _with_sliced_in_memory(
    emitter: Emitter, loop: LaneLoop, arrays: Sequence[Array]
) -> list[Array]:
    """Returns a loop's arrays; those in registers of which each step reads others are put in memory
    in front of it, rather than in each step."""
    return [
        emitter.in_scratch(array)
        if isinstance(array, Registers)
        and array.size > MAX_SELECTED
        and is_read_by_index(loop.instruction.body, element)
        else array
        for element, array in zip(loop.elements, arrays, strict=True)
    ]


def emit_loop(
    emitter: Emitter,
    loop: LaneLoop,
    initial: Sequence[Array],
    body: Body,
    *,
    but: Carried = (),
    goes_on: Callable[[list[Array]], ir.Value] | None = None,
    ahead: ReadAhead = NOTHING_AHEAD,
) -> list[Array]:
    """Emits a loop with its state carried from step to step.

    Args:
        emitter: Where.
        loop: The loop; its condition is evaluated only when the trip count is not known.
        initial: An array for every element of its tuple.
        body: Makes the next step's arrays from this step's.
        but: Indices of elements that the caller carries by itself.
        goes_on: Emits the condition, if not as it stands there.
        ahead: What is read before its step, where steps are counted.
    """
    place = emitter.place
    counter = loop.induction_index if loop.compared_after else None
    state = [
        e
        for e in loop.elements
        if e.kind is ElementKind.STATE and e.index not in but and e.index != counter
    ]
    carry = Carry(emitter, loop, state, initial)
    is_compared = loop.compared_after and not but and place.block.warp is None

    active: list[ir.Value] = []

    if loop.lane_condition is not None:
        emitter.place = replace(place, block=place.block.on_its_own)

    def test(values: Sequence[ir.Value]) -> ir.Value:
        arrays = carry.arrays(values)
        if goes_on is not None:
            return goes_on(arrays)
        if loop.lane_condition is None:
            return emit_condition(emitter, loop, arrays)
        going = _emit_lane_condition(emitter, loop, arrays)
        if loop.lane_condition.is_cheap:
            active.append(going.lanes)
        return going.any_lane

    def advance(values: Sequence[ir.Value]) -> list[ir.Value]:
        rows = ahead.following(emitter, carry.arrays(values))
        values, loaded = _split_off(values, rows)
        for row in loaded:
            arrays = carry.arrays(values)
            ahead.take(emitter, row)
            with _active_lanes(emitter, active):
                following = body(list(arrays))
            values = carry.following(arrays, following)
        return [*values, *itertools.chain(*rows)]

    builder = emitter.builder
    entering = [*carry.entering(), *itertools.chain(*ahead.first(emitter, initial))]
    if loop.trip_count is not None and is_compared and carry.is_in_registers:
        values = emit_recurring_loop(place, loop.trip_count, loop.compared_after, entering, advance)
    elif loop.trip_count is not None:
        values = emit_counted_loop(
            builder,
            loop.trip_count // ahead.steps,
            entering,
            lambda _, v: advance(v),
            name="steps",
        )
    else:
        values = emit_while_loop(
            builder,
            entering,
            test,
            advance,
            name="steps",
        )
    emitter.place = place
    arrays = carry.results(values)
    if counter is not None:
        arrays[counter] = _after_all_steps(place, loop, initial[counter])
    return arrays


def _split_off(
    values: Sequence[ir.Value], rows: Sequence[Sequence[ir.Value]]
) -> tuple[Sequence[ir.Value], list[Sequence[ir.Value]]]:
    """Returns values without the last ones, and those in rows of the same lengths as others."""
    stops = list(itertools.accumulate(map(len, rows), initial=len(values) - sum(map(len, rows))))
    return values[: stops[0]], [values[a:b] for a, b in itertools.pairwise(stops)]


def _after_all_steps(place: Place, loop: LaneLoop, counter: Array) -> Registers:
    """Returns what a counter that nothing goes by is in the end."""
    start = counter.get(place, ())
    value = place.builder.add(start, integer_constant(start.type, loop.counted))
    return Registers(shape=counter.shape, lane=None, elements=(value,))


Carried = Sequence[int]


def emit_condition(emitter: Emitter, loop: LaneLoop, arrays: Sequence[Array]) -> ir.Value:
    """Emits whether a loop takes a step from given arrays, by what all lanes share."""
    condition = loop.instruction.condition
    emitter.values[condition.parameters[0]] = list(arrays)
    emit_shared_steps(emitter, condition)
    return emitter.array(condition.root).get(emitter.place, ())


@final
@dataclass(frozen=True, slots=True)
class _Going:
    """Which lanes go on: `lanes`, a vector of booleans, and `any_lane`, whether any does."""

    lanes: ir.Value
    any_lane: ir.Value


def _emit_lane_condition(emitter: Emitter, loop: LaneLoop, arrays: Sequence[Array]) -> _Going:
    """Emits a condition for the lanes of the block alone.

    What reduces all lanes, `any(p)`, reduces those of the block that exist and that the loops
    around have not left. Where no lane of the block goes on, neither does the block.
    """
    condition = loop.lane_condition
    assert condition is not None, "asked for loops that lanes leave one by one"
    computation, builder = loop.instruction.condition, emitter.builder
    emitter.values[computation.parameters[0]] = list(arrays)
    going: _Going | None = None
    for step in emitter.schedule(computation).steps:
        if step is condition.reduction:
            operand = _asked_in_body(emitter, loop, arrays) or emitter.array(step.operands[0])
            going = _find_lanes(emitter, operand, is_negated=condition.is_all)
            value = builder.not_(going.any_lane) if condition.is_all else going.any_lane
            emitter.values[step] = Registers(shape=step.shape, lane=None, elements=(value,))
        else:
            emit_steps(emitter, [step])
    assert going is not None, "the reduction is part of the condition"
    whole = emitter.array(computation.root).get(emitter.place, ())
    return _Going(going.lanes, builder.and_(whole, going.any_lane))


def _asked_in_body(emitter: Emitter, loop: LaneLoop, arrays: Sequence[Array]) -> Array | None:
    """Emits what the body asks of each lane as well, which gets it from here; None if it doesn't.

    Were it asked twice, and rounded in two ways, lanes could go on forever that the body leaves as
    they are. What else the body makes of the same products is rounded as if it were asked there.
    """
    asked = loop.lane_condition and loop.lane_condition.in_body
    if asked is None:
        return None
    body = loop.instruction.body
    steps = steps_for([asked], emitter.schedule(body).steps)
    emitter.values[body.parameters[0]] = list(arrays)
    emitter.asked.difference_update(steps)
    emit_steps(emitter, steps)
    emitter.asked.update(steps)
    answer = emitter.values[asked] = emitter.materialize(emitter.array(asked))
    return answer


def _find_lanes(emitter: Emitter, predicate: Array, *, is_negated: bool) -> _Going:
    """Emits which active lanes of the block have a predicate (or lack it) in any element."""
    place, builder = emitter.place, emitter.builder
    none = ir.Constant(vector(ir.IntType(1), place.block.width), None)

    def combine(index: tuple[Index, ...], found: Sequence[ir.Value]) -> list[ir.Value]:
        value = widen(place, predicate.get(place, with_lane(index, predicate.lane)))
        value = builder.not_(value) if is_negated else value
        return [value if found[0] is none else builder.or_(found[0], value)]

    (lanes,) = emit_fold(
        builder, predicate.dimensions, [none], combine, max_unrolled=emitter.max_unrolled
    )
    lanes = place.block.among_active(builder, lanes)
    return _Going(lanes, any_lane(builder, lanes))


@contextmanager
def _active_lanes(emitter: Emitter, active: Sequence[ir.Value]) -> Iterator[None]:
    """What is emitted under it matters only for these lanes; for all if there are none."""
    place = emitter.place
    if active:
        emitter.place = replace(place, block=replace(place.block, active=active[0]))
    yield
    emitter.place = place


def _should_unroll(emitter: Emitter, loop: LaneLoop) -> bool:
    if loop.trip_count is None or loop.trip_count > _MAX_UNROLLED_TRIPS:
        return False
    instructions = loop.instruction.body.instructions
    if any(instruction.opcode == "while" for instruction in instructions):
        return loop.trip_count <= 1
    lanes = emitter.program.lane_dimensions.get
    return loop.trip_count * total_cost(instructions, lanes, lambda _: None) <= _MAX_UNROLLED_COST


def _emit_unrolled(
    emitter: Emitter, loop: LaneLoop, initial: Sequence[Array], body: Body, *, but: Carried = ()
) -> list[Array]:
    arrays = list(initial)
    for _ in range(loop.trip_count or 0):
        following = body(arrays)
        for element in loop.elements:
            if element.kind is ElementKind.STATE and element.index not in but:
                arrays[element.index] = emitter.materialize(following[element.index])
    return arrays


def _emit_guard(emitter: Emitter, guard: Guard) -> None:
    """Emits `select(p, work, other)` as a branch: blocks with no lane that needs it skip it."""
    place = emitter.place
    others = {select: emitter.array(select.operands[3 - guard.side]) for select in guard.selects}
    small = [s for s, other in others.items() if other.size <= emitter.max_unrolled]
    large = [select for select in others if select not in small]
    results = [_elements(emitter, others[select]) for select in small]
    first = guard.parts[0]
    is_voted, needed = _any_lane(emitter, guard)
    for select in large:
        home = find_shared_home(emitter, select, 3 - guard.side, first)
        if home is not others[select]:
            emitter.copy(others[select], home)
        emitter.homes[select] = home

    def work() -> list[ir.Value]:
        pieces = None if large else emit_in_pieces(emitter, guard, emit_steps)
        if pieces is not None:
            return pieces
        inner = emitter.at(place.block if is_voted else place.block.on_its_own)
        for select in large:
            _read_at_home(inner, guard, select)
        emit_steps(inner, guard.parts)
        arrays = [inner.array(select) for select in small]
        return [
            widen(place, array.get(place, index))
            for array in arrays
            for index in all_indices(array.shape.dimensions, array.lane)
        ]

    merged = iter(emit_choice(place.builder, needed, work, [v for vs in results for v in vs]))
    for select in large:
        emitter.values[select] = emitter.homes.pop(select)
    for select, values in zip(small, results, strict=True):
        emitter.values[select] = Registers(
            shape=select.shape,
            lane=emitter.lane(select),
            elements=tuple(next(merged) for _ in values),
        )


def _read_at_home(emitter: Emitter, guard: Guard, select: HloInstruction) -> None:
    """Has a select read what it keeps from where that was copied to: what it would be worked out
    from may have been there."""
    home, kept = emitter.homes[select], select.operands[3 - guard.side]
    readers = [user for user in kept.users if user in guard.parts]
    if readers == [select] and emitter.array(kept).lane == home.lane:
        emitter.values[kept] = home


def _elements(emitter: Emitter, array: Array) -> list[ir.Value]:
    """Returns what a select gives where the work isn't needed."""
    place = emitter.place
    return [
        widen(place, array.get(place, index))
        for index in all_indices(array.shape.dimensions, array.lane)
    ]


def _any_lane(emitter: Emitter, guard: Guard) -> tuple[bool, ir.Value]:
    """Returns an `i1`, whether some lane of the block may need what is guarded.

    In front of it, whether a warp has voted: whether all its threads get the same answer.
    """
    predicate = emitter.array(guard.question)
    needed = _find_lanes(emitter, predicate, is_negated=guard.side == 2).any_lane
    warp = emitter.place.block.warp
    if warp is None or not _may_vote(emitter, guard):
        return False, needed
    return True, warp.any_thread(emitter.builder, needed)


def _may_vote(emitter: Emitter, guard: Guard) -> bool:
    """Whether a warp may do guarded work in all lanes, not only in those that need it.

    Loops would go on for lanes that don't matter, and gathers would read what nobody needs.
    """
    loops = emitter.program.loops
    return not any(
        part.opcode in ("conditional", "gather")
        or (part.opcode == "while" and loops[part].trip_count is None)
        for part in guard.parts
    )
