"""What is computed in one place, each thing once.

    %s = sine(%x)
    %t = sine(%x)                    ->      %s, and no %t

Source: xla/service/hlo_cse.cc.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import final

from fuselane.hlo.attributes import Works
from fuselane.hlo.computation import HloComputation
from fuselane.hlo.instruction import HloInstruction


@final
class Computed:
    """Instructions, by what they compute of which operands.

    Attributes:
        values: All of them, in the order in which they came.
    """

    def __init__(self, works: Works) -> None:
        self.values: list[HloInstruction] = []
        self._works = works
        self._alike: dict[object, HloInstruction] = {}

    def find(
        self,
        member: HloInstruction,
        operands: list[HloInstruction],
        make: Callable[[HloInstruction, list[HloInstruction]], HloInstruction],
    ) -> HloInstruction:
        """Returns what computes the same as an instruction would of these operands: what came
        before, or else what is made of the two."""
        alike, works = self._alike, self._works
        key: object = (member.opcode, *operands) if operands else works.of(member)
        other = alike.get(key)
        while other is not None:
            if _do_the_same(other, member, works):
                return other
            key = (key,)  # which one more of that opcode and these operands has
            other = alike.get(key)
        value = alike[key] = make(member, operands)
        self.values.append(value)
        return value

    def all_new(self, members: Iterable[HloInstruction]) -> bool:
        """Whether these compute nothing that is here, nor anything twice; they are added."""
        return all(self.find(m, m.operands, itself) is m for m in members)


def is_tidy(body: HloComputation) -> bool:
    """Whether a body is known to compute nothing twice; until it is edited, that is remembered."""
    opcodes = [member.opcode for member in body.instructions]
    return len(set(opcodes)) == len(opcodes)


def itself(member: HloInstruction, operands: list[HloInstruction]) -> HloInstruction:
    """Returns an instruction that has these operands."""
    return member


def _do_the_same(one: HloInstruction, other: HloInstruction, works: Works) -> bool:
    """Whether two instructions with equal operands have equal results."""
    if one.opcode == "rng":
        return False
    if one.shape is not other.shape and one.shape != other.shape:
        return False
    is_copy = one.is_copy_of(other) and one.called_computations == other.called_computations
    return is_copy or works.of(one) == works.of(other)
