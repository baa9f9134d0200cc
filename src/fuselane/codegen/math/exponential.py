"""exponential, exponential-minus-one and logistic.

All write x as n * ln 2 + r with n an integer and |r| <= ln(2) / 2, take p = e**r - 1 from a
polynomial, and put n into the exponent.
"""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from fuselane.codegen.math.emitter import FloatEmitter
from fuselane.codegen.math.polynomial import coefficients, emit_polynomial

_LOG2_E = 1.4426950408889634
# ln 2 in two parts; the first parts are rounded down so that -0.0 - 0 * ln2 stays -0.0.
_LN2_FLOAT = (float.fromhex("0x1.62e42ep-1"), float.fromhex("0x1.efa39ep-25"))
_LN2_DOUBLE = (float.fromhex("0x1.62e42fefa39efp-1"), float.fromhex("0x1.abc9e3b39803fp-56"))

# (e**r - 1 - r) / r**2 on [-ln(2)/2, ln(2)/2]: least error relative to e**r, and to e**r - 1.
_EXP_FLOAT = coefficients(
    """
    0x1.fffffcp-2 0x1.55548ap-3 0x1.55584cp-5 0x1.123f52p-7 0x1.6ad7aep-10
    """
)
_EXP_DOUBLE = coefficients(
    """
    0x1.000000000000ap-1 0x1.55555555554fdp-3 0x1.55555555505e4p-5 0x1.111111112681p-7
    0x1.6c16c184c1514p-10 0x1.a01a01335e55ap-13 0x1.a0199863bfd9p-16 0x1.71df0c103c305p-19
    0x1.28af073d0e09p-22 0x1.adaf5a721f382p-26
    """
)
_EXPM1_FLOAT = coefficients(
    """
    0x1p-1 0x1.555554p-3 0x1.5554eap-5 0x1.1113a8p-7 0x1.6d4c64p-10 0x1.9c6f28p-13
    """
)
_EXPM1_DOUBLE = coefficients(
    """
    0x1.0000000000001p-1 0x1.5555555555557p-3 0x1.5555555554b24p-5 0x1.11111111105f5p-7
    0x1.6c16c16fd0c23p-10 0x1.a01a01a9024e5p-13 0x1.a019efd3d175ap-16 0x1.71de0a4e77e4cp-19
    0x1.280a0f3178625p-22 0x1.af3f6e5a14337p-26 0x1.ce28d7b441bdbp-30
    """
)

# Below it n is zero.
_SMALL = 0.25


def emit_exponential(emitter: FloatEmitter, x: ir.Value) -> ir.Value:
    """Returns e**x.

    Numerics: <= 1.1 ulp, denormal results included where the machine does not flush them.
    """
    least, most = (-746.0, 710.0) if emitter.is_double else (-104.0, 89.0)
    clamped = emitter.at_most(emitter.at_least(x, least), most)
    terms = _EXP_DOUBLE if emitter.is_double else _EXP_FLOAT
    remainder, exponents = emit_reduced_expm1(
        emitter, clamped, terms, exponent_bias=2 * emitter.format.bias
    )
    return _scale(emitter, remainder, exponents)


def emit_exponential_of_pair(emitter: FloatEmitter, x: ir.Value, low: ir.Value) -> ir.Value:
    """Returns e**(x + low) for doubles, |low| much smaller than |x|."""
    bound = 800.0
    x = emitter.at_most(emitter.at_least(x, -bound), bound)
    low = emitter.at_most(emitter.at_least(low, -1.0), 1.0)
    remainder, exponents = emit_reduced_expm1(
        emitter, x, _EXP_DOUBLE, exponent_bias=2 * emitter.format.bias, low=low
    )
    return _scale(emitter, remainder, exponents)


