"""Orders in which XLA's passes visit instructions, and who can reach whom.

Source: HloComputation::MakeInstructionPostOrder.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, final

from fuselane.hlo.computation import HloComputation, reachable_computations
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.module import HloModule
from fuselane.hlo.transfer import clone_computation

_CONTROL_FLOW: Final = frozenset({"while", "conditional", "call", "async-start"})


def sequential_computations(module: HloModule) -> list[HloComputation]:
    """Returns the entry and what it runs by control flow, callees first.

    Bodies of fusions, reductions, sorts and the like, which run element by element, are left out.
    """
    wanted = {module.entry}
    reachable = reachable_computations([module.entry])
    for computation in reversed(reachable):
        if computation not in wanted:
            continue
        for instruction in computation.instructions:
            if instruction.opcode in _CONTROL_FLOW:
                wanted.update(instruction.called_computations)
    return [c for c in reachable if c in wanted]


def separate_bodies(module: HloModule) -> None:
    """Gives every fusion a body of its own, as in XLA; in HLO written by hand some share one."""
    seen: set[HloComputation] = set()
    for computation in sequential_computations(module):
        for fusion in computation.instructions:
            if fusion.opcode != "fusion":
                continue
            if fusion.to_apply in seen:
                fusion.call(module.add(clone_computation(fusion.to_apply)))
            seen.add(fusion.to_apply)


def xla_post_order(computation: HloComputation) -> list[HloInstruction]:
    """Returns a computation's instructions, each after what it needs, in XLA's order.

    From every instruction without users, in the order they were made, operands are visited first
    to last and before the instruction itself; control predecessors before operands.
    """
    order: list[HloInstruction] = []
    done: set[HloInstruction] = set()
    for start in sorted(computation.instructions, key=_id):
        if start.users or start.control_successors:
            continue
        stack: list[HloInstruction | None] = [start]
        while stack:
            instruction = stack.pop()
            if instruction is None:  # the next one's operands are done
                instruction = stack.pop()
                if instruction is not None and instruction not in done:
                    done.add(instruction)
                    order.append(instruction)
            elif instruction not in done:
                operands = [o for o in reversed(instruction.operands) if o not in done]
                before = [p for p in instruction.control_predecessors if p not in done]
                if operands or before:
                    stack += (instruction, None)
                    stack += operands
                    stack += before
                else:
                    done.add(instruction)
                    order.append(instruction)
    return order


def _id(instruction: HloInstruction) -> int:
    return instruction.id


@final
class Reachability:
    """Which instruction of a computation depends on which; bit sets, kept up to date on request.

    Takes memory of the square of the number of instructions, in bits.
    """

    def __init__(self, post_order: Iterable[HloInstruction]) -> None:
        self._position: dict[HloInstruction, int] = {}
        self._above: list[int] = []
        """What an instruction depends on, itself included; by position, as positions."""
        order = list(post_order)
        for position, instruction in enumerate(order):
            above = 1 << position
            for dependency in _dependencies(instruction):
                above |= self._above[self._position[dependency]]
            self._position[instruction] = position
            self._above.append(above)
        self._below = [1 << position for position in range(len(order))]
        """What depends on an instruction, itself included."""
        self._gone = 0
        """Positions of what became part of others."""
        for position in reversed(range(len(order))):
            for dependency in _dependencies(order[position]):
                self._below[self._position[dependency]] |= self._below[position]

    def is_reachable(self, source: HloInstruction, target: HloInstruction) -> bool:
        """Whether `target` is `source` or depends on it."""
        return bool(self._above[self._position[target]] >> self._position[source] & 1)

    def are_connected(self, left: HloInstruction, right: HloInstruction) -> bool:
        """Whether one of the two depends on the other, or they are the same."""
        return self.is_reachable(left, right) or self.is_reachable(right, left)

    def add(self, instruction: HloInstruction) -> None:
        """Takes note of a new instruction, without users so far."""
        position = self._position[instruction] = len(self._above)
        self._above.append(1 << position)
        self._below.append(1 << position)
        for dependency in _dependencies(instruction):
            self.connect(dependency, instruction)

    def connect(self, before: HloInstruction, after: HloInstruction) -> None:
        """Takes note that `after` depends on `before` now, which does not depend on it."""
        first, second = self._position[before], self._position[after]
        if self._above[second] >> first & 1:
            return
        above, below = self._above[first], self._below[second]
        for position in _bits(below):
            self._above[position] |= above
        for position in _bits(above):
            self._below[position] |= below

    def merge(self, left: HloInstruction, right: HloInstruction, fusion: HloInstruction) -> None:
        """Takes note that two instructions, not connected or adjacent, became one.

        Args:
            left: What was there before.
            right: What was there before, and is not asked about any more.
            fusion: What computes both now; elements of it that are new may be asked about, too.
        """
        first, second = self._position[left], self._position[right]
        above = self._above[first] | self._above[second]
        below = self._below[first] | self._below[second]
        self._gone |= 1 << second
        only_above_one = (self._above[first] ^ self._above[second]) & ~self._gone
        only_below_one = (self._below[first] ^ self._below[second]) & ~self._gone
        for position in _bits(only_below_one):
            self._above[position] |= above
        for position in _bits(only_above_one):
            self._below[position] |= below
        self._position[fusion] = first
        for user in fusion.users:
            self._position.setdefault(user, first)


def _dependencies(instruction: HloInstruction) -> list[HloInstruction]:
    return [*instruction.operands, *instruction.control_predecessors]


def _bits(number: int) -> Iterator[int]:
    digits = f"{number:b}"[::-1]
    place = digits.find("1")
    while place >= 0:
        yield place
        place = digits.find("1", place + 1)
