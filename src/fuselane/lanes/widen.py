"""Giving values the dimension of two that they lack, both having become one.

The lanes are all pixels of an image, say, rows and columns merged; what each column has is looked
up by the lane's number:

    %x = f32[512] parameter(0)                      ->  %x = f32[512] parameter(0)
    %b = f32[512,512] broadcast(%x), dimensions={1}     %n = s32[262144] remainder(iota(), 512)
                                                        %b = f32[262144] gather(%x, %n)

Numerics: bitwise-equal.
"""

from __future__ import annotations

from fuselane.analysis.dimension_classes import Mergeable
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.shape import PrimitiveType, Shape
from fuselane.lanes.builder import ComputationBuilder, array_shape


def widen(value: HloInstruction, mergeable: Mergeable, builder: ComputationBuilder) -> None:
    """Makes a value that has one of two merged dimensions as long as both, for all its users.

    Args:
        value: An instruction of a region, whose operands are as long already.
        mergeable: Says what has which of them.
        builder: Adds to the value's computation.
    """
    place = mergeable.alone[value]
    dimension = place.dimension
    sizes = list(value.shape.dimensions)
    sizes[dimension] = mergeable.major_size * mergeable.minor_size
    shape = array_shape(value.shape.element_type, tuple(sizes))
    if value.opcode in ("parameter", "constant"):
        numbers = _number_lanes(value, mergeable, builder, in_major=place.is_major)
        users = list(value.users)
        _replace(value, users, _look_up(value, dimension, numbers, shape, builder))
    elif value.opcode == "iota" and value.dimensions == (dimension,):
        count_along(value, shape, dimension, mergeable, builder, in_major=place.is_major)
    else:
        value.shape = shape


def count_along(
    iota: HloInstruction,
    shape: Shape,
    dimension: int,
    mergeable: Mergeable,
    builder: ComputationBuilder,
    *,
    in_major: bool,
) -> None:
    """Replaces an iota along one of two merged dimensions by one of `shape`, which has both."""
    numbers = _number_lanes(iota, mergeable, builder, in_major=in_major)
    counted = array_shape(shape.element_type, numbers.shape.dimensions)
    if counted is not numbers.shape:
        numbers = builder.elementwise("convert", counted, (numbers,), origin=iota)
    value = builder.broadcast(numbers, shape.dimensions, (dimension,), origin=iota)
    _replace(iota, list(iota.users), value)


def _number_lanes(
    origin: HloInstruction, mergeable: Mergeable, builder: ComputationBuilder, *, in_major: bool
) -> HloInstruction:
    """Returns for each position in the merged dimension that in the major or the minor one."""
    shape = array_shape(PrimitiveType.S32, (mergeable.major_size * mergeable.minor_size,))
    operands = (builder.iota(shape, 0), builder.fill(mergeable.minor_size, shape, origin))
    return builder.emit("divide" if in_major else "remainder", shape, operands)


def _look_up(
    table: HloInstruction,
    dimension: int,
    numbers: HloInstruction,
    shape: Shape,
    builder: ComputationBuilder,
) -> HloInstruction:
    """Returns the table's entries at these positions of a dimension."""
    others = [d for d in range(shape.rank) if d != dimension]
    window = list(table.shape.dimensions)
    window[dimension] = 1
    gathered = builder.emit(
        "gather",
        array_shape(
            shape.element_type, (*numbers.shape.dimensions, *(shape.dimensions[d] for d in others))
        ),
        (table, numbers),
        (
            (
                "gather_dimension_numbers",
                (
                    ("offset_dims", tuple(range(1, shape.rank))),
                    ("collapsed_slice_dims", (dimension,)),
                    ("start_index_map", (dimension,)),
                    ("index_vector_dim", 1),
                ),
            ),
            ("gather_slice_sizes", tuple(window)),
        ),
        origin=table,
    )
    order = [dimension, *others]
    return builder.transpose(gathered, tuple(map(order.index, range(shape.rank))), origin=table)


def _replace(old: HloInstruction, users: list[HloInstruction], new: HloInstruction) -> None:
    for user in users:
        for index, operand in enumerate(user.operands):
            if operand is old:
                user.replace_operand(index, new)
