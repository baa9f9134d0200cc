"""Angles modulo pi / 2.

Small angles: three multiply-adds with pi / 2 in parts (Cody and Waite), exact but for the last
rounding; floats that are too large for that, as doubles. Large ones: the product with those bits of
2 / pi that matter (Payne and Hanek), one number at a time in integers.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

from llvmlite import ir

from fuselane.codegen.math.emitter import DOUBLE, FloatEmitter
from fuselane.codegen.math.rare import internal_function
from fuselane.codegen.types import like

_TWO_OVER_PI = 0.6366197723675814
# Parts of pi / 2; each is rounded down, which keeps |x - q * part| small and its products exact.
_HALF_PI_FLOAT = (
    float.fromhex("0x1.921fb4p+0"),
    float.fromhex("0x1.4442dp-24"),
    float.fromhex("0x1.846988p-48"),
)
_HALF_PI_DOUBLE = (
    float.fromhex("0x1.921fb54442d18p+0"),
    float.fromhex("0x1.1a62633145c06p-54"),
    float.fromhex("0x1.c1cd129024e08p-107"),
)

# Up to here q = x * 2 / pi is rounded to the nearest integer, or so nearly that the remainder stays
# within 1.02 * pi / 4.
LARGEST_SMALL_ANGLE_FLOAT = 65536.0
LARGEST_SMALL_ANGLE_DOUBLE = 2.0**30

# A zero word, then 2 / pi in binary after the point.
_TWO_OVER_PI_WORDS = (
    0,
    0xA2F9836E4E441529,
    0xFC2757D1F534DDC0,
    0xDB6295993C439041,
    0xFE5163ABDEBBC561,
    0xB7246E3A424DD2E0,
    0x06492EEA09D1921C,
    0xFE1DEB1CB129A73E,
    0xE88235F52EBB4484,
    0xE99C7026B45F7E41,
    0x3991D639835339F4,
    0x9C845F8BBDF9283B,
    0x1FF897FFDE05980F,
    0xEF2F118B5A0A6D1F,
    0x6D367ECF27CB09B7,
    0x4F463F669E5FEA2D,
    0x7527BAC7EBE5F17B,
    0x3D0739F78A5292EA,
    0x6BFB5FB11F8D5D08,
    0x56033046FC7B6BAB,
)
_TABLE_NAME = "fuselane.two_over_pi"
_FUNCTION_NAME = "fuselane.reduce_large_angle"

_I64 = ir.IntType(64)
_I128 = ir.IntType(128)
_F64 = ir.DoubleType()
_REDUCED = ir.LiteralStructType([_I64, _F64, _F64])


class ReducedAngle(NamedTuple):
    """An angle as quadrant * pi / 2 + remainder + low, |remainder| <= pi / 4 (a little more).

    Attributes:
        quadrant: Integers; only the low two bits mean something.
        remainder: Rounded to the angle's format.
        low: What the rounding lost.
    """

    quadrant: ir.Value
    remainder: ir.Value
    low: ir.Value


def largest_small_angle(emitter: FloatEmitter) -> float:
    """Returns the bound up to which `reduce_small_angle` is accurate."""
    return LARGEST_SMALL_ANGLE_DOUBLE if emitter.is_double else LARGEST_SMALL_ANGLE_FLOAT


def reduce_small_angle(emitter: FloatEmitter, angle: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Returns (quadrant, remainder) of angles in [0, largest_small_angle]."""
    count, after_first = _subtract_quarters(emitter, angle)
    _, second, third = _parts(emitter)
    remainder = emitter.fma(count[1], second, after_first)
    return count[0], emitter.fma(count[1], third, remainder)


def reduce_small_angle_accurately(emitter: FloatEmitter, angle: ir.Value) -> ReducedAngle:
    """Returns the parts of angles in [0, largest_small_angle], with what the remainder lost."""
    (quadrant, count), after_first = _subtract_quarters(emitter, angle)
    _, second, third = _parts(emitter)
    product = emitter.multiply(count, second)
    product_low = emitter.fma(count, second, emitter.negate(product))
    remainder = emitter.add(after_first, product)
    # Exact where the result is the larger, and near enough where most of it cancels.
    low = emitter.add(emitter.subtract(after_first, remainder), product)
    low = emitter.fma(count, third, emitter.add(low, product_low))
    return ReducedAngle(quadrant, remainder, low)


