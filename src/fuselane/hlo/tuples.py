"""New instructions that make and take apart tuples; they are in no computation yet."""

from __future__ import annotations

from collections.abc import Sequence

from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.shape import Shape


def tuple_of(values: Sequence[HloInstruction]) -> HloInstruction:
    """Returns a `tuple` of values."""
    return HloInstruction.create("tuple", Shape.tuple_of([v.shape for v in values]), values)


def element_of(value: HloInstruction, index: int, shape: Shape | None = None) -> HloInstruction:
    """Returns a `get-tuple-element`.

    Args:
        value: A tuple.
        index: Of the element.
        shape: The element's, where that of `value` is yet to change.
    """
    own = value.shape.tuple_shapes[index] if shape is None else shape
    return HloInstruction.create("get-tuple-element", own, [value], tuple_index=index)
