"""tanh."""

from __future__ import annotations

import math

from llvmlite import ir

from fuselane.codegen.math.emitter import FloatEmitter
from fuselane.codegen.math.polynomial import coefficients, emit_polynomial

_LN2 = math.log(2.0)
# Half of ln 2 less its nearest double. That of floats is near enough.
_HALF_LN2_LOW = float.fromhex("0x1.abc9e3b39803fp-57")

# (tanh(h) / h - 1) / h**2 in h**2 on [0, 0.305], relative to tanh(h).
_TANH_FLOAT = coefficients("-0x1.55548cp-2 0x1.10a9bp-3 -0x1.9ba906p-5")
_TANH_DOUBLE = coefficients(
    """
    -0x1.5555555555544p-2 0x1.111111110e1dep-3 -0x1.ba1ba1b49c782p-5 0x1.664f4607e9d01p-6
    -0x1.226d969b50765p-7 0x1.d6a562f1df619p-9 -0x1.79ac7affd421fp-10 0x1.05f9f69063f68p-11
    """
)


def emit_tanh(emitter: FloatEmitter, x: ir.Value) -> ir.Value:
    """Returns the hyperbolic tangent.

    Of x = h + n ln(2)/2, with n an integer and h in [-0.044, 0.304], e**2x is 2**n times what it is
    of h. So with t = tanh(h) and s = 2**n

        tanh(x) = ((s - 1) + t (s + 1)) / ((s + 1) + t (s - 1))
                = b + (t (2 + b) - b) / ((s + 1) + t (s - 1)),  b = 1 - 1/s

    b is exact and what is added to it small, or b is zero and the quotient t.

    Numerics: <= 1.4 ulp; tanh(-0.0) = -0.0, tanh(+-inf) = +-1.
    """
    one = emitter.constant(1.0)
    magnitude = emitter.at_most(emitter.absolute(x), 19.5 if emitter.is_double else 9.5)
    h, scale, inverse = _reduce(emitter, magnitude)
    square = emitter.multiply(h, h)
    tail = emit_polynomial(emitter, square, _TANH_DOUBLE if emitter.is_double else _TANH_FLOAT)
    t = emitter.fma(emitter.multiply(square, h), tail, h)
    base = emitter.subtract(one, inverse)
    numerator = emitter.fma(t, emitter.add(base, emitter.constant(2.0)), emitter.negate(base))
    denominator = emitter.fma(t, emitter.subtract(scale, one), emitter.add(scale, one))
    result = emitter.add(base, emitter.divide(numerator, denominator))
    return emitter.flip_sign(result, emitter.to_bits(x))


def _reduce(emitter: FloatEmitter, x: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value]:
    """Returns (h, 2**n, 2**-n) for x >= 0: x rounded to eighths of ln 2, then down to halves."""
    format_, builder = emitter.format, emitter.builder
    rounder = emitter.constant(format_.rounder / 4 + format_.bias)
    shifted = emitter.fma(x, emitter.constant(2 / _LN2), rounder)
    exponents = builder.and_(emitter.to_bits(shifted), emitter.integer(-4))
    n = emitter.subtract(emitter.from_bits(exponents), rounder)
    h = emitter.fma(n, emitter.constant(-_LN2 / 2), x)
    if emitter.is_double:
        h = emitter.fma(n, emitter.constant(-_HALF_LN2_LOW), h)
    scale = emitter.shift_left(exponents, format_.mantissa_bits - 2)
    inverse = builder.sub(emitter.integer(2 * format_.one_bits), scale)
    return h, emitter.from_bits(scale), emitter.from_bits(inverse)
