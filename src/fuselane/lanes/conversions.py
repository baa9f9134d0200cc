"""Conversions kept away from large arrays of which a part is read or replaced.

XLA:CPU works on bf16 by converting to f32 and back, whole arrays too:

    convert(dynamic-update-slice(convert(%x), %y, %i))   %x: bf16[50,8], the result too
->  dynamic-update-slice(%x, convert(%y), %i)
    dynamic-slice(convert(%x), %i)                       ->  convert(dynamic-slice(%x, %i))

Numerics: bitwise-equal, but for the bits of NaNs: converting to a type that holds all values of
another, and back, changes nothing.
"""

from __future__ import annotations

from typing import Final

from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.shape import PrimitiveType
from fuselane.lanes.builder import ComputationBuilder, array_shape

_HOLDS_ALL_OF: Final = {
    (PrimitiveType.F32, PrimitiveType.BF16),
    (PrimitiveType.F32, PrimitiveType.F16),
    (PrimitiveType.F64, PrimitiveType.BF16),
    (PrimitiveType.F64, PrimitiveType.F16),
    (PrimitiveType.F64, PrimitiveType.F32),
}


def convert_part_written(
    builder: ComputationBuilder, value: HloInstruction, element_type: PrimitiveType
) -> HloInstruction | None:
    """Returns a value converted back if it is an array converted with parts replaced, else None."""
    if value.opcode == "convert":
        original = value.operands[0]
        is_back = original.shape.element_type is element_type
        types = (value.shape.element_type, element_type)
        return original if is_back and types in _HOLDS_ALL_OF else None
    if value.opcode != "dynamic-update-slice":
        return None
    array = convert_part_written(builder, value.operands[0], element_type)
    if array is None:
        return None
    part = value.operands[1]
    shape = array_shape(element_type, part.shape.dimensions)
    converted = builder.emit("convert", shape, (part,), origin=part)
    operands = (array, converted, *value.operands[2:])
    return builder.emit("dynamic-update-slice", array.shape, operands, origin=value)


def convert_part_read(builder: ComputationBuilder, value: HloInstruction) -> HloInstruction:
    """Returns a slice of a converted array as a converted slice; anything else as it is."""
    if value.opcode != "dynamic-slice" or value.operands[0].opcode != "convert":
        return value
    original = value.operands[0].operands[0]
    shape = array_shape(original.shape.element_type, value.shape.dimensions)
    sizes = (("dynamic_slice_sizes", value.shape.dimensions),)
    operands = (original, *value.operands[1:])
    part = builder.emit("dynamic-slice", shape, operands, sizes, origin=value)
    return builder.emit("convert", value.shape, (part,), origin=value)
