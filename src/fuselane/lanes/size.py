"""Does one lane of a loop fit: all its state at once, and the largest value in between."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping
from typing import Final

from fuselane.analysis.cost import residual_elements
from fuselane.analysis.dimension_classes import is_leaf
from fuselane.analysis.refusal import refuse
from fuselane.decisions import Reason
from fuselane.hlo.computation import HloComputation, instructions_with_branches
from fuselane.hlo.instruction import HloInstruction
from fuselane.lanes.program import ElementKind, LaneLoop, LoopElement

MAX_LANE_ELEMENTS: Final = 65_536
"""Values one lane may need at once: its state and the largest value in between."""

MAX_ELEMENTS_ALONE: Final = 4_194_304
"""The same of a loop without lanes, which has the machine's memory for itself."""


def check_size(
    region: HloComputation,
    loops: Mapping[HloInstruction, LaneLoop],
    mutable: Collection[HloInstruction],
    lane_dimensions: Mapping[HloInstruction, int | None],
) -> None:
    """Refuses what needs too many values per lane: all state, and the largest other value."""
    has_lanes = any(lane is not None for lane in lane_dimensions.values())
    limit = MAX_LANE_ELEMENTS if has_lanes else MAX_ELEMENTS_ALONE
    state = 0
    largest, culprit = 0, region.root
    for loop in loops.values():
        state += sum(
            _element_size(element) for element in loop.elements if element.kind is ElementKind.STATE
        )
        for instruction in itertools.chain.from_iterable(
            map(instructions_with_branches, loop.instruction.called_computations)
        ):
            if not instruction.shape.is_array or instruction in mutable or is_leaf(instruction):
                continue
            if instruction.opcode == "get-tuple-element":
                continue
            size = residual_elements(instruction, lane_dimensions[instruction])
            if size > largest:
                largest, culprit = size, instruction
    if state + largest > limit:
        if state > largest:
            culprit = next(iter(loops))
        raise refuse(Reason.TOO_LARGE, culprit, elements=state + largest, limit=limit)


def _element_size(element: LoopElement) -> int:
    size = element.shape.num_elements
    if element.lane_dimension is not None:
        size //= element.shape.dimensions[element.lane_dimension]
    return size
