"""tanh."""

from __future__ import annotations

import math

from llvmlite import ir

from fuselane.codegen.math.emitter import FloatEmitter
from fuselane.codegen.math.polynomial import coefficients, emit_polynomial

_LN2 = math.log(2.0)
# Half of ln 2 less its nearest double.
_HALF_LN2_LOW = float.fromhex("0x1.abc9e3b39803fp-57")

# (tanh(h) / h - 1) / h**2 in h**2 on [0, 0.305], relative to tanh(h).
_TANH = coefficients(
    """
    -0x1.5555555555544p-2 0x1.111111110e1dep-3 -0x1.ba1ba1b49c782p-5 0x1.664f4607e9d01p-6
    -0x1.226d969b50765p-7 0x1.d6a562f1df619p-9 -0x1.79ac7affd421fp-10 0x1.05f9f69063f68p-11
    """
)

# tanh(x) = (x + x**3 p) / q, with p and q in x**2. At the bound it is 1, below nowhere: found by
# trying neighbours of the best coefficients on all floats there.
_NUMERATOR = coefficients("0x1.12b3f8p-3 0x1.cf359ap-9 0x1.64869ep-16 0x1.ea41aap-27")
_DENOMINATOR = coefficients("0x1p+0 0x1.deaf4ap-2 0x1.aa5b0cp-6 0x1.5f2666p-12 0x1.b5458cp-21")
_BOUND = float.fromhex("0x1.00accep+3")


def emit_tanh(emitter: FloatEmitter, x: ir.Value) -> ir.Value:
    """Returns the hyperbolic tangent; tanh(-0.0) = -0.0, tanh(+-inf) = +-1.

    Numerics: of floats, <= 3 ulp for magnitudes below 2 and <= 4.9 above, where XLA's own has 4.4
    and 4.9; of doubles <= 1.2 ulp. Never beyond 1 where quotients are rounded right.
    """
    return (_emit_double if emitter.is_double else _emit_float)(emitter, x)


def _emit_float(emitter: FloatEmitter, x: ir.Value) -> ir.Value:
    """One quotient of two short chains side by side."""
    clamped = emitter.at_most(emitter.at_least(x, -_BOUND), _BOUND)
    square = emitter.multiply(clamped, clamped)
    tail = emit_polynomial(emitter, square, _NUMERATOR)
    numerator = emitter.fma(emitter.multiply(clamped, square), tail, clamped)
    return emitter.divide(numerator, emit_polynomial(emitter, square, _DENOMINATOR))


def _emit_double(emitter: FloatEmitter, x: ir.Value) -> ir.Value:
    """Reduces the argument.

    Of |x| = h + n ln(2)/2, with n an integer and h in [-0.044, 0.304], e**2|x| is 2**n times what
    it is of h. So with t = tanh(h) and s = 2**n

        tanh(|x|) = ((s - 1) + t (s + 1)) / ((s + 1) + t (s - 1))
                  = b + (t (2 + b) - b) / ((s + 1) + t (s - 1)),  b = 1 - 1/s

    b is exact and what is added to it small, or b is zero and the quotient t.
    """
    one = emitter.constant(1.0)
    h, scale, inverse = _reduce(emitter, emitter.at_most(emitter.absolute(x), 19.5))
    square = emitter.multiply(h, h)
    tail = emit_polynomial(emitter, square, _TANH)
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
    h = emitter.fma(n, emitter.constant(-_HALF_LN2_LOW), h)
    scale = emitter.shift_left(exponents, format_.mantissa_bits - 2)
    inverse = builder.sub(emitter.integer(2 * format_.one_bits), scale)
    return h, emitter.from_bits(scale), emitter.from_bits(inverse)
