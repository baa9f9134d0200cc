"""Rotations of bits, which HLO writes as two shifts: generators of random bits make little else.

    %l = shift-left(%x, 13)
    %r = shift-right-logical(%x, 19)
    %o = or(%l, %r)                       fshl(x, x, 13)

LLVM would find them too, after it has asked for the known bits of everything they are made of.

Generators take the sum or difference in bits of a rotation and something else, and rotate that, a
dozen rounds and more. Wherever such a value is used LLVM asks for its known bits, which are never
any, through six operations and all ways back; where a rotation is two shifts to the machine, most
often, and for most of the time it takes to compile a kernel. So the sum is hidden from it:

    %s = xor(%o, %y)                      arithmetic.fence(xor(o, y))
"""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType
from typing import Final

from llvmlite import ir

from fuselane.codegen.types import call_intrinsic, constant_value
from fuselane.hlo.instruction import HloInstruction

_ROTATION: Final = "llvm.fshl"
_JOINING: Final = frozenset({"add", "or", "xor"})
_FLOATS: Final = MappingProxyType({32: ir.FloatType(), 64: ir.DoubleType()})
"""The floats as wide as an integer: a fence is for floats only."""


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
    return call_intrinsic(builder, _ROTATION, [value, value, amount])


def mix(
    builder: ir.IRBuilder, instruction: HloInstruction, values: Sequence[ir.Value]
) -> ir.Value | None:
    """Returns a rotation mixed with something else, hidden from LLVM's search for known bits.

    None if an instruction does no such thing to vectors. No machine code comes of the fence; only
    for CPUs, as NVIDIA's GPUs have no code for it.

    Args:
        builder: Where they are needed.
        instruction: Which instruction an element is made of.
        values: That element's operands.
    """
    if instruction.opcode != "xor" or not any(map(_is_rotation, values)):
        return None
    mixed = builder.xor(*values)
    type_ = mixed.type
    if not isinstance(type_, ir.VectorType) or type_.element.width not in _FLOATS:
        return mixed
    floats = builder.bitcast(mixed, ir.VectorType(_FLOATS[type_.element.width], type_.count))
    return builder.bitcast(call_intrinsic(builder, "llvm.arithmetic.fence", [floats]), type_)


def _is_rotation(value: ir.Value) -> bool:
    return isinstance(value, ir.CallInstr) and value.callee.name.startswith(_ROTATION)
