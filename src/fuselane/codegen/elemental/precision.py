"""HLO reduce-precision."""

from __future__ import annotations

from typing import Final

from llvmlite import ir

from fuselane.codegen.elemental.xla_version import XLA_IS_0_12
from fuselane.codegen.types import integer_constant, like
from fuselane.hlo.shape import PrimitiveType

_MANTISSA_BITS: Final = {
    PrimitiveType.F16: 10,
    PrimitiveType.BF16: 7,
    PrimitiveType.F32: 23,
    PrimitiveType.F64: 52,
}


def emit_reduce_precision(
    builder: ir.IRBuilder,
    value: ir.Value,
    element_type: PrimitiveType,
    exponent_bits: int,
    mantissa_bits: int,
) -> ir.Value:
    """Rounds a float to the nearest even of a format with fewer bits, kept in its own type.

    Numerics: exact bits as XLA's. Magnitudes past the smaller format's range become infinite, those
    at or below its denormals zero of the same sign; NaN stays, but, since JAX 0.12, where no bits
    of a mantissa are left to tell it from infinity.
    """
    integer = like(value, ir.IntType(element_type.bits))
    bits = builder.bitcast(value, integer) if value.type != integer else value
    width = _MANTISSA_BITS[element_type]
    source_exponent_bits = element_type.bits - 1 - width
    exponent_mask = ((1 << source_exponent_bits) - 1) << width
    magnitude_mask = (1 << (element_type.bits - 1)) - 1
    magnitude = builder.and_(bits, integer_constant(integer, magnitude_mask))
    is_nan = builder.icmp_unsigned(">", magnitude, integer_constant(integer, exponent_mask))
    rounded = magnitude
    if mantissa_bits < width:
        rounded = _round_mantissa(builder, rounded, width - mantissa_bits)
    if exponent_bits < source_exponent_bits:
        rounded = _limit_exponent(builder, rounded, width, source_exponent_bits, exponent_bits)
    sign = builder.and_(bits, integer_constant(integer, ~magnitude_mask))
    result = builder.or_(rounded, sign)
    if mantissa_bits == 0 and XLA_IS_0_12:
        infinity = builder.or_(integer_constant(integer, exponent_mask), sign)
        result = builder.select(is_nan, infinity, result)
    else:
        result = builder.select(is_nan, bits, result)
    return builder.bitcast(result, value.type) if value.type != integer else result


def _round_mantissa(builder: ir.IRBuilder, magnitude: ir.Value, dropped: int) -> ir.Value:
    """Rounds the bits of a magnitude to nearest even; a carry moves into the exponent."""
    type_ = magnitude.type
    odd = builder.and_(
        builder.lshr(magnitude, integer_constant(type_, dropped)), integer_constant(type_, 1)
    )
    bias = integer_constant(type_, (1 << (dropped - 1)) - 1)
    biased = builder.add(builder.add(magnitude, odd), bias)
    return builder.and_(biased, integer_constant(type_, -(1 << dropped)))


def _limit_exponent(
    builder: ir.IRBuilder, magnitude: ir.Value, width: int, source_bits: int, target_bits: int
) -> ir.Value:
    """Turns exponents above the smaller format's into infinity and those below into zero."""
    type_ = magnitude.type
    source_bias = (1 << (source_bits - 1)) - 1
    target_bias = (1 << (target_bits - 1)) - 1
    infinity = integer_constant(type_, ((1 << source_bits) - 1) << width)
    largest = integer_constant(type_, ((source_bias + target_bias + 1) << width) - 1)
    least = integer_constant(type_, (source_bias - target_bias + 1) << width)
    overflows = builder.icmp_unsigned(">", magnitude, largest)
    underflows = builder.icmp_unsigned("<", magnitude, least)
    limited = builder.select(overflows, infinity, magnitude)
    return builder.select(underflows, integer_constant(type_, 0), limited)
