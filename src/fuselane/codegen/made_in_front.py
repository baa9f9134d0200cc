"""What a region makes for each lane in front of its loop, and no step changes.

    %row = s32[1024] remainder(iota, 64)
    %a = f32[1024,16] gather(%table, %row)        lanes along dimension 0
    while ((.., %a)) ..

A block of lanes that goes through the whole loop makes it once. In a tile the blocks take turns in
every step, so that each would make it again every time; the tile keeps it in memory instead.
"""

from __future__ import annotations

from typing import Final

from fuselane.analysis.cost import instruction_cost
from fuselane.codegen.indexing import residual_size
from fuselane.codegen.schedule import needs_lanes
from fuselane.hlo.instruction import HloInstruction
from fuselane.lanes.program import ElementKind, LaneProgram

_CHEAP: Final = 2.0
"""Operations for an element that are about as fast as loading it."""


def find_made_in_front(program: LaneProgram) -> dict[int, int]:
    """Returns what a tile had better keep: for indices of the loop's elements the bytes of one
    lane."""
    found = {}
    for element in program.loop.elements:
        operand = program.loop.instruction.operands[0].operands[element.index]
        lane = element.lane_dimension
        is_made = operand not in program.inputs and operand.opcode != "constant"
        if element.kind is not ElementKind.INVARIANT or lane is None or not is_made:
            continue
        size = residual_size(operand.shape.dimensions, lane)
        if _count_operations(operand, program) > _CHEAP * size:
            found[element.index] = size * operand.shape.element_type.byte_size
    return found


def _count_operations(value: HloInstruction, program: LaneProgram) -> float:
    """Returns the operations of a block of lanes for a value and all that it is made of."""
    lane = program.lane_dimensions.get
    seen: set[HloInstruction] = set()
    rest = [value]
    total = 0.0
    while rest:
        made = rest.pop()
        if made in seen or made in program.inputs or not needs_lanes(made, program):
            continue
        seen.add(made)
        total += instruction_cost(made, lane, lambda loop: program.loops[loop].trip_count)
        rest.extend(made.operands)
    return total
