"""Which arrays of a loop are in memory, few as their elements may be.

Those of which a step reads or writes some at an index that only the kernel knows: in registers it
would select among all.

    %row = dynamic-slice(%table, %i, ..)              %table: no step changes it
    %rows' = dynamic-update-slice(%rows, %row, %i)    %rows: updated where it lies
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from fuselane.hlo.computation import HloComputation
from fuselane.hlo.instruction import HloInstruction
from fuselane.lanes.program import ElementKind, LaneLoop, LoopElement

MAX_SELECTED: Final = 8
"""Elements in registers of which one may be selected by an index known only at run time."""


def is_updated_by_index(body: HloComputation, element: LoopElement) -> bool:
    """Whether each step of a loop updates a state at an index that only the kernel knows."""
    root = body.root.operands[element.index]
    return root.opcode == "dynamic-update-slice" and any(
        start.opcode != "constant" for start in root.operands[2:]
    )


def largest_in_registers(
    body: HloComputation, element: LoopElement, width: int, max_unrolled: int
) -> int:
    """Returns the most elements of a lane with which a state is in registers.

    Args:
        body: The loop's.
        element: The state.
        width: Lanes of a vector.
        max_unrolled: The most elements that registers hold of any array.
    """
    is_selected = width > 1 and is_updated_by_index(body, element)
    return min(MAX_SELECTED, max_unrolled) if is_selected else max_unrolled


def is_read_by_index(body: HloComputation, element: LoopElement) -> bool:
    """Whether each step of a loop takes a part of what no step changes."""
    return element.kind is ElementKind.INVARIANT and any(
        reader.opcode == "dynamic-slice"
        for value in _values_of(body, element)
        for reader in value.users
    )


def values_in_memory(loop: LaneLoop) -> Iterator[HloInstruction]:
    """Yields what a step's code sees of such arrays: them as they are, and as they become."""
    body = loop.instruction.body
    for element in loop.elements:
        if element.kind is ElementKind.STATE and is_updated_by_index(body, element):
            yield body.root.operands[element.index]
        elif not is_read_by_index(body, element):
            continue
        yield from _values_of(body, element)


def _values_of(body: HloComputation, element: LoopElement) -> Iterator[HloInstruction]:
    for user in body.parameters[0].users:
        if user.opcode == "get-tuple-element" and user.tuple_index == element.index:
            yield user