def reduce_float_as_double(emitter: FloatEmitter, angle: ir.Value) -> ReducedAngle:
    """Returns the parts of floats in [0, LARGEST_SMALL_ANGLE_DOUBLE], all lanes at once."""
    builder = emitter.builder
    wide = emitter.at(like(emitter.type, _F64))
    quadrant, remainder = reduce_small_angle(wide, builder.fpext(angle, wide.type))
    return _narrow(emitter, quadrant, remainder)


def _subtract_quarters(
    emitter: FloatEmitter, angle: ir.Value
) -> tuple[tuple[ir.Value, ir.Value], ir.Value]:
    rounder = emitter.constant(emitter.format.rounder)
    shifted = emitter.fma(angle, emitter.constant(_TWO_OVER_PI), rounder)
    count = emitter.subtract(shifted, rounder)
    after_first = emitter.fma(count, _parts(emitter)[0], angle)
    return (emitter.to_bits(shifted), count), after_first


def _parts(emitter: FloatEmitter) -> list[ir.Constant]:
    parts = _HALF_PI_DOUBLE if emitter.is_double else _HALF_PI_FLOAT
    return [emitter.constant(-part) for part in parts]


def reduce_large_angle(emitter: FloatEmitter, angle: ir.Value) -> ReducedAngle:
    """Returns the parts of one scalar angle >= 1, however large; NaN for inf and NaN.

    Numerics: the error is below 2**-52 of the remainder for every double, far less for most.
    """
    builder = emitter.builder
    signature = ir.FunctionType(_REDUCED, [_F64])
    function = internal_function(builder.module, _FUNCTION_NAME, signature, _emit_payne_hanek)
    wide = angle if emitter.is_double else builder.fpext(angle, _F64)
    reduced = builder.call(function, [wide])
    quadrant, remainder, low = (builder.extract_value(reduced, index) for index in range(3))
    if emitter.is_double:
        return ReducedAngle(quadrant, remainder, low)
    return _narrow(emitter, quadrant, remainder)


def _narrow(emitter: FloatEmitter, quadrant: ir.Value, remainder: ir.Value) -> ReducedAngle:
    """Returns the parts of a float's angle, given them as an integer and a double."""
    builder = emitter.builder
    narrow = builder.fptrunc(remainder, emitter.type)
    lost = builder.fsub(remainder, builder.fpext(narrow, remainder.type))
    quadrant = builder.trunc(quadrant, emitter.integer_type)
    return ReducedAngle(quadrant, narrow, builder.fptrunc(lost, emitter.type))


def _emit_payne_hanek(builder: ir.IRBuilder, angle: ir.Value) -> ir.Value:
    emitter = FloatEmitter(builder, _F64)
    bits = emitter.to_bits(angle)
    window = _window(emitter, emitter.shift_right(bits, DOUBLE.mantissa_bits))
    implicit = _i64(1 << DOUBLE.mantissa_bits)
    mantissa = builder.or_(builder.and_(bits, _i64((1 << DOUBLE.mantissa_bits) - 1)), implicit)
    high, low = _multiply_window(builder, mantissa, window)
    # The words hold angle * 2 / pi modulo 4; the upper has units of 2**-62.
    rounded = builder.lshr(builder.add(high, _i64(1 << 61)), _i64(62))
    fraction = _funnel_shift_left(builder, high, low, _i64(2)), builder.shl(low, _i64(2))
    remainder, low = _fraction_to_radians(emitter, *fraction)
    # x - x is NaN for inf and NaN, else 0.
    remainder = emitter.add(remainder, emitter.subtract(angle, angle))
    result = ir.Constant(_REDUCED, ir.Undefined)
    for index, part in enumerate((rounded, remainder, low)):
        result = builder.insert_value(result, part, index)
    return result


