"""What the instructions of the user's module become in normal form: arrays, and tuples of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

from fuselane.hlo.computation import HloComputation
from fuselane.hlo.instruction import HloInstruction
from fuselane.lanes.builder import ComputationBuilder

Value = HloInstruction | tuple["Value", ...] | None
"""What an instruction of the user's module became; None for a loop element nobody reads."""

Inline = Callable[[HloComputation, Sequence[Value], ComputationBuilder], Value]
"""Emits all of a computation, given its arguments, and returns the value of its root."""


def array_of(value: Value) -> HloInstruction:
    """Returns what an array-shaped instruction became."""
    assert isinstance(value, HloInstruction), "an array-shaped value is held as an instruction"
    return value


def arrays_of(values: Sequence[Value]) -> Sequence[HloInstruction]:
    """Returns what array-shaped instructions became."""
    return cast(Sequence[HloInstruction], values)


def elements_of(value: Value) -> tuple[Value, ...]:
    """Returns what a tuple-shaped instruction became."""
    assert isinstance(value, tuple), "a tuple-shaped value is held as a Python tuple"
    return value


def leaves_of(value: Value) -> list[HloInstruction]:
    """Returns the arrays of a value in order."""
    if isinstance(value, HloInstruction):
        return [value]
    return [leaf for element in elements_of(value) for leaf in leaves_of(element)]


def rebuild(
    like: Value, builder: ComputationBuilder, source: HloInstruction, position: int
) -> tuple[Value, int]:
    """Returns a value of the structure of `like` made of `source`'s elements from `position` on."""
    if isinstance(like, HloInstruction):
        return builder.element(source, position), position + 1
    elements: list[Value] = []
    for element in elements_of(like):
        value, position = rebuild(element, builder, source, position)
        elements.append(value)
    return tuple(elements), position
