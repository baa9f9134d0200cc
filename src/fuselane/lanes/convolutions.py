"""Small convolutions written out.

    %y = f32[8,30] convolution(%x, %w), window={size=3}      %x: f32[8,32], %w: f32[3]
->  %y = x[:,0:30] * w[0] + x[:,1:31] * w[1] + x[:,2:32] * w[2]

Features that are summed over are places of the window like any others.

Numerics: the products of an element are added in the order of the window; the library that XLA
calls has an order of its own.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Final

from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.window import get_window
from fuselane.lanes.builder import ComputationBuilder, array_shape
from fuselane.lanes.layout import memory_order, relayout

_MAX_PRODUCTS: Final = 64
"""Of one element, and of all output features together; more are better left to a library."""


def is_small_convolution(convolution: HloInstruction) -> bool:
    """Whether a convolution is written out: one of few products, not of floats of 16 bits."""
    proto, element = convolution.proto, convolution.shape.element_type
    if element.is_complex or (element.is_floating and element.bits < 32):
        return False
    if proto.batch_group_count > 1 or proto.precision_config.algorithm:
        return False
    groups: int = max(1, proto.feature_group_count)
    weights: int = convolution.operands[1].shape.num_elements // groups
    return 0 < weights <= _MAX_PRODUCTS


def lower_convolution(
    builder: ComputationBuilder, instruction: HloInstruction, operands: Sequence[HloInstruction]
) -> HloInstruction:
    """Lowers a convolution for which `is_small_convolution` holds."""
    numbers = instruction.proto.convolution_dimension_numbers
    groups = max(1, instruction.proto.feature_group_count)
    windows = get_window(instruction)
    element = instruction.shape.element_type
    orders = (
        (
            numbers.input_batch_dimension,
            *numbers.input_spatial_dimensions,
            numbers.input_feature_dimension,
        ),
        (
            *numbers.kernel_spatial_dimensions,
            numbers.kernel_input_feature_dimension,
            numbers.kernel_output_feature_dimension,
        ),
    )
    x, w = (
        relayout(builder, value, memory_order(original.shape), order)
        for value, original, order in zip(operands, instruction.operands, orders, strict=True)
    )
    edges = ((0, 0, 0), *((d.low, d.high, d.base_dilation - 1) for d in windows), (0, 0, 0))
    zero = builder.scalar(0, x.shape.element_type, instruction)
    x = builder.pad(x, zero, edges, origin=instruction)
    batch, *padded, _ = x.shape.dimensions
    *sizes, inputs, outputs = w.shape.dimensions
    outputs //= groups
    x = builder.reshape(x, (batch, *padded, groups, inputs))
    w = builder.reshape(w, (*sizes, inputs, groups, outputs))
    kept = tuple(instruction.shape.dimensions[d] for d in numbers.output_spatial_dimensions)
    whole = (batch, *kept, groups, outputs)
    shape, rank = array_shape(element, whole), len(whole)
    products = []
    for *place, feature in itertools.product(*map(range, sizes), range(inputs)):
        rows = (
            (k * d.dilation, k * d.dilation + (size - 1) * d.stride + 1, d.stride)
            for k, d, size in zip(place, windows, kept, strict=True)
        )
        ranges = ((0, batch, 1), *rows, (0, groups, 1), (feature, feature + 1, 1))
        row = builder.reshape(builder.slice(x, ranges), whole[:-1])
        at = [d.size - 1 - k if d.is_reversed else k for k, d in zip(place, windows, strict=True)]
        weights = ((k, k + 1, 1) for k in (*at, feature))
        ranges = (*weights, (0, groups, 1), (0, outputs, 1))
        weight = builder.reshape(builder.slice(w, ranges), whole[-2:])
        factors = (
            builder.broadcast(row, whole, tuple(range(rank - 1))),
            builder.broadcast(weight, whole, (rank - 2, rank - 1)),
        )
        products.append(builder.elementwise("multiply", shape, factors, origin=instruction))
    total = functools.reduce(
        lambda sum_, each: builder.elementwise("add", shape, (sum_, each), origin=instruction),
        products,
    )
    value = builder.reshape(total, (batch, *kept, groups * outputs))
    places = (
        numbers.output_batch_dimension,
        *numbers.output_spatial_dimensions,
        numbers.output_feature_dimension,
    )
    return relayout(builder, value, places, memory_order(instruction.shape))
