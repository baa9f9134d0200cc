"""Whether what writes an array reads an element of what was there only where it writes it.

    %s = f32[63,64] slice(%x), slice={[1:64], [0:64]}
    %a = f32[63,64] add(%s, %y)
    %u = f32[64,64] dynamic-update-slice(%x, %a, 1, 0)

`u` may be `x` itself, changed element by element: element (i, j) of it is made of x[i, j] and of
what is elsewhere. Were the slice to start at 0, an element would be read after it had been changed.
"""

from __future__ import annotations

from collections.abc import Callable

from fuselane.analysis.opcodes import ELEMENTWISE_OPCODES, UPDATING_OPCODES
from fuselane.hlo.instruction import HloInstruction

IsView = Callable[[HloInstruction], bool]
"""Whether reading an instruction's value may be reading its operands."""


def reads_in_place(writer: HloInstruction, value: HloInstruction, is_view: IsView) -> bool:
    """Returns whether a writer reads each element of a value only where it writes it, or never.

    Args:
        writer: Elementwise, or what updates its first operand.
        value: An array that might be where the result is written.
        is_view: Which instructions are worked out anew wherever they are read.
    """
    reading = _Reading(value, is_view)
    if writer.opcode in ELEMENTWISE_OPCODES:
        zeros = (0,) * writer.shape.rank
        return all(reading.is_at(operand, zeros) for operand in writer.operands)
    if writer.opcode not in UPDATING_OPCODES:
        return not any(map(reading.reaches, writer.operands))
    target, *others = writer.operands
    if target is not value and reading.reaches(target):
        return False
    if writer.opcode == "scatter":
        return not any(map(reading.reaches, others))
    # Where the window starts is known before the first element is written.
    starts = known_starts(writer)
    return not reading.reaches(others[0]) if starts is None else reading.is_at(others[0], starts)


def copies_in_place(
    select: HloInstruction, kept: int, value: HloInstruction, is_view: IsView
) -> bool:
    """Returns whether an operand of a select may be copied over a value before the select is made:
    each element is read where it is written, and by nothing else of the select.

    Args:
        select: The select.
        kept: Number of the operand.
        value: An array that might be where the result is written.
        is_view: Which instructions are worked out anew wherever they are read.
    """
    reading = _Reading(value, is_view)
    zeros = (0,) * select.shape.rank
    return all(
        reading.is_at(operand, zeros) if number == kept else not reading.reaches(operand)
        for number, operand in enumerate(select.operands)
    )


def known_starts(update: HloInstruction) -> tuple[int, ...] | None:
    """Returns where the window of a dynamic-update-slice starts; None if that isn't known."""
    starts = []
    sizes = zip(update.shape.dimensions, update.operands[1].shape.dimensions, strict=True)
    for operand, (size, window) in zip(update.operands[2:], sizes, strict=True):
        if size == window:
            starts.append(0)
        elif operand.opcode == "constant":
            starts.append(min(max(int(operand.literal), 0), size - window))
        else:
            return None
    return tuple(starts)


class _Reading:
    """How instructions read a value, through what is worked out where it is read."""

    def __init__(self, value: HloInstruction, is_view: IsView) -> None:
        self._value = value
        self._is_view = is_view
        self._reached: dict[HloInstruction, bool] = {}
        self._at: dict[tuple[HloInstruction, tuple[int, ...]], bool] = {}

    def reaches(self, instruction: HloInstruction) -> bool:
        """Whether reading an instruction's value may be reading the value."""
        if instruction is self._value:
            return True
        found = self._reached.get(instruction)
        if found is None:
            found = self._is_view(instruction) and any(map(self.reaches, instruction.operands))
            self._reached[instruction] = found
        return found

    def is_at(self, instruction: HloInstruction, starts: tuple[int, ...]) -> bool:
        """Whether element i of an instruction takes of the value element `starts` + i, if any."""
        found = self._at.get((instruction, starts))
        if found is None:
            found = self._at[instruction, starts] = self._find_at(instruction, starts)
        return found

    def _find_at(self, instruction: HloInstruction, starts: tuple[int, ...]) -> bool:
        if not self.reaches(instruction):
            return True
        if instruction is self._value:
            return not any(starts)
        if instruction.opcode in ELEMENTWISE_OPCODES:
            return all(self.is_at(operand, starts) for operand in instruction.operands)
        if instruction.opcode != "slice" or set(instruction.slice_strides) - {1}:
            return False
        shifted = tuple(
            start - first for start, first in zip(starts, instruction.slice_starts, strict=True)
        )
        return self.is_at(instruction.operands[0], shifted)
