"""sqrt, rsqrt and cbrt.

The inverse roots start from a linear guess made of the bit pattern and are refined with series in
the residual 1 - x * y**k, which needs no division.
"""

from __future__ import annotations

from llvmlite import ir

from fuselane.codegen.math.emitter import FloatEmitter
from fuselane.codegen.math.polynomial import emit_polynomial
from fuselane.codegen.math.rare import emit_rare

# Guess bits for x**-0.5 = this - bits / 2: |1 - x * y**2| <= 0.0682 for every x.
_RSQRT_GUESS_FLOAT = 0x5F374800
_RSQRT_GUESS_DOUBLE = 0x5FE6E90000000000
# Guess bits for x**(-1/3) = this - bits / 3: |1 - x * y**3| <= 0.1024 for every x.
_CBRT_GUESS_FLOAT = 0x54A1F000
_CBRT_GUESS_DOUBLE = 0x553EE8AAAAAAAAAA

# (1 - h)**-0.5 and (1 - h)**(-1/3) without their first term, over h.
_RSQRT_SERIES = (1 / 2, 3 / 8, 5 / 16)
_CBRT_SERIES = (1 / 3, 2 / 9, 14 / 81)


def emit_sqrt(emitter: FloatEmitter, x: ir.Value) -> ir.Value:
    """Returns the square root, correctly rounded; NaN below zero, sqrt(-0.0) = -0.0."""
    return emitter.sqrt(x)


def emit_rsqrt(emitter: FloatEmitter, x: ir.Value) -> ir.Value:
    """Returns 1 / sqrt(x).

    Numerics: <= 1 ulp; +-inf for +-0.0, NaN below zero.
    """
    format_ = emitter.format
    special = emitter.outside(
        emitter.to_bits(x), format_.smallest_normal_bits, format_.infinity_bits
    )
    return emit_rare(emitter, "rsqrt", special, [x, _rsqrt_of_normal(emitter, x)], _rsqrt_of_any)


def emit_short_rsqrt(emitter: FloatEmitter, x: ir.Value) -> ir.Value:
    """Returns the same by a root and a quotient, which on a CPU are there in half the time; many
    side by side take longer.

    Numerics: <= 1.5 ulp, as the root is rounded before the quotient is.
    """
    return emitter.divide(emitter.constant(1.0), emitter.sqrt(x))


def emit_cbrt(emitter: FloatEmitter, x: ir.Value) -> ir.Value:
    """Returns the real cube root.

    Numerics: <= 0.6 ulp; odd, so cbrt(-0.0) = -0.0.
    """
    format_ = emitter.format
    magnitude = emitter.absolute(x)
    least, _ = _cbrt_scaling(emitter)
    least_bits = (format_.bias + least) << format_.mantissa_bits
    special = emitter.outside(emitter.to_bits(magnitude), least_bits, format_.infinity_bits)
    usual = emitter.copy_sign(_cbrt_of_positive(emitter, magnitude), x)
    return emit_rare(emitter, "cbrt", special, [x, usual], _cbrt_of_any)


def _rsqrt_of_normal(emitter: FloatEmitter, x: ir.Value) -> ir.Value:
    guess = _RSQRT_GUESS_DOUBLE if emitter.is_double else _RSQRT_GUESS_FLOAT
    half = emitter.shift_right(emitter.to_bits(x), 1)
    y = emitter.from_bits(emitter.builder.sub(emitter.integer(guess), half))
    y = _refine_rsqrt(emitter, x, y, 3)
    return _refine_rsqrt(emitter, x, y, 3 if emitter.is_double else 1)


def _refine_rsqrt(emitter: FloatEmitter, x: ir.Value, y: ir.Value, num_terms: int) -> ir.Value:
    product = emitter.negate(emitter.multiply(x, y))
    residual = emitter.fma(product, y, emitter.constant(1.0))
    series = emit_polynomial(emitter, residual, _RSQRT_SERIES[:num_terms])
    return emitter.fma(emitter.multiply(y, residual), series, y)


