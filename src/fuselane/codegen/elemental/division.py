"""Division and remainder: integers with XLA's edge cases, floats exactly, lanes together."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, final

from llvmlite import ir

from fuselane.codegen.loops import emit_choice, emit_switch, emit_while_loop
from fuselane.codegen.math.approximate import of_each
from fuselane.codegen.math.rare import internal_function
from fuselane.codegen.types import (
    any_lane,
    call_intrinsic,
    constant_value,
    float_constant,
    integer_constant,
    is_vector,
    like,
    overload_suffix,
    scalar_type,
    vector_of,
)


def emit_divide(
    builder: ir.IRBuilder, is_signed: bool, dividend: ir.Value, divisor: ir.Value
) -> ir.Value:
    """Divides integers, rounding towards zero; see `emit_integer` for the edge cases."""
    if _is_harmless(divisor, is_signed):
        return (builder.sdiv if is_signed else builder.udiv)(dividend, divisor)
    safe, is_zero = _safe_divisor(builder, dividend, divisor, is_signed)
    if _goes_through_doubles(dividend):
        quotient = _emit_wide(builder, "divide", is_signed, dividend, safe)
    else:
        quotient = _quotient(builder, dividend, safe, is_signed)
    return builder.select(is_zero, integer_constant(dividend.type, -1), quotient)


def emit_remainder(
    builder: ir.IRBuilder, is_signed: bool, dividend: ir.Value, divisor: ir.Value
) -> ir.Value:
    """Returns the remainder of `emit_divide`, with the dividend's sign."""
    if _is_harmless(divisor, is_signed):
        return (builder.srem if is_signed else builder.urem)(dividend, divisor)
    safe, is_zero = _safe_divisor(builder, dividend, divisor, is_signed)
    if _goes_through_doubles(dividend):
        remainder = _emit_wide(builder, "remainder", is_signed, dividend, safe)
    else:
        quotient = _quotient(builder, dividend, safe, is_signed)
        remainder = builder.sub(dividend, builder.mul(quotient, safe))
    return builder.select(is_zero, dividend, remainder)


def _is_harmless(divisor: ir.Value, is_signed: bool) -> bool:
    """Says whether a divisor is a constant with which nothing can go wrong."""
    known = constant_value(divisor)
    minus_one = (1 << scalar_type(divisor).width) - 1
    return known is not None and known != 0 and not (is_signed and known == minus_one)


def _safe_divisor(
    builder: ir.IRBuilder, dividend: ir.Value, divisor: ir.Value, is_signed: bool
) -> tuple[ir.Value, ir.Value]:
    """Returns the divisor with 1 in place of what would trap, and whether it was zero."""
    type_ = divisor.type
    is_zero = builder.icmp_unsigned("==", divisor, integer_constant(type_, 0))
    traps = is_zero
    if is_signed:
        least = integer_constant(type_, 1 << (scalar_type(type_).width - 1))
        overflows = builder.and_(
            builder.icmp_unsigned("==", dividend, least),
            builder.icmp_unsigned("==", divisor, integer_constant(type_, -1)),
        )
        traps = builder.or_(is_zero, overflows)
    return builder.select(traps, integer_constant(type_, 1), divisor), is_zero


def _quotient(
    builder: ir.IRBuilder, dividend: ir.Value, divisor: ir.Value, is_signed: bool
) -> ir.Value:
    """Divides by a divisor that cannot trap.

    Vectors of up to 32 bits go through floats, since CPUs divide no integer vectors. That is exact:
    a quotient that is no integer is at least 1 / dividend (relative) away from the next one, which
    is more than the float's rounding error.
    """
    bits = scalar_type(dividend).width
    if not is_vector(dividend) or bits > 32:
        return (builder.sdiv if is_signed else builder.udiv)(dividend, divisor)
    floating = like(dividend, ir.FloatType() if bits <= 16 else ir.DoubleType())
    to_float = builder.sitofp if is_signed else builder.uitofp
    quotient = builder.fdiv(to_float(dividend, floating), to_float(divisor, floating))
    return (builder.fptosi if is_signed else builder.fptoui)(quotient, dividend.type)


_INSTRUCTIONS: Final = {"divide": "div", "remainder": "rem"}
_MAGIC: Final = 1.5 * 2.0**52
_MAGIC_BITS: Final = 0x4338000000000000
"""Of _MAGIC. Added to an integer below 2**51 in magnitude, they are the bits of _MAGIC plus it."""
_EXACT_BITS: Final = 51
_LOW_BITS: Final = 13
"""What is left of 64 bits."""
_DIVISOR_BITS: Final = 50
_HALF_BITS: Final = 32
_USUAL_WEIGHT: Final = 100


