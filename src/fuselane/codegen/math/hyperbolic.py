"""tanh."""

from __future__ import annotations

from llvmlite import ir

from fuselane.codegen.math.emitter import FloatEmitter
from fuselane.codegen.math.exponential import emit_reduced_expm1, expm1_coefficients
from fuselane.codegen.math.polynomial import coefficients, emit_polynomial

# Below it tanh is a polynomial, above it 1 - 2 / (e**2x + 1), where that loses nothing.
_SMALL = 0.5625

# (tanh(x) / x - 1) / x**2 in x**2 on [0, 0.5625], relative to tanh(x).
_TANH_FLOAT = coefficients(
    """
    -0x1.555548p-2 0x1.110c5ep-3 -0x1.b905c4p-5 0x1.5811f6p-6 -0x1.9454f2p-8
    """
)
_TANH_DOUBLE = coefficients(
    """
    -0x1.555555555554bp-2 0x1.1111111110246p-3 -0x1.ba1ba1b92fa3fp-5 0x1.664f4847f687p-6
    -0x1.226e2cd61d267p-7 0x1.d6d240b805e4fp-9 -0x1.7d8b3f378149fp-10 0x1.345df195b84e6p-11
    -0x1.e7ef5d10fab4bp-13 0x1.59260e0667a43p-14 -0x1.3c6f9b9600d6bp-16
    """
)


def emit_tanh(emitter: FloatEmitter, x: ir.Value) -> ir.Value:
    """Returns the hyperbolic tangent.

    Numerics: <= 1.4 ulp; tanh(-0.0) = -0.0, tanh(+-inf) = +-1.
    """
    magnitude = emitter.absolute(x)
    square = emitter.multiply(x, x)
    tail = emit_polynomial(emitter, square, _TANH_DOUBLE if emitter.is_double else _TANH_FLOAT)
    small = emitter.fma(emitter.multiply(square, magnitude), tail, magnitude)
    large = _tanh_of_large(emitter, magnitude)
    is_small = emitter.compare("<", magnitude, emitter.constant(_SMALL))
    return emitter.copy_sign(emitter.select(is_small, small, large), x)


def _tanh_of_large(emitter: FloatEmitter, magnitude: ir.Value) -> ir.Value:
    clamped = emitter.at_most(magnitude, 19.5 if emitter.is_double else 9.5)
    p, exponents = emit_reduced_expm1(
        emitter,
        emitter.add(clamped, clamped),
        expm1_coefficients(emitter),
        exponent_bias=emitter.format.bias,
    )
    one = emitter.constant(1.0)
    scale = emitter.from_bits(emitter.shift_left(exponents, emitter.format.mantissa_bits))
    denominator = emitter.fma(p, scale, emitter.add(scale, one))
    return emitter.subtract(one, emitter.divide(emitter.constant(2.0), denominator))
