"""Inputs brought into scratch memory, with the lanes of a block side by side.

What lies in rows is transposed once and read from the caches. Straight-line code reads all of it,
often several times. A loop reads a part of most things in each step, and that where it is; what it
reads again and again, such as weights of each lane's own, is worth it too (`Plan.staged`), and on a
GPU what lanes pick from (`codegen.own_arrays`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from fuselane.codegen.arrays import Array, Memory
from fuselane.codegen.emitter import Emitter
from fuselane.codegen.plan import Plan
from fuselane.codegen.rows import has_rows
from fuselane.lanes.program import ElementKind, LaneProgram, LoopElement

_READ_IN_PART: Final = frozenset({"dynamic-slice", "gather", "slice"})


def with_rows_staged(
    block: Emitter, program: LaneProgram, arrays: Sequence[Array], plan: Plan
) -> list[Array]:
    """Returns a loop's arrays with copies of the invariants that have rows and are worth it, and of
    what other memory is given for."""
    staged = list(arrays)
    for element in program.loop.elements:
        array = arrays[element.index]
        if not isinstance(array, Memory):
            continue
        given = block.given.get(element.index)
        if given is not None:
            staged[element.index] = given
            if not element.is_fully_overwritten:
                block.copy(array, given)
        if given is not None or element.kind is not ElementKind.INVARIANT:
            continue
        is_wanted = element.index in plan.staged
        if program.is_straight:
            is_wanted = _is_read_whole(program, element)
        if is_wanted and has_rows(array, block.place):
            staged[element.index] = block.in_scratch(array, max_unrolled=1)
    return staged


def _is_read_whole(program: LaneProgram, element: LoopElement) -> bool:
    readers = [
        reader
        for user in program.loop.instruction.body.parameters[0].users
        if user.tuple_index == element.index
        for reader in user.users
        if reader.opcode != "tuple"
    ]
    return any(reader.opcode not in _READ_IN_PART for reader in readers)
