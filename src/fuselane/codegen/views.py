"""Which arrays are never stored: whoever reads an element works it out.

%a = f32[8,99] add(..)          99 elements per lane: too many for registers
%b = f32[8,99] sine(%a)         read once, element by element: a view
%c = f32[99,8] transpose(%b)    movement: a view
%d = f32[99,8] add(%c, %x)      one loop computes all of this, and stores only %d

Without lanes, an array that is put together from parts is made in one go, too: each part by a loop
of its own (`codegen.cuts`), be it the inside of a grid whose borders stay as they are:

%i = f32[98] f(slice(%u), ..)                    reads its neighbours' old values
%n = f32[99,8] dynamic-update-slice(%u, %i, 1)   made anew: not %u, changed where it lies
"""

from __future__ import annotations

import math
from collections.abc import Container
from typing import Final

from fuselane.analysis.opcodes import ELEMENTWISE_OPCODES
from fuselane.codegen.cuts import MAX_PARTS
from fuselane.codegen.in_place import known_starts, reads_in_place
from fuselane.codegen.indexing import residual_size
from fuselane.codegen.sweeps import MOVEMENT
from fuselane.hlo.instruction import HloInstruction
from fuselane.lanes.program import LaneProgram

_CHEAP_TO_REPEAT: Final = frozenset(
    {"broadcast", "reshape", "transpose", "slice", "reverse", "pad", "concatenate", "iota"}
)
_READ_ONCE: Final = ELEMENTWISE_OPCODES | {"reduce", "reshape", "transpose", "reverse", "slice"}
_PUT_TOGETHER: Final = frozenset({"concatenate", "dynamic-update-slice", "pad"})
_MAX_OPERANDS: Final = 4
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
    if is_made_anew(instruction, program, max_unrolled, panels):
        return _is_read_once(instruction)
    if _is_read_by_lane(instruction, program):
        return False
    if instruction.opcode in _CHEAP_TO_REPEAT:
        return True
    is_shared = program.lane_dimensions.get(instruction) is None
    if is_shared and all(reader in panels for reader in readers):
        return True
    if len(readers) != 1 or readers[0].operands.count(instruction) != 1:
        return False
    return _is_worked_out_by(readers[0], instruction, program, max_unrolled, panels)


def _is_worked_out_by(
    reader: HloInstruction,
    instruction: HloInstruction,
    program: LaneProgram,
    max_unrolled: int,
    panels: Container[HloInstruction],
) -> bool:
    """Whether an instruction's only reader needs each element of it once."""
    match reader.opcode:
        case "dynamic-slice":
            return True
        case "dynamic-update-slice":
            if reader.operands[1] is not instruction:
                return False
            if is_made_anew(reader, program, max_unrolled, panels):
                return _is_read_once(reader)
            # What changes while it is stored has to be worked out before.
            return _updates_in_place(reader, program, max_unrolled, panels)
        case "concatenate" | "pad":
            is_part = not program.has_lanes and len(reader.operands) <= _MAX_OPERANDS
            return is_part and _is_read_once(reader)
    return reader.opcode in _READ_ONCE


def is_made_anew(
    instruction: HloInstruction,
    program: LaneProgram,
    max_unrolled: int,
    panels: Container[HloInstruction] = (),
) -> bool:
    """Returns whether an instruction is a dynamic-update-slice that is made like an array put
    together from parts: where most of a large array is updated, always in the same place, with
    what is made of elements all around, or nothing is there yet to be updated."""
    if instruction.opcode != "dynamic-update-slice" or program.has_lanes:
        return False
    if instruction in program.mutable or instruction.operands[0] in program.mutable:
        return False
    target, update, *_ = instruction.operands
    size, starts = instruction.shape.num_elements, known_starts(instruction)
    if size <= max_unrolled or 2 * update.shape.num_elements < size or starts is None:
        return False
    bounds = zip(starts, update.shape.dimensions, instruction.shape.dimensions, strict=True)
    if math.prod(1 + (at > 0) + (at + part < whole) for at, part, whole in bounds) > MAX_PARTS:
        return False
    is_there = not is_view(target, program, max_unrolled, panels) or target.opcode in _ALIASES
    return not (is_there and _updates_in_place(instruction, program, max_unrolled, panels))


def _updates_in_place(
    instruction: HloInstruction,
    program: LaneProgram,
    max_unrolled: int,
    panels: Container[HloInstruction],
) -> bool:
    """Whether a dynamic-update-slice may store its update while that is worked out."""
    target, update, *_ = instruction.operands
    return reads_in_place(
        instruction,
        target,
        lambda i: i is update or is_view(i, program, max_unrolled, panels),
    )


def _is_read_once(instruction: HloInstruction) -> bool:
    """Whether each element of what is put together is needed once: by a loop's next step, say."""
    if len(instruction.users) != 1 or instruction.users[0].operands.count(instruction) != 1:
        return False
    (reader,) = instruction.users
    if reader.opcode in _PUT_TOGETHER:
        return _is_read_once(reader)
    return reader.is_root or reader.opcode in _READ_ONCE


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
