"""power with a constant half of an odd number for exponent: x**1.5, x**-0.5, x**2.5.

x**(n + 1/2) is a product of n + 1 factors, of which the root is known to twice the precision:

    root = sqrt(x)      low = (x - root * root) * x**n / (2 * root)
    x**(n + 1/2) = root * x * .. * x, what each product rounds off added to low

A tenth of the instructions of a power, and more accurate. A number beyond moderate size is brought
there by a power of 4, which leaves every digit as it is: (m * 4**k)**e = m**e * 2**(k * 2e).
"""

from __future__ import annotations

from typing import Final, TypeGuard

from llvmlite import ir

from fuselane.codegen.math.emitter import FloatEmitter
from fuselane.codegen.math.rare import emit_rare

_LARGEST: Final = 3.5
"""Exponents beyond it are left to `emit_power`: few write them."""


def is_half_power(exponent: float | None) -> TypeGuard[float]:
    """Whether `emit_half_power` takes an exponent, None for one that is not constant."""
    return exponent is not None and abs(exponent) <= _LARGEST and abs(exponent) % 1.0 == 0.5


def half_power_name(exponent: float) -> str:
    """Returns what the functions of an exponent are called; PTX takes no minus sign."""
    return f"power{'.inverse' if exponent < 0 else ''}.{abs(exponent)}"


def emit_half_power(emitter: FloatEmitter, x: ir.Value, exponent: float) -> ir.Value:
    """Returns x**exponent for an exponent that `is_half_power` takes.

    Special values are C's: NaN for x < 0, but +inf or +0 for -inf and -0.

    Numerics: <= 0.6 ulp; <= 0.8 where the result is denormal, being rounded twice.
    """
    usual = _usual_power(emitter, x, exponent)
    format_ = emitter.format
    # Neither the result nor what is rounded off, 2**-precision of it, over- or underflows.
    bound = int((format_.bias - format_.mantissa_bits - 4) / max(abs(exponent), 1.0))
    first, last = ((format_.bias + e) << format_.mantissa_bits for e in (-bound, bound))
    special = emitter.outside(emitter.to_bits(x), first, last)

    def of_any(rare: FloatEmitter, x: ir.Value, _: ir.Value) -> ir.Value:
        return _power_of_any(rare, x, exponent)

    return emit_rare(emitter, half_power_name(exponent), special, [x, usual], of_any)


def _power_of_any(emitter: FloatEmitter, x: ir.Value, exponent: float) -> ir.Value:
    """Returns x**exponent for every x, with the bits of `_usual_power` where that takes x."""
    magnitude = emitter.absolute(x)
    zero, infinity = emitter.constant(0.0), emitter.infinity
    of_zero, of_infinity = (zero, infinity) if exponent > 0 else (infinity, zero)
    mantissa, half = _split(emitter, magnitude)
    scale = emitter.builder.mul(half, emitter.integer(int(2 * exponent)))
    result = _scaled(emitter, _usual_power(emitter, mantissa, exponent), scale)
    no_power = emitter.builder.fcmp_unordered("<", x, zero)
    result = emitter.select(no_power, emitter.nan, result)
    result = emitter.select(emitter.compare("==", x, zero), of_zero, result)
    return emitter.select(emitter.compare("==", magnitude, infinity), of_infinity, result)


def _split(emitter: FloatEmitter, x: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Returns (m, k), x = m * 4**k with m in [1, 4), for a positive finite x, denormal or not."""
    builder, format_ = emitter.builder, emitter.format
    shift = format_.mantissa_bits // 2 + 1
    denormal = emitter.compare("<", x, emitter.smallest_normal)
    normal = emitter.select(denormal, emitter.multiply(x, emitter.constant(4.0**shift)), x)
    bits = emitter.to_bits(normal)
    offset = builder.sub(bits, emitter.integer(format_.one_bits))
    half = builder.ashr(offset, emitter.integer(format_.mantissa_bits + 1))
    mantissa = builder.sub(bits, emitter.shift_left(half, format_.mantissa_bits + 1))
    correction = emitter.select(denormal, emitter.integer(shift), emitter.integer(0))
    return emitter.from_bits(mantissa), builder.sub(half, correction)


def _scaled(emitter: FloatEmitter, x: ir.Value, exponents: ir.Value) -> ir.Value:
    """Returns x * 2**exponents for x near 1, rounded once, over- or underflowing as it should."""
    builder, format_ = emitter.builder, emitter.format
    most = emitter.integer(2 * (format_.bias - 1))
    least = emitter.integer(-2 * (format_.bias - 1))
    bounded = emitter.select(builder.icmp_signed(">", exponents, most), most, exponents)
    bounded = emitter.select(builder.icmp_signed("<", bounded, least), least, bounded)
    half = builder.ashr(bounded, emitter.integer(1))
    for part in (half, builder.sub(bounded, half)):
        biased = builder.add(part, emitter.integer(format_.bias))
        power_of_two = emitter.from_bits(emitter.shift_left(biased, format_.mantissa_bits))
        x = emitter.multiply(x, power_of_two)
    return x


def _usual_power(emitter: FloatEmitter, x: ir.Value, exponent: float) -> ir.Value:
    """Returns x**exponent for x > 0 of moderate size."""
    root = emitter.sqrt(x)
    residual = emitter.fma(emitter.negate(root), root, x)
    if abs(exponent) == 0.5:
        return root if exponent > 0 else _inverse_root(emitter, root, residual)
    # What the root lacks is residual / (2 * root); times x, half a root of residuals.
    low = emitter.multiply(emitter.multiply(root, emitter.constant(0.5)), residual)
    power = root
    for number in range(int(abs(exponent))):
        product = emitter.multiply(power, x)
        rounded_off = emitter.fma(power, x, emitter.negate(product))
        low = emitter.add(low, rounded_off) if number == 0 else emitter.fma(low, x, rounded_off)
        power = product
    if exponent > 0:
        return emitter.add(power, low)
    inverse = emitter.divide(emitter.constant(1.0), power)
    return _refined_inverse(emitter, inverse, power, low)


def _inverse_root(emitter: FloatEmitter, root: ir.Value, residual: ir.Value) -> ir.Value:
    inverse = emitter.divide(emitter.constant(1.0), root)
    low = emitter.multiply(emitter.multiply(inverse, emitter.constant(0.5)), residual)
    return _refined_inverse(emitter, inverse, root, low)


def _refined_inverse(
    emitter: FloatEmitter, inverse: ir.Value, high: ir.Value, low: ir.Value
) -> ir.Value:
    """Returns 1 / (high + low), for a little low, from what is nearly 1 / high."""
    negated = emitter.negate(inverse)
    error = emitter.fma(negated, high, emitter.constant(1.0))
    error = emitter.fma(negated, low, error)
    return emitter.fma(inverse, error, inverse)
