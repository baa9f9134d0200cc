"""Which elements of a loop's tuple change, which are read, and which are needed afterwards.

These functions see loops as XLA leaves them, with copies in the way.
"""

from __future__ import annotations

from typing import final

from fuselane.hlo.computation import HloComputation
from fuselane.hlo.instruction import HloInstruction


@final
class Carry:
    """Which elements of a loop's tuple change and which are needed at all.

    A loop that carries an array instead of a tuple counts as one with a single element.

    Attributes:
        invariant: Elements that the body passes on unchanged.
        needed: Elements that change, or that body or condition read.
    """

    def __init__(self, loop: HloInstruction) -> None:
        if not loop.shape.is_tuple:
            self.invariant, self.needed = set[int](), {0}
            return
        count = len(loop.shape.tuple_shapes)
        self.invariant = _passed_through(loop.body)
        read = _elements_read(loop.body, self.invariant) | _elements_read(loop.condition, set())
        self.needed = {i for i in range(count) if i not in self.invariant or i in read}


def _passed_through(body: HloComputation) -> set[int]:
    root = body.root
    if root.opcode != "tuple":
        return set()
    parameter = body.parameters[0]
    result = set()
    for index, operand in enumerate(root.operands):
        value = _behind_copies(operand)
        if (
            value.opcode == "get-tuple-element"
            and value.operands[0] is parameter
            and value.tuple_index == index
        ):
            result.add(index)
    return result


def _elements_read(computation: HloComputation, passed_through: set[int]) -> set[int]:
    """Returns the tuple elements used for more than being passed on to the same place."""
    parameter = computation.parameters[0]
    result: set[int] = set()
    for user in parameter.users:
        if user.opcode != "get-tuple-element":
            return set(range(len(parameter.shape.tuple_shapes)))
        index = user.tuple_index
        if not user.users and not user.is_root:
            continue
        if index not in passed_through or not _only_passed_on(user, computation.root, index):
            result.add(index)
    return result


def _only_passed_on(value: HloInstruction, root: HloInstruction, index: int) -> bool:
    for user in value.users:
        if user is root:
            if any(o is value and i != index for i, o in enumerate(root.operands)):
                return False
        elif user.opcode != "copy" or not _only_passed_on(user, root, index):
            return False
    return value is not root


def get_site(loop: HloInstruction) -> HloInstruction:
    """Returns the instruction that has to go if the loop does: itself, or a call of it alone.

    XLA:CPU moves each small loop into a computation of its own, `%p = parameter(0)`,
    `ROOT while(%p)`, and puts a call in its place.
    """
    computation = loop.computation
    if loop.operands[0].opcode != "parameter" or computation is None or computation.module is None:
        return loop
    if len(computation.instructions) != 2 or not loop.is_root:
        return loop
    callers = [
        instruction
        for other in computation.module.computations
        for instruction in other.instructions
        if computation in instruction.called_computations
    ]
    is_called_once = len(callers) == 1 and callers[0].opcode == "call"
    return callers[0] if is_called_once else loop


def get_indices_used(site: HloInstruction) -> list[int]:
    """Returns the elements of a loop's result that the user's module needs, in order."""
    count = len(site.shape.tuple_shapes)
    if site.is_root or any(user.opcode != "get-tuple-element" for user in site.users):
        return list(range(count))
    return sorted({user.tuple_index for user in site.users if user.users or user.is_root})


def _behind_copies(instruction: HloInstruction) -> HloInstruction:
    while instruction.opcode == "copy":
        instruction = instruction.operands[0]
    return instruction
