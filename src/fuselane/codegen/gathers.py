"""The rule for gather, whose indices may differ from lane to lane, and what scatter shares with it.

An index of an element may be a vector, one index per lane, so a gather is just a read of its
operand at other indices; see `fuselane.codegen.arrays` for what becomes of such a read.
"""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from fuselane.codegen import indexing
from fuselane.codegen.arrays import Array
from fuselane.codegen.emitter import Elemental, Emitter
from fuselane.codegen.indexing import Element, Index
from fuselane.codegen.slices import clamped_index
from fuselane.hlo.indexed import Indexed, get_indices, indexed
from fuselane.hlo.instruction import HloInstruction

Starts = dict[int, Index]
"""The start of a window in the operand's dimensions that are indexed."""


def gather(emitter: Emitter, instruction: HloInstruction) -> Elemental:
    """Returns the rule of a gather.

    %g = f32[8,2] gather(%x, %i), batching dimension 0, offset_dims={1}, slice_sizes={1,1,2}

        g[lane, j] = x[lane, clamp(i[lane, 0]), j]
    """
    where = indexed(instruction)
    indices = get_indices(instruction)
    operand = _addressable(emitter, instruction, where)

    def element(index: Element) -> ir.Value:
        batch = [index[position] for position in where.batch_positions]
        starts = _starts(emitter, indices, where, batch)
        window = [index[position] for position in where.window_positions]
        return operand.get(emitter.place, place_in(emitter, where, batch, starts, window))

    return element


def _addressable(emitter: Emitter, instruction: HloInstruction, where: Indexed) -> Array:
    """Returns a gather's operand, in memory if indices known only at run time make it so."""
    operand = emitter.array(instruction.operands[0])
    indices = get_indices(instruction)
    array = emitter.array(indices)
    known: list[Index] = [0]
    if array.size <= emitter.max_unrolled:
        batches = {
            tuple(
                at
                for d, at in enumerate(array.flat(emitter.place, p))
                if d != where.vector_dimension
            )
            for p in range(array.size)
        }
        known = [s for b in batches for s in _starts(emitter, indices, where, b).values()]
    elif not array.size:
        known = []
    return emitter.addressable(operand, known)


def _starts(
    emitter: Emitter, indices: HloInstruction, where: Indexed, batch: Sequence[Index | None]
) -> Starts:
    """Returns where a window starts, held within bounds as XLA holds gathers."""
    return {
        dimension: clamped_index(emitter, value, indices.shape.element_type, limit)
        for dimension, value, limit in components_of(emitter, indices, where, batch)
    }


def components_of(
    emitter: Emitter, indices: HloInstruction, where: Indexed, batch: Sequence[Index | None]
) -> list[tuple[int, ir.Value, int]]:
    """Returns for each indexed dimension the index, and the largest start it may be."""
    array = emitter.array(indices)
    result = []
    for number, dimension in enumerate(where.starts):
        at = list(batch)
        if where.vector_dimension < len(array.shape.dimensions):
            at.insert(where.vector_dimension, number)
        limit = where.sizes[dimension] - where.window_sizes[dimension]
        result.append((dimension, array.get(emitter.place, tuple(at)), limit))
    return result


def place_in(
    emitter: Emitter,
    where: Indexed,
    batch: Sequence[Index | None],
    starts: Starts,
    window: Sequence[Index | None],
) -> Element:
    """Returns the operand's element that an element of a window is."""
    result: list[Index | None] = []
    remaining = iter(window)
    for dimension in range(len(where.sizes)):
        if dimension in where.batching:
            along = where.batching[dimension]
            result.append(batch[along - (along > where.vector_dimension)])
            continue
        start = starts.get(dimension, 0)
        at: Index | None = next(remaining) if dimension in where.window else 0
        result.append(at if at is None else indexing.add(emitter.builder, start, at))
    return tuple(result)
