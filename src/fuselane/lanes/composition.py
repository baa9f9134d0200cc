"""The lane program of a region whose lanes are known: its loops, streams, guards and pieces.

leaves      copied where their uses disagree about lanes
streams     what is updated in place, what is state           fuselane.analysis.streams
size        does one lane fit                                 fuselane.lanes.size
guards      what a block of lanes may leave out               fuselane.lanes.guards
    pieces      what is emitted in two versions                   fuselane.lanes.pieces
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from fuselane.analysis.cost import total_cost
from fuselane.analysis.dimension_classes import LeafSplit
from fuselane.analysis.lane_conditions import LaneCondition
from fuselane.analysis.lanes import LaneAnalysis
from fuselane.analysis.recurrence import steps_until_compared
from fuselane.analysis.refusal import refuse
from fuselane.analysis.streams import Stream, find_streams, is_fully_overwritten
from fuselane.analysis.while_loops import (
    compute_trip_count,
    get_induction_index,
    is_invariant,
    match_step,
)
from fuselane.decisions import Reason
from fuselane.hlo.computation import HloComputation, instructions_with_branches
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.tuples import element_of, tuple_of
from fuselane.lanes.guards import find_guards
from fuselane.lanes.normal_loop import NormalLoop
from fuselane.lanes.partials import PartialLoop, find_late, get_combiners
from fuselane.lanes.pieces import find_pieces, without_pieces
from fuselane.lanes.program import ElementKind, Guard, LaneLoop, LaneProgram, LoopElement, Piecewise
from fuselane.lanes.size import check_size

MAX_SCALAR_COST: Final = 200_000
"""Operations of one step without lanes above which loops in the loop had better run by
themselves, where they may have lanes."""

_LaneDimensions = dict[HloInstruction, int | None]


def compose(
    normal: NormalLoop,
    loop: HloInstruction,
    analysis: LaneAnalysis,
    name: str,
    partial: PartialLoop | None,
) -> LaneProgram:
    """Returns the lane program of a loop in normal form.

    Args:
        normal: The loop; its region is changed.
        loop: The `while` of the region.
        analysis: Where the lanes are.
        name: The program's.
        partial: What was taken out of it, if anything was.
    Raises:
        UnsupportedError: if a lane is too large, or loops in the loop had better run by themselves.
    """
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
    loops = {
        inner: described
        if inner is loop and analysis.meetings
        else _with_comparisons(described, loops, lane_dimensions)
        for inner, described in loops.items()
    }
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
    """Yields a loop and all loops in its body and condition, with their bodies, outermost first."""
    yield loop, loop.body
    for computation in loop.called_computations:
        for instruction in instructions_with_branches(computation):
            if instruction.opcode == "while":
                yield from _bodies(instruction)


def _split_leaves(analysis: LaneAnalysis) -> _LaneDimensions:
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
    lane_dimensions: _LaneDimensions,
) -> NormalLoop:
    """Makes streams that the loop reads results of the region, since they need memory."""
    region = normal.region
    returned = {output.tuple_index for output in region.root.operands}
    missing = [s.elements[0][1] for s in streams if s.readers and s.elements[0][1] not in returned]
    if not missing:
        return normal
    outputs = list(region.root.operands)
    for index in missing:
        element = region.add(element_of(loop, index))
        outputs.append(element)
        lane_dimensions[element] = lane_dimensions[loop.body.root.operands[index]]
    old = region.root
    region.root = region.add(tuple_of(outputs))
    region.remove(old)
    added = tuple(normal.element_indices[index] for index in missing)
    return replace(normal, output_indices=normal.output_indices + added)


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


def _with_comparisons(
    loop: LaneLoop, loops: Mapping[HloInstruction, LaneLoop], lane_dimensions: _LaneDimensions
) -> LaneLoop:
    """Returns a loop with what is known about its state coming back."""
    if any(element.kind is ElementKind.STREAM or element.combiner for element in loop.elements):
        return loop
    body = loop.instruction.body.instructions
    cost = total_cost(body, lane_dimensions.get, lambda inner: loops[inner].trip_count)
    steps = steps_until_compared(loop.instruction, loop.trip_count, cost, lane_dimensions)
    index, trip_count = loop.induction_index, loop.trip_count or 0
    stride = None if index is None else match_step(loop.instruction, index)
    return replace(loop, compared_after=steps, counted=(stride or 0) * trip_count)


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
