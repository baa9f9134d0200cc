"""Changing what the loop of a region carries: elements are taken out, others are added."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, final

from fuselane.analysis.while_loops import loop_of
from fuselane.hlo.computation import HloComputation
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.shape import Shape
from fuselane.lanes.builder import ComputationBuilder

_GONE: Final = 1 << 30
"""The number of an element that is not there any more, until what reads it is removed."""


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NewElement:
    """An element that a loop shall carry in addition.

    Attributes:
        initial: Its initial value, in the region.
        update: Returns, in the body, its next value for its value in an iteration.
        is_result: Whether it is wanted behind the loop.
    """

    initial: HloInstruction
    update: Callable[[HloInstruction], HloInstruction]
    is_result: bool = True


def change_elements(
    region: HloComputation,
    removed: Sequence[int],
    added: Sequence[NewElement],
    body: ComputationBuilder,
) -> Mapping[int, int]:
    """Takes elements out of a region's loop and adds others behind the ones that stay.

    The root of the region becomes the tuple of the elements it had, without the removed ones, and
    of those added that are results.

    Args:
        region: A region in normal form; it is changed in place.
        removed: Elements that nothing but each other's next values, and the root, reads.
        added: What to add.
        body: A builder that adds to the body of the loop.
    Returns:
        For each element that stays its old number -> its new one.
    """
    loop = loop_of(region)
    old_initial, old_root = loop.operands[0], loop.body.root
    kept = [i for i in range(len(old_initial.operands)) if i not in removed]
    numbers = {old: new for new, old in enumerate(kept)}
    initial = [*(old_initial.operands[i] for i in kept), *(element.initial for element in added)]
    shape = Shape.tuple_of([value.shape for value in initial])
    for holder in (loop, loop.body.parameters[0], loop.condition.parameters[0]):
        holder.shape = shape
        _renumber(holder, numbers)
    following = [old_root.operands[i] for i in kept]
    for number, element in enumerate(added, start=len(kept)):
        following.append(element.update(body.element(loop.body.parameters[0], number)))
    loop.body.root = body.make_tuple(following)
    loop.body.remove_dead_instructions()
    loop.condition.remove_dead_instructions()
    in_front = ComputationBuilder.extending(region)
    loop.replace_operand(0, in_front.make_tuple(initial))
    outputs = [output for output in region.root.operands if output.tuple_index != _GONE]
    outputs += [
        in_front.element(loop, number)
        for number, element in enumerate(added, start=len(kept))
        if element.is_result
    ]
    region.root = in_front.make_tuple(outputs)
    region.remove_dead_instructions()
    region.sort()
    return numbers


def _renumber(holder: HloInstruction, numbers: Mapping[int, int]) -> None:
    for user in holder.users:
        if user.opcode == "get-tuple-element":
            user.proto.tuple_index = numbers.get(user.tuple_index, _GONE)


def drop_unused_parameters(
    region: HloComputation, operands: Sequence[HloInstruction]
) -> tuple[HloInstruction, ...]:
    """Removes a region's parameters that nobody uses; returns what supplies the others."""
    for parameter in [p for p in region.parameters if not p.users]:
        region.remove(parameter)
    used = tuple(operands[p.parameter_number] for p in region.parameters)
    for number, parameter in enumerate(region.parameters):
        parameter.parameter_number = number
    return used
