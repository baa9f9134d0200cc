"""Arrays from which a GPU's lanes pick elements: where they are best while a loop runs.

    %board' = s32[4096,100] scatter(%board, %at, ..)     %at differs from lane to lane

Where it is anyway, such an array is in lines of 128 bytes that an access of a warp needs one of, or
many, and L1 gives one in a cycle:

    f32[4096,100], in the order of rows    32: each lane has a row of its own
    f32[100,4096], or local memory         as many as there are different indices among 32; words of
                                           one index are neighbours (CUDA C++ Programming Guide)

In shared memory each thread has a bank of its own, whatever its index:

    shared[index * threads of the block + thread]

But a multiprocessor has no shared memory for the arrays of as many threads as it has registers
for, and inputs and results are copied, in front of the loop and behind it. Estimates decide; see
`codegen.thread_plan`. Rows of a few neighbours are another matter (`codegen.stream_rows`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, final

from fuselane.analysis.cost import UNKNOWN_TRIP_COUNT
from fuselane.analysis.opcodes import UPDATING_OPCODES
from fuselane.codegen.gathers import MAX_STARTS
from fuselane.codegen.indexed_state import largest_in_registers
from fuselane.codegen.indexing import residual_size
from fuselane.codegen.schedule import needs_lanes
from fuselane.codegen.stream_rows import MAX_LENGTH
from fuselane.gpu import WARP_LANES
from fuselane.hlo.indexed import get_indices, update_of
from fuselane.hlo.instruction import HloInstruction
from fuselane.lanes.program import ElementKind, LaneProgram, LoopElement

_WORD_BYTES: Final = 4
_THREADS_OF_WORD: Final = 4
"""Of elements smaller than a word, as many threads' may be in one bank, at different indices."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class OwnArray:
    """An element of a loop from which lanes pick.

    Attributes:
        index: The element's among the loop's.
        num_bytes: What a lane has.
        direct_cycles: For how long a warp's accesses of a step keep L1, if indices are as good as
            any.
        shared_cycles: For how long they keep shared memory, with what is copied at both ends.
    """

    index: int
    num_bytes: int
    direct_cycles: float
    shared_cycles: float


def find_own_arrays(program: LaneProgram, width: int, max_unrolled: int) -> Iterator[OwnArray]:
    """Yields the elements of a program's loop that are in memory and picked from.

    Args:
        program: The program.
        width: Lanes of a thread.
        max_unrolled: The most elements per lane that are kept in registers.
    """
    body, trips = program.loop.instruction.body, program.loop.trip_count or UNKNOWN_TRIP_COUNT
    for element in program.loop.elements:
        lane, shape = element.lane_dimension, element.shape
        if lane is None or element.combiner:
            continue
        is_local = element.kind is ElementKind.STATE
        size = residual_size(shape.dimensions, lane)
        in_registers = largest_in_registers(body, element, width, max_unrolled)
        if size <= (in_registers if is_local else MAX_STARTS):
            continue
        own, common = _count_accesses(program, element)
        distance = 1 if is_local else math.prod(shape.dimensions[lane + 1 :])
        if distance <= MAX_LENGTH:  # then one index makes a row of all lanes
            common = 0
        if not own and not common:
            continue
        num_bytes = size * shape.element_type.byte_size
        lines = _count_lines(num_bytes) if distance == 1 else float(WARP_LANES)
        copied = 0 if is_local else size * (1 + (element.kind is ElementKind.STREAM))
        copied_lines = min(distance * shape.element_type.byte_size / _WORD_BYTES, WARP_LANES)
        picked = own + common
        yield OwnArray(
            index=element.index,
            num_bytes=num_bytes,
            direct_cycles=picked * lines,
            shared_cycles=picked * _banked_cycles(element) + copied * copied_lines / trips,
        )


def _count_lines(num_bytes: int) -> float:
    """Returns how many lines a warp needs of an array whose words lie side by side."""
    lines = max(1, num_bytes // _WORD_BYTES)
    return lines * (1 - (1 - 1 / lines) ** WARP_LANES)


def _banked_cycles(element: LoopElement) -> float:
    """Returns for how long an access of a warp keeps shared memory: a cycle for each word."""
    size = element.shape.element_type.byte_size
    return float(_THREADS_OF_WORD if size < _WORD_BYTES else size // _WORD_BYTES)


def _count_accesses(program: LaneProgram, element: LoopElement) -> tuple[int, int]:
    """Returns how many elements a step reads and writes, of what it carries and of what becomes of
    that: at indices that differ from lane to lane, and at those that are the same for all."""
    parameter = program.loop.instruction.body.parameters[0]
    versions = [user for user in parameter.users if user.tuple_index == element.index]
    seen = set(versions)
    own = common = 0
    while versions:
        version = versions.pop()
        for user in version.users:
            if user in seen:
                continue
            seen.add(user)
            if user.operands[0] is version and (starts := _starts(user)):
                part = update_of(user)
                count = residual_size(part.shape.dimensions, program.lane_dimensions[part])
                if any(needs_lanes(start, program) for start in starts):
                    own += count
                else:
                    common += count
            if user.opcode == "select" or user.opcode in UPDATING_OPCODES:
                versions.append(user)
    return own, common


def _starts(instruction: HloInstruction) -> tuple[HloInstruction, ...]:
    """Returns the indices at which an instruction reads or changes its first operand."""
    match instruction.opcode:
        case "gather" | "scatter":
            return (get_indices(instruction),)
        case "dynamic-slice":
            return tuple(instruction.operands[1:])
        case "dynamic-update-slice":
            return tuple(instruction.operands[2:])
    return ()
