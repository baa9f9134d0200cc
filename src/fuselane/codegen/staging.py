"""Inputs of straight-line code brought into scratch memory, with the lanes of a block side by side.

A loop reads what it doesn't change where it is, a part in each step. Straight-line code reads all
of it, often several times: what lies in rows is transposed once and read from the L1 cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from fuselane.codegen.arrays import Array, Memory
from fuselane.codegen.emitter import Emitter
from fuselane.codegen.rows import has_rows, load_rows
from fuselane.lanes.program import ElementKind, LaneProgram

_READ_IN_PART: Final = frozenset({"dynamic-slice", "gather", "slice"})


def with_rows_staged(block: Emitter, program: LaneProgram, arrays: Sequence[Array]) -> list[Array]:
    """Returns a loop's arrays with copies of the invariants that have rows and are read whole."""
    staged = list(arrays)
    parameter = program.loop.instruction.body.parameters[0]
    for element in program.loop.elements:
        array = arrays[element.index]
        if element.kind is not ElementKind.INVARIANT or not isinstance(array, Memory):
            continue
        readers = [
            reader
            for user in parameter.users
            if user.tuple_index == element.index
            for reader in user.users
            if reader.opcode != "tuple"
        ]
        is_whole = any(reader.opcode not in _READ_IN_PART for reader in readers)
        if is_whole and has_rows(array, block.place):
            staged[element.index] = load_rows(block.place, array)
    return staged