def _goes_through_doubles(dividend: ir.Value) -> bool:
    return is_vector(dividend) and scalar_type(dividend).width == 64


def _emit_wide(
    builder: ir.IRBuilder, opcode: str, is_signed: bool, dividend: ir.Value, divisor: ir.Value
) -> ir.Value:
    """Divides vectors of 64 bits by divisors that cannot trap.

    They go through doubles, several times as fast as one by one: with one division where all are
    below 2**51 in magnitude, with two where divisors are below 2**50. A vector with a larger
    divisor is divided lane by lane.
    """
    instruction = ("s" if is_signed else "u") + _INSTRUCTIONS[opcode]

    def divide_lanes() -> list[ir.Value]:
        return [getattr(builder, instruction)(dividend, divisor)]

    def divide_doubles() -> list[ir.Value]:
        """A quotient rounded to a double is on its integer's right side, as in `_quotient`, and a
        remainder is exact with one FMA."""
        x, y = _to_doubles(builder, dividend), _to_doubles(builder, divisor)
        result = call_intrinsic(builder, "llvm.trunc", [builder.fdiv(x, y)])
        if opcode == "remainder":
            result = call_intrinsic(builder, "llvm.fma", [builder.fneg(result), y, x])
        return [_from_doubles(builder, result, dividend.type)]

    def divide_large() -> list[ir.Value]:
        is_large = _is_any_large(builder, is_signed, _DIVISOR_BITS, [divisor])
        sides = [divide_lanes, lambda: [_emit_twice(builder, opcode, is_signed, dividend, divisor)]]
        return emit_switch(builder, is_large, [1], sides, [_USUAL_WEIGHT, 1])

    (result,) = emit_switch(
        builder,
        _is_any_large(builder, is_signed, _EXACT_BITS, [dividend, divisor]),
        [1],
        [divide_large, divide_doubles],
        [_USUAL_WEIGHT, 1],
    )
    return result


def _emit_twice(
    builder: ir.IRBuilder, opcode: str, is_signed: bool, dividend: ir.Value, divisor: ir.Value
) -> ir.Value:
    """Divides any integers by divisors below 2**50 in magnitude, as doubles.

    The upper 51 bits of the dividend are a double. Their rounded quotient leaves of them no more
    than the divisor and 2**12, exactly by one FMA; with the lower bits that is again below 2**51,
    and its own quotient, rounded down, leaves the remainder.
    """
    x, x_sign = _split_sign(builder, dividend, is_signed)
    y, y_sign = _split_sign(builder, divisor, is_signed)
    shift = integer_constant(x.type, _LOW_BITS)
    divisors = _to_doubles(builder, y)
    upper = _to_doubles(builder, builder.lshr(x, shift))
    upper = builder.fmul(upper, float_constant(upper.type, 2.0**_LOW_BITS))
    lower = _to_doubles(builder, builder.and_(x, integer_constant(x.type, (1 << _LOW_BITS) - 1)))

    def divide(left: ir.Value, rounding: str) -> tuple[ir.Value, ir.Value]:
        quotient = call_intrinsic(builder, rounding, [builder.fdiv(left, divisors)])
        negative = builder.fneg(quotient)
        return quotient, call_intrinsic(builder, "llvm.fma", [negative, divisors, left])

    first, rest = divide(upper, "llvm.trunc")
    second, rest = divide(builder.fadd(rest, lower), "llvm.floor")
    if opcode == "remainder":
        return _with_sign(builder, _from_doubles(builder, rest, x.type), x_sign)
    result = _large_from_doubles(builder, first, x.type)
    result = builder.add(result, _from_doubles(builder, second, x.type))
    sign = builder.xor(x_sign, y_sign) if x_sign is not None and y_sign is not None else None
    return _with_sign(builder, result, sign)


def _split_sign(
    builder: ir.IRBuilder, value: ir.Value, is_signed: bool
) -> tuple[ir.Value, ir.Value | None]:
    """Returns the magnitude of an integer, and -1 where it is negative and 0 elsewhere."""
    if not is_signed:
        return value, None
    sign = builder.ashr(value, integer_constant(value.type, scalar_type(value).width - 1))
    return _with_sign(builder, value, sign), sign


def _with_sign(builder: ir.IRBuilder, value: ir.Value, sign: ir.Value | None) -> ir.Value:
    """Returns the negative of an integer where `sign` is -1."""
    return value if sign is None else builder.sub(builder.xor(value, sign), sign)


