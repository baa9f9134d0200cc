"""power.

|x|**y = e**(y * log|x|) needs the logarithm to more digits than the format has. For float the work
is done in double; for double the logarithm is a pair of doubles.
"""

from __future__ import annotations

from llvmlite import ir

from fuselane.codegen.math.accurate_log import emit_log_pair
from fuselane.codegen.math.emitter import FloatEmitter
from fuselane.codegen.math.exponential import emit_exponential_of_pair
from fuselane.codegen.math.logarithm import emit_exponent, split_exponent
from fuselane.codegen.math.polynomial import coefficients, emit_polynomial
from fuselane.codegen.math.rare import emit_rare
from fuselane.codegen.types import like

# log2(1 + f) / f on [sqrt(1/2) - 1, sqrt(2) - 1], relative error 2**-33.
_LOG2 = coefficients(
    """
    0x1.71547652ef97p+0 -0x1.7154767bade1ep-1 0x1.ec709c00e327ap-2 -0x1.715435ebdb415p-2
    0x1.277732d0525cfp-2 -0x1.ec8d73d5acff6p-3 0x1.a615cb1944ef9p-3 -0x1.6eb02a52eedd9p-3
    0x1.45a293563b3cfp-3 -0x1.417ff07a5dda8p-3 0x1.3d25feb8d5ba3p-3 -0x1.61ac6462f5d5bp-4
    """
)
# 2**r on [-1/2, 1/2], relative error 2**-29.
_EXP2 = coefficients(
    """
    0x1.0000000262452p+0 0x1.62e430c82af99p-1 0x1.ebfbdadb14fe8p-3 0x1.c6aed45f9e1edp-5
    0x1.3b2dbc683e6c5p-7 0x1.5f4597fe090d8p-10 0x1.41d30d7ecd323p-13
    """
)
# Beyond it every power of a float over- or underflows.
_LARGEST_EXPONENT = 160.0
# Beyond it every power but that of 1 over- or underflows.
_LARGEST_POWER = 2.0**66


def emit_power(emitter: FloatEmitter, x: ir.Value, y: ir.Value) -> ir.Value:
    """Returns x**y.

    Special values are C's: pow(x, 0) = pow(1, y) = 1 even for NaN; a negative x takes the sign of
    an odd integer y and gives NaN for any other finite y that is no integer.

    Numerics: float <= 0.7 ulp, double <= 1 ulp.
    """
    special = emitter.builder.not_(_is_usual(emitter, x, y))
    mantissa, offset = split_exponent(emitter, x)
    usual = _power_of_parts(emitter, mantissa, emit_exponent(emitter, offset), y)
    return emit_rare(emitter, "power", special, [x, y, usual], _power_of_any)


def _is_usual(emitter: FloatEmitter, x: ir.Value, y: ir.Value) -> ir.Value:
    """True where x is positive, finite and not denormal, and |y| neither huge nor NaN."""
    format_ = emitter.format
    odd_base = emitter.outside(
        emitter.to_bits(x), format_.smallest_normal_bits, format_.infinity_bits
    )
    moderate = emitter.compare("<", emitter.absolute(y), emitter.constant(_LARGEST_POWER))
    return emitter.builder.and_(moderate, emitter.builder.not_(odd_base))


def _power_of_parts(
    emitter: FloatEmitter, mantissa: ir.Value, exponent: ir.Value, y: ir.Value
) -> ir.Value:
    """Returns (2**exponent * mantissa)**y for mantissa in [sqrt(1/2), sqrt(2)), |y| <= 2**66."""
    if emitter.is_double:
        return _in_pairs(emitter, mantissa, exponent, y)
    return _in_double(emitter, mantissa, exponent, y)


