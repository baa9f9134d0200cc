"""Making one dimension of two parallel ones that always come together.

    %x = f32[1000,2048], all instructions elementwise     ->  %x = f32[2048000], one lane each

Without this one of the two would be the lanes, and each lane would hold an array as long as the
other. Row-major arrays stay where they are in memory, so parameters and results are reshaped for
free. The region is changed in place.

Numerics: bitwise-equal.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableSequence
from typing import Final

from fuselane.analysis.dimension_classes import Mergeable
from fuselane.hlo.computation import HloComputation
from fuselane.hlo.indexed import get_indices
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.shape import Shape
from fuselane.lanes.builder import ComputationBuilder, array_shape
from fuselane.lanes.widen import count_along, widen

_TUPLE_OPCODES: Final = frozenset({"reduce", "reduce-window", "scatter", "sort"})
"""Opcodes whose results, of one shape, may be several."""


def flatten(region: HloComputation, mergeable: Mergeable) -> None:
    """Merges two neighbouring dimensions in all values of a region that have them.

    What has only one of them gets the other too, see `fuselane.lanes.widen`.

    Args:
        region: A region in normal form.
        mergeable: Where the dimensions are; see `fuselane.analysis.lanes.LaneAnalysis.mergeable`.
    """
    first_dimensions = mergeable.first
    builder = ComputationBuilder.extending(region)
    for instruction in list(region.instructions):
        first = first_dimensions.get(instruction)
        if instruction.opcode == "iota" and instruction.dimensions[0] in _both(first):
            _count_along_both(instruction, mergeable, builder)
            continue
        _renumber(instruction, first, first_dimensions)
        if first is not None:
            instruction.shape = _merged_shape(instruction.shape, first)
        elif instruction in mergeable.alone:
            widen(instruction, mergeable, builder)
        elif instruction.opcode == "tuple":
            instruction.shape = Shape.tuple_of([o.shape for o in instruction.operands])
        elif instruction.opcode == "while":
            _flatten_loop(instruction, mergeable)
        elif instruction.opcode == "conditional":
            _flatten_branches(instruction, mergeable)
        elif instruction.opcode in _TUPLE_OPCODES and instruction.shape.is_tuple:
            _reshape_elements(instruction, first_dimensions)
    region.remove_dead_instructions()
    region.sort()


def _both(first: int | None) -> tuple[int, ...]:
    return () if first is None else (first, first + 1)


def _count_along_both(
    iota: HloInstruction, mergeable: Mergeable, builder: ComputationBuilder
) -> None:
    first = mergeable.first[iota]
    in_major = iota.dimensions == (first,)
    shape = _merged_shape(iota.shape, first)
    count_along(iota, shape, first, mergeable, builder, in_major=in_major)


def _flatten_loop(loop: HloInstruction, mergeable: Mergeable) -> None:
    loop.shape = loop.operands[0].shape
    for computation in (loop.body, loop.condition):
        computation.parameters[0].shape = loop.shape
        flatten(computation, mergeable)


def _flatten_branches(conditional: HloInstruction, mergeable: Mergeable) -> None:
    branches = conditional.called_computations
    for branch, argument in zip(branches, conditional.operands[1:], strict=True):
        branch.parameters[0].shape = argument.shape
        flatten(branch, mergeable)
    conditional.shape = branches[0].root.shape


def _merged_shape(shape: Shape, first: int) -> Shape:
    sizes = shape.dimensions
    merged = sizes[first] * sizes[first + 1]
    return array_shape(shape.element_type, (*sizes[:first], merged, *sizes[first + 2 :]))


def _reshape_elements(
    instruction: HloInstruction, first_dimensions: Mapping[HloInstruction, int]
) -> None:
    shapes = list(instruction.shape.tuple_shapes)
    first = next((first_dimensions[u] for u in instruction.users if u in first_dimensions), None)
    if first is not None:
        instruction.shape = Shape.tuple_of([_merged_shape(shape, first) for shape in shapes])


def _renumber(
    instruction: HloInstruction, first: int | None, first_dimensions: Mapping[HloInstruction, int]
) -> None:
    """Adapts an instruction's dimension numbers; operands have their new shapes, it has its old."""
    proto = instruction.proto
    match instruction.opcode:
        case "broadcast" | "transpose":
            source = first_dimensions.get(instruction.operands[0])
            numbers = list(proto.dimensions)
            if instruction.opcode == "broadcast":
                del numbers[_second(source) : _third(source)]
                proto.dimensions[:] = _moved(numbers, first)
            else:
                del numbers[_second(first) : _third(first)]
                proto.dimensions[:] = _moved(numbers, source)
        case "iota" | "concatenate" | "reverse":
            proto.dimensions[:] = _moved(list(proto.dimensions), first)
        case "reduce" | "sort":
            source = first_dimensions.get(instruction.operands[0])
            proto.dimensions[:] = dict.fromkeys(_moved(list(proto.dimensions), source))
        case "dot":
            _renumber_dot(instruction, first_dimensions)
        case "gather":
            _renumber_gather(instruction, first_dimensions)
        case "scatter":
            _renumber_scatter(instruction, first_dimensions)
        case "reduce-window" if first is not None or instruction.operands[0] in first_dimensions:
            del proto.window.dimensions[first_dimensions[instruction.operands[0]]]
        case "slice" if first is not None:
            sizes = instruction.shape.dimensions
            del proto.slice_dimensions[first]
            proto.slice_dimensions[first].limit = sizes[first] * sizes[first + 1]
        case "pad" if first is not None:
            del proto.padding_config.dimensions[first]
        case "dynamic-slice" if first is not None:
            sizes = instruction.shape.dimensions
            del proto.dynamic_slice_sizes[first]
            proto.dynamic_slice_sizes[first] = sizes[first] * sizes[first + 1]
            _drop_operand(instruction, 1 + first)
        case "dynamic-update-slice" if first is not None:
            _drop_operand(instruction, 2 + first)


