"""Rotations of bits, which HLO writes as two shifts: generators of random bits make little else.

    %l = shift-left(%x, 13)
    %r = shift-right-logical(%x, 19)
    %o = or(%l, %r)                       fshl(x, x, 13)

LLVM would find them too, after it has asked for the known bits of everything they are made of.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from llvmlite import ir

from fuselane.codegen.types import call_intrinsic, constant_value
from fuselane.hlo.instruction import HloInstruction

_JOINING: Final = frozenset({"add", "or", "xor"})


def rotate(
    builder: ir.IRBuilder, instruction: HloInstruction, values: Sequence[ir.Value]
) -> ir.Value | None:
    """Returns the bits of a value rotated, None if an instruction does not join two such shifts.

    Args:
        builder: Where they are needed.
        instruction: Which instruction an element is made of.
        values: That element's operands; the shifts become superfluous.
    """
    if instruction.opcode not in _JOINING or instruction.shape.element_type.is_floating:
        return None
    shifts = {v.opname: v for v in values if isinstance(v, ir.Instruction)}
    left, right = shifts.get("shl"), shifts.get("lshr")
    if left is None or right is None or left.operands[0] is not right.operands[0]:
        return None
    value, amount = left.operands
    up, down = (constant_value(shift.operands[1]) for shift in (left, right))
    if up is None or down is None or up + down != instruction.shape.element_type.bits:
        return None
    return call_intrinsic(builder, "llvm.fshl", [value, value, amount])
