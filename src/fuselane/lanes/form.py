"""From a `while` of the user's module to a lane program, or to a reason why there is none.

normalise   the loop as a region of row-major arrays          fuselane.lanes.normalise
    frozen      a loop that can end once its lanes are frozen     fuselane.lanes.frozen
find lanes  the dimension along which nothing is mixed        fuselane.analysis.lanes
take out    reductions over lanes that leave the loop         fuselane.lanes.partials
streams     what is updated in place, what is state           fuselane.analysis.streams
size        does one lane fit                                 fuselane.lanes.size
guards      what a block of lanes may leave out               fuselane.lanes.guards
    pieces      what is emitted in two versions                   fuselane.lanes.pieces
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from fuselane.analysis.cost import total_cost
from fuselane.analysis.dimension_classes import LeafSplit
from fuselane.analysis.lane_conditions import LaneCondition
from fuselane.analysis.lanes import (
    LaneAnalysis,
    find_lanes,
    find_meeting_lanes,
    find_staged_meetings,
)
from fuselane.analysis.refusal import refuse, source_line
from fuselane.analysis.streams import Stream, find_streams, is_fully_overwritten
from fuselane.analysis.while_loops import compute_trip_count, get_induction_index, is_invariant
from fuselane.decisions import Decision, Reason
from fuselane.errors import UnsupportedError
from fuselane.hlo.computation import (
    HloComputation,
    clone_computation,
    instructions_with_branches,
)
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.module import HloModule
from fuselane.hlo.shape import Shape
from fuselane.lanes.flatten import flatten
from fuselane.lanes.frozen import end_when_frozen
from fuselane.lanes.guards import find_guards
from fuselane.lanes.iterations import spread_iterations
from fuselane.lanes.meetings import join_stages
from fuselane.lanes.normalise import NormalLoop, normalise
from fuselane.lanes.partials import PartialLoop, find_late, get_combiners, take_out_reductions
from fuselane.lanes.parting import part_lanes
from fuselane.lanes.pieces import find_pieces, without_pieces
from fuselane.lanes.program import (
    ElementKind,
    Guard,
    LaneLoop,
    LaneProgram,
    LoopElement,
    Piecewise,
)
from fuselane.lanes.residuals import Residuals, recompute
from fuselane.lanes.sharing import share_lanes
from fuselane.lanes.size import check_size

MAX_SCALAR_COST: Final = 200_000
"""Operations of one step without lanes above which loops in the loop had better run by
themselves, where they may have lanes."""

_LANES: Final = 8
"""Of a vector, more or less."""

MIN_MEETING_LANES: Final = 16
"""Lanes that meet in every step are worth vectors from this many on."""

LaneDimensions = dict[HloInstruction, int | None]

_Renew = Callable[[], NormalLoop]
"""Returns the normal form of the loop that is to be formed, a new one each time."""


def form(
    module: HloModule, loop: HloInstruction, residuals: Residuals | None = None
) -> LaneProgram:
    """Returns the lane program of a `while`.

    Args:
        module: The module the loop is in; it is not changed.
        loop: A `while` of any of its computations.
        residuals: What the loop may compute instead of reading it.
    Raises:
        UnsupportedError: if there is none; its decision names the reason, the instruction and the
            user's source line.
    """
    try:
        program = _form(loop, residuals)
    except UnsupportedError as error:
        raise UnsupportedError(_with_source(error.decision, module, loop)) from None
    if program.obstacle is None:
        return program
    return replace(program, obstacle=_with_source(program.obstacle, module, loop))


def _form(user_loop: HloInstruction, residuals: Residuals | None) -> LaneProgram:
    normal, num_recomputed = _normalise(user_loop, residuals)
    program = _form_any(user_loop.name, functools.partial(_copy, normal))
    rival = program.rival and replace(program.rival, num_recomputed=num_recomputed)
    return replace(program, num_recomputed=num_recomputed, rival=rival)


def _normalise(user_loop: HloInstruction, residuals: Residuals | None) -> tuple[NormalLoop, int]:
    normal = normalise(user_loop)
    return (normal, 0) if residuals is None else recompute(normal, residuals)


def _copy(normal: NormalLoop) -> NormalLoop:
    """Returns a normal form that may be changed: what is tried may fail halfway."""
    return replace(normal, region=clone_computation(normal.region))


def _form_any(name: str, renew: _Renew) -> LaneProgram:
    normal = renew()
    if end_when_frozen(normal.region):
        try:
            return _form_normal(name, renew, normal)
        except UnsupportedError:
            normal = renew()
    return _form_normal(name, renew, normal)


def _form_normal(name: str, renew: _Renew, normal: NormalLoop) -> LaneProgram:
    leaving = find_lanes(normal.region, with_leaving=True)
    for other, lanes in itertools.chain(
        spread_iterations(renew, leaving), part_lanes(renew, leaving)
    ):
        try:
            return _form_found(name, renew, other, lanes)
        except UnsupportedError:
            continue
    try:
        program = _form_found(name, renew, normal, leaving)
    except UnsupportedError:
        shared = _form_shared(name, renew())
        if shared is None:
            raise
        return shared
    if program.num_lanes < MIN_MEETING_LANES:
        program = replace(program, rival=_form_shared(name, renew()))
    return program


def _form_shared(name: str, normal: NormalLoop) -> LaneProgram | None:
    """Returns the program of a loop whose lanes see each other, None if there is none."""
    loop = next(i for i in normal.region.instructions if i.opcode == "while")
    lanes = share_lanes(normal.region)
    if lanes is None:
        return None
    analysis = find_meeting_lanes(normal.region, lanes)
    if analysis is None:
        return None
    try:
        program = _form_lanes(normal, loop, analysis, name, None)
    except UnsupportedError:
        return None
    # One thread takes all lanes, where loops in the loop may have several.
    if _inner_cost(program, loop) * program.num_lanes / _LANES > MAX_SCALAR_COST:
        return None
    return program


def _inner_cost(program: LaneProgram, loop: HloInstruction) -> float:
    """Returns the operations that a block of lanes spends on the loops in a loop, in one step."""
    inner = [i for i in instructions_with_branches(loop.body) if i.opcode == "while"]
    return total_cost(
        inner,
        program.lane_dimensions.get,
        lambda instruction: program.loops[instruction].trip_count,
    )


def _form_found(name: str, renew: _Renew, normal: NormalLoop, leaving: LaneAnalysis) -> LaneProgram:
    if not leaving.leaving:
        return _form_whole(normal, name)
    try:
        partial = take_out_reductions(normal, leaving.leaving, leaving.num_lanes)
        return _form_whole(partial.normal, name, partial)
    except UnsupportedError as failure:
        return _form_without_leaving(name, renew, failure)


def _form_without_leaving(name: str, renew: _Renew, failure: UnsupportedError) -> LaneProgram:
    """Forms a loop over a dimension that no reduction mixes, since the largest did not work out."""
    try:
        return _form_whole(renew(), name)
    except UnsupportedError:
        raise failure from None


def _form_whole(normal: NormalLoop, name: str, partial: PartialLoop | None = None) -> LaneProgram:
    region = normal.region
    loop = next(i for i in region.instructions if i.opcode == "while")
    combiners = {} if partial is None else get_combiners(normal, partial.epilogue)

    def find_again() -> LaneAnalysis:
        shares = [loop.body.root.operands[index] for index, how in combiners.items() if how]
        return find_lanes(region, along=shares[0] if shares else None)

    analysis = find_again()
    # What is summed up over the lanes leaves with the other dimensions that it has.
    while analysis.mergeable and partial is None:
        flatten(region, analysis.mergeable)
        analysis = find_again()
    try:
        if partial is not None and loop in analysis.conditions:
            raise refuse(Reason.CROSS_LANE, loop, detail="sums over lanes that stop one by one")
        if analysis.obstacle is not None:
            staged = find_staged_meetings(region)
            join_stages(staged)
            analysis = _find_meeting_lanes(region) or (find_again() if staged else analysis)
        return _form_lanes(normal, loop, analysis, name, partial)
    except UnsupportedError:
        if analysis.obstacle is None:
            raise
        raise analysis.obstacle from None


def _find_meeting_lanes(region: HloComputation) -> LaneAnalysis | None:
    """Returns the lanes of a loop in which they meet, if there are enough of them."""
    analysis = find_meeting_lanes(region)
    is_enough = analysis is not None and analysis.num_lanes >= MIN_MEETING_LANES
    return analysis if is_enough else None


def _form_lanes(
    normal: NormalLoop,
    loop: HloInstruction,
    analysis: LaneAnalysis,
    name: str,
    partial: PartialLoop | None,
) -> LaneProgram:
    region = normal.region
    lane_dimensions = _split_leaves(analysis)
    streams = find_streams(loop, lane_dimensions, has_lanes=analysis.num_lanes > 1)
    normal = _return_streams(normal, loop, streams, lane_dimensions)
    folds = {} if partial is None else partial.folds
    late = find_late(loop, folds)
    combiners = {} if partial is None else get_combiners(normal, partial.epilogue)
    bodies = list(_bodies(loop))
    loops = {
        loop: _describe_loop(loop, streams, lane_dimensions, analysis.conditions.get(loop))
        for loop, _ in bodies
    }
    loops[loop] = _with_combiners(loops[loop], combiners)
    shares = [element.lane_dimension for element in loops[loop].elements if element.combiner]
    if any(lane != 0 for lane in (*shares, *map(lane_dimensions.get, folds))):
        raise refuse(Reason.CROSS_LANE, loop, detail="sums over what can't be its lanes")
    mutable = _stream_instructions(streams)
    check_size(region, loops, mutable, lane_dimensions)
    trip_counts = {instruction: lane_loop.trip_count for instruction, lane_loop in loops.items()}
    cost = total_cost(loop.body.instructions, lane_dimensions.get, trip_counts.__getitem__)
    if analysis.obstacle is not None and len(bodies) > 1 and cost > MAX_SCALAR_COST:
        raise analysis.obstacle
    guards, pieces = _find_groups(
        bodies,
        loops,
        {*mutable, *folds, *late, *analysis.meetings},
        lane_dimensions,
        analysis.num_lanes > 1,
    )
    return LaneProgram(
        name=name,
        num_lanes=analysis.num_lanes,
        region=region,
        site=normal.site,
        lane_dimensions=lane_dimensions,
        loops=loops,
        guards=guards,
        pieces=pieces,
        mutable=mutable,
        operands=normal.operands,
        output_indices=normal.output_indices,
        invariants=normal.invariants,
        iterations=normal.iterations,
        cost=cost,
        obstacle=analysis.obstacle and analysis.obstacle.decision,
        folds=folds,
        late=late,
        epilogue=None if partial is None else partial.epilogue,
        meetings=analysis.meetings,
    )


def _bodies(loop: HloInstruction) -> Iterator[tuple[HloInstruction, HloComputation]]:
    """Yields a loop and all loops nested in it, with their bodies, outermost first."""
    yield loop, loop.body
    for instruction in instructions_with_branches(loop.body):
        if instruction.opcode == "while":
            yield from _bodies(instruction)


# Leaves and outputs.


def _split_leaves(analysis: LaneAnalysis) -> LaneDimensions:
    """Copies leaves whose uses disagree about lanes; returns all lane dimensions."""
    for split in analysis.splits:
        analysis.lane_dimensions[_copy_leaf(split)] = split.lane_dimension
    return analysis.lane_dimensions


def _copy_leaf(split: LeafSplit) -> HloInstruction:
    leaf = split.leaf
    assert leaf.computation is not None, "instructions of a region are in a computation"
    copy = leaf.computation.add(leaf.clone(leaf.operands), before=leaf)
    for user, index in split.uses:
        user.replace_operand(index, copy)
    return copy


def _return_streams(
    normal: NormalLoop,
    loop: HloInstruction,
    streams: Sequence[Stream],
    lane_dimensions: LaneDimensions,
) -> NormalLoop:
    """Makes streams that the loop reads results of the region, since they need memory."""
    region = normal.region
    returned = {output.tuple_index for output in region.root.operands}
    missing = [s.elements[0][1] for s in streams if s.readers and s.elements[0][1] not in returned]
    if not missing:
        return normal
    outputs = list(region.root.operands)
    for index in missing:
        element = HloInstruction.create(
            "get-tuple-element", loop.shape.tuple_shapes[index], (loop,), tuple_index=index
        )
        outputs.append(region.add(element))
        lane_dimensions[element] = lane_dimensions[loop.body.root.operands[index]]
    old = region.root
    shape = Shape.tuple_of([output.shape for output in outputs])
    region.root = region.add(HloInstruction.create("tuple", shape, outputs))
    region.remove(old)
    added = tuple(normal.element_indices[index] for index in missing)
    return replace(normal, output_indices=normal.output_indices + added)


# Loops and their elements.


def _describe_loop(
    loop: HloInstruction,
    streams: Sequence[Stream],
    lane_dimensions: Mapping[HloInstruction, int | None],
    condition: LaneCondition | None,
) -> LaneLoop:
    carried_by = {
        index: stream for stream in streams for owner, index in stream.elements if owner is loop
    }
    elements = []
    for index, shape in enumerate(loop.shape.tuple_shapes):
        stream = carried_by.get(index)
        kind = ElementKind.STATE
        if stream is not None:
            kind = ElementKind.STREAM
        elif is_invariant(loop, index):
            kind = ElementKind.INVARIANT
        elements.append(
            LoopElement(
                index=index,
                kind=kind,
                shape=shape,
                lane_dimension=_element_lane(loop, index, lane_dimensions),
                is_fully_overwritten=stream is not None and is_fully_overwritten(loop, stream),
            )
        )
    return LaneLoop(
        instruction=loop,
        trip_count=compute_trip_count(loop),
        induction_index=get_induction_index(loop),
        elements=tuple(elements),
        lane_condition=condition,
    )


def _with_combiners(loop: LaneLoop, combiners: Mapping[int, str]) -> LaneLoop:
    elements = (replace(e, combiner=combiners.get(e.index, "")) for e in loop.elements)
    return replace(loop, elements=tuple(elements))


def _element_lane(
    loop: HloInstruction, index: int, lane_dimensions: Mapping[HloInstruction, int | None]
) -> int | None:
    """Returns the lane dimension of a loop element, which its initial value shares."""
    return lane_dimensions[loop.operands[0].operands[index]]


def _stream_instructions(streams: Sequence[Stream]) -> frozenset[HloInstruction]:
    """Returns what stands for a stream: its versions, its elements of conditions and results."""
    result: set[HloInstruction] = set()
    for stream in streams:
        result.update(stream.versions)
        for loop, index in stream.elements:
            for holder in (loop, loop.condition.parameters[0]):
                result.update(
                    user
                    for user in holder.users
                    if user.opcode == "get-tuple-element" and user.tuple_index == index
                )
    return frozenset(result)


def _find_groups(
    bodies: Sequence[tuple[HloInstruction, HloComputation]],
    loops: Mapping[HloInstruction, LaneLoop],
    mutable: Collection[HloInstruction],
    lane_dimensions: Mapping[HloInstruction, int | None],
    has_lanes: bool,
) -> tuple[dict[HloComputation, tuple[Guard, ...]], dict[HloComputation, tuple[Piecewise, ...]]]:
    """Returns the guards of each body, and what of the rest is emitted in two versions."""

    def is_movable(instruction: HloInstruction) -> bool:
        if instruction.opcode == "parameter" or instruction in mutable:
            return False
        if instruction.opcode == "while":
            elements = loops[instruction].elements
            return not any(element.kind is ElementKind.STREAM for element in elements) and not any(
                operand in mutable for operand in instruction.operands[0].operands
            )
        read = [instruction]
        if instruction.opcode == "conditional":
            read += instruction.operands[1:]
        return not any(operand in mutable for reader in read for operand in reader.operands)

    guards: dict[HloComputation, tuple[Guard, ...]] = {}
    pieces: dict[HloComputation, tuple[Piecewise, ...]] = {}
    for loop, body in bodies:
        going_on = loops[loop].lane_condition
        found = find_guards(
            body,
            lane_dimensions,
            lambda loop: loops[loop].trip_count,
            is_movable,
            has_lanes=has_lanes,
            going_on=going_on,
        )
        needed_by_all = frozenset() if going_on is None else going_on.cone
        candidates = find_pieces(body, lane_dimensions, _but(is_movable, needed_by_all))
        found = without_pieces(found, candidates)
        taken = needed_by_all.union(*(guard.parts for guard in found))
        rest = find_pieces(body, lane_dimensions, _but(is_movable, taken)) if found else candidates
        if found:
            guards[body] = found
        if rest:
            pieces[body] = rest
    return guards, pieces


def _but(
    is_movable: Callable[[HloInstruction], bool], taken: Collection[HloInstruction]
) -> Callable[[HloInstruction], bool]:
    return lambda instruction: instruction not in taken and is_movable(instruction)


def _with_source(decision: Decision, module: HloModule, loop: HloInstruction) -> Decision:
    """Returns a refusal with the user's source line of its instruction, or else of the loop."""
    if decision.source:
        return decision
    named = (
        instruction
        for computation in module.computations
        for instruction in computation.instructions
        if instruction.name == decision.instruction
    )
    culprit = next(named, loop)
    source = source_line(culprit, module) or source_line(loop, module)
    return replace(decision, source=source, opcode=culprit.opcode)
