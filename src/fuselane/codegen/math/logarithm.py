"""log and log-plus-one.

Both find an exponent e and f in [sqrt(1/2) - 1, sqrt(2) - 1) with 2**e * (1 + f) = argument, and
add e * ln 2 to a polynomial's log(1 + f).
"""

from __future__ import annotations

from llvmlite import ir

from fuselane.codegen.math.emitter import FloatEmitter
from fuselane.codegen.math.polynomial import coefficients, emit_polynomial
from fuselane.codegen.math.rare import emit_rare

# ln 2 as a sum of two positive numbers.
_LN2_FLOAT = (float.fromhex("0x1.62e42ep-1"), float.fromhex("0x1.efa39ep-25"))
_LN2_DOUBLE = (float.fromhex("0x1.62e42fefa39efp-1"), float.fromhex("0x1.abc9e3b39803fp-56"))

# (log(1 + f) - f + f**2 / 2) / f**3 on [sqrt(1/2) - 1, sqrt(2) - 1], relative to log(1 + f).
_TAIL_FLOAT = coefficients(
    """
    0x1.555554p-2 -0x1.000228p-2 0x1.99a038p-3 -0x1.547214p-3 0x1.22d534p-3 -0x1.0d826p-3
    0x1.05824ep-3 -0x1.392edcp-4
    """
)
_TAIL_DOUBLE = coefficients(
    """
    0x1.5555555555533p-2 -0x1.fffffffffef11p-3 0x1.999999999f7e4p-3 -0x1.555555566b62p-3
    0x1.249249229f948p-3 -0x1.ffffff2bd6502p-4 0x1.c71c71e2096cbp-4 -0x1.9999c271f12c6p-4
    0x1.745d3edf96b3cp-4 -0x1.5550eda0917f8p-4 0x1.3b0b8d52e494fp-4 -0x1.24d75ea662211p-4
    0x1.11ccd7ed27c31p-4 -0x1.fba0552cca7b7p-5 0x1.d05ba7cf75757p-5 -0x1.d1289c6cbed03p-5
    0x1.0a632f7ac0cp-4 -0x1.e9ee9f69916f6p-5 0x1.ac488b5e022edp-6
    """
)

_SQRT_HALF_FLOAT = 0x3F3504F3
_SQRT_HALF_DOUBLE = 0x3FE6A09E667F3BCD

# From here on 1 + x is x.
_HUGE = 2.0**100


def emit_log(emitter: FloatEmitter, x: ir.Value) -> ir.Value:
    """Returns the natural logarithm.

    Numerics: <= 0.9 ulp; log(0) = -inf for both zeros, log of a negative number is NaN.
    """
    format_ = emitter.format
    special = emitter.outside(
        emitter.to_bits(x), format_.smallest_normal_bits, format_.infinity_bits
    )
    return emit_rare(emitter, "log", special, [x, _log_of_normal(emitter, x)], _log_of_any)


def emit_log1p(emitter: FloatEmitter, x: ir.Value) -> ir.Value:
    """Returns log(1 + x).

    Numerics: <= 1.5 ulp; log1p(-0.0) = -0.0, log1p(-1) = -inf.
    """
    one = emitter.constant(1.0)
    sum_ = emitter.add(x, one)
    huge_bits = emitter.format.one_bits + (100 << emitter.format.mantissa_bits)
    special = emitter.outside(emitter.to_bits(sum_), emitter.format.smallest_normal_bits, huge_bits)
    # Minus the exponent, with f in (sqrt(1/2) - 1, sqrt(2) - 1]; then f = -0.0 where x is, and sums
    # with products of +0.0 and minus ln 2 stay so.
    offset = emitter.builder.sub(emitter.integer(_sqrt_two(emitter)), emitter.to_bits(sum_))
    exponent_mask = -1 << emitter.format.mantissa_bits
    exponent_bits = emitter.builder.and_(offset, emitter.integer(exponent_mask))
    scale = emitter.from_bits(
        emitter.builder.add(emitter.integer(emitter.format.one_bits), exponent_bits)
    )
    f = emitter.fma(x, scale, emitter.negate(emitter.subtract(one, scale)))
    usual = _log_from_parts(emitter, f, emit_exponent(emitter, offset), -1.0)
    return emit_rare(emitter, "log1p", special, [x, usual], _log1p_of_any)


def _log_of_any(emitter: FloatEmitter, x: ir.Value, usual: ir.Value) -> ir.Value:
    """Returns log(x) for all x; masks make zeros and infinities less rare than denormals are."""
    zero = emitter.constant(0.0)
    is_below = emitter.compare("<", x, emitter.smallest_normal)
    is_tiny = emitter.builder.and_(emitter.compare(">", x, zero), is_below)
    result = emit_rare(emitter, "log.denormal", is_tiny, [x, usual], _log_of_denormal)
    result = emitter.select(emitter.compare("<", x, emitter.infinity), result, x)
    result = emitter.select(emitter.compare("<", x, zero), emitter.nan, result)
    return emitter.select(emitter.compare("==", x, zero), emitter.negate(emitter.infinity), result)


