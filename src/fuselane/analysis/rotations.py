"""Rotations of bits, which HLO writes as two shifts of one value: one instruction to a GPU.

%l = shift-left(%x, 13)
%r = shift-right-logical(%x, 19)
%o = or(%l, %r)
"""

from __future__ import annotations

from typing import Final

from fuselane.hlo.instruction import HloInstruction

_JOINING: Final = frozenset({"add", "or", "xor"})
_SHIFTS: Final = frozenset({"shift-left", "shift-right-logical"})


def is_half_rotation(instruction: HloInstruction) -> bool:
    """Returns whether an instruction is a shift that is half of a rotation. How far both halves
    shift is not looked at: generators of random bits do little else with two shifts of one value.
    """
    if instruction.opcode not in _SHIFTS or len(instruction.users) != 1:
        return False
    (user,) = instruction.users
    shifts = {operand.opcode: operand for operand in user.operands}
    if user.opcode not in _JOINING or shifts.keys() != _SHIFTS:
        return False
    left, right = shifts.values()
    return left.operands[0] is right.operands[0]
