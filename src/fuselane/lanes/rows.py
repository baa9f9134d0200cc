"""Invariant arrays that are parts of larger ones, cut out in front of a loop.

XLA makes a copy of `resets[:, 2]` before the loop that reads it row by row. A kernel can read the
rows where they are: the cutting becomes part of the region, and the copy is never made.

    for i in range(layers): x = scan(step, x, weights[i])         as many loops, and one kernel

Where a loop reads one layer of an array, an operand tells which.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.shape import PrimitiveType, Shape
from fuselane.lanes.builder import ComputationBuilder
from fuselane.lanes.complex import is_complex

_START: Final = Shape.array(PrimitiveType.S32, ())
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


def get_layer(instruction: HloInstruction) -> Sequence[HloInstruction]:
    """Returns the slice and the views of it that a value, which picks rows, is made by, if it is
    one layer of an array: what lies at one index of the first dimension. Else nothing."""
    (source,) = instruction.operands
    steps = [instruction]
    if instruction.opcode == "fusion":
        steps = [i for i in instruction.to_apply.instructions if i.opcode != "parameter"]
    first, *views = steps or [instruction]
    is_chain = all(view.operands[0] is step for step, view in zip(steps, views, strict=False))
    is_layer = first.opcode == "slice" and first.shape.dimensions == (
        1,
        *source.shape.dimensions[1:],
    )
    return steps if is_chain and is_layer and not is_complex(first) else ()


def make_start(layer: HloInstruction) -> HloInstruction:
    """Returns a new constant, in no computation yet: where the slice of a layer begins, s32."""
    return HloInstruction.create("constant", _START, literal=np.int32(layer.slice_starts[0]))


def emit_layer(
    builder: ComputationBuilder,
    layer: HloInstruction,
    source: HloInstruction,
    start: HloInstruction,
) -> HloInstruction:
    """Emits the slice of a layer, given where it begins."""
    zero = builder.scalar(0, start.shape.element_type, layer)
    starts = (start, *[zero] * (layer.shape.rank - 1))
    return builder.dynamic_slice(source, starts, layer.shape.dimensions, origin=layer)


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
