"""atan2."""

from __future__ import annotations

from llvmlite import ir

from fuselane.codegen.math.emitter import FloatEmitter
from fuselane.codegen.math.polynomial import coefficients, emit_polynomial
from fuselane.codegen.math.rare import emit_rare

_HALF_PI_FLOAT = (float.fromhex("0x1.921fb6p+0"), float.fromhex("-0x1.777a5cp-25"))
_HALF_PI_DOUBLE = (float.fromhex("0x1.921fb54442d18p+0"), float.fromhex("0x1.1a62633145c07p-54"))

# (atan(t) / t - 1) / t**2 in t**2 on [0, 1], relative to atan(t).
_ATAN_FLOAT = coefficients(
    """
    -0x1.5554dcp-2 0x1.9978ecp-3 -0x1.230a9cp-3 0x1.b4df4p-4 -0x1.3552c4p-4 0x1.61f4e6p-5
    -0x1.0c2182p-6 0x1.7ebde4p-9
    """
)
_ATAN_DOUBLE = coefficients(
    """
    -0x1.5555555555526p-2 0x1.99999999955afp-3 -0x1.249249237f412p-3 0x1.c71c717fca116p-4
    -0x1.745d11ae17024p-4 0x1.3b13669607e9ap-4 -0x1.110e510677711p-4 0x1.e1bba4f702462p-5
    -0x1.ae5e6c7a688a5p-5 0x1.82dac2ee88889p-5 -0x1.59a3ca59e355fp-5 0x1.2c2df39f84e04p-5
    -0x1.e9f8c685d5e91p-6 0x1.683b3e2223d6p-6 -0x1.c78cee91fb0c7p-7 0x1.d7b522c4475f6p-8
    -0x1.7a3580e68af16p-9 0x1.b3f50b0a53c4ep-11 -0x1.3f315817efe33p-13 0x1.bbe5b5a969c96p-17
    """
)


def emit_atan2(emitter: FloatEmitter, y: ir.Value, x: ir.Value) -> ir.Value:
    """Returns the angle of the point (x, y) in [-pi, pi].

    Numerics: <= 1.8 ulp; the signs of zeros count: atan2(+-0, -0) = +-pi.
    """
    wide, narrow = _by_size(emitter, y, x)
    format_ = emitter.format
    special = emitter.outside(
        emitter.to_bits(wide), format_.smallest_normal_bits, format_.infinity_bits
    )
    usual = _from_ratio(emitter, y, x, emitter.divide(narrow, wide))
    return emit_rare(emitter, "atan2", special, [y, x, usual], _atan2_of_any)


def _by_size(emitter: FloatEmitter, y: ir.Value, x: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Returns (|larger|, |smaller|); the larger is NaN when x is."""
    height, width = emitter.absolute(y), emitter.absolute(x)
    steep = emitter.compare(">", height, width)
    return emitter.select(steep, height, width), emitter.select(steep, width, height)


def _from_ratio(emitter: FloatEmitter, y: ir.Value, x: ir.Value, ratio: ir.Value) -> ir.Value:
    """Returns atan2(y, x) given |smaller| / |larger|."""
    square = emitter.multiply(ratio, ratio)
    tail = emit_polynomial(emitter, square, _ATAN_DOUBLE if emitter.is_double else _ATAN_FLOAT)
    angle = emitter.fma(emitter.multiply(square, ratio), tail, ratio)
    # The angle counts up or down from 0, 1 or 2 quarter turns.
    steep = emitter.compare(">", emitter.absolute(y), emitter.absolute(x))
    x_bits = emitter.to_bits(x)
    left = emitter.builder.icmp_signed("<", x_bits, emitter.integer(0))
    flat_quarters = emitter.select(left, emitter.constant(2.0), emitter.constant(0.0))
    quarters = emitter.select(steep, emitter.constant(1.0), flat_quarters)
    signed = emitter.flip_sign(angle, x_bits)
    signed = emitter.select(steep, emitter.negate(signed), signed)
    high, low = _HALF_PI_DOUBLE if emitter.is_double else _HALF_PI_FLOAT
    value = emitter.fma(quarters, emitter.constant(low), signed)
    return emitter.copy_sign(emitter.fma(quarters, emitter.constant(high), value), y)


def _atan2_of_any(emitter: FloatEmitter, y: ir.Value, x: ir.Value, usual: ir.Value) -> ir.Value:
    """Handles points at the origin, near it (denormal) and at infinity, and NaN."""
    builder = emitter.builder
    zero, one = emitter.constant(0.0), emitter.constant(1.0)
    wide, narrow = _by_size(emitter, y, x)
    near = emitter.compare("<", wide, one)
    scale = emitter.select(near, emitter.constant(2.0**60), one)
    ratio = emitter.divide(emitter.multiply(narrow, scale), emitter.multiply(wide, scale))
    ratio = emitter.select(emitter.compare("==", wide, zero), zero, ratio)
    ratio = emitter.select(emitter.compare("==", narrow, emitter.infinity), one, ratio)
    result = _from_ratio(emitter, y, x, ratio)
    is_normal = emitter.compare(">=", wide, emitter.smallest_normal)
    is_finite = emitter.compare("<", wide, emitter.infinity)
    result = emitter.select(builder.and_(is_normal, is_finite), usual, result)
    return emitter.select(builder.fcmp_unordered("uno", y, x), emitter.nan, result)
