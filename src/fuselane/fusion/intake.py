"""A fusion that takes in instructions one after the other, whose body is made when it is looked at.

    %p = f32[8] sine(%x)
    %q = f32[8] add(%p, %y)                  %f = f32[8] fusion(%x, %y): takes in %r, %q and %p, and
    %r = f32[8] negate(%q)           ->      then gets copies of all three and of their parameters
    %f = f32[8] fusion(%r)                   only those for %x and %y

Operands and users of the fusion are at any time what they would be.
"""

from __future__ import annotations

from typing import final

from fuselane import budget
from fuselane.hlo.instruction import HloInstruction


@final
class Intake:
    """Instructions that a fusion has taken in and that its body does not compute yet.

    Attributes:
        fusion: It has each operand once, and its body's root passes on none of them as it is.
        is_over: Whether the body computes them all by now; then nothing more is taken in.
    """

    def __init__(self, fusion: HloInstruction) -> None:
        self.fusion = fusion
        self.is_over = False
        self._before = fusion.operands.copy()
        self._operands = set(self._before)
        self._taken: list[tuple[HloInstruction, HloInstruction]] = []
        """Instructions and their copies, in order; one may be taken in again."""
        self.fusion.to_apply.postpone(self._make_body)

    def take(self, producer: HloInstruction) -> HloInstruction:
        """Takes in an operand, which is no fusion; returns its copy.

        Until the body is made, the copy is in no computation and reads what the producer reads.
        """
        budget.check()
        copy = producer.copy_with([])
        copy.operands = producer.operands.copy()
        self._taken.append((producer, copy))
        operands, new = self._operands, list[HloInstruction]()
        operands.remove(producer)
        for operand in copy.operands:
            if operand not in operands:
                operands.add(operand)
                new.append(operand)
        self.fusion.exchange_operand(self.fusion.operands.index(producer), new)
        return copy

    def _make_body(self) -> None:
        self.is_over = True
        fusion, body = self.fusion, self.fusion.to_apply
        values: dict[HloInstruction, HloInstruction] = {}
        """What stands for operands in the body, as seen from what was taken in at some time."""
        gone: list[tuple[HloInstruction, HloInstruction]] = []
        taken = {producer for producer, _ in self._taken}
        for operand, parameter in list(zip(self._before, body.parameters, strict=True)):
            if operand in taken:
                gone.append((operand, parameter))
                body.drop_parameter(parameter)
            else:
                values[operand] = parameter
        parameters = [
            HloInstruction.parameter(number, operand.shape)
            for number, operand in enumerate(fusion.operands)
            if operand not in values
        ]
        values.update(zip(fusion.operands[len(values) :], parameters, strict=True))
        for producer, copy in reversed(self._taken):
            copy.connect([values[operand] for operand in copy.operands])
            values[producer] = copy
        for operand, parameter in gone:
            parameter.replace_all_uses_with(values[operand])
        body.extend(parameters, [copy for _, copy in self._taken])
