"""The two parts of complex numbers: the real arrays that stand for complex ones.

    joined      real array of dimensions (*D, 2), the bytes of the complex one: real, imaginary part
    parts       two real arrays of dimensions D

Source: the layout of `std::complex`, which XLA's buffers have.
"""

from __future__ import annotations

from typing import Final

from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.shape import PrimitiveType, Shape
from fuselane.lanes.builder import ComputationBuilder

COMPONENT_TYPES: Final = {
    PrimitiveType.C64: PrimitiveType.F32,
    PrimitiveType.C128: PrimitiveType.F64,
}
"""Complex element types and those of their parts."""

NUM_PARTS: Final = 2
"""Real and imaginary part."""


def has_complex(shape: Shape) -> bool:
    """Whether an array, or one in a tuple, is of complex numbers."""
    return shape.element_type in COMPONENT_TYPES or any(map(has_complex, shape.tuple_shapes))


def joined_shape(shape: Shape) -> Shape:
    """Returns the shape of the real array with the bytes of a complex one, layout included."""
    return with_parts(shape, COMPONENT_TYPES[shape.element_type])


def component_shape(shape: Shape) -> Shape:
    """Returns the shape of one part of a complex array; other shapes as they are."""
    element = COMPONENT_TYPES.get(shape.element_type)
    if element is None:
        return shape
    return Shape(element, shape.dimensions, (), shape.minor_to_major, shape.details)


def with_parts(shape: Shape, element_type: PrimitiveType) -> Shape:
    """Returns a shape with a last dimension, fastest in memory, for two parts."""
    return Shape(
        element_type,
        (*shape.dimensions, NUM_PARTS),
        (),
        (shape.rank, *shape.minor_to_major),
        shape.details,
    )


def join(
    builder: ComputationBuilder, real: HloInstruction, imag: HloInstruction, origin: HloInstruction
) -> HloInstruction:
    """Returns the array with real and imaginary parts side by side in a last dimension."""
    sizes = real.shape.dimensions
    if real is imag and real.opcode == "broadcast" and not real.operands[0].shape.dimensions:
        return builder.broadcast(real.operands[0], (*sizes, NUM_PARTS), ())
    columns = [builder.reshape(part, (*sizes, 1)) for part in (real, imag)]
    return builder.concatenate(columns, len(sizes), origin=origin)


def split(
    builder: ComputationBuilder, joined: HloInstruction
) -> tuple[HloInstruction, HloInstruction]:
    """Returns the real and the imaginary part of a joined array, as they were if it was joined."""
    real, imag = (_part(builder, joined, k) for k in range(NUM_PARTS))
    return real, imag


def _part(builder: ComputationBuilder, joined: HloInstruction, number: int) -> HloInstruction:
    *sizes, _ = joined.shape.dimensions
    last = len(sizes)
    if _is_join(joined):
        return builder.reshape(joined.operands[number], tuple(sizes))
    match joined.opcode:
        case "constant" if not sizes:
            return builder.scalar(joined.literal[number], joined.shape.element_type, joined)
        case "broadcast":
            inner, dimensions = joined.operands[0], joined.dimensions
            if last in dimensions:
                inner, dimensions = _part(builder, inner, number), dimensions[:-1]
            return builder.broadcast(inner, tuple(sizes), dimensions)
        case "reshape" if joined.operands[0].shape.dimensions[-1:] == (NUM_PARTS,):
            return builder.reshape(_part(builder, joined.operands[0], number), tuple(sizes))
        case "transpose" if joined.dimensions[last] == last:
            part = _part(builder, joined.operands[0], number)
            return builder.transpose(part, joined.dimensions[:-1])
        case "select" if _is_repeated(joined.operands[0]):
            predicate, *values = joined.operands
            repeated = builder.broadcast(predicate.operands[0], tuple(sizes), predicate.dimensions)
            parts = [_part(builder, value, number) for value in values]
            shape = parts[0].shape
            return builder.elementwise("select", shape, (repeated, *parts), origin=joined)
    ranges = (*((0, size, 1) for size in sizes), (number, number + 1, 1))
    return builder.reshape(builder.slice(joined, ranges), tuple(sizes))


def is_split(joined: HloInstruction) -> bool:
    """Whether the parts of a joined array are at hand."""
    if joined.opcode == "select":
        return any(map(is_split, joined.operands[1:]))
    if joined.opcode == "broadcast":
        return True
    return _is_join(joined) or joined.shape.dimensions == (NUM_PARTS,)


def _is_join(value: HloInstruction) -> bool:
    last = value.shape.rank - 1
    return (
        value.opcode == "concatenate"
        and value.dimensions == (last,)
        and [o.shape.dimensions[last] for o in value.operands] == [1, 1]
    )


def _is_repeated(predicate: HloInstruction) -> bool:
    """Whether a predicate is the same for both parts."""
    last = predicate.shape.rank - 1
    return predicate.opcode == "broadcast" and last not in predicate.dimensions
