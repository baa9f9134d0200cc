"""erf."""

from __future__ import annotations

from llvmlite import ir

from fuselane.codegen.math.emitter import FloatEmitter
from fuselane.codegen.math.polynomial import coefficients, emit_polynomial

# erf(x) / x - 1 in x**2 on [0, 1], relative to erf(x) / x.
_SMALL_FLOAT = coefficients(
    """
    0x1.06eba8p-3 -0x1.81273ep-2 0x1.ce2ce6p-4 -0x1.b7f71ap-6 0x1.53f224p-8 -0x1.a3515ep-11
    0x1.4771fcp-14
    """
)
_SMALL_DOUBLE = coefficients(
    """
    0x1.06eba8214db68p-3 -0x1.812746b03799dp-2 0x1.ce2f21a03f8b9p-4 -0x1.b82ce311a97dap-6
    0x1.565bcceeda4f5p-8 -0x1.c02daeb709f51p-11 0x1.f9a296b54c841p-14 -0x1.f4c82f1335569p-17
    0x1.b96b583d15707p-20 -0x1.5b8c7289e615bp-23 0x1.d3ddd91f26a37p-27
    -0x1.a23ea94043464p-31
    """
)
# The eighth root of 1 - erf(x) on [1, 3.95] and [1, 5.95], the eighth power relative to erf(x).
_LARGE_FLOAT = coefficients(
    """
    0x1.0017d6p+0 -0x1.24a57ep-3 -0x1.0cc2aap-4 -0x1.c88874p-8 0x1.4e5164p-7 -0x1.84947ap-10
    -0x1.75b218p-15 0x1.0ccf14p-16
    """
)
_LARGE_DOUBLE = coefficients(
    """
    0x1.ffffff169d87cp-1 -0x1.20dd51258a28p-3 -0x1.1d35eb7caefabp-4 -0x1.11823aae57cbbp-9
    0x1.afc04dd341b33p-8 0x1.7d08937db4627p-13 -0x1.05967502c52dfp-11 0x1.202e9a44d3d47p-14
    0x1.e8a67b4289957p-17 -0x1.b1bc785512622p-17 0x1.96b6cee261461p-18
    -0x1.0f261fc4b1dbcp-19 0x1.06fcbf82fdfd2p-21 -0x1.7cd2cd55914d4p-24 0x1.a02881390808p-27
    -0x1.5162b3b1b23bep-30 0x1.809be51e24e2cp-34 -0x1.12e9c47aae881p-38
    0x1.71cf8f70b277dp-44
    """
)


def emit_erf(emitter: FloatEmitter, x: ir.Value) -> ir.Value:
    """Returns the error function, 2 / sqrt(pi) times the integral of e**-t**2 from 0 to x.

    Numerics: <= 1.6 ulp; erf(-0.0) = -0.0, erf(+-inf) = +-1.
    """
    magnitude = emitter.absolute(x)
    square = emitter.multiply(x, x)
    tail = emit_polynomial(emitter, square, _SMALL_DOUBLE if emitter.is_double else _SMALL_FLOAT)
    small = emitter.fma(magnitude, tail, magnitude)
    is_small = emitter.compare("<", magnitude, emitter.constant(1.0))
    value = emitter.select(is_small, small, _erf_of_large(emitter, magnitude))
    return emitter.copy_sign(value, x)


def _erf_of_large(emitter: FloatEmitter, magnitude: ir.Value) -> ir.Value:
    clamped = emitter.at_most(magnitude, 5.95 if emitter.is_double else 3.95)
    terms = _LARGE_DOUBLE if emitter.is_double else _LARGE_FLOAT
    # The last step by itself: its rounding counts eight times.
    slope = emit_polynomial(emitter, clamped, terms[1:])
    root = emitter.fma(slope, clamped, emitter.constant(terms[0]))
    fourth = emitter.multiply(root, root)
    fourth = emitter.multiply(fourth, fourth)
    return emitter.fma(emitter.negate(fourth), fourth, emitter.constant(1.0))