def emit_expm1(emitter: FloatEmitter, x: ir.Value) -> ir.Value:
    """Returns e**x - 1.

    Numerics: <= 1.8 ulp; e**-0.0 - 1 is -0.0.
    """
    least, most = (-40.0, 710.0) if emitter.is_double else (-20.0, 89.0)
    clamped = emitter.at_most(emitter.at_least(x, least), most)
    p, exponents = emit_reduced_expm1(
        emitter, clamped, expm1_coefficients(emitter), exponent_bias=emitter.format.bias - 1
    )
    # All in halves: 2**1024 does not fit.
    scale = _power_of_two(emitter, exponents)
    half = emitter.fma(p, scale, emitter.subtract(scale, emitter.constant(0.5)))
    # Half of the smallest normal number may be flushed to zero.
    is_small = emitter.compare("<", emitter.absolute(x), emitter.constant(_SMALL))
    return emitter.copy_sign(emitter.select(is_small, p, emitter.add(half, half)), x)


def emit_logistic(emitter: FloatEmitter, x: ir.Value) -> ir.Value:
    """Returns 1 / (1 + e**-x).

    Computed from z = e**-|x|, as 1 / (1 + z) or z / (1 + z), with the rounding of 1 + z put back.

    Numerics: <= 1.5 ulp.
    """
    z = emit_exponential(emitter, emitter.negate(emitter.absolute(x)))
    one = emitter.constant(1.0)
    sum_ = emitter.add(one, z)
    lost = emitter.subtract(z, emitter.subtract(sum_, one))
    inverse = emitter.divide(one, sum_)
    numerator = emitter.select(emitter.compare("<", x, emitter.constant(0.0)), z, one)
    quotient = emitter.multiply(numerator, inverse)
    negated = emitter.negate(quotient)
    residual = emitter.fma(negated, lost, emitter.fma(negated, sum_, numerator))
    return emitter.fma(residual, inverse, quotient)


def expm1_coefficients(emitter: FloatEmitter) -> Sequence[float]:
    """Returns the polynomial for `emit_reduced_expm1` that is accurate relative to e**r - 1."""
    return _EXPM1_DOUBLE if emitter.is_double else _EXPM1_FLOAT


def emit_reduced_expm1(
    emitter: FloatEmitter,
    x: ir.Value,
    terms: Sequence[float],
    *,
    exponent_bias: int,
    low: ir.Value | None = None,
) -> tuple[ir.Value, ir.Value]:
    """Returns (e**r - 1, integers with n + exponent_bias in their low bits) for x = n ln 2 + r.

    Args:
        emitter: For the type of `x`.
        x: Of magnitude below 2**12, or NaN.
        terms: Coefficients of r**2, r**3, ...
        exponent_bias: Added to n; the bits above the low 12 mean nothing.
        low: Added to x.
    """
    ln2_high, ln2_low = _LN2_DOUBLE if emitter.is_double else _LN2_FLOAT
    rounder = emitter.constant(emitter.format.rounder + exponent_bias)
    shifted = emitter.fma(x, emitter.constant(_LOG2_E), rounder)
    n = emitter.subtract(shifted, rounder)
    r = emitter.fma(n, emitter.constant(-ln2_high), x)
    if low is None:
        r = emitter.fma(n, emitter.constant(-ln2_low), r)
    else:
        r = emitter.add(r, emitter.fma(n, emitter.constant(-ln2_low), low))
    square = emitter.multiply(r, r)
    tail = emit_polynomial(emitter, r, terms, square)
    return emitter.fma(square, tail, r), emitter.to_bits(shifted)


def _scale(emitter: FloatEmitter, p: ir.Value, exponents: ir.Value) -> ir.Value:
    """Returns (1 + p) * 2**(exponents - 2 * bias).

    The power of two is a product of two normal numbers; only the last product over- or underflows.
    """
    half = emitter.shift_right(exponents, 1)
    first = _power_of_two(emitter, half)
    second = _power_of_two(emitter, emitter.builder.sub(exponents, half))
    return emitter.multiply(emitter.fma(p, first, first), second)


def _power_of_two(emitter: FloatEmitter, exponents: ir.Value) -> ir.Value:
    return emitter.from_bits(emitter.shift_left(exponents, emitter.format.mantissa_bits))
