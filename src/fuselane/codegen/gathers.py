"""The rule for gather, whose indices may differ from lane to lane, and what scatter shares with it.

An index of an element may be a vector, one index per lane, so a gather is just a read of its
operand at other indices; see `fuselane.codegen.arrays` for what becomes of such a read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, final

from llvmlite import ir

from fuselane.codegen import indexing
from fuselane.codegen.arrays import (
    Array,
    Memory,
    Registers,
    Scratch,
    View,
    Written,
    pick,
    row_major_strides,
)
from fuselane.codegen.emitter import Elemental, Emitter
from fuselane.codegen.indexing import Element, Index, residual_size
from fuselane.codegen.lookups import LaneNumbers
from fuselane.codegen.slices import clamped_index
from fuselane.hlo.indexed import Indexed, get_indices, indexed
from fuselane.hlo.instruction import HloInstruction

MAX_STARTS: Final = 16
"""Elements among which one is selected lane by lane, rather than loaded from memory."""

_READS_PER_STORE: Final = 4
"""How many elements of a view may be worked out and stored instead of one gathered from it."""

Starts = dict[int, Index]
"""The start of a window in the operand's dimensions that are indexed."""


def gather(emitter: Emitter, instruction: HloInstruction) -> Elemental:
    """Returns the rule of a gather.

    %g = f32[8,2] gather(%x, %i), batching dimension 0, offset_dims={1}, slice_sizes={1,1,2}

        g[lane, j] = x[lane, clamp(i[lane, 0]), j]
    """
    gathered = _Gather(emitter, instruction)
    return gathered.element


@final
class _Gather:
    """One gather on its way.

    Attributes:
        limits: The largest start in each dimension that is indexed.
        operand: What it reads; in memory if that makes reading it easier.
    """

    def __init__(self, emitter: Emitter, instruction: HloInstruction) -> None:
        self.emitter = emitter
        self.instruction = instruction
        self.where = where = indexed(instruction)
        self.indices = get_indices(instruction)
        self.limits = {d: where.sizes[d] - where.window_sizes[d] for d in where.starts}
        self.operand = self._addressable(emitter.array(instruction.operands[0]))
        self.own = self._own_lanes()
        self.numbers = self._lane_numbers()

    def element(self, index: Element) -> ir.Value:
        """Returns an element of the result."""
        if self.own is not None:
            return self.own.get(self.emitter.place, index)
        where = self.where
        batch = [index[position] for position in where.batch_positions]
        window = [index[position] for position in where.window_positions]
        if self.numbers is not None and self.numbers.are_together(self.emitter.place):
            looked_up = self._look_up(self.numbers, batch, window)
            if looked_up is not None:
                return looked_up
        starts = _starts(self.emitter, self.indices, where, batch)
        varying = [d for d, start in starts.items() if indexing.varies(start)]
        if not varying or not self._are_few(varying):
            return self._read(batch, starts, window)
        return self._select(batch, starts, window, varying)

    def _own_lanes(self) -> Array | None:
        """Returns what is read if each lane reads its own element, %g = gather(%x, iota), which
        lies next to those of its neighbours or at a constant distance; None if not."""
        where, operand = self.where, self.operand
        lane = self.emitter.lane(self.instruction)
        is_own = (
            self.indices.opcode == "iota"
            and self.indices.shape.rank == 1
            and self.emitter.lane(self.indices) == 0
            and where.starts == (lane,)
            and where.window_positions == where.window
            and self.instruction.shape.dimensions == where.sizes
        )
        if not is_own or lane is None or operand.lane is not None:
            return None
        if isinstance(operand, Scratch) and operand.pitch == 1:
            strides = row_major_strides(where.sizes)
            return Memory(
                shape=operand.shape,
                lane=lane,
                pointer=operand.pointer,
                strides=strides,
                written=Written.ANY_TIME,
            )
        if isinstance(operand, Memory):
            return replace(operand, lane=lane, loaded={})
        return None

    def _lane_numbers(self) -> LaneNumbers | None:
        """Returns the indices if they are the lanes' rows or columns in the operand."""
        if len(self.where.starts) != 1 or self.where.batching:
            return None
        (limit,) = self.limits.values()
        return LaneNumbers.match(self.indices, self.emitter.lane(self.indices), limit + 1)

    def _look_up(
        self, numbers: LaneNumbers, batch: Sequence[Index | None], window: Sequence[Index | None]
    ) -> ir.Value | None:
        """Returns the elements of lanes that are together; None if they are of no shared table."""
        operand, where = self.operand, self.where
        if not isinstance(operand, Memory) or operand.lane is not None:
            return None
        (dimension,) = where.starts
        index = place_in(self.emitter, where, batch, {}, window)
        return numbers.look_up(self.emitter.place, operand, index, dimension)

    def _read(
        self, batch: Sequence[Index | None], starts: Starts, window: Sequence[Index | None]
    ) -> ir.Value:
        at = place_in(self.emitter, self.where, batch, starts, window)
        return self.operand.get(self.emitter.place, at)

    def _select(
        self,
        batch: Sequence[Index | None],
        starts: Starts,
        window: Sequence[Index | None],
        varying: Sequence[int],
    ) -> ir.Value:
        """Returns one of the elements at all the starts there can be."""
        builder = self.emitter.builder
        counts = [self.limits[d] + 1 for d in varying]
        position = indexing.flatten(builder, [starts[d] for d in varying], counts)
        elements = []
        for number in range(math.prod(counts)):
            at = indexing.unflatten(builder, number, counts)
            elements.append(
                self._read(batch, {**starts, **dict(zip(varying, at, strict=True))}, window)
            )
        return pick(self.emitter.place, elements, position)

    def _are_few(self, varying: Sequence[int]) -> bool:
        """Whether there are so few starts that reading at all of them is cheaper than a gather."""
        if isinstance(self.operand, Memory) and self.operand.lane is not None:
            return False
        return math.prod(self.limits[d] + 1 for d in varying) <= MAX_STARTS

    def _addressable(self, operand: Array) -> Array:
        """Returns the operand, in memory if it is read there at starts that lanes don't share."""
        if isinstance(operand, Memory | Scratch) or self._are_known():
            return operand
        self.operand = operand
        are_few = self._are_few(self.where.starts)
        if isinstance(operand, Registers):
            return operand if are_few else self.emitter.in_scratch(operand)
        if not isinstance(operand, View):
            return operand
        size = residual_size(self.instruction.shape.dimensions, self.emitter.lane(self.instruction))
        reads = math.prod(self.limits.values()) if are_few else _READS_PER_STORE
        return self.emitter.materialize(operand) if size * reads > operand.size else operand

    def _are_known(self) -> bool:
        """Whether all starts are known while the kernel is built."""
        place, where = self.emitter.place, self.where
        array = self.emitter.array(self.indices)
        if array.size > self.emitter.max_unrolled:
            return False
        for number in range(array.size):
            at = array.flat(place, number)
            batch = [c for d, c in enumerate(at) if d != where.vector_dimension]
            starts = _starts(self.emitter, self.indices, where, batch).values()
            if not all(isinstance(start, int) for start in starts):
                return False
        return True


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
