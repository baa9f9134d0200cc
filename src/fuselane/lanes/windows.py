"""Reduce-windows in row-major order; those whose windows lie side by side become reduces.

XLA:CPU takes large reductions apart into reduce-windows of 32 elements and a last reduce. Such a
reduce-window is a reshape and a reduce, after a pad where the windows don't fill the array:

    %w = f32[8,3] reduce-window(%x, %z), window={size=1x32 stride=1x32 pad=0_0x0_6}     %x:
    f32[8,90]
->  %p = f32[8,96] pad(%x, %z), padding=0_0x0_6
    %s = f32[8,3,32] reshape(%p)
    %w = f32[8,3] reduce(%s, %z), dimensions={2}

All others, such as cumulative sums, stay reduce-windows. Does not handle: reversed windows,
negative padding, dilated operands.

Numerics: bitwise-equal; the order inside a window is kept. XLA leaves out what is padded, so that
windows are padded only with what changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from fuselane.hlo.combiners import is_identity, match_combiner
from fuselane.hlo.computation import HloComputation
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.shape import Shape
from fuselane.hlo.window import WindowDimension, get_window
from fuselane.lanes.builder import ComputationBuilder, array_shape
from fuselane.lanes.layout import memory_order, relayout


def is_plain_window(reduce_window: HloInstruction) -> bool:
    """Whether the windows are of a form that can be lowered."""
    return not any(
        d.is_reversed or d.low < 0 or d.high < 0 or d.base_dilation > 1
        for d in get_window(reduce_window)
    )


def lower_reduce_window(
    builder: ComputationBuilder,
    instruction: HloInstruction,
    operands: Sequence[HloInstruction],
    to_apply: HloComputation,
) -> HloInstruction | tuple[HloInstruction, ...]:
    """Lowers a reduce-window of one array, or of several at once."""
    windows = get_window(instruction)
    dimensions = instruction.operands[0].shape.dimensions
    are_side_by_side = all(map(WindowDimension.is_side_by_side, windows, dimensions))
    if are_side_by_side and _is_padded_with_nothing(operands, windows, to_apply):
        return _lower_to_reduce(builder, instruction, operands, to_apply)
    count = len(operands) // 2
    order = memory_order(instruction.operands[0].shape)
    arrays = [
        relayout(builder, operand, memory_order(original.shape), order)
        for original, operand in zip(instruction.operands[:count], operands, strict=False)
    ]
    window = tuple(_fields(windows[d]) for d in order)
    elements = instruction.shape.tuple_shapes or (instruction.shape,)
    sizes = tuple(elements[0].dimensions[d] for d in order)
    shapes = [array_shape(array.shape.element_type, sizes) for array in arrays]
    value = builder.emit(
        "reduce-window",
        Shape.tuple_of(shapes) if instruction.shape.is_tuple else shapes[0],
        [*arrays, *operands[count:]],
        (("window", window),),
        origin=instruction,
        called=(to_apply,),
    )
    if not instruction.shape.is_tuple:
        return relayout(builder, value, order, memory_order(instruction.shape))
    return tuple(
        relayout(builder, builder.element(value, index), order, memory_order(shape))
        for index, shape in enumerate(elements)
    )


def _is_padded_with_nothing(
    operands: Sequence[HloInstruction],
    windows: Sequence[WindowDimension],
    to_apply: HloComputation,
) -> bool:
    """Whether padding with the initial value changes nothing: XLA leaves out what is padded.

    Of reductions of several arrays this is taken for granted, as XLA makes them of argmax only.
    """
    if len(operands) > 2 or not any(window.low or window.high for window in windows):
        return True
    combiner = match_combiner(to_apply)
    return combiner is None or is_identity(operands[1], combiner)


def _fields(dimension: WindowDimension) -> tuple[tuple[str, int], ...]:
    """Returns the fields of the proto's WindowDimension."""
    return (
        ("size", dimension.size),
        ("stride", dimension.stride),
        ("padding_low", dimension.low),
        ("padding_high", dimension.high),
        ("window_dilation", dimension.dilation),
        ("base_dilation", dimension.base_dilation),
    )


def _lower_to_reduce(
    builder: ComputationBuilder,
    instruction: HloInstruction,
    operands: Sequence[HloInstruction],
    to_apply: HloComputation,
) -> HloInstruction | tuple[HloInstruction, ...]:
    count = len(operands) // 2
    order = memory_order(instruction.operands[0].shape)
    logical = get_window(instruction)
    windows = [logical[d] for d in order]
    arrays = []
    for original, operand, initial in zip(
        instruction.operands, operands[:count], operands[count:], strict=False
    ):
        value = relayout(builder, operand, memory_order(original.shape), order)
        edges = tuple((window.low, window.high, 0) for window in windows)
        arrays.append(builder.pad(value, initial, edges, origin=instruction))
    sizes, reduced = _split_sizes(arrays[0], windows)
    split = [builder.reshape(array, sizes, origin=instruction) for array in arrays]
    values = [*split, *operands[count:]]
    value = builder.reduce(values, reduced, to_apply, origin=instruction)
    if not instruction.shape.is_tuple:
        return relayout(builder, value, order, memory_order(instruction.shape))
    return tuple(
        relayout(builder, element, order, memory_order(shape))
        for element, shape in zip(
            builder.elements(value), instruction.shape.tuple_shapes, strict=True
        )
    )


def _split_sizes(
    array: HloInstruction, windows: Sequence[WindowDimension]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns the sizes, each windowed dimension in two, and the numbers of the inner halves."""
    sizes: list[int] = []
    reduced: list[int] = []
    for size, window in zip(array.shape.dimensions, windows, strict=True):
        sizes.append(size // window.size)
        if window.size > 1:
            reduced.append(len(sizes))
            sizes.append(window.size)
    return tuple(sizes), tuple(reduced)
