"""LLVM types and constants for XLA's element types, for scalars and for vectors of lanes alike.

A value of one element type has two forms. In registers a PRED is `i1`, an integer `iN`, F16 `half`,
BF16 its bit pattern in `i16`, F32 `float`, F64 `double`. In memory a PRED takes a byte; everything
else looks the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import final

import numpy as np
from llvmlite import ir

from fuselane.errors import CodegenError
from fuselane.hlo.shape import PrimitiveType

_REGISTER_TYPES: dict[PrimitiveType, ir.Type] = {
    PrimitiveType.PRED: ir.IntType(1),
    PrimitiveType.S8: ir.IntType(8),
    PrimitiveType.S16: ir.IntType(16),
    PrimitiveType.S32: ir.IntType(32),
    PrimitiveType.S64: ir.IntType(64),
    PrimitiveType.U8: ir.IntType(8),
    PrimitiveType.U16: ir.IntType(16),
    PrimitiveType.U32: ir.IntType(32),
    PrimitiveType.U64: ir.IntType(64),
    PrimitiveType.F16: ir.HalfType(),
    PrimitiveType.BF16: ir.IntType(16),
    PrimitiveType.F32: ir.FloatType(),
    PrimitiveType.F64: ir.DoubleType(),
}

_FLOAT_BITS: dict[PrimitiveType, type[np.unsignedinteger]] = {
    PrimitiveType.F16: np.uint16,
    PrimitiveType.BF16: np.uint16,
    PrimitiveType.F32: np.uint32,
    PrimitiveType.F64: np.uint64,
}

# Keyed by text because all of llvmlite's vector types have the same hash.
_vector_types: dict[tuple[str, int], ir.VectorType] = {}

# Making a constant costs more than adding an instruction. Keys hold a float as text, since 0 == -0.
_number_constants: dict[tuple[str, int | str], ir.Constant] = {}
_MAX_NUMBER_CONSTANTS = 4096

_FLOAT_TYPES = {
    "half": PrimitiveType.F16,
    "float": PrimitiveType.F32,
    "double": PrimitiveType.F64,
}
_INTRINSIC_SUFFIXES = {"half": "f16", "float": "f32", "double": "f64"}


@final
class TextConstant(ir.Constant):  # type: ignore[misc]
    """A constant with its own spelling in IR text, where llvmlite has none or a long one.

    `constant` keeps llvmlite's meaning: an int for an integer, a tuple of equal scalar constants
    for a splat.
    """

    def __init__(self, type_: ir.Type, text: str, value: object) -> None:
        self.type = type_
        self.constant = value
        self._text = text

    def _get_reference(self) -> str:
        return self._text


def llvm_type(element_type: PrimitiveType) -> ir.Type:
    """Returns the type of one `element_type` value in a register.

    Raises:
        CodegenError: if no kernel can hold the type (complex, tuple, token, 4- and 8-bit floats).
    """
    try:
        return _REGISTER_TYPES[element_type]
    except KeyError:
        raise CodegenError(f"Kernels cannot hold values of type {element_type.lower}.") from None


def memory_type(element_type: PrimitiveType) -> ir.Type:
    """Returns the type of one value in memory: a byte for PRED, else the register type."""
    return ir.IntType(8) if element_type is PrimitiveType.PRED else llvm_type(element_type)


def vector_of(scalar: ir.Type, width: int) -> ir.Type:
    """Returns the vector of `width` lanes of `scalar`, or `scalar` itself when width is 0 or 1."""
    if width < 2:
        return scalar
    key = (str(scalar), width)
    vector = _vector_types.get(key)
    if vector is None:
        vector = _vector_types[key] = ir.VectorType(scalar, width)
    return vector


def is_vector(value: ir.Value | ir.Type) -> bool:
    """Says whether a value, or a type, is a vector."""
    return isinstance(value if isinstance(value, ir.Type) else value.type, ir.VectorType)


def width_of(value: ir.Value | ir.Type) -> int:
    """Returns the number of lanes of a value or type, 0 for a scalar."""
    type_ = value if isinstance(value, ir.Type) else value.type
    return type_.count if isinstance(type_, ir.VectorType) else 0


def scalar_type(value: ir.Value | ir.Type) -> ir.Type:
    """Returns the type of one lane of a value or type."""
    type_ = value if isinstance(value, ir.Type) else value.type
    return type_.element if isinstance(type_, ir.VectorType) else type_


def like(value: ir.Value | ir.Type, scalar: ir.Type) -> ir.Type:
    """Returns `scalar` with as many lanes as `value` has."""
    return vector_of(scalar, width_of(value))


def splat_constant(scalar: ir.Constant, width: int) -> ir.Constant:
    """Returns a constant of `width` equal lanes, or the scalar itself when width is 0 or 1."""
    if width < 2:
        return scalar
    text = f"splat ({scalar.type} {scalar.get_reference()})"
    return TextConstant(vector_of(scalar.type, width), text, (scalar,) * width)


def integer_constant(type_: ir.Type, value: int) -> ir.Constant:
    """Returns `value`, wrapped to the type's bits, as a constant of integer (vector) type."""
    key = (str(type_), value)
    known = _number_constants.get(key)
    if known is None:
        scalar = scalar_type(type_)
        wrapped = value & ((1 << scalar.width) - 1)
        known = splat_constant(ir.Constant(scalar, wrapped), width_of(type_))
        _remember(key, known)
    return known