def _is_any_large(
    builder: ir.IRBuilder, is_signed: bool, bits: int, values: Sequence[ir.Value]
) -> ir.Value:
    """Returns an `i1`: whether a lane of any is not below 2**`bits` in magnitude."""
    if is_signed:
        offset = integer_constant(values[0].type, 1 << bits)
        values, bits = [builder.add(value, offset) for value in values], bits + 1
    some = functools.reduce(builder.or_, values)
    high = builder.and_(some, integer_constant(some.type, -1 << bits))
    return any_lane(builder, builder.icmp_unsigned("!=", high, integer_constant(high.type, 0)))


def _to_doubles(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
    """Converts 64-bit integers below 2**51 in magnitude; others to anything."""
    doubles = like(value, ir.DoubleType())
    shifted = builder.add(value, integer_constant(value.type, _MAGIC_BITS))
    return builder.fsub(builder.bitcast(shifted, doubles), float_constant(doubles, _MAGIC))


def _from_doubles(builder: ir.IRBuilder, value: ir.Value, type_: ir.Type) -> ir.Value:
    """Converts what `_to_doubles` returned back."""
    shifted = builder.fadd(value, float_constant(value.type, _MAGIC))
    return builder.sub(builder.bitcast(shifted, type_), integer_constant(type_, _MAGIC_BITS))


def _large_from_doubles(builder: ir.IRBuilder, value: ir.Value, type_: ir.Type) -> ir.Value:
    """Converts integers from 0 to 2**64, half by half; 2**64 to 0."""
    high = builder.fmul(value, float_constant(value.type, 2.0**-_HALF_BITS))
    high = call_intrinsic(builder, "llvm.trunc", [high])
    size = float_constant(value.type, 2.0**_HALF_BITS)
    low = call_intrinsic(builder, "llvm.fma", [builder.fneg(high), size, value])
    shift = integer_constant(type_, _HALF_BITS)
    shifted = builder.shl(_from_doubles(builder, high, type_), shift)
    return builder.add(shifted, _from_doubles(builder, low, type_))


_EXACT_DIVISION: Final = "llvm.nvvm.div.rn.f"


@final
@dataclass(frozen=True, slots=True)
class _FloatFormat:
    mantissa_bits: int
    min_exponent: int
    max_finite: float
    integer: ir.Type

    @property
    def tiny(self) -> float:
        """What is smaller has multiples of its last bit that are denormal."""
        return 2.0 ** (self.min_exponent + self.mantissa_bits)


_FORMATS: Final = {
    "float": _FloatFormat(23, -126, 3.4028234663852886e38, ir.IntType(32)),
    "double": _FloatFormat(52, -1022, 1.7976931348623157e308, ir.IntType(64)),
}


def define_exact_quotients(module: ir.Module, width: int) -> None:
    """Has remainders of F32 divide exactly in a module whose other divisions do not: a GPU's
    quotients are off by up to 2 ulp, and would come out one too small.

    Args:
        module: One in which no code has been emitted yet.
        width: Lanes of its vectors.
    """

    float_ = ir.FloatType()
    exact = ir.Function(module, ir.FunctionType(float_, [float_, float_]), _EXACT_DIVISION)
    for type_ in {float_, vector_of(float_, width)}:
        name, signature = _quotient_name(type_), ir.FunctionType(type_, [type_, type_])
        body = of_each(lambda builder, x, y: builder.call(exact, [x, y]))
        internal_function(module, name, signature, body, is_inlined=True)


def _quotient_name(type_: ir.Type) -> str:
    return f"fuselane.quotient.{overload_suffix(type_)}"


def _divide(builder: ir.IRBuilder, x: ir.Value, y: ir.Value) -> ir.Value:
    """Returns x / y, rounded to nearest."""
    function = builder.module.globals.get(_quotient_name(x.type))
    return builder.fdiv(x, y) if function is None else builder.call(function, [x, y])


def emit_float_remainder(builder: ir.IRBuilder, dividend: ir.Value, divisor: ir.Value) -> ir.Value:
    """Returns the C library's fmod of two F32 or F64 values, exactly, without calling it.

    Where the quotient fits the mantissa, x - trunc(x / y) * y is exact with one FMA: the quotient
    may come out one too large, never too small, and the result is a multiple of y's last bit. A
    vector with a larger quotient in some lane, or with so small a divisor that such multiples might
    be flushed before the quotient is put right, branches to a loop that divides by y scaled up by
    powers of two. Denormal operands count as zero and results are flushed, as in XLA:CPU.
    """
    type_ = dividend.type
    name = f"fuselane.remainder.{overload_suffix(type_)}"
    signature = ir.FunctionType(type_, [type_, type_])
    function = internal_function(
        builder.module, name, signature, _emit_float_remainder, is_inlined=True
    )
    return builder.call(function, [dividend, divisor])


def _emit_float_remainder(builder: ir.IRBuilder, dividend: ir.Value, divisor: ir.Value) -> ir.Value:
    x = call_intrinsic(builder, "llvm.fabs", [dividend])
    y = call_intrinsic(builder, "llvm.fabs", [divisor])
    floats = _FORMATS[str(scalar_type(x))]
    limit = float_constant(x.type, 2.0**floats.mantissa_bits)
    quotient = call_intrinsic(builder, "llvm.trunc", [_divide(builder, x, y)])
    direct = _subtract_multiple(builder, x, y, quotient)
    is_tiny = builder.fcmp_ordered("<", y, float_constant(x.type, floats.tiny))
    is_large = builder.fcmp_ordered(">=", quotient, limit)
    is_rare = any_lane(builder, builder.or_(is_large, is_tiny))
    name = f"fuselane.remainder.large.{overload_suffix(x.type)}"
    signature = ir.FunctionType(x.type, [x.type] * 3)
    stepwise = internal_function(builder.module, name, signature, _reduce_stepwise)
    (result,) = emit_choice(
        builder, is_rare, lambda: [builder.call(stepwise, [x, y, direct])], [direct]
    )
    return call_intrinsic(builder, "llvm.copysign", [result, dividend])


def _subtract_multiple(
    builder: ir.IRBuilder, x: ir.Value, y: ir.Value, quotient: ir.Value
) -> ir.Value:
    """Returns x - quotient * y for a quotient that is right or one too large; x for infinite y."""
    largest = float_constant(x.type, _FORMATS[str(scalar_type(x))].max_finite)
    finite = builder.select(builder.fcmp_ordered(">", y, largest), largest, y)
    rest = call_intrinsic(builder, "llvm.fma", [builder.fneg(quotient), finite, x])
    is_negative = builder.fcmp_ordered("<", rest, float_constant(x.type, 0.0))
    return builder.select(is_negative, builder.fadd(rest, finite), rest)


def _reduce_stepwise(
    builder: ir.IRBuilder, x: ir.Value, y: ir.Value, otherwise: ir.Value
) -> ir.Value:
    """Returns fmod(x, y), neither negative; `otherwise` where y is 0 or x not finite."""
    infinity = float_constant(x.type, float("inf"))
    zero = float_constant(x.type, 0.0)
    is_regular = builder.and_(
        builder.fcmp_ordered("<", x, infinity), builder.fcmp_ordered(">", y, zero)
    )
    start = builder.select(is_regular, x, zero)

    def is_running(values: list[ir.Value]) -> ir.Value:
        return any_lane(builder, builder.fcmp_ordered(">=", values[0], y))

    floats = _FORMATS[str(scalar_type(x))]
    one, up, down = (
        float_constant(x.type, 2.0**power)
        for power in (0, floats.mantissa_bits, -floats.mantissa_bits)
    )

    def step(values: list[ir.Value]) -> list[ir.Value]:
        rest = values[0]
        scaled = _scale_towards(builder, y, rest)
        quotient = call_intrinsic(builder, "llvm.trunc", [_divide(builder, rest, scaled)])
        is_tiny = builder.fcmp_ordered("<", scaled, float_constant(x.type, floats.tiny))
        factor = builder.select(is_tiny, up, one)
        following = _subtract_multiple(
            builder, builder.fmul(rest, factor), builder.fmul(scaled, factor), quotient
        )
        following = builder.fmul(following, builder.select(is_tiny, down, one))
        return [builder.select(builder.fcmp_ordered(">=", rest, y), following, rest)]

    (rest,) = emit_while_loop(builder, [start], is_running, step, name="remainder")
    return builder.select(is_regular, rest, otherwise)


def _scale_towards(builder: ir.IRBuilder, y: ir.Value, rest: ir.Value) -> ir.Value:
    """Returns y times the least power of two with which rest / y fits the mantissa; y > 0."""
    floats = _FORMATS[str(scalar_type(y))]
    integer = like(y, floats.integer)
    shift = integer_constant(integer, floats.mantissa_bits)
    bits = builder.bitcast(y, integer)
    distance = builder.sub(
        builder.lshr(builder.bitcast(rest, integer), shift), builder.lshr(bits, shift)
    )
    excess = builder.sub(distance, integer_constant(integer, floats.mantissa_bits - 1))
    steps = call_intrinsic(builder, "llvm.smax", [excess, integer_constant(integer, 0)])
    return builder.bitcast(builder.add(bits, builder.shl(steps, shift)), y.type)
