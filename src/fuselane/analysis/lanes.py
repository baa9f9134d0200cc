"""Which dimension of a loop's values runs through it without its data ever being mixed.

Every dimension of every value of a region gets a class; instructions unite the classes of
dimensions that they map onto each other, and mark the class of a dimension along which they mix
data. A class that stays unmarked is parallel: position `i` along it depends on position `i` alone,
through all iterations. One such class becomes the lanes. Values without it are uniform: the same
for all lanes.

Constants, iotas and broadcasts of scalars have no dimensions of their own: each use gets fresh
classes, so that a zero array shared by two unrelated values does not tie these together. Where the
uses disagree in the end, `LaneAnalysis.splits` says which of them need a copy.

Source: the idea is that of dimension-wise parallelism analysis.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, final

from fuselane.analysis.dimension_classes import DimensionClasses, LeafSplit, Mergeable
from fuselane.analysis.dimension_rules import find_classes
from fuselane.analysis.lane_conditions import LaneCondition
from fuselane.analysis.leaving import LaneReduction, find_leaving, find_reductions, reduced_classes
from fuselane.analysis.parallel_classes import Joiner, find_parallel, meets
from fuselane.analysis.refusal import refuse
from fuselane.analysis.while_loops import compute_trip_count, loop_of
from fuselane.decisions import Reason
from fuselane.errors import UnsupportedError
from fuselane.hlo.computation import HloComputation
from fuselane.hlo.instruction import HloInstruction

_MAX_DISTANCE: Final = 16
_FEW_LANES: Final = 4
_MANY_BESIDE_FEW: Final = 64
_MAX_WITHOUT_LANES: Final = 16_384
"""A few lanes are better none if each holds many elements, but not too many all together."""

_SCATTERED_WORTH: Final = 8
_MANY_LANES: Final = 64
"""A loop that has so many along one dimension is not searched for two that may be one."""

_AT_A_STEP: Final = frozenset({"dynamic-slice", "dynamic-update-slice"})


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LaneAnalysis:
    """Where the lanes are in a region.

    Attributes:
        num_lanes: Size of the lane dimension; 1 if there is none and all values are uniform.
        lane_dimensions: For each array-shaped instruction of the region, its loops' bodies and
            conditions, the dimension along which the lanes lie; None where the value is uniform.
        splits: Copies of leaves to be made before `lane_dimensions` holds for all uses.
        mergeable: Where another parallel dimension lies next to the lanes, if they can be one.
        leaving: The reductions over the lanes, all of which only leave the loop; they have to be
            taken out of it.
        obstacle: If there are no lanes, what stands in their way.
        conditions: The loops whose lanes may stop one by one, with what tells when.
        meetings: The reductions over lanes that the outermost loop goes on with in every step.
    """

    num_lanes: int
    lane_dimensions: dict[HloInstruction, int | None]
    splits: tuple[LeafSplit, ...]
    mergeable: Mergeable | None = None
    leaving: tuple[LaneReduction, ...] = ()
    obstacle: UnsupportedError | None = None
    conditions: Mapping[HloInstruction, LaneCondition] = field(default_factory=dict)
    meetings: frozenset[HloInstruction] = frozenset()


def find_lanes(
    region: HloComputation, *, with_leaving: bool = False, along: HloInstruction | None = None
) -> LaneAnalysis:
    """Returns the lanes of a region in normal form: the largest parallel class its loop carries.

    A class whose lanes lie far apart in arrays that are read or written step by step counts for an
    eighth of its size, one of few lanes that can be merged with a neighbour for as many as the two
    have together. Ties go to the larger class, then to the dimension that is furthest minor. If
    there is none every value is uniform, and `obstacle` says why: NO_LANES if no dimension of size
    two or more is carried, but such as have an element for each step; CROSS_LANE or
    DATA_DEPENDENT_TRIP_COUNT, naming the instruction that mixes the largest one, if all are mixed.
    A few lanes of many elements each are none, without an obstacle.

    Args:
        region: The region.
        with_leaving: Whether a class counts as parallel that is mixed only by reductions whose
            results leave the loop.
        along: A value whose first dimension is preferred to larger ones.
    """
    classes = find_classes(region)
    loop = loop_of(region)
    candidates = classes.carried_classes(loop)
    proven, parallel = find_parallel(classes, candidates)
    if _is_byplay(classes, loop, candidates, parallel):
        parallel = []
    scattered = _find_scattered(classes, loop)
    num_merged = _count_merged(classes, candidates, parallel)
    nodes = () if along is None else classes.nodes.get(along, ())
    preferred = classes.find(nodes[0]) if nodes else None

    def rank(candidate: int) -> tuple[bool, int, int, int]:
        size, minor = candidates[candidate]
        count = num_merged[candidate]
        worth = count // _SCATTERED_WORTH if candidate in scattered else count
        return candidate == preferred, worth, size, minor

    lane_class = max(parallel, key=rank, default=None)
    if with_leaving:
        smallest = (0, 0)
        if lane_class is not None:
            smallest = num_merged[lane_class], candidates[lane_class][1]
        leaving = _find_leaving(classes, loop, candidates, smallest)
        if leaving is not None:
            return leaving
    if lane_class is None:
        return _without_lanes(classes, _describe_obstacle(region, loop, classes, candidates))
    joiner = Joiner(classes, parallel, proven)
    for one, other in itertools.permutations(parallel, 2):
        if candidates[one] == candidates[other]:
            joiner.join(one, other)
    lane_class = classes.find(lane_class)
    mergeable = _find_mergeable(classes, lane_class, parallel)
    if not mergeable and _are_too_few(loop, candidates[lane_class][0]):
        return _without_lanes(classes, None)
    for other in parallel if not mergeable else ():
        if candidates[other][0] == candidates[lane_class][0]:
            joiner.join(lane_class, other)
    lane_dimensions, splits = classes.lane_dimensions(lane_class)
    return LaneAnalysis(
        num_lanes=candidates[lane_class][0],
        lane_dimensions=lane_dimensions,
        splits=splits,
        mergeable=mergeable,
        conditions=proven[lane_class],
    )


def _is_byplay(
    classes: DimensionClasses,
    loop: HloInstruction,
    candidates: Mapping[int, tuple[int, int]],
    parallel: Collection[int],
) -> bool:
    """Whether lanes of the same number meet in more of what a loop changes than is parallel."""
    if not parallel:
        return False
    size = max(candidates[c][0] for c in parallel)
    side = {c for c in parallel if candidates[c][0] == size}
    meeting = (c for c in candidates if candidates[c][0] == size and meets(classes, loop, c))
    return any(
        classes.num_changing(loop, {c}, side) > classes.num_changing(loop, side, ())
        for c in meeting
    )


def _find_leaving(
    classes: DimensionClasses,
    loop: HloInstruction,
    carried: Mapping[int, tuple[int, int]],
    smallest: tuple[int, int],
) -> LaneAnalysis | None:
    """Returns the largest class mixed only by what leaves, if it outranks `smallest`, else None."""
    reductions = find_reductions(loop.body)
    candidates = {**reduced_classes(classes, reductions), **carried}
    for lane_class in sorted(candidates, key=lambda c: candidates[c], reverse=True):
        if candidates[lane_class] <= smallest:
            return None
        leaving = find_leaving(classes, loop, lane_class, reductions)
        if leaving is not None:
            return LaneAnalysis(
                num_lanes=candidates[lane_class][0],
                lane_dimensions={},
                splits=(),
                leaving=tuple(leaving),
            )
    return None


def _find_scattered(classes: DimensionClasses, loop: HloInstruction) -> set[int]:
    """Returns the classes whose neighbours lie far apart in arrays with a row for each step."""
    result = set()
    for instruction in loop.body.instructions:
        if instruction.opcode in ("dynamic-slice", "dynamic-update-slice"):
            distance = 1
            sizes = instruction.operands[0].shape.dimensions
            for node, size in reversed(list(zip(classes.nodes[instruction], sizes, strict=True))):
                if distance > _MAX_DISTANCE:
                    result.add(classes.find(node))
                distance *= size
    return result


def _find_mergeable(
    classes: DimensionClasses, lane_class: int, parallel: list[int]
) -> Mergeable | None:
    for other in parallel:
        if other != lane_class and classes.find(other) == other:
            mergeable = classes.mergeable(lane_class, other)
            if mergeable is not None:
                return mergeable
    return None


def _count_merged(
    classes: DimensionClasses, candidates: Mapping[int, tuple[int, int]], parallel: Sequence[int]
) -> dict[int, int]:
    """Returns how many lanes there would be of each parallel class, merged with another where it
    can be. Where a class has many by itself, none is looked at together with others."""
    counts = {c: candidates[c][0] for c in parallel}
    if max(counts.values(), default=0) >= _MANY_LANES:
        return counts
    merged = dict(counts)
    for one, other in itertools.combinations(parallel, 2):
        if classes.mergeable(one, other) is not None:
            both = counts[one] * counts[other]
            merged[one], merged[other] = max(merged[one], both), max(merged[other], both)
    return merged


def _are_too_few(loop: HloInstruction, num_lanes: int) -> bool:
    """Whether vectors of lanes would be mostly empty, and those of what one lane holds full."""
    if num_lanes > _FEW_LANES:
        return False
    state = [
        value.shape.num_elements
        for value in loop.body.root.operands
        if value.opcode != "dynamic-update-slice"
    ]
    return num_lanes * _MANY_BESIDE_FEW <= max(state) <= _MAX_WITHOUT_LANES


def _without_lanes(classes: DimensionClasses, obstacle: UnsupportedError | None) -> LaneAnalysis:
    lane_dimensions, splits = classes.lane_dimensions(lane_class=None)
    return LaneAnalysis(
        num_lanes=1,
        lane_dimensions=lane_dimensions,
        splits=splits,
        obstacle=obstacle,
    )


def _describe_obstacle(
    region: HloComputation,
    loop: HloInstruction,
    classes: DimensionClasses,
    candidates: dict[int, tuple[int, int]],
) -> UnsupportedError:
    mixed = [candidate for candidate in candidates if candidate in classes.mixing]
    if not mixed:
        return refuse(Reason.NO_LANES, loop)
    trip_count = compute_trip_count(loop)

    def rank(candidate: int) -> tuple[bool, tuple[int, int]]:
        is_step = classes.mixing[candidate][0].opcode in _AT_A_STEP
        return not is_step or candidates[candidate][0] != trip_count, candidates[candidate]

    # What has an element for each step mixes these, but nobody would look for lanes there.
    largest = max(mixed, key=rank)
    if not rank(largest)[0]:
        detail = ", but for those along which each step reads or writes a part"
        return refuse(Reason.NO_LANES, loop, detail=detail)
    instruction, why = classes.mixing[largest]
    detail = f"`{instruction.name}` {why}, the dimension of size {candidates[largest][0]}"
    if largest in classes.waiting or instruction in _condition_cone(region):
        is_own = instruction.computation in loop.called_computations
        which = "the loop" if is_own else "a loop inside it"
        return refuse(Reason.DATA_DEPENDENT_TRIP_COUNT, instruction, which=which, detail=detail)
    return refuse(Reason.CROSS_LANE, instruction, detail=detail)


def _condition_cone(computation: HloComputation) -> set[HloInstruction]:
    """Returns everything that decides how often some loop of a region runs."""
    cone: set[HloInstruction] = set()
    for loop in computation.instructions:
        if loop.opcode == "while":
            stack = [loop.condition.root]
            while stack:
                instruction = stack.pop()
                if instruction in cone:
                    continue
                cone.add(instruction)
                stack.extend(instruction.operands)
                if instruction.opcode == "get-tuple-element":
                    parameters = (loop.body.parameters[0], loop.condition.parameters[0])
                    if instruction.operands[0] in parameters:
                        stack.append(loop.body.root.operands[instruction.tuple_index])
            cone |= _condition_cone(loop.body)
    return cone