def float_constant(type_: ir.Type, value: float) -> ir.Constant:
    """Returns `value`, rounded, as a constant of half, float or double (vector) type."""
    key = (str(type_), value.hex())
    known = _number_constants.get(key)
    if known is None:
        element_type = _FLOAT_TYPES[str(scalar_type(type_))]
        known = constant(element_type, value, width_of(type_))
        _remember(key, known)
    return known


def _remember(key: tuple[str, int | str], value: ir.Constant) -> None:
    if len(_number_constants) >= _MAX_NUMBER_CONSTANTS:
        _number_constants.clear()
    _number_constants[key] = value


def constant(element_type: PrimitiveType, value: object, width: int = 0) -> ir.Constant:
    """Returns a numpy or Python scalar as a constant in register form, in `width` lanes if not 0.

    Numerics: exact bits, NaN payloads included; a Python scalar is converted by numpy.
    """
    type_ = llvm_type(element_type)
    if element_type is PrimitiveType.PRED:
        scalar = ir.Constant(type_, int(bool(value)))
    elif element_type in _FLOAT_BITS:
        scalar = _float_scalar(element_type, type_, value)
    else:
        wrapped = int(np.asarray(value)) & ((1 << element_type.bits) - 1)
        scalar = ir.Constant(type_, wrapped)
    return splat_constant(scalar, width)


def _float_scalar(element_type: PrimitiveType, type_: ir.Type, value: object) -> ir.Constant:
    array = np.asarray(value).astype(element_type.dtype)
    bits = int(array.view(_FLOAT_BITS[element_type]))
    if element_type is PrimitiveType.BF16:
        return ir.Constant(type_, bits)
    if element_type is PrimitiveType.F16:
        return TextConstant(type_, f"0xH{bits:04X}", float(array))
    # LLVM spells a float as the double of the same value; widening by hand keeps NaN payloads.
    pattern = _widen_float_bits(bits, float(array)) if element_type is PrimitiveType.F32 else bits
    return TextConstant(type_, f"0x{pattern:016X}", float(array))


def _widen_float_bits(bits: int, value: float) -> int:
    if math.isnan(value):
        return (bits >> 31) << 63 | 0x7FF << 52 | (bits & 0x7FFFFF) << 29
    return int(np.float64(value).view(np.uint64))


def constant_value(value: ir.Value) -> int | float | None:
    """Returns the number every lane of a constant holds, None if no constant or lanes differ.

    Integers come back as unsigned bit patterns of their type.
    """
    if not isinstance(value, ir.Constant):
        return None
    number = value.constant
    if number is None:
        return 0
    if isinstance(number, (list, tuple)):
        first = number[0] if number else None
        if any(lane is not first and lane != first for lane in number):
            return None
        return constant_value(first)
    if isinstance(number, bool):
        return int(number)
    if isinstance(number, int):
        scalar = scalar_type(value)
        return number & ((1 << scalar.width) - 1) if isinstance(scalar, ir.IntType) else number
    return number if isinstance(number, float) else None


def shuffle(
    builder: ir.IRBuilder, left: ir.Value, right: ir.Value, places: Iterable[int]
) -> ir.Value:
    """Returns the lanes at some places of two vectors, those of the second one counted on."""
    return builder.shuffle_vector(left, right, _places_constant(tuple(places)))


def join(builder: ir.IRBuilder, parts: Sequence[ir.Value]) -> ir.Value:
    """Returns one vector that holds several of a length, one after the other.

    The last one is repeated until there are as many as a power of two.
    """
    joined = list(parts)
    while len(joined) > 1:
        if len(joined) % 2:
            joined.append(joined[-1])
        places = range(2 * width_of(joined[0]))
        joined = [
            shuffle(builder, left, right, places)
            for left, right in zip(joined[::2], joined[1::2], strict=True)
        ]
    return joined[0]


@lru_cache(maxsize=4096)
def _places_constant(places: tuple[int, ...]) -> ir.Constant:
    index = ir.IntType(32)
    text = f"<{', '.join(f'i32 {place}' for place in places)}>"
    values = tuple(ir.Constant(index, place) for place in places)
    return TextConstant(vector_of(index, len(places)), text, values)