def _rsqrt_of_any(emitter: FloatEmitter, x: ir.Value, usual: ir.Value) -> ir.Value:
    half_shift = emitter.format.mantissa_bits // 2 + 1
    scaled = emitter.multiply(x, emitter.constant(4.0**half_shift))
    of_denormal = emitter.multiply(
        _rsqrt_of_normal(emitter, scaled), emitter.constant(2.0**half_shift)
    )
    is_below = emitter.compare("<", x, emitter.smallest_normal)
    result = emitter.select(is_below, of_denormal, usual)
    zero = emitter.constant(0.0)
    result = emitter.select(emitter.compare("==", x, emitter.infinity), zero, result)
    of_zero = emitter.copy_sign(emitter.infinity, x)
    result = emitter.select(emitter.compare("==", x, zero), of_zero, result)
    invalid = emitter.builder.fcmp_unordered("<", x, zero)
    return emitter.select(invalid, emitter.nan, result)


def _cbrt_of_positive(emitter: FloatEmitter, x: ir.Value) -> ir.Value:
    y = _inverse_cbrt_guess(emitter, x)
    y = _refine_inverse_cbrt(emitter, x, y, 3)
    if emitter.is_double:
        y = _refine_inverse_cbrt(emitter, x, y, 2)
    inverse_square = emitter.multiply(y, y)
    root = emitter.multiply(x, inverse_square)
    # One Newton step on the root itself, with root**3 - x known to twice the precision.
    square = emitter.multiply(root, root)
    square_low = emitter.fma(root, root, emitter.negate(square))
    residual = emitter.fma(square, root, emitter.negate(x))
    residual = emitter.fma(square_low, root, residual)
    slope = emitter.multiply(inverse_square, emitter.constant(-1 / 3))
    return emitter.fma(residual, slope, root)


def _inverse_cbrt_guess(emitter: FloatEmitter, x: ir.Value) -> ir.Value:
    """Returns guess - bits / 3 as a number; the division is done in floating point.

    The upper bits become the fraction of a number in [2**m, 2**(m + 1)), m the mantissa's length,
    where the multiply-add rounds to integers; the shift back drops its exponent.
    """
    format_ = emitter.format
    shift = format_.bits - format_.mantissa_bits
    guess = _CBRT_GUESS_DOUBLE if emitter.is_double else _CBRT_GUESS_FLOAT
    unit = 2.0**format_.mantissa_bits
    unit_bits = (format_.bias + format_.mantissa_bits) << format_.mantissa_bits
    upper = emitter.shift_right(emitter.to_bits(x), shift)
    placed = emitter.from_bits(emitter.builder.or_(upper, emitter.integer(unit_bits)))
    offset = unit + unit / 3 + (guess >> shift)
    third = emitter.fma(placed, emitter.constant(-1 / 3), emitter.constant(offset))
    return emitter.from_bits(emitter.shift_left(emitter.to_bits(third), shift))


def _refine_inverse_cbrt(
    emitter: FloatEmitter, x: ir.Value, y: ir.Value, num_terms: int
) -> ir.Value:
    # x * y first: y**3 alone could underflow.
    product = emitter.multiply(emitter.multiply(x, y), y)
    residual = emitter.fma(emitter.negate(product), y, emitter.constant(1.0))
    series = emit_polynomial(emitter, residual, _CBRT_SERIES[:num_terms])
    return emitter.fma(emitter.multiply(y, residual), series, y)


def _cbrt_of_any(emitter: FloatEmitter, x: ir.Value, usual: ir.Value) -> ir.Value:
    magnitude = emitter.absolute(x)
    least, shift = _cbrt_scaling(emitter)
    scaled = emitter.multiply(magnitude, emitter.constant(8.0**shift))
    root = _cbrt_of_positive(emitter, scaled)
    root = emitter.copy_sign(emitter.multiply(root, emitter.constant(2.0**-shift)), x)
    tiny = emitter.compare("<", magnitude, emitter.constant(2.0**least))
    result = emitter.select(tiny, root, usual)
    # 0, inf and NaN are their own cube roots.
    zero = emitter.compare("==", x, emitter.constant(0.0))
    finite = emitter.compare("<", magnitude, emitter.infinity)
    result = emitter.select(finite, result, x)
    return emitter.select(zero, x, result)


def _cbrt_scaling(emitter: FloatEmitter) -> tuple[int, int]:
    """Returns (e, s): below 2**e residuals could underflow, and x is scaled by 8**s first."""
    return (-750, 100) if emitter.is_double else (-80, 22)
