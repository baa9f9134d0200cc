"""What a gather reads and a scatter writes: the dimension numbers of both, in one form.

A gather in normal form takes windows out of an array, one for each index vector:

    %g = f32[8,3,2] gather(%x, %i)       %x: f32[8,9,5,2]  %i: s32[8,3,2], index vectors in {2}
         operand_batching_dims={0}, start_indices_batching_dims={0}     x's lane is the index's lane
         start_index_map={1,2}, collapsed_slice_dims={1,2}, slice_sizes={1,1,1,2}, offset_dims={2}

    g[lane, j, w] = x[lane, i[lane, j, 0], i[lane, j, 1], w]

Its result has the indices' dimensions but the last, which holds the index vectors, then those of
the window. A scatter in normal form has updates of that shape.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

from fuselane.hlo.instruction import HloInstruction


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Indexed:
    """Where the windows of a gather or scatter lie in its operand.

    Attributes:
        sizes: The operand's dimensions.
        window_sizes: Of the window, for each of them.
        starts: Dimensions whose start is a component of the index vector, in the vector's order.
        batching: Dimensions of the operand -> dimensions of the indices they run along with.
        window: Dimensions of the operand that the window keeps, in the order it has them.
        vector_dimension: Dimension of the indices that holds the index vectors; their rank if each
            index is a vector of its own.
        batch_positions: Dimensions of the gathered values or updates that the indices give them.
        window_positions: Dimensions of these that are the window's.
    """

    sizes: tuple[int, ...]
    window_sizes: tuple[int, ...]
    starts: tuple[int, ...]
    batching: Mapping[int, int]
    window: tuple[int, ...]
    vector_dimension: int
    batch_positions: tuple[int, ...]
    window_positions: tuple[int, ...]


def indexed(instruction: HloInstruction) -> Indexed:
    """Returns the dimension numbers of a gather or scatter."""
    return _of_gather(instruction) if instruction.opcode == "gather" else _of_scatter(instruction)


def get_indices(instruction: HloInstruction) -> HloInstruction:
    """Returns the operand of a gather or scatter that holds the index vectors."""
    return instruction.operands[len(instruction.operands) // 2]


def update_of(instruction: HloInstruction) -> HloInstruction:
    """Returns what an instruction puts into its first operand; itself, if it does no such thing."""
    match instruction.opcode:
        case "dynamic-update-slice":
            return instruction.operands[1]
        case "scatter":
            return instruction.operands[-1]
    return instruction


def _of_gather(gather: HloInstruction) -> Indexed:
    numbers = gather.proto.gather_dimension_numbers
    batching = dict(
        zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True)
    )
    sizes = gather.operands[0].shape.dimensions
    dropped = {*numbers.collapsed_slice_dims, *batching}
    offsets = tuple(numbers.offset_dims)
    return Indexed(
        sizes=sizes,
        window_sizes=tuple(gather.proto.gather_slice_sizes),
        starts=tuple(numbers.start_index_map),
        batching=batching,
        window=tuple(d for d in range(len(sizes)) if d not in dropped),
        vector_dimension=numbers.index_vector_dim,
        batch_positions=_others(offsets, gather.shape.rank),
        window_positions=offsets,
    )


def _of_scatter(scatter: HloInstruction) -> Indexed:
    numbers = scatter.proto.scatter_dimension_numbers
    batching = dict(
        zip(numbers.input_batching_dims, numbers.scatter_indices_batching_dims, strict=True)
    )
    sizes = scatter.operands[0].shape.dimensions
    dropped = {*numbers.inserted_window_dims, *batching}
    window = tuple(d for d in range(len(sizes)) if d not in dropped)
    positions = tuple(numbers.update_window_dims)
    updates = scatter.operands[-1].shape.dimensions
    window_sizes = [1] * len(sizes)
    for dimension, position in zip(window, positions, strict=True):
        window_sizes[dimension] = updates[position]
    return Indexed(
        sizes=sizes,
        window_sizes=tuple(window_sizes),
        starts=tuple(numbers.scatter_dims_to_operand_dims),
        batching=batching,
        window=window,
        vector_dimension=numbers.index_vector_dim,
        batch_positions=_others(positions, len(updates)),
        window_positions=positions,
    )


def _others(some: Sequence[int], rank: int) -> tuple[int, ...]:
    return tuple(d for d in range(rank) if d not in some)
