"""Putting what one computation computes into another."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fuselane import budget
from fuselane.hlo.computation import HloComputation
from fuselane.hlo.instruction import HloInstruction


def add_copies(
    target: HloComputation,
    originals: Iterable[HloInstruction],
    values: dict[HloInstruction, HloInstruction],
    parameters: Sequence[HloInstruction] = (),
) -> None:
    """Adds copies of instructions to a computation; as `add` of a `clone` of each.

    Args:
        target: Where they go.
        originals: Instructions of another computation that are no parameters, operands before
            users.
        values: What stands for their operands in `target`; their copies are added to it.
        parameters: New ones of `target`, numbered behind those it has, that come first.
    """
    budget.check()
    copies: list[HloInstruction] = []
    for original in originals:
        copy = original.copy_with([values[operand] for operand in original.operands])
        copy.computation = target
        values[original] = copy
        copies.append(copy)
    _append(target, parameters, copies)


def move_all(
    target: HloComputation,
    source: HloComputation,
    members: Sequence[HloInstruction],
    values: dict[HloInstruction, HloInstruction],
    parameters: Sequence[HloInstruction] = (),
) -> None:
    """Adds the instructions themselves of a computation that nobody calls any more to another.

    They become what their copies would: their ids, and where others have them their names, are new.

    Args:
        target: Where they go.
        source: Where they were; nothing is left in it.
        members: All in it that are no parameters, operands before users.
        values: What stands for the parameters in `target`; the members are added to it.
        parameters: New ones of `target`, numbered behind those it has, that come first.
    """
    budget.check()
    for member in members:
        member.drop_control_edges()
        member.computation = target
        member.users = []
        values[member] = member
    for member in members:
        member.operands = operands = [values[operand] for operand in member.operands]
        for operand in operands:
            users = operand.users
            if not users or users[-1] is not member:
                users.append(member)
    _append(target, parameters, members)
    source.instructions.clear()
    source.parameters.clear()
    source.note_edit()


def _append(
    target: HloComputation,
    parameters: Sequence[HloInstruction],
    instructions: Sequence[HloInstruction],
) -> None:
    if parameters:
        for parameter in parameters:
            parameter.computation = target
        target.parameters += parameters
        instructions = [*parameters, *instructions]
    if target.module is not None:
        target.module.adopt(instructions, target)
    target.instructions += instructions
    target.note_edit()
