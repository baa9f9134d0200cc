"""Putting what one computation computes into another, or into a copy of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from fuselane import budget
from fuselane.hlo.computation import HloComputation, reachable_computations
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
        values[original] = copy
        copies.append(copy)
    target.extend(parameters, copies)


def move_all(
    target: HloComputation,
    source: HloComputation,
    members: Sequence[HloInstruction],
    values: Mapping[HloInstruction, HloInstruction],
    parameters: Sequence[HloInstruction] = (),
) -> None:
    """Adds the instructions themselves of a computation that nobody calls any more to another.

    Only their ids are new.

    Args:
        target: Where they go.
        source: Where they were, in the same module; nothing is left in it.
        members: All in it that are no parameters, operands before users.
        values: What stands for the parameters that are read in `target`.
        parameters: New ones of `target`, numbered behind those it has, that come first.
    """
    budget.check()
    for parameter in source.parameters:
        if parameter.users:
            parameter.replace_all_uses_with(values[parameter])
    for member in members:
        member.drop_control_edges()
    target.extend(parameters, ())
    target.receive(members)
    source.instructions.clear()
    source.parameters.clear()
    source.note_edit()


def clone_computation(computation: HloComputation) -> HloComputation:
    """Returns a detached copy of a computation, with copies of all it calls."""
    copies: dict[HloComputation, HloComputation] = {}
    for original in reachable_computations([computation]):
        copies[original] = _clone(original, copies)
    return copies[computation]


def _clone(
    original: HloComputation, callees: Mapping[HloComputation, HloComputation]
) -> HloComputation:
    copy = HloComputation.create(original.name)
    copy.proto.CopyFrom(original.proto)
    made: dict[HloInstruction, HloInstruction] = {}
    for instruction in original.post_order():
        clone = instruction.clone([made[operand] for operand in instruction.operands])
        for predecessor in instruction.control_predecessors:
            clone.add_control_predecessor(made[predecessor])
        if clone.called_computations:
            clone.call(*[callees[callee] for callee in clone.called_computations])
        clone.computation = copy
        made[instruction] = clone
    copy.instructions.extend(made.values())
    copy.parameters.extend(made[parameter] for parameter in original.parameters)
    copy.root = made[original.root]
    return copy
