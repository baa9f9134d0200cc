"""Invariant arrays that are parts of larger ones, cut out in front of a loop.

XLA makes a copy of `resets[:, 2]` before the loop that reads it row by row. A kernel can read the
rows where they are: the cutting becomes part of the region, and the copy is never made.
"""

from __future__ import annotations

from typing import Final

from fuselane.hlo.instruction import HloInstruction

_VIEWS: Final = frozenset({"bitcast", "copy", "reshape"})


def picks_rows(instruction: HloInstruction) -> bool:
    """Whether a value is a part of another array whose minor dimension is left whole.

    Then lanes that lie side by side in one also do in the other. Looks through one fusion.
    """
    if instruction.opcode == "fusion":
        inner = instruction.to_apply.instructions
        return len(instruction.operands) == 1 and all(
            i.opcode == "parameter" or _picks_rows(i) for i in inner
        )
    return _picks_rows(instruction) and instruction.opcode != "copy"


def _picks_rows(instruction: HloInstruction) -> bool:
    shape = instruction.shape
    if not shape.is_array or not instruction.operands:
        return False
    source = instruction.operands[0].shape
    if not source.is_array or not source.is_row_major or not shape.is_row_major:
        return False
    if instruction.opcode == "slice":
        whole = source.dimensions[-1] == shape.dimensions[-1]
        return whole and all(stride == 1 for stride in instruction.slice_strides)
    return instruction.opcode in _VIEWS
