"""Saying no: an exception that names the instruction, its opcode and the user's source line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fuselane.decisions import Reason
from fuselane.errors import UnsupportedError
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.module import HloModule


def refuse(
    reason: Reason,
    instruction: HloInstruction,
    *,
    numbers: Mapping[str, float] | None = None,
    **details: Any,
) -> UnsupportedError:
    """Returns the error that refuses a loop because of one of its instructions.

    Args:
        reason: Why.
        instruction: The culprit, of the user's module or of a region made from it.
        numbers: What was measured or estimated, by name with its unit at the end.
        details: What the braces of the reason's sentence stand for.
    """
    decision = reason.decide(
        instruction=instruction.name,
        opcode=instruction.opcode,
        source=source_line(instruction),
        numbers=numbers,
        **details,
    )
    return UnsupportedError(decision)


def source_line(instruction: HloInstruction, module: HloModule | None = None) -> str:
    """Returns the user's source line of an instruction as `file.py:12 (function)`, or "" if
    unknown.

    Args:
        instruction: An instruction; one of a region keeps the metadata of the instruction it stands
            for.
        module: The user's module; needed for instructions of a region, which is in no module.
    """
    if module is None and instruction.computation is not None:
        module = instruction.computation.module
    line = None if module is None else module.source(instruction)
    return "" if line is None else str(line)
