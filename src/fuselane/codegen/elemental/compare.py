"""HLO compare."""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from fuselane.codegen.elemental.convert import widen_small_float
from fuselane.codegen.types import integer_constant, like
from fuselane.hlo.shape import PrimitiveType

_OPERATORS = {"EQ": "==", "NE": "!=", "LT": "<", "LE": "<=", "GT": ">", "GE": ">="}


def emit_compare(
    builder: ir.IRBuilder,
    operands: Sequence[ir.Value],
    element_type: PrimitiveType,
    direction: str,
    total_order: bool,
) -> ir.Value:
    """Compares two values of one type; the result is an `i1` (vector).

    Floats compare as IEEE 754 says: with a NaN only NE holds, and the zeros are equal. By total
    order they compare as sign and magnitude: -NaN < -inf < ... < -0 < 0 < ... < inf < NaN.
    """
    operator = _OPERATORS[direction]
    if not element_type.is_floating:
        compare = builder.icmp_signed if element_type.is_signed else builder.icmp_unsigned
        return compare(operator, *operands)
    if total_order:
        keys = [_total_order_key(builder, value, element_type) for value in operands]
        return builder.icmp_signed(operator, *keys)
    wide = [widen_small_float(builder, value, element_type) for value in operands]
    compare = builder.fcmp_unordered if direction == "NE" else builder.fcmp_ordered
    return compare(operator, *wide)


def _total_order_key(
    builder: ir.IRBuilder, value: ir.Value, element_type: PrimitiveType
) -> ir.Value:
    """Returns an integer of the same width whose signed order is the float's total order."""
    integer = like(value, ir.IntType(element_type.bits))
    bits = builder.bitcast(value, integer)
    sign = builder.ashr(bits, integer_constant(integer, element_type.bits - 1))
    return builder.xor(bits, builder.lshr(sign, integer_constant(integer, 1)))
