"""Conversions between element types, and the way small floats are computed with."""

from __future__ import annotations

from llvmlite import ir

from fuselane.codegen.types import (
    constant,
    float_constant,
    integer_constant,
    is_vector,
    like,
    llvm_type,
    width_of,
)
from fuselane.errors import CodegenError
from fuselane.hlo.shape import PrimitiveType

_SMALL_FLOATS = frozenset({PrimitiveType.F16, PrimitiveType.BF16})
_NARROW_BITS = 16


def is_small_float(element_type: PrimitiveType) -> bool:
    """Says whether values of the type are widened to F32 to be computed with."""
    return element_type in _SMALL_FLOATS


def emit_convert(
    builder: ir.IRBuilder, value: ir.Value, source: PrimitiveType, target: PrimitiveType
) -> ir.Value:
    """Converts between any two of PRED, integers and floats, as XLA:CPU does.

    To PRED: whether the value is not zero (NaN is not). Integer to integer: wraps. Float to
    integer: truncates, saturates; NaN gives 0. To F16 and BF16: by way of F32, so a value of F64 or
    a wide integer is rounded twice, as XLA:CPU does it; everything else is rounded once, to
    nearest even.
    """
    if source is target:
        return value
    if target is PrimitiveType.PRED:
        return _convert_to_pred(builder, value, source)
    if source.is_floating and target.is_floating:
        return _convert_float(builder, value, source, target)
    if source.is_floating:
        return _convert_float_to_integer(builder, value, source, target)
    if target.is_floating:
        return _convert_integer_to_float(builder, value, source, target)
    return _convert_integer(builder, value, source, target)


def emit_bitcast_convert(builder: ir.IRBuilder, value: ir.Value, target: PrimitiveType) -> ir.Value:
    """Reads the bits of a value as another type of the same width.

    Raises:
        CodegenError: if the widths differ, which changes the array's shape, or a type is PRED.
    """
    type_ = like(value, llvm_type(target))
    if _register_bits(value.type) != _register_bits(type_):
        raise CodegenError(f"A bitcast-convert to {target.lower} has to keep the element's width.")
    return value if value.type == type_ else builder.bitcast(value, type_)


def widen_small_float(
    builder: ir.IRBuilder, value: ir.Value, element_type: PrimitiveType
) -> ir.Value:
    """Returns an F16 or BF16 value as F32, exactly; other types unchanged."""
    single = like(value, ir.FloatType())
    if element_type is PrimitiveType.F16:
        return builder.fpext(value, single)
    if element_type is PrimitiveType.BF16:
        word = like(value, ir.IntType(32))
        high = builder.shl(builder.zext(value, word), integer_constant(word, 16))
        return builder.bitcast(high, single)
    return value


def narrow_small_float(
    builder: ir.IRBuilder, value: ir.Value, element_type: PrimitiveType
) -> ir.Value:
    """Returns an F32 value rounded to F16 or BF16, to nearest even; for other types unchanged."""
    if element_type is PrimitiveType.F16:
        return builder.fptrunc(value, like(value, ir.HalfType()))
    if element_type is PrimitiveType.BF16:
        return _round_to_bfloat16(builder, value)
    return value


