"""What a lane program knows about the arrays that its loop carries, for those who compare them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fuselane.analysis.while_loops import match_affine
from fuselane.contract import CheckedElement, Rows
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.module import HloModule
from fuselane.lanes.program import ElementKind, LaneLoop, LaneProgram


def describe_elements(
    module: HloModule, loop: HloInstruction, program: LaneProgram, indices: Sequence[int]
) -> tuple[CheckedElement, ...]:
    """Returns how to name and compare elements of a loop.

    Args:
        module: The user's module.
        loop: A `while` of it.
        program: What was formed from the loop, or from one step of it.
        indices: Tuple indices of the loop.
    """
    inner = _inner_indices(program)
    return tuple(_describe(module, loop, program.loop, i, inner.get(i)) for i in indices)


def stream_indices(program: LaneProgram) -> set[int]:
    """Returns the tuple indices, in the user's loop, of the streams that the kernel returns."""
    elements = program.loop.elements
    return {
        index
        for index, inner in _inner_indices(program).items()
        if elements[inner].kind is ElementKind.STREAM
    }


def _inner_indices(program: LaneProgram) -> Mapping[int, int]:
    """Returns the region's tuple index for each of the user's that the region returns as it is."""
    loop = program.loop.instruction
    return {
        index: output.tuple_index
        for output, index in zip(program.outputs, program.output_indices, strict=False)
        if index >= 0 and output.opcode == "get-tuple-element" and output.operands[0] is loop
    }


def _describe(
    module: HloModule, loop: HloInstruction, lane_loop: LaneLoop, index: int, inner: int | None
) -> CheckedElement:
    shape = loop.shape.tuple_shapes[index]
    root = loop.body.root
    line = module.source(root.operands[index]) if root.opcode == "tuple" else None
    lane = None if inner is None else lane_loop.elements[inner].lane_dimension
    stride, num_lanes = 0, 1
    # A complex number is two elements of the region's array.
    num_parts = 2 if shape.element_type.is_complex else 1
    if inner is not None and lane is not None:
        region_shape = lane_loop.elements[inner].shape
        stride = region_shape.strides[lane] // num_parts
        num_lanes = region_shape.dimensions[lane]
    return CheckedElement(
        name=f"element {index}, {shape}",
        source="" if line is None else str(line),
        dimensions=shape.dimensions,
        minor_to_major=shape.minor_to_major,
        lane_stride=stride,
        num_lanes=num_lanes,
        rows=None if inner is None else _find_rows(lane_loop, inner, num_parts),
    )


def _find_rows(loop: LaneLoop, index: int, num_parts: int) -> Rows | None:
    """Returns which step writes which row of an array that is updated regularly, once per step."""
    update = loop.instruction.body.root.operands[index]
    if loop.trip_count is None or update.opcode != "dynamic-update-slice":
        return None
    sizes, part = update.shape.dimensions, update.operands[1].shape.dimensions
    partial = [dimension for dimension, size in enumerate(sizes) if part[dimension] != size]
    if len(partial) != 1:
        return None
    (dimension,) = partial
    affine = match_affine(update.operands[2 + dimension], loop.instruction, loop.trip_count)
    if affine is None or not affine.slope:
        return None
    return Rows(
        stride=update.shape.strides[dimension] // num_parts,
        count=sizes[dimension],
        first=affine.offset,
        slope=affine.slope,
    )
