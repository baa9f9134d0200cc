"""Elementwise instructions on integers and booleans, bitwise as XLA:CPU computes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from llvmlite import ir

from fuselane.codegen.elemental.division import emit_divide, emit_remainder
from fuselane.codegen.elemental.xla_version import XLA_IS_0_12
from fuselane.codegen.types import (
    call_intrinsic,
    constant_value,
    integer_constant,
    like,
    scalar_type,
    shuffle,
)
from fuselane.hlo.shape import PrimitiveType

_NUM_EXPONENT_BITS: Final = 6
"""Of an exponent, those that count."""


def emit_integer(
    builder: ir.IRBuilder,
    opcode: str,
    operands: Sequence[ir.Value],
    element_type: PrimitiveType,
) -> ir.Value:
    """Emits one of INTEGER_OPCODES, of PRED one of BOOLEAN_OPCODES; all values have one type.

    Arithmetic wraps. Divide by zero gives all bits set, the remainder is then the dividend; the
    least number divided by -1 is itself, remainder 0. Shift amounts count as unsigned; at or past
    the width all bits are shifted out. Of PRED values, minimum and multiply are `and`, maximum and
    add `or`.
    """
    if element_type is PrimitiveType.PRED and opcode in _BOOLEAN_INSTRUCTIONS:
        return getattr(builder, _BOOLEAN_INSTRUCTIONS[opcode])(*operands)
    if opcode in _INSTRUCTIONS:
        return getattr(builder, _INSTRUCTIONS[opcode])(*operands)
    if opcode in _SHIFTS:
        return _SHIFTS[opcode](builder, *operands)
    return _SIGNED_OR_UNSIGNED[opcode](builder, element_type.is_signed, *operands)


def _emit_extremum(
    builder: ir.IRBuilder, kind: str, is_signed: bool, lhs: ir.Value, rhs: ir.Value
) -> ir.Value:
    return call_intrinsic(builder, f"llvm.{'s' if is_signed else 'u'}{kind}", [lhs, rhs])


def _emit_maximum(builder: ir.IRBuilder, is_signed: bool, lhs: ir.Value, rhs: ir.Value) -> ir.Value:
    return _emit_extremum(builder, "max", is_signed, lhs, rhs)


def _emit_minimum(builder: ir.IRBuilder, is_signed: bool, lhs: ir.Value, rhs: ir.Value) -> ir.Value:
    return _emit_extremum(builder, "min", is_signed, lhs, rhs)


def _emit_clamp(
    builder: ir.IRBuilder, is_signed: bool, low: ir.Value, value: ir.Value, high: ir.Value
) -> ir.Value:
    raised = _emit_maximum(builder, is_signed, low, value)
    return _emit_minimum(builder, is_signed, raised, high)


def _emit_abs(builder: ir.IRBuilder, is_signed: bool, value: ir.Value) -> ir.Value:
    return _call_total(builder, "llvm.abs", value) if is_signed else value


def _emit_sign(builder: ir.IRBuilder, is_signed: bool, value: ir.Value) -> ir.Value:
    one = integer_constant(value.type, 1)
    at_most_one = _emit_minimum(builder, is_signed, value, one)
    if not is_signed:
        return at_most_one
    return _emit_maximum(builder, True, at_most_one, integer_constant(value.type, -1))


def _emit_negate(builder: ir.IRBuilder, _: bool, value: ir.Value) -> ir.Value:
    return builder.sub(integer_constant(value.type, 0), value)


def _emit_not(builder: ir.IRBuilder, _: bool, value: ir.Value) -> ir.Value:
    return builder.xor(value, integer_constant(value.type, -1))


def _emit_popcnt(builder: ir.IRBuilder, _: bool, value: ir.Value) -> ir.Value:
    return call_intrinsic(builder, "llvm.ctpop", [value])


def _emit_leading_zeros(builder: ir.IRBuilder, _: bool, value: ir.Value) -> ir.Value:
    return _call_total(builder, "llvm.ctlz", value)


def _call_total(builder: ir.IRBuilder, name: str, value: ir.Value) -> ir.Value:
    """Calls an intrinsic whose second operand, here false, would make an edge case undefined."""
    return call_intrinsic(builder, name, [value, ir.Constant(ir.IntType(1), 0)])


def _emit_logical_shift(
    builder: ir.IRBuilder, instruction: str, value: ir.Value, amount: ir.Value
) -> ir.Value:
    shifted = getattr(builder, instruction)(value, amount)
    if _is_shift_in_range(amount):
        return shifted
    bits = integer_constant(amount.type, scalar_type(amount).width)
    in_range = builder.icmp_unsigned("<", amount, bits)
    return builder.select(in_range, shifted, integer_constant(value.type, 0))


def _emit_shift_left(builder: ir.IRBuilder, value: ir.Value, amount: ir.Value) -> ir.Value:
    return _emit_logical_shift(builder, "shl", value, amount)


def _emit_shift_right_logical(builder: ir.IRBuilder, value: ir.Value, amount: ir.Value) -> ir.Value:
    return _emit_logical_shift(builder, "lshr", value, amount)


def _emit_shift_right_arithmetic(
    builder: ir.IRBuilder, value: ir.Value, amount: ir.Value
) -> ir.Value:
    if not _is_shift_in_range(amount):
        most = integer_constant(amount.type, scalar_type(amount).width - 1)
        amount = _emit_minimum(builder, False, amount, most)
    return builder.ashr(value, amount)


def _is_shift_in_range(amount: ir.Value) -> bool:
    known = constant_value(amount)
    return known is not None and known < scalar_type(amount).width


def _emit_mulhi(builder: ir.IRBuilder, is_signed: bool, lhs: ir.Value, rhs: ir.Value) -> ir.Value:
    """Returns the upper half of the product.

    That of a vector is taken apart, not shifted: LLVM 22's code generator for x86 forgets a shift
    by 32 or more if the factors have 16 bits at most, and 16 bits of the result are kept.
    """
    width = scalar_type(lhs).width
    wide = like(lhs, ir.IntType(2 * width))
    extend = builder.sext if is_signed else builder.zext
    product = builder.mul(extend(lhs, wide), extend(rhs, wide))
    if isinstance(lhs.type, ir.VectorType) and width >= 32:
        count = lhs.type.count
        halves = builder.bitcast(product, ir.VectorType(ir.IntType(width), 2 * count))
        return shuffle(builder, halves, halves, range(1, 2 * count, 2))
    return builder.trunc(builder.lshr(product, integer_constant(wide, width)), lhs.type)


def _emit_power(
    builder: ir.IRBuilder, is_signed: bool, base: ir.Value, exponent: ir.Value
) -> ir.Value:
    """Squares and multiplies, modulo the width.

    As XLA:CPU does it, only the six low bits of the exponent count, and a negative one gives 0
    unless all powers of the base are 1 or -1. Since JAX 0.12 large powers of even bases are 0, as
    they should be; before, an exponent whose top bit is set is negative, be it signed or not.
    """
    one, zero = integer_constant(base.type, 1), integer_constant(base.type, 0)
    result, square = one, base
    for bit in range(_NUM_EXPONENT_BITS):
        is_set = builder.and_(exponent, integer_constant(base.type, 1 << bit))
        factor = builder.select(builder.icmp_unsigned("!=", is_set, zero), square, one)
        result = builder.mul(result, factor)
        square = builder.mul(square, square)
    minus_one = integer_constant(base.type, -1)
    is_unit = builder.or_(
        builder.icmp_unsigned("==", base, one), builder.icmp_unsigned("==", base, minus_one)
    )
    if XLA_IS_0_12:
        is_even = builder.icmp_unsigned("==", builder.and_(base, one), zero)
        most = integer_constant(base.type, (1 << _NUM_EXPONENT_BITS) - 1)
        is_large = builder.icmp_unsigned(">", exponent, most)
        result = builder.select(builder.and_(is_even, is_large), zero, result)
        if not is_signed:
            return result
    is_defined = builder.or_(builder.icmp_signed(">=", exponent, zero), is_unit)
    return builder.select(is_defined, result, zero)


_INSTRUCTIONS: Final = {
    "add": "add",
    "and": "and_",
    "multiply": "mul",
    "or": "or_",
    "subtract": "sub",
    "xor": "xor",
}
_BOOLEAN_INSTRUCTIONS: Final = {
    "add": "or_",
    "maximum": "or_",
    "minimum": "and_",
    "multiply": "and_",
}
_SHIFTS: Final[dict[str, Callable[..., ir.Value]]] = {
    "shift-left": _emit_shift_left,
    "shift-right-arithmetic": _emit_shift_right_arithmetic,
    "shift-right-logical": _emit_shift_right_logical,
}
_SIGNED_OR_UNSIGNED: Final[dict[str, Callable[..., ir.Value]]] = {
    "abs": _emit_abs,
    "clamp": _emit_clamp,
    "count-leading-zeros": _emit_leading_zeros,
    "divide": emit_divide,
    "maximum": _emit_maximum,
    "minimum": _emit_minimum,
    "mulhi": _emit_mulhi,
    "negate": _emit_negate,
    "not": _emit_not,
    "popcnt": _emit_popcnt,
    "power": _emit_power,
    "remainder": emit_remainder,
    "sign": _emit_sign,
}

INTEGER_OPCODES = frozenset(_INSTRUCTIONS) | frozenset(_SHIFTS) | frozenset(_SIGNED_OR_UNSIGNED)
"""Opcodes `emit_integer` knows for integers."""

BOOLEAN_OPCODES = frozenset(_BOOLEAN_INSTRUCTIONS) | {"and", "clamp", "not", "or", "xor"}
"""Opcodes `emit_integer` knows for PRED."""
