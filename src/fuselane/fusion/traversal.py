"""Orders in which XLA's passes visit instructions, and who can reach whom.

Source: HloComputation::MakeInstructionPostOrder, by `xla_fusion_facts.md` section 1.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, final

from fuselane.hlo.computation import HloComputation, reachable_computations
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.module import HloModule

_CONTROL_FLOW: Final = frozenset({"while", "conditional", "call", "async-start"})


def sequential_computations(module: HloModule) -> list[HloComputation]:
    """Returns the entry and what it runs by control flow, callees first.

    Bodies of fusions, reductions, sorts and the like, which run element by element, are left out.
    """
    wanted = {module.entry}
    for computation in reversed(reachable_computations([module.entry])):
        if computation not in wanted:
            continue
        for instruction in computation.instructions:
            if instruction.opcode in _CONTROL_FLOW:
                wanted.update(instruction.called_computations)
    return [c for c in reachable_computations([module.entry]) if c in wanted]


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
        stack = [(start, False)]
        while stack:
            instruction, is_ready = stack.pop()
            if instruction in done:
                continue
            if is_ready:
                done.add(instruction)
                order.append(instruction)
                continue
            stack.append((instruction, True))
            stack.extend((o, False) for o in reversed(instruction.operands) if o not in done)
            stack.extend((p, False) for p in instruction.control_predecessors if p not in done)
    return order


def _id(instruction: HloInstruction) -> int:
    return instruction.id


@final
class Reachability:
    """Which instruction of a computation depends on which; bit sets, made in one walk."""

    def __init__(self, post_order: Iterable[HloInstruction]) -> None:
        self._position: dict[HloInstruction, int] = {}
        self._reaching: list[int] = []
        for position, instruction in enumerate(post_order):
            reaching = 1 << position
            for operand in instruction.operands:
                reaching |= self._reaching[self._position[operand]]
            for predecessor in instruction.control_predecessors:
                reaching |= self._reaching[self._position[predecessor]]
            self._position[instruction] = position
            self._reaching.append(reaching)

    def is_reachable(self, source: HloInstruction, target: HloInstruction) -> bool:
        """Whether `target` is `source` or depends on it."""
        return bool(self._reaching[self._position[target]] >> self._position[source] & 1)
