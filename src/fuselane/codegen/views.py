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
from dataclasses import dataclass, field
from typing import Final, final

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
_ALIASES: Final = MOVEMENT | {"tuple", "while", "get-tuple-element"}


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Views:
    """Which arrays of a program are never stored.

    Attributes:
        program: What is emitted.
        max_unrolled: The most elements per lane that are kept in registers.
        panels: Dots that have a copy of their weights.
    """

    program: LaneProgram
    max_unrolled: int
    panels: Container[HloInstruction] = ()
    _made_anew: dict[HloInstruction, bool] = field(default_factory=dict)
    _tables: dict[HloInstruction, bool] = field(default_factory=dict)

    def is_view(self, instruction: HloInstruction) -> bool:
        """Returns whether reading an instruction's value may be reading its operands; see
        `stays_view`."""
        if instruction.opcode in _ALIASES:
            return True
        lane = self.program.lane_dimensions.get(instruction)
        size = residual_size(instruction.shape.dimensions, lane)
        return size > self.max_unrolled and self.stays_view(instruction)

    def is_table(self, instruction: HloInstruction) -> bool:
        """Returns whether a value is constants that were moved: reading one costs nothing, and all
        lanes read the same."""
        found = self._tables.get(instruction)
        if found is None:
            found = instruction.opcode == "constant" or (
                instruction.opcode in _CHEAP_TO_REPEAT
                and instruction.opcode != "iota"
                and all(map(self.is_table, instruction.operands))
            )
            self._tables[instruction] = found
        return found

    def stays_view(self, instruction: HloInstruction) -> bool:
        """Returns whether an instruction with too many elements for registers is never stored."""
        if instruction.opcode == "dynamic-slice":
            # What is updated in place has to be read before the update, not whenever it is needed.
            return instruction.operands[0] not in self.program.mutable
        if instruction.opcode == "gather" and instruction.operands[0] in self.program.mutable:
            return False
        readers = instruction.users
        if self.is_made_anew(instruction):
            return _is_read_once(instruction)
        if _is_read_by_lane(instruction, self.program):
            return False
        if instruction.opcode in _CHEAP_TO_REPEAT:
            return True
        is_shared = self.program.lane_dimensions.get(instruction) is None
        if is_shared and all(reader in self.panels for reader in readers):
            return True
        if len(readers) != 1 or readers[0].operands.count(instruction) != 1:
            return False
        return self._is_worked_out_by(readers[0], instruction)

    def _is_worked_out_by(self, reader: HloInstruction, instruction: HloInstruction) -> bool:
        """Whether an instruction's only reader needs each element of it once."""
        match reader.opcode:
            case "dynamic-slice":
                return True
            case "dynamic-update-slice":
                if reader.operands[1] is not instruction:
                    return False
                if self.is_made_anew(reader):
                    return _is_read_once(reader)
                # What changes while it is stored has to be worked out before.
                return self._updates_in_place(reader)
            case "concatenate" | "pad":
                is_part = not self.program.has_lanes and len(reader.operands) <= _MAX_OPERANDS
                return is_part and _is_read_once(reader)
        return reader.opcode in _READ_ONCE

    def is_made_anew(self, instruction: HloInstruction) -> bool:
        """Returns whether an instruction is a dynamic-update-slice that is made like an array put
        together from parts: where most of a large array is updated, always in the same place, with
        what is made of elements all around, or nothing is there yet to be updated."""
        if instruction.opcode != "dynamic-update-slice" or self.program.has_lanes:
            return False
        found = self._made_anew.get(instruction)
        if found is None:
            found = self._made_anew[instruction] = self._find_made_anew(instruction)
        return found

    def _find_made_anew(self, instruction: HloInstruction) -> bool:
        mutable, (target, update, *_) = self.program.mutable, instruction.operands
        if instruction in mutable or target in mutable:
            return False
        size, starts = instruction.shape.num_elements, known_starts(instruction)
        if size <= self.max_unrolled or 2 * update.shape.num_elements < size or starts is None:
            return False
        bounds = zip(starts, update.shape.dimensions, instruction.shape.dimensions, strict=True)
        if math.prod(1 + (at > 0) + (at + part < whole) for at, part, whole in bounds) > MAX_PARTS:
            return False
        is_there = target.opcode in _ALIASES or not self.is_view(target)
        return not (is_there and self._updates_in_place(instruction))

    def _updates_in_place(self, instruction: HloInstruction) -> bool:
        """Whether a dynamic-update-slice may store its update while that is worked out."""
        target, update, *_ = instruction.operands
        return reads_in_place(instruction, target, lambda i: i is update or self.is_view(i))


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