def _renumber_dot(dot: HloInstruction, first_dimensions: Mapping[HloInstruction, int]) -> None:
    """Adapts a dot, of whose operands the two dimensions are both batch or both free ones."""
    numbers = dot.proto.dot_dimension_numbers
    left, right = (first_dimensions.get(operand) for operand in dot.operands)
    for field, first in (
        (numbers.lhs_batch_dimensions, left),
        (numbers.rhs_batch_dimensions, right),
        (numbers.lhs_contracting_dimensions, left),
        (numbers.rhs_contracting_dimensions, right),
    ):
        kept = [n for n in field if first is None or n != first + 1]
        field[:] = _moved(kept, first)


def _renumber_gather(
    gather: HloInstruction, first_dimensions: Mapping[HloInstruction, int]
) -> None:
    """Adapts a gather whose two dimensions are both batch ones or both the window's, and whole."""
    numbers, slice_sizes = gather.proto.gather_dimension_numbers, gather.proto.gather_slice_sizes
    operand, indices, result = (first_dimensions.get(i) for i in (*gather.operands, gather))
    _merge(numbers.operand_batching_dims, operand)
    _merge(numbers.collapsed_slice_dims, operand)
    _merge(numbers.start_index_map, operand)
    _merge(numbers.start_indices_batching_dims, indices)
    _merge(numbers.offset_dims, result)
    numbers.index_vector_dim = _moved([numbers.index_vector_dim], indices)[0]
    if operand is not None:
        size = slice_sizes.pop(operand + 1)
        slice_sizes[operand] *= size


def _renumber_scatter(
    scatter: HloInstruction, first_dimensions: Mapping[HloInstruction, int]
) -> None:
    """Adapts a scatter whose two dimensions are both batch ones or both the window's, and whole."""
    numbers = scatter.proto.scatter_dimension_numbers
    parts = (scatter.operands[0], get_indices(scatter), scatter.operands[-1])
    operand, indices, updates = (first_dimensions.get(part) for part in parts)
    _merge(numbers.input_batching_dims, operand)
    _merge(numbers.inserted_window_dims, operand)
    _merge(numbers.scatter_dims_to_operand_dims, operand)
    _merge(numbers.scatter_indices_batching_dims, indices)
    _merge(numbers.update_window_dims, updates)
    numbers.index_vector_dim = _moved([numbers.index_vector_dim], indices)[0]


def _merge(numbers: MutableSequence[int], first: int | None) -> None:
    """Leaves the second of two dimensions out of a list, and renumbers the others."""
    numbers[:] = _moved([n for n in numbers if first is None or n != first + 1], first)


def _moved(numbers: list[int], first: int | None) -> list[int]:
    """Returns dimension numbers as they are once `first` and the next are one."""
    return [n if first is None or n <= first else n - 1 for n in numbers]


def _second(first: int | None) -> int:
    return 0 if first is None else first + 1


def _third(first: int | None) -> int:
    return 0 if first is None else first + 2


def _drop_operand(instruction: HloInstruction, index: int) -> None:
    operands = instruction.operands.copy()
    operand = operands.pop(index)
    instruction.set_operands(operands)
    if operand not in operands:
        operand.users.remove(instruction)
