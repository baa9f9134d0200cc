"""Which dimension of a loop's values runs through it without its data ever being mixed.

Every dimension of every value of a region gets a class; instructions unite the classes of
dimensions that they map onto each other, and mark the class of a dimension along which they mix
data. A class that stays unmarked is parallel: position `i` along it depends on position `i` alone,
through all iterations. One such class becomes the lanes. Values without it are uniform: the same
for all lanes.

Constants, iotas and broadcasts of scalars have no dimensions of their own: each use gets fresh
classes, so that a zero array shared by two unrelated values does not tie these together. Where the
uses disagree in the end, `LaneAnalysis.splits` says which of them need a copy.

Source: the idea is that of dimension-wise parallelism analysis, as in the design's section 4.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from fuselane.analysis.dimension_classes import DimensionClasses, LeafSplit
from fuselane.analysis.dimension_rules import assign_classes
from fuselane.analysis.refusal import refuse
from fuselane.decisions import Reason
from fuselane.hlo.computation import HloComputation
from fuselane.hlo.instruction import HloInstruction


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LaneAnalysis:
    """Where the lanes are in a region.

    Attributes:
        num_lanes: Size of the lane dimension.
        lane_dimensions: For each array-shaped instruction of the region, its loops' bodies and
            conditions, the dimension along which the lanes lie; None where the value is uniform.
        splits: Copies of leaves to be made before `lane_dimensions` holds for all uses.
        mergeable: If another parallel dimension always lies next to the lanes: for each value that
            has the two the number of the first of them; else empty.
    """

    num_lanes: int
    lane_dimensions: dict[HloInstruction, int | None]
    splits: tuple[LeafSplit, ...]
    mergeable: dict[HloInstruction, int]


def find_lanes(region: HloComputation) -> LaneAnalysis:
    """Returns the lanes of a region in normal form: the largest parallel class its loop carries.

    Ties go to the dimension that is furthest minor.

    Raises:
        UnsupportedError: NO_LANES if no dimension of size two or more is carried; CROSS_LANE or
            DATA_DEPENDENT_TRIP_COUNT, naming the instruction that mixes the largest one, if all are
            mixed.
    """
    classes = DimensionClasses()
    assign_classes(classes, region)
    classes.mark_repeated()
    loop = next(i for i in region.instructions if i.opcode == "while")
    candidates = classes.carried_classes(loop)
    parallel = [c for c in candidates if c not in classes.mixing]
    if not parallel:
        raise _refuse(region, loop, classes, candidates)
    lane_class = max(parallel, key=lambda c: candidates[c])
    lane_dimensions, splits = classes.lane_dimensions(lane_class)
    return LaneAnalysis(
        num_lanes=candidates[lane_class][0],
        lane_dimensions=lane_dimensions,
        splits=splits,
        mergeable=_find_mergeable(classes, lane_class, parallel),
    )


def _find_mergeable(
    classes: DimensionClasses, lane_class: int, parallel: list[int]
) -> dict[HloInstruction, int]:
    for other in parallel:
        if other != lane_class:
            mergeable = classes.mergeable(lane_class, other)
            if mergeable is not None:
                return mergeable
    return {}


def _refuse(
    region: HloComputation,
    loop: HloInstruction,
    classes: DimensionClasses,
    candidates: dict[int, tuple[int, int]],
) -> Exception:
    if not candidates:
        return refuse(Reason.NO_LANES, loop)
    largest = max(candidates, key=lambda c: candidates[c])
    instruction, why = classes.mixing[largest]
    detail = f"`{instruction.name}` {why}, the dimension of size {candidates[largest][0]}"
    if instruction in _condition_cone(region):
        return refuse(Reason.DATA_DEPENDENT_TRIP_COUNT, instruction, detail=detail)
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