def _in_double(
    emitter: FloatEmitter, mantissa: ir.Value, exponent: ir.Value, y: ir.Value
) -> ir.Value:
    builder = emitter.builder
    wide = emitter.at(like(emitter.type, ir.DoubleType()))
    f = builder.fpext(emitter.subtract(mantissa, emitter.constant(1.0)), wide.type)
    tail = emit_polynomial(wide, f, _LOG2)
    log2 = wide.fma(f, tail, builder.fpext(exponent, wide.type))
    product = wide.multiply(log2, builder.fpext(y, wide.type))
    product = wide.at_most(wide.at_least(product, -_LARGEST_EXPONENT), _LARGEST_EXPONENT)
    rounder = wide.constant(wide.format.rounder + wide.format.bias)
    shifted = wide.add(product, rounder)
    remainder = wide.subtract(product, wide.subtract(shifted, rounder))
    scale = wide.from_bits(wide.shift_left(wide.to_bits(shifted), wide.format.mantissa_bits))
    result = wide.multiply(emit_polynomial(wide, remainder, _EXP2), scale)
    return builder.fptrunc(result, emitter.type)


def _in_pairs(
    emitter: FloatEmitter, mantissa: ir.Value, exponent: ir.Value, y: ir.Value
) -> ir.Value:
    log, log_low = emit_log_pair(emitter, mantissa, exponent)
    product = emitter.multiply(y, log)
    low = emitter.fma(y, log, emitter.negate(product))
    low = emitter.fma(y, log_low, low)
    return emit_exponential_of_pair(emitter, product, low)


def _power_of_any(emitter: FloatEmitter, x: ir.Value, y: ir.Value, usual: ir.Value) -> ir.Value:
    """Corrects `usual` where x is not positive, normal and finite, or y is huge or NaN."""
    builder = emitter.builder
    magnitude = emitter.absolute(x)
    zero = emitter.constant(0.0)
    result = _power_of_magnitude(emitter, magnitude, y)
    integral = emitter.compare("==", emitter.truncate(y), y)
    half = emitter.multiply(y, emitter.constant(0.5))
    odd = builder.and_(integral, builder.fcmp_unordered("!=", emitter.truncate(half), half))
    result = emitter.flip_sign(result, emitter.select(odd, emitter.to_bits(x), emitter.integer(0)))
    negative = builder.and_(
        emitter.compare("<", x, zero), emitter.compare("<", magnitude, emitter.infinity)
    )
    no_power = builder.and_(negative, builder.not_(integral))
    no_number = builder.fcmp_unordered("uno", x, y)
    result = emitter.select(builder.or_(no_power, no_number), emitter.nan, result)
    one = emitter.constant(1.0)
    is_one = builder.or_(emitter.compare("==", y, zero), emitter.compare("==", x, one))
    result = emitter.select(is_one, one, result)
    return emitter.select(_is_usual(emitter, x, y), usual, result)


def _power_of_magnitude(emitter: FloatEmitter, x: ir.Value, y: ir.Value) -> ir.Value:
    """Returns x**y for x in [0, inf], denormal or not; anything where x or y is NaN."""
    builder = emitter.builder
    zero = emitter.constant(0.0)
    shift = emitter.format.mantissa_bits + 1
    denormal = emitter.compare("<", x, emitter.smallest_normal)
    scaled = emitter.select(denormal, emitter.multiply(x, emitter.constant(2.0**shift)), x)
    mantissa, offset = split_exponent(emitter, scaled)
    correction = emitter.select(denormal, emitter.constant(-shift), zero)
    exponent = emitter.add(emit_exponent(emitter, offset), correction)
    bounded = emitter.at_most(emitter.at_least(y, -_LARGEST_POWER), _LARGEST_POWER)
    result = _power_of_parts(emitter, mantissa, exponent, bounded)
    is_zero, is_infinite = (emitter.compare("==", x, end) for end in (zero, emitter.infinity))
    falls, rises = (emitter.compare(relation, y, zero) for relation in ("<", ">"))
    to_infinity = builder.or_(builder.and_(is_zero, falls), builder.and_(is_infinite, rises))
    to_zero = builder.or_(builder.and_(is_zero, rises), builder.and_(is_infinite, falls))
    result = emitter.select(to_infinity, emitter.infinity, result)
    return emitter.select(to_zero, zero, result)
