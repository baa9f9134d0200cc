"""Constants: between LiteralProto and numpy arrays."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from fuselane.errors import VerificationError
from fuselane.hlo.proto import LiteralProto, Message, PackedLiteralProto
from fuselane.hlo.shape import PrimitiveType, Shape

_FIXED_WIDTH_FIELDS: Final = {
    PrimitiveType.PRED: "preds",
    PrimitiveType.F32: "f32s",
    PrimitiveType.F64: "f64s",
    PrimitiveType.C64: "c64s",
    PrimitiveType.C128: "c128s",
}
_VARINT_FIELDS: Final = {
    PrimitiveType.S32: "s32s",
    PrimitiveType.S64: "s64s",
    PrimitiveType.U32: "u32s",
    PrimitiveType.U64: "u64s",
}


def literal_to_numpy(literal: Message) -> np.ndarray[Any, Any]:
    """Returns a LiteralProto's elements as a read-only array in the literal's logical shape.

    PRED gives bool; BF16, the 8-bit floats and the 4- and 2-bit integers give ml_dtypes' types.
    Exact: bit patterns of NaNs survive. Types below 8 bits take a byte per element.

    Raises:
        VerificationError: if the literal is a tuple, has dynamic sizes or does not hold as many
            elements as its shape.
    """
    shape = Shape.from_proto(literal.shape)
    dtype = shape.element_type.dtype
    flat = _read_elements(literal, shape.element_type, dtype)
    if flat.size != shape.num_elements:
        raise VerificationError(f"A literal of shape {shape} holds {flat.size} elements.")
    array = _from_physical_order(flat, shape)
    array.flags.writeable = False
    return array


def numpy_to_literal(array: np.ndarray[Any, Any] | np.generic, shape: Shape) -> Message:
    """Returns the LiteralProto of `array`, whose sizes and element type must be those of `shape`.

    Raises:
        VerificationError: if they are not.
    """
    values = np.asarray(array)
    if values.shape != shape.dimensions or values.dtype != shape.element_type.dtype:
        raise VerificationError(
            f"An array of {values.dtype}{list(values.shape)} cannot be a literal of shape {shape}."
        )
    literal = LiteralProto()
    _write_elements(literal, shape.element_type, _to_physical_order(values, shape))
    literal.shape.CopyFrom(shape.to_proto())
    return literal


def _from_physical_order(flat: np.ndarray[Any, Any], shape: Shape) -> np.ndarray[Any, Any]:
    if shape.is_row_major:
        return flat.reshape(shape.dimensions)
    major_to_minor = shape.minor_to_major[::-1]
    physical = flat.reshape([shape.dimensions[d] for d in major_to_minor])
    return physical.transpose(np.argsort(major_to_minor))


def _to_physical_order(array: np.ndarray[Any, Any], shape: Shape) -> np.ndarray[Any, Any]:
    return np.ascontiguousarray(array.transpose(shape.minor_to_major[::-1])).reshape(-1)


def _read_elements(
    literal: Message, element_type: PrimitiveType, dtype: np.dtype[Any]
) -> np.ndarray[Any, Any]:
    if element_type in _VARINT_FIELDS:
        values = getattr(literal, _VARINT_FIELDS[element_type])
        return np.fromiter(values, dtype, len(values))
    if element_type in _FIXED_WIDTH_FIELDS:
        packed = PackedLiteralProto.FromString(literal.SerializeToString())
        return np.frombuffer(getattr(packed, _FIXED_WIDTH_FIELDS[element_type]), dtype)
    data = getattr(literal, f"{element_type.lower}s")
    return np.frombuffer(data, dtype)


def _write_elements(
    literal: Message, element_type: PrimitiveType, flat: np.ndarray[Any, Any]
) -> None:
    if element_type in _VARINT_FIELDS:
        getattr(literal, _VARINT_FIELDS[element_type]).extend(flat.tolist())
    elif element_type in _FIXED_WIDTH_FIELDS:
        packed = PackedLiteralProto()
        setattr(packed, _FIXED_WIDTH_FIELDS[element_type], flat.tobytes())
        literal.MergeFromString(packed.SerializeToString())
    elif element_type.bits < 8:
        mask = np.uint8((1 << element_type.bits) - 1)
        setattr(literal, f"{element_type.lower}s", (flat.view(np.uint8) & mask).tobytes())
    else:
        setattr(literal, f"{element_type.lower}s", flat.tobytes())