def _round_to_bfloat16(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
    """Rounds by adding just less than half a unit, plus one where the last kept bit is odd."""
    word = like(value, ir.IntType(32))
    bits = builder.bitcast(value, word)
    sixteen = integer_constant(word, 16)
    odd = builder.and_(builder.lshr(bits, sixteen), integer_constant(word, 1))
    rounded = builder.add(builder.add(bits, odd), integer_constant(word, 0x7FFF))
    is_nan = builder.fcmp_unordered("uno", value, value)
    quiet = builder.or_(bits, integer_constant(word, 0x400000))
    kept = builder.lshr(builder.select(is_nan, quiet, rounded), sixteen)
    return builder.trunc(kept, like(value, ir.IntType(16)))


def _convert_to_pred(builder: ir.IRBuilder, value: ir.Value, source: PrimitiveType) -> ir.Value:
    if source is PrimitiveType.BF16:
        # As XLA:CPU's code turns out to do it: a denormal is not zero here, unlike one of F32.
        value = builder.and_(value, integer_constant(value.type, 0x7FFF))
    elif source.is_floating:
        wide = widen_small_float(builder, value, source)
        return builder.fcmp_unordered("!=", wide, float_constant(wide.type, 0.0))
    return builder.icmp_unsigned("!=", value, integer_constant(value.type, 0))


def _convert_integer(
    builder: ir.IRBuilder, value: ir.Value, source: PrimitiveType, target: PrimitiveType
) -> ir.Value:
    type_ = like(value, llvm_type(target))
    if source is PrimitiveType.PRED or source.bits < target.bits:
        return (builder.sext if source.is_signed else builder.zext)(value, type_)
    return builder.trunc(value, type_) if source.bits > target.bits else value


def _convert_float(
    builder: ir.IRBuilder, value: ir.Value, source: PrimitiveType, target: PrimitiveType
) -> ir.Value:
    wide = widen_small_float(builder, value, source)
    if target is PrimitiveType.F64:
        return builder.fpext(wide, like(value, ir.DoubleType()))
    if source is PrimitiveType.F64:
        wide = builder.fptrunc(wide, like(value, ir.FloatType()))
    return narrow_small_float(builder, wide, target)


def _convert_float_to_integer(
    builder: ir.IRBuilder, value: ir.Value, source: PrimitiveType, target: PrimitiveType
) -> ir.Value:
    """Converts and then replaces what was out of range; where floats have the bounds, brings into
    range and then converts, since fewer lanes fit into registers before.

    LLVM has an intrinsic for it, but takes vectors apart for that (LLVM 22, x86-64).
    """
    wide = widen_small_float(builder, value, source)
    type_ = like(value, llvm_type(target))
    if target.bits <= _NARROW_BITS:
        bounded = _bring_into_range(builder, wide, target)
        return (builder.fptosi if target.is_signed else builder.fptoui)(bounded, type_)
    zero = integer_constant(type_, 0)
    num_value_bits = target.bits - 1 if target.is_signed else target.bits
    most = integer_constant(type_, (1 << num_value_bits) - 1)
    limit = float_constant(wide.type, 2.0**num_value_bits)
    truncated = (builder.fptosi if target.is_signed else builder.fptoui)(wide, type_)
    result = builder.select(builder.fcmp_ordered(">=", wide, limit), most, truncated)
    if not target.is_signed:
        is_positive = builder.fcmp_ordered(">", wide, float_constant(wide.type, 0.0))
        return builder.select(is_positive, result, zero)
    is_low = builder.fcmp_ordered("<", wide, float_constant(wide.type, -(2.0**num_value_bits)))
    result = builder.select(is_low, integer_constant(type_, 1 << num_value_bits), result)
    return builder.select(builder.fcmp_unordered("uno", wide, wide), zero, result)


def _bring_into_range(builder: ir.IRBuilder, value: ir.Value, target: PrimitiveType) -> ir.Value:
    """Returns a float between the bounds of an integer type, 0 for NaN."""
    least = -(2 ** (target.bits - 1)) if target.is_signed else 0
    low, high = (float_constant(value.type, float(n)) for n in (least, least + 2**target.bits - 1))
    is_number = builder.fcmp_ordered("ord", value, value)
    value = builder.select(is_number, value, float_constant(value.type, 0.0))
    value = builder.select(builder.fcmp_ordered(">", value, low), value, low)
    return builder.select(builder.fcmp_ordered("<", value, high), value, high)


def _convert_integer_to_float(
    builder: ir.IRBuilder, value: ir.Value, source: PrimitiveType, target: PrimitiveType
) -> ir.Value:
    if source is PrimitiveType.PRED:
        width = width_of(value)
        return builder.select(value, constant(target, 1, width), constant(target, 0, width))
    computed = ir.DoubleType() if target is PrimitiveType.F64 else ir.FloatType()
    convert = builder.sitofp if source.is_signed else builder.uitofp
    return narrow_small_float(builder, convert(value, like(value, computed)), target)


def _register_bits(type_: ir.Type) -> int:
    scalar = type_.element if is_vector(type_) else type_
    if isinstance(scalar, ir.IntType):
        return int(scalar.width)
    return {"half": 16, "float": 32, "double": 64}[str(scalar)]