def _window(emitter: FloatEmitter, exponent_field: ir.Value) -> list[ir.Value]:
    """Returns three words of 2 / pi, from the first bit whose product is no multiple of 4."""
    builder = emitter.builder
    # The mantissa counts units of 2**(field - bias - 52); bits of weight >= 4 units go; 64 zeros.
    start = builder.sub(exponent_field, _i64(DOUBLE.bias + DOUBLE.mantissa_bits + 2 - 64))
    word = builder.lshr(start, _i64(6))
    shift = builder.and_(start, _i64(63))
    table = _table(builder.module)
    words = [_load_word(builder, table, builder.add(word, _i64(index))) for index in range(4)]
    return [
        _funnel_shift_left(builder, high, low, shift) for high, low in itertools.pairwise(words)
    ]


def _multiply_window(
    builder: ir.IRBuilder, mantissa: ir.Value, window: list[ir.Value]
) -> tuple[ir.Value, ir.Value]:
    """Returns the upper two of the low three words of the product."""
    wide = builder.zext(mantissa, _I128)
    sixty_four = ir.Constant(_I128, 64)
    carry = builder.lshr(builder.mul(wide, builder.zext(window[2], _I128)), sixty_four)
    middle = builder.add(builder.mul(wide, builder.zext(window[1], _I128)), carry)
    high = builder.trunc(builder.lshr(middle, sixty_four), _I64)
    high = builder.add(builder.mul(mantissa, window[0]), high)
    return high, builder.trunc(middle, _I64)


def _fraction_to_radians(
    emitter: FloatEmitter, upper: ir.Value, lower: ir.Value
) -> tuple[ir.Value, ir.Value]:
    """Returns (high, low) of a signed two-word fraction, the upper in units of 2**-64, * pi / 2."""
    builder = emitter.builder
    # The upper 53 bits convert exactly; so do the 64 after them unless the former are all zero.
    high = builder.sitofp(builder.and_(upper, _i64(-1 << 11)), _F64)
    low = builder.uitofp(_funnel_shift_left(builder, upper, lower, _i64(53)), _F64)
    high = emitter.multiply(high, emitter.constant(2.0**-64))
    low = emitter.multiply(low, emitter.constant(2.0**-117))
    total = emitter.add(high, low)
    return _times_half_pi(emitter, total, emitter.add(emitter.subtract(high, total), low))


def _times_half_pi(
    emitter: FloatEmitter, high: ir.Value, low: ir.Value
) -> tuple[ir.Value, ir.Value]:
    first, second = (emitter.constant(part) for part in _HALF_PI_DOUBLE[:2])
    product = emitter.multiply(high, first)
    error = emitter.fma(high, first, emitter.negate(product))
    error = emitter.fma(high, second, error)
    error = emitter.fma(low, first, error)
    remainder = emitter.add(product, error)
    return remainder, emitter.subtract(error, emitter.subtract(remainder, product))


def _funnel_shift_left(
    builder: ir.IRBuilder, high: ir.Value, low: ir.Value, count: ir.Value
) -> ir.Value:
    """Returns the upper word of two, shifted to the left by fewer than 64 bits."""
    function = builder.module.globals.get("llvm.fshl.i64")
    if function is None:
        signature = ir.FunctionType(_I64, [_I64] * 3)
        function = ir.Function(builder.module, signature, "llvm.fshl.i64")
    return builder.call(function, [high, low, count])


def _load_word(builder: ir.IRBuilder, table: ir.GlobalVariable, index: ir.Value) -> ir.Value:
    return builder.load(builder.gep(table, [_i64(0), index], inbounds=True))


def _table(module: ir.Module) -> ir.GlobalVariable:
    table = module.globals.get(_TABLE_NAME)
    if table is None:
        type_ = ir.ArrayType(_I64, len(_TWO_OVER_PI_WORDS))
        table = ir.GlobalVariable(module, type_, _TABLE_NAME)
        table.initializer = ir.Constant(type_, list(_TWO_OVER_PI_WORDS))
        table.global_constant = True
        table.linkage = "internal"
    return table


def _i64(value: int) -> ir.Constant:
    return ir.Constant(_I64, value)
