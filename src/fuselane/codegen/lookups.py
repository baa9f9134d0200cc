"""Looking up what lanes have in common by their number, as merged dimensions make it necessary.

    %n = s32[1024] remainder(iota(), 512)    lanes are the pixels of an image of 512 columns, and
    %m = s32[1024] divide(iota(), 512)       these the column and the row of each

A block of lanes none of which is in another row than the first needs neighbours of a column's
table, which one load takes instead of a gather, and one element of a row's.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, final

from llvmlite import ir

from fuselane.codegen.arrays import Memory, Place
from fuselane.codegen.indexing import LANE, Element
from fuselane.codegen.types import integer_constant
from fuselane.hlo.instruction import HloInstruction

_ROLES: Final = {"divide": True, "remainder": False}
_MIN_BITS: Final = 32
"""Of what holds the numbers of all lanes."""


@final
class LaneNumbers:
    """Rows, or columns, of all lanes, which are numbered row by row.

    Attributes:
        num_columns: Lanes in a row.
        are_rows: Whether they are rows.
    """

    def __init__(self, num_columns: int, *, are_rows: bool) -> None:
        self.num_columns = num_columns
        self.are_rows = are_rows

    @staticmethod
    def match(indices: HloInstruction, lane: int | None, size: int) -> LaneNumbers | None:
        """Returns what indices are, whose lanes lie in a dimension; None if they are others, or not
        all below a size."""
        are_rows = _ROLES.get(indices.opcode)
        if are_rows is None or lane != 0 or indices.shape.rank != 1:
            return None
        numbers, columns = indices.operands
        while columns.opcode == "broadcast":
            columns = columns.operands[0]
        is_one = columns.opcode == "constant" and columns.shape.num_elements == 1
        if numbers.opcode != "iota" or not is_one or numbers.shape.element_type.bits < _MIN_BITS:
            return None
        num_columns = int(columns.literal.reshape(()))
        if num_columns <= 0 or indices.shape.num_elements % num_columns:
            return None
        num_rows = indices.shape.num_elements // num_columns
        if (num_rows if are_rows else num_columns) > size:
            return None
        return LaneNumbers(num_columns, are_rows=are_rows)

    def are_together(self, place: Place) -> bool:
        """Whether the lanes of a block are all in one row, wherever the block is."""
        return place.block.width > 1 and self.num_columns % place.block.width == 0

    def look_up(self, place: Place, table: Memory, index: Element, dimension: int) -> ir.Value:
        """Returns for lanes that are together their elements of a table that all lanes share.

        Args:
            place: Where they are.
            table: In memory.
            index: Of the element, but for one dimension.
            dimension: The one in which lanes look up their numbers.
        """
        builder, first = place.builder, place.block.offset
        columns = integer_constant(first.type, self.num_columns)
        if self.are_rows:
            row = builder.udiv(first, columns)
            return table.get(place, (*index[:dimension], row, *index[dimension + 1 :]))
        begin = builder.sub(builder.urem(first, columns), first)
        at = [0] * len(index)
        start = table.address(place, (*at[:dimension], begin, *at[dimension + 1 :]))
        near = replace(table, lane=dimension, pointer=start, loaded={})
        return near.get(place, (*index[:dimension], LANE, *index[dimension + 1 :]))
