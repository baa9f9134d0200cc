"""The natural logarithm as a pair of doubles, for powers of doubles."""

from __future__ import annotations

from llvmlite import ir

from fuselane.codegen.math.emitter import FloatEmitter
from fuselane.codegen.math.polynomial import coefficients, emit_polynomial

# The first part has 32 bits, so that its product with an exponent is exact.
_LN2_HIGH = float.fromhex("0x1.62e42fefp-1")
_LN2_LOW = float.fromhex("0x1.473de6af278edp-34")

# (atanh(s) / s - 1) / s**2 is 1/3 + this in s**2, for s**2 <= (sqrt(2) - 1)**4.
_ATANH_TAIL = coefficients(
    """
    0x1.9999999999996p-3 0x1.2492492492f56p-3 0x1.c71c71c59594bp-4 0x1.745d1829efef4p-4
    0x1.3b136499e1e01p-4 0x1.1120770e5f328p-4 0x1.de3c18a088602p-5 0x1.ead1927b42344p-5
    """
)
_THIRD_HIGH = 1 / 3
_THIRD_LOW = float.fromhex("0x1.5555555555555p-56")


def emit_log_pair(
    emitter: FloatEmitter, mantissa: ir.Value, exponent: ir.Value
) -> tuple[ir.Value, ir.Value]:
    """Returns (high, low): log(2**exponent * mantissa) = high + low.

    log(m) = 2 atanh(s) with s = (m - 1) / (m + 1).

    Args:
        emitter: For double.
        mantissa: In [sqrt(1/2), sqrt(2)).
        exponent: Integers of magnitude below 2**12.
    Numerics: relative error about 2**-64; (0, 0) for 1.
    """
    s, s_low = _divide_around_one(emitter, mantissa)
    cubic, cubic_low = _multiply_pairs(emitter, (s, s_low), _tail(emitter, s, s_low))
    two = emitter.constant(2.0)
    log, log_low = _add_smaller(emitter, s, cubic)
    log_low = emitter.add(log_low, emitter.add(s_low, cubic_low))
    log, log_low = emitter.multiply(log, two), emitter.multiply(log_low, two)
    low = emitter.fma(exponent, emitter.constant(_LN2_LOW), log_low)
    high, lost = _add_smaller(emitter, emitter.multiply(exponent, emitter.constant(_LN2_HIGH)), log)
    return high, emitter.add(lost, low)


def _divide_around_one(emitter: FloatEmitter, m: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Returns (m - 1) / (m + 1) as a pair."""
    one = emitter.constant(1.0)
    numerator = emitter.subtract(m, one)
    denominator = emitter.add(m, one)
    denominator_low = emitter.subtract(m, emitter.subtract(denominator, one))
    inverse = emitter.divide(one, denominator)
    quotient = emitter.multiply(numerator, inverse)
    negated = emitter.negate(quotient)
    residual = emitter.fma(negated, denominator, numerator)
    residual = emitter.fma(negated, denominator_low, residual)
    return quotient, emitter.multiply(residual, inverse)


def _tail(emitter: FloatEmitter, s: ir.Value, s_low: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Returns atanh(s) / s - 1 as a pair."""
    square = emitter.multiply(s, s)
    square_low = emitter.fma(s, s, emitter.negate(square))
    square_low = emitter.fma(emitter.add(s, s), s_low, square_low)
    series = emit_polynomial(emitter, square, _ATANH_TAIL)
    third = emitter.constant(_THIRD_HIGH)
    sum_, lost = _add_smaller(emitter, third, emitter.multiply(square, series))
    lost = emitter.add(lost, emitter.constant(_THIRD_LOW))
    return _multiply_pairs(emitter, (square, square_low), (sum_, lost))


def _multiply_pairs(
    emitter: FloatEmitter, a: tuple[ir.Value, ir.Value], b: tuple[ir.Value, ir.Value]
) -> tuple[ir.Value, ir.Value]:
    product = emitter.multiply(a[0], b[0])
    low = emitter.fma(a[0], b[0], emitter.negate(product))
    low = emitter.fma(a[0], b[1], low)
    return product, emitter.fma(a[1], b[0], low)


def _add_smaller(
    emitter: FloatEmitter, larger: ir.Value, smaller: ir.Value
) -> tuple[ir.Value, ir.Value]:
    """Returns the sum and what its rounding lost; needs |larger| >= |smaller|, or larger = 0."""
    total = emitter.add(larger, smaller)
    return total, emitter.add(emitter.subtract(larger, total), smaller)
