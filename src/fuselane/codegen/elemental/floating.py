"""Elementwise instructions on floats; transcendental functions are in `codegen.math`."""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from fuselane.codegen.builder import may_contract
from fuselane.codegen.elemental.convert import (
    is_small_float,
    narrow_small_float,
    widen_small_float,
)
from fuselane.codegen.elemental.division import emit_float_remainder
from fuselane.codegen.math import emit_math, routine_name
from fuselane.codegen.types import (
    call_intrinsic,
    constant_value,
    float_constant,
    integer_constant,
    like,
)
from fuselane.hlo.shape import PrimitiveType

_CONTRACT = ("contract",)
_INSTRUCTIONS = {"add": "fadd", "divide": "fdiv", "multiply": "fmul", "subtract": "fsub"}
_INTRINSICS = {
    "ceil": "llvm.ceil",
    "floor": "llvm.floor",
    "maximum": "llvm.maximum",
    "minimum": "llvm.minimum",
    "round-nearest-afz": "llvm.round",
    "round-nearest-even": "llvm.roundeven",
    "sqrt": "llvm.sqrt",
}
_SIGN_BIT_OPCODES = frozenset({"abs", "negate"})
_MATH_OPCODES = frozenset(
    {
        "atan2",
        "cbrt",
        "cosine",
        "erf",
        "exponential",
        "exponential-minus-one",
        "log",
        "log-plus-one",
        "logistic",
        "power",
        "rsqrt",
        "sine",
        "tan",
        "tanh",
    }
)

FLOATING_OPCODES = (
    frozenset(_INSTRUCTIONS)
    | frozenset(_INTRINSICS)
    | _SIGN_BIT_OPCODES
    | _MATH_OPCODES
    | {"clamp", "remainder", "sign"}
)
"""Opcodes `emit_floating` knows."""


def emit_floating(
    builder: ir.IRBuilder,
    opcode: str,
    operands: Sequence[ir.Value],
    element_type: PrimitiveType,
) -> ir.Value:
    """Emits one of FLOATING_OPCODES; operands and result have one type.

    Maximum, minimum and clamp give NaN if an operand is NaN, and -0 is less than 0. Sign keeps NaN
    and the sign of zero.
    """
    if opcode in _SIGN_BIT_OPCODES:
        return _emit_sign_bit(builder, opcode, operands[0], element_type)
    if not is_small_float(element_type):
        return _emit_wide(builder, opcode, operands)
    wide = [widen_small_float(builder, operand, element_type) for operand in operands]
    return narrow_small_float(builder, _emit_wide(builder, opcode, wide), element_type)


def emit_is_finite(builder: ir.IRBuilder, value: ir.Value, element_type: PrimitiveType) -> ir.Value:
    """Emits whether a float is neither infinite nor NaN."""
    wide = widen_small_float(builder, value, element_type)
    magnitude = call_intrinsic(builder, "llvm.fabs", [wide])
    return builder.fcmp_ordered("!=", magnitude, float_constant(wide.type, float("inf")))


def _emit_wide(builder: ir.IRBuilder, opcode: str, operands: Sequence[ir.Value]) -> ir.Value:
    """Emits an instruction on F32 or F64 values.

    A module that has a function for it calls that, but for quotients that LLVM makes products or
    reciprocals.
    """
    routine = builder.module.globals.get(routine_name(opcode, operands[0].type))
    is_easy = opcode == "divide" and (
        constant_value(operands[0]) == 1.0 or constant_value(operands[1]) is not None
    )
    if routine is not None and not is_easy:
        return builder.call(routine, operands)
    if opcode in _INSTRUCTIONS:
        flags = _CONTRACT if may_contract(builder) else ()
        emitted: ir.Value = getattr(builder, _INSTRUCTIONS[opcode])(*operands, flags=flags)
        return emitted
    if opcode in _INTRINSICS:
        return call_intrinsic(builder, _INTRINSICS[opcode], operands)
    if opcode in _MATH_OPCODES:
        return emit_math(builder, opcode, operands)
    if opcode == "remainder":
        return emit_float_remainder(builder, *operands)
    if opcode == "sign":
        return _emit_sign(builder, operands[0])
    low, value, high = operands
    raised = call_intrinsic(builder, "llvm.maximum", [low, value])
    return call_intrinsic(builder, "llvm.minimum", [raised, high])


def _emit_sign(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
    zero, one = float_constant(value.type, 0.0), float_constant(value.type, 1.0)
    is_zero = builder.fcmp_ordered("==", value, zero)
    magnitude = builder.select(is_zero, zero, one)
    signed = call_intrinsic(builder, "llvm.copysign", [magnitude, value])
    return builder.select(builder.fcmp_unordered("uno", value, value), value, signed)


def _emit_sign_bit(
    builder: ir.IRBuilder, opcode: str, value: ir.Value, element_type: PrimitiveType
) -> ir.Value:
    """Clears or flips the sign bit and touches nothing else, NaN and denormals included."""
    integer = like(value, ir.IntType(element_type.bits))
    sign = 1 << (element_type.bits - 1)
    if element_type is PrimitiveType.BF16:
        if opcode == "abs":
            return builder.and_(value, integer_constant(integer, sign - 1))
        return builder.xor(value, integer_constant(integer, sign))
    if opcode == "abs":
        return call_intrinsic(builder, "llvm.fabs", [value])
    return builder.fneg(value)