def splat(builder: ir.IRBuilder, scalar: ir.Value, width: int) -> ir.Value:
    """Returns a vector of `width` lanes that all hold `scalar`; `scalar` when width is 0 or 1."""
    if width < 2:
        return scalar
    if isinstance(scalar, ir.Constant):
        return splat_constant(scalar, width)
    vector = vector_of(scalar.type, width)
    poison = TextConstant(vector, "poison", None)
    index = ir.IntType(32)
    first = builder.insert_element(poison, scalar, ir.Constant(index, 0))
    zero = (ir.Constant(index, 0),)
    all_first = TextConstant(vector_of(index, width), "zeroinitializer", zero * width)
    return builder.shuffle_vector(first, poison, all_first)


def join_scalars(builder: ir.IRBuilder, scalars: Sequence[ir.Value]) -> ir.Value:
    """Returns a vector of some scalars; the scalar itself if it is the only one."""
    if len(scalars) == 1:
        return scalars[0]
    vector = vector_of(scalars[0].type, len(scalars))
    joined: ir.Value = TextConstant(vector, "poison", None)
    for lane, scalar in enumerate(scalars):
        joined = builder.insert_element(joined, scalar, ir.Constant(ir.IntType(32), lane))
    return joined


def call_intrinsic(
    builder: ir.IRBuilder,
    name: str,
    operands: Sequence[ir.Value],
    result_type: ir.Type | None = None,
    flags: Sequence[str] = (),
) -> ir.Value:
    """Calls the LLVM intrinsic `name` ("llvm.fma"), overloaded on the type of its first operand.

    Args:
        builder: Positioned in a function of a module; the declaration is added to that module once.
        name: Without the suffix for that type; one overloaded on its result type too has to bring
            `overload_suffix` of that.
        operands: At least one value.
        result_type: Defaults to the type of the first operand.
        flags: Fast-math flags for the call.
    """
    type_ = operands[0].type
    result = type_ if result_type is None else result_type
    full_name = f"{name}.{overload_suffix(type_)}"
    return builder.call(_declared(builder, full_name, result, operands), operands, fastmath=flags)


def _declared(
    builder: ir.IRBuilder, name: str, result: ir.Type, operands: Sequence[ir.Value]
) -> ir.Function:
    declared = builder.module.globals.get(name)
    if declared is None:
        signature = ir.FunctionType(result, [operand.type for operand in operands])
        declared = ir.Function(builder.module, signature, name)
    return declared


def overload_suffix(type_: ir.Type) -> str:
    """Returns how LLVM names a type in the name of an overloaded intrinsic ("v16f32")."""
    scalar = str(scalar_type(type_))
    width = width_of(type_)
    return (f"v{width}" if width else "") + _INTRINSIC_SUFFIXES.get(scalar, scalar)


def any_lane(builder: ir.IRBuilder, predicate: ir.Value, among: ir.Value | None = None) -> ir.Value:
    """Returns an `i1`: whether a predicate holds in some lane; a scalar one as it is.

    Registers that compared numbers left are combined as they are. LLVM would narrow them to a bit
    per lane first, by a handful of shuffles; so it gets to see them as numbers of another width.
    What predicates are combined to is kept narrow, if other blocks need it too.

    Args:
        builder: Where to put it.
        predicate: `i1`, or a vector of them.
        among: Which lanes count; all by default.
    """
    if not is_vector(predicate):
        return predicate
    bits = _compared_bits(predicate)
    if among is not None:
        bits = bits if bits == _compared_bits(among) else 0
        predicate = builder.and_(predicate, among)
    seen_bits = 32 if bits == 64 else 64
    count, rest = divmod(width_of(predicate) * bits, seen_bits)
    if count < 2 or rest:
        return call_intrinsic(builder, "llvm.vector.reduce.or", [predicate], ir.IntType(1))
    lanes = builder.sext(predicate, like(predicate, ir.IntType(bits)))
    words = builder.bitcast(lanes, vector_of(ir.IntType(seen_bits), count))
    some = call_intrinsic(builder, "llvm.vector.reduce.or", [words], ir.IntType(seen_bits))
    return builder.icmp_unsigned("!=", some, integer_constant(some.type, 0))


def _compared_bits(predicate: ir.Value) -> int:
    """Returns how wide the numbers are whose comparison a predicate is, or the opposite of one; 0
    if it is neither."""
    is_opposite = isinstance(predicate, ir.Instruction) and predicate.opname == "xor"
    if is_opposite and isinstance(predicate.operands[1], ir.Constant):
        predicate = predicate.operands[0]
    if not isinstance(predicate, ir.CompareInstr):
        return 0
    return {"float": 32, "i32": 32, "double": 64, "i64": 64}.get(
        str(scalar_type(predicate.operands[0])), 0
    )
