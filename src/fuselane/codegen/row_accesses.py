"""How often a step reads and writes arrays in which the lanes are not neighbours.

    %w = f32[64,32,32]{2,1,0} get-tuple-element(%p)     lanes along dimension 0: 1024 elements apart
    %d = f32[64,32] dot(%h, %w)                         reads 1024 elements of every lane

A vector of lanes is then put together from as many loads as it has lanes. What a loop never changes
and reads again and again is turned round once instead; see `codegen.staging`.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Final

from fuselane.analysis.cost import UNKNOWN_TRIP_COUNT, residual_elements
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.shape import Shape
from fuselane.lanes.program import ElementKind, LaneProgram

_MIN_READS: Final = 4
"""How often a loop has to read each element of what is turned round for it. A square transposed in
registers costs about four operations per vector, one kept turned round a store and a load each time
and room in the caches, for which tiles get smaller."""

_TAKING: Final = frozenset({"dynamic-slice", "gather", "slice"})
_ROW_BYTES: Final = 32
"""What is turned round at once of each lane; see `codegen.runs`."""


def count_row_accesses(program: LaneProgram, index: int) -> float:
    """Returns how many elements of a lane one step reads, or writes in place, of an array.

    What it is read for does not matter, but for gathers and scatters: their indices take longer.

    Args:
        program: The program.
        index: Of one of the outermost loop's elements.
    """
    parameter = program.loop.instruction.body.parameters[0]
    return sum(_count(program, user) for user in parameter.users if user.tuple_index == index)


def find_rows_to_stage(program: LaneProgram, lanes: int, max_bytes: int) -> dict[int, int]:
    """Returns what is worth being turned round in front of a loop, small arrays first: for the
    indices of elements the bytes of one lane.

    Args:
        program: The program.
        lanes: In a register.
        max_bytes: The room for all of it, of so many lanes.
    """
    if not program.has_lanes or program.is_straight:
        return {}
    trips = program.loop.trip_count
    times = UNKNOWN_TRIP_COUNT if trips is None else trips
    operands = program.loop.instruction.operands[0].operands
    rows = {}
    for element in program.loop.elements:
        lane, operand = element.lane_dimension, operands[element.index]
        if element.kind is not ElementKind.INVARIANT or lane is None:
            continue
        if operand not in program.inputs or not _has_rows(operand.shape, lane, lanes):
            continue
        size = operand.shape.num_elements // operand.shape.dimensions[lane]
        if times * count_row_accesses(program, element.index) >= _MIN_READS * size:
            rows[element.index] = size * operand.shape.element_type.byte_size
    found: dict[int, int] = {}
    for index, num_bytes in sorted(rows.items(), key=operator.itemgetter(1)):
        if (sum(found.values()) + num_bytes) * lanes <= max_bytes:
            found[index] = num_bytes
    return found


def is_read_whole(value: HloInstruction) -> bool:
    """Whether as much of a value is read as there is: by what reads all of it, or in parts that are
    taken out of it, such as the real and the imaginary ones of complex numbers."""
    return _num_read(value) >= value.shape.num_elements


def _num_read(value: HloInstruction) -> int:
    """Returns how many of a value's elements its users read, but for those of gathers."""
    count = 0
    for user in value.users:
        match user.opcode:
            case "reshape":
                count += _num_read(user)
            case "gather":
                continue
            case "dynamic-slice" | "slice":
                count += user.shape.num_elements
            case _:
                count += value.shape.num_elements
    return count


def _has_rows(shape: Shape, lane: int, lanes: int) -> bool:
    side = _ROW_BYTES // shape.element_type.byte_size
    return shape.strides[lane] >= side and lanes % side == 0


def _count(program: LaneProgram, value: HloInstruction) -> float:
    """Returns how many elements of a lane the users of a value, which stands for the array, read
    and write."""
    lane = program.lane_dimensions.get
    count = 0.0
    for user in value.users:
        match user.opcode:
            case "tuple":
                count += sum(
                    times * _count(program, v) for v, times in _taken(program, user, value)
                )
            case "dynamic-update-slice" if user in program.mutable:
                count += residual_elements(user.operands[1], lane(user.operands[1]))
                count += _count(program, user)
            case "scatter" if user in program.mutable:
                count += _count(program, user)
            case "gather":
                continue
            case "dynamic-slice" | "slice" if all(u.opcode in _TAKING for u in user.users):
                count += _count(program, user)
            case "dynamic-slice" | "slice":
                count += residual_elements(user, lane(user))
            case _:
                count += residual_elements(value, lane(value))
    return count


def _taken(
    program: LaneProgram, taken: HloInstruction, value: HloInstruction
) -> Iterator[tuple[HloInstruction, float]]:
    """Yields what stands for a value in the loops and conditionals that take a tuple with it, and
    behind loops, with how often it is read there."""
    indices = [k for k, operand in enumerate(taken.operands) if operand is value]
    for user in taken.users:
        if user.opcode == "while":
            trips = program.loops[user].trip_count
            times = float(UNKNOWN_TRIP_COUNT if trips is None else trips)
            places = [(user.body.parameters[0], times), (user, 1.0)]
        elif user.opcode == "conditional":
            branches = user.called_computations
            chosen = [b for b, o in zip(branches, user.operands[1:], strict=True) if o is taken]
            places = [(b.parameters[0], 1 / len(branches)) for b in chosen]
        else:
            continue
        for holder, times in places:
            for element in holder.users:
                if element.opcode == "get-tuple-element" and element.tuple_index in indices:
                    yield element, times
