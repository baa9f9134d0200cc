"""Rows of streams on a GPU: what lanes side by side read or write in a step, where it lies.

    xs f32[1000, 4096, 3], lanes along dimension 1: in a step a lane reads 3 neighbours, 12 bytes,
    and a warp 384 bytes in a row

A thread moves up to 16 bytes at once if its part is a multiple of as many. Parts that are not take
an access for each element, and each access of a warp goes over most of the warp's row again: 3
times 12 sectors of 32 bytes here. A warp may instead move the row as it lies, in whole lines, by
way of shared memory, where each lane finds its own:

    loads    shared[..] := 32 neighbours at a time; each lane reads its part from there
    stores   each lane writes its part to shared[..]; 32 neighbours at a time go to memory

Which takes the multiprocessor's path to memory for longer is counted in cycles, of 128 bytes or of
4 sectors from L1, of 2 sectors to L2, where all stores go (CUDA C++ Programming Guide, "Device
Memory Accesses"; not fitted to measurements).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, final

from fuselane.codegen.indexing import residual_size
from fuselane.codegen.schedule import needs_lanes
from fuselane.codegen.warps import LINE_BYTES
from fuselane.gpu import WARP_LANES
from fuselane.hlo.instruction import HloInstruction
from fuselane.lanes.program import ElementKind, LaneProgram, LoopElement

MAX_LENGTH: Final = 32
"""Neighbours of a lane that are moved as a row at most: what registers hold of one array."""

_NUM_WAITS: Final = 2
"""How often the threads of a warp wait for each other around a row in shared memory."""

_SECTOR_BYTES: Final = 32
_WORD_BYTES: Final = 4
_WIDEST_BYTES: Final = 16
_SECTORS_TO_L2: Final = 2
_WAITING_CYCLES: Final = 2.0


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class StreamRow:
    """What a warp reads or writes of one of the loop's elements in a step.

    Attributes:
        index: The element's.
        length: Neighbours that belong to one lane.
        element_bytes: Size of each.
        count: Such rows in a step.
        is_stored: Whether they are written, not read.
        can_be_staged: Whether all threads get there together.
    """

    index: int
    length: int
    element_bytes: int
    count: int
    is_stored: bool
    can_be_staged: bool

    def direct_cycles(self, lanes: int = 1) -> float:
        """Returns for how long a warp whose threads move their own parts needs the path to memory.

        Args:
            lanes: Lanes of a thread, whose parts are one.
        """
        part = lanes * self.length * self.element_bytes
        width = math.gcd(part, _WIDEST_BYTES)
        sectors = min(WARP_LANES * part // _SECTOR_BYTES, WARP_LANES)
        return self.count * part // width * self._cycles_of(sectors)

    @property
    def staged_cycles(self) -> float:
        """For how long they need it by way of shared memory."""
        sectors = WARP_LANES * self.element_bytes // _SECTOR_BYTES
        shared = max(1, self.element_bytes // _WORD_BYTES)
        moving = self.length * (self._cycles_of(sectors) + 2 * shared)
        return self.count * (moving + _NUM_WAITS * _WAITING_CYCLES)

    @property
    def staged_ops(self) -> float:
        """Instructions more that each thread then has."""
        part = self.length * self.element_bytes
        direct = part // math.gcd(part, _WIDEST_BYTES)
        return self.count * (3 * self.length - direct + _NUM_WAITS)

    def _cycles_of(self, sectors: int) -> float:
        if self.is_stored:
            return sectors / _SECTORS_TO_L2
        return math.ceil(sectors * _SECTOR_BYTES / LINE_BYTES)


def find_rows(program: LaneProgram, max_unrolled: int) -> Iterator[StreamRow]:
    """Yields the rows of several neighbours a lane that a program's loop goes through.

    Args:
        program: The program.
        max_unrolled: The most elements per lane kept in registers; with more, who needs them reads
            them, and perhaps not all threads do.
    """
    body = program.loop.instruction.body
    parameter = body.parameters[0]
    for element in program.loop.elements:
        lane, shape = element.lane_dimension, element.shape
        if lane is None or element.combiner or element.kind is ElementKind.STATE:
            continue
        length = math.prod(shape.dimensions[lane + 1 :])
        if not 1 < length <= MAX_LENGTH or not shape.is_row_major:
            continue
        users = [
            user
            for own in parameter.users
            if own.tuple_index == element.index
            for user in own.users
            if user is not body.root
        ]
        for user in users:
            part = _moved(user, element)
            if part is None:
                continue
            size = residual_size(part.shape.dimensions, lane)
            if size % length == 0:
                yield StreamRow(
                    index=element.index,
                    length=length,
                    element_bytes=shape.element_type.byte_size,
                    count=size // length,
                    is_stored=user.opcode == "dynamic-update-slice",
                    can_be_staged=len(users) == 1
                    and size <= max_unrolled
                    and program.loop.lane_condition is None
                    and not any(needs_lanes(start, program) for start in _starts(user)),
                )


def _moved(user: HloInstruction, element: LoopElement) -> HloInstruction | None:
    """Returns the part that is read from an invariant or written to a stream."""
    if user.opcode == "dynamic-slice" and element.kind is ElementKind.INVARIANT:
        return user
    if user.opcode == "dynamic-update-slice" and element.kind is ElementKind.STREAM:
        return user.operands[1]
    return None


def _starts(user: HloInstruction) -> tuple[HloInstruction, ...]:
    return tuple(user.operands[2 if user.opcode == "dynamic-update-slice" else 1 :])