def _log_of_denormal(emitter: FloatEmitter, x: ir.Value, usual: ir.Value) -> ir.Value:
    """Returns log(x) of positive x, denormals too; `usual` is right for all that are none."""
    format_ = emitter.format
    scaled = emitter.multiply(x, emitter.constant(2.0 ** (format_.mantissa_bits + 2)))
    shift = emitter.constant((format_.mantissa_bits + 2) * 0.6931471805599453)
    of_denormal = emitter.subtract(_log_of_normal(emitter, scaled), shift)
    return emitter.select(emitter.compare("<", x, emitter.smallest_normal), of_denormal, usual)


def _log1p_of_any(emitter: FloatEmitter, x: ir.Value, usual: ir.Value) -> ir.Value:
    """Returns log(1 + x) for all x."""
    huge = emitter.builder.and_(
        emitter.compare(">=", x, emitter.constant(_HUGE)),
        emitter.compare("<", x, emitter.infinity),
    )
    result = emit_rare(emitter, "log1p.huge", huge, [x, usual], _log1p_of_huge)
    result = emitter.select(emitter.compare("<", x, emitter.infinity), result, x)
    minus_one = emitter.constant(-1.0)
    result = emitter.select(emitter.compare("<", x, minus_one), emitter.nan, result)
    pole = emitter.compare("==", x, minus_one)
    return emitter.select(pole, emitter.negate(emitter.infinity), result)


def _log1p_of_huge(emitter: FloatEmitter, x: ir.Value, usual: ir.Value) -> ir.Value:
    """Returns log(x), of what is not huge `usual`."""
    huge = emitter.compare(">=", x, emitter.constant(_HUGE))
    return emitter.select(huge, _log_of_normal(emitter, x), usual)


def _log_of_normal(emitter: FloatEmitter, x: ir.Value) -> ir.Value:
    """Returns log(x) for positive, finite, not denormal x."""
    mantissa, offset = split_exponent(emitter, x)
    f = emitter.subtract(mantissa, emitter.constant(1.0))
    return _log_from_parts(emitter, f, emit_exponent(emitter, offset), 1.0)


def split_exponent(emitter: FloatEmitter, x: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Returns (m, bits): x = 2**e * m, m in [sqrt(1/2), sqrt(2)), e the signed field of the bits.

    Args:
        emitter: For the type of `x`.
        x: Positive, finite, not denormal.
    """
    format_ = emitter.format
    sqrt_half = emitter.integer(_sqrt_half(emitter))
    offset = emitter.builder.sub(emitter.to_bits(x), sqrt_half)
    low = emitter.builder.and_(offset, emitter.integer((1 << format_.mantissa_bits) - 1))
    return emitter.from_bits(emitter.builder.add(low, sqrt_half)), offset


def emit_exponent(emitter: FloatEmitter, offset: ir.Value) -> ir.Value:
    """Returns the signed exponent field of `offset` as a floating-point number."""
    format_ = emitter.format
    if not emitter.is_double:
        field = emitter.builder.ashr(offset, emitter.integer(format_.mantissa_bits))
        return emitter.builder.sitofp(field, emitter.type)
    # AVX2 neither shifts nor converts signed 64-bit integers: place the field under 2**52.
    biased = emitter.builder.add(offset, emitter.integer(format_.one_bits))
    field = emitter.shift_right(biased, format_.mantissa_bits)
    placed = emitter.builder.or_(field, emitter.integer((format_.bias + 52) << 52))
    return emitter.subtract(emitter.from_bits(placed), emitter.constant(2.0**52 + format_.bias))


def _log_from_parts(
    emitter: FloatEmitter, f: ir.Value, exponent: ir.Value, sign: float
) -> ir.Value:
    """Returns log(1 + f) + sign * exponent * ln 2, the smallest terms added first."""
    high, low = (sign * part for part in (_LN2_DOUBLE if emitter.is_double else _LN2_FLOAT))
    square = emitter.multiply(f, f)
    terms = _TAIL_DOUBLE if emitter.is_double else _TAIL_FLOAT
    tail = emit_polynomial(emitter, f, terms, square)
    cube = emitter.multiply(square, f)
    small = emitter.multiply(exponent, emitter.constant(low))
    small = emitter.fma(cube, tail, small)
    small = emitter.fma(square, emitter.constant(-0.5), small)
    return emitter.fma(exponent, emitter.constant(high), emitter.add(f, small))


def _sqrt_half(emitter: FloatEmitter) -> int:
    return _SQRT_HALF_DOUBLE if emitter.is_double else _SQRT_HALF_FLOAT


def _sqrt_two(emitter: FloatEmitter) -> int:
    return _sqrt_half(emitter) + (1 << emitter.format.mantissa_bits)
