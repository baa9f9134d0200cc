"""Which arrays are never stored: whoever reads an element works it out.

%a = f32[8,99] add(..)          99 elements per lane: too many for registers
%b = f32[8,99] sine(%a)         read once, element by element: a view
%c = f32[99,8] transpose(%b)    movement: a view
%d = f32[99,8] add(%c, %x)      one loop computes all of this, and stores only %d
"""

from __future__ import annotations

from collections.abc import Container
from typing import Final

from fuselane.analysis.opcodes import ELEMENTWISE_OPCODES
from fuselane.codegen.in_place import reads_in_place
from fuselane.codegen.indexing import residual_size
from fuselane.codegen.sweeps import MOVEMENT
from fuselane.hlo.instruction import HloInstruction
from fuselane.lanes.program import LaneProgram

_CHEAP_TO_REPEAT: Final = frozenset(
    {"broadcast", "reshape", "transpose", "slice", "reverse", "pad", "concatenate", "iota"}
)
_READ_ONCE: Final = ELEMENTWISE_OPCODES | {"reduce", "reshape", "transpose", "reverse", "slice"}
_ALIASES: Final = MOVEMENT | {"tuple", "while", "conditional", "get-tuple-element"}


def stays_view(
    instruction: HloInstruction,
    program: LaneProgram,
    max_unrolled: int,
    panels: Container[HloInstruction] = (),
) -> bool:
    """Returns whether an instruction with too many elements for registers is never stored.

    Args:
        instruction: Of the program.
        program: What is emitted.
        max_unrolled: The most elements per lane that are kept in registers.
        panels: Dots that have a copy of their weights.
    """
    if instruction.opcode == "dynamic-slice":
        # What is updated in place has to be read before the update, not whenever it is needed.
        return instruction.operands[0] not in program.mutable
    if instruction.opcode == "gather" and instruction.operands[0] in program.mutable:
        return False
    readers = instruction.users
    if _is_read_by_lane(instruction, program):
        return False
    if instruction.opcode in _CHEAP_TO_REPEAT:
        return True
    is_shared = program.lane_dimensions.get(instruction) is None
    if is_shared and all(reader in panels for reader in readers):
        return True
    if len(readers) != 1 or readers[0].operands.count(instruction) != 1:
        return False
    match readers[0].opcode:
        case "dynamic-slice":
            return True
        case "dynamic-update-slice":
            # What changes while it is stored has to be worked out before.
            target, update, *_ = readers[0].operands
            return update is instruction and reads_in_place(
                readers[0],
                target,
                lambda i: i is update or is_view(i, program, max_unrolled, panels),
            )
    return readers[0].opcode in _READ_ONCE


def _is_read_by_lane(instruction: HloInstruction, program: LaneProgram) -> bool:
    """Whether each lane reads other elements of what all lanes share, which has to be in memory."""
    lanes = program.lane_dimensions
    return lanes.get(instruction) is None and any(
        reader.opcode == "gather"
        and reader.operands[0] is instruction
        and lanes.get(reader) is not None
        for reader in instruction.users
    )


def is_view(
    instruction: HloInstruction,
    program: LaneProgram,
    max_unrolled: int,
    panels: Container[HloInstruction] = (),
) -> bool:
    """Returns whether reading an instruction's value may be reading its operands; see
    `stays_view`."""
    if instruction.opcode in _ALIASES:
        return True
    lane = program.lane_dimensions.get(instruction)
    size = residual_size(instruction.shape.dimensions, lane)
    return size > max_unrolled and stays_view(instruction, program, max_unrolled, panels)
