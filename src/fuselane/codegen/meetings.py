"""What lanes meet in: reductions over all of them, and values that all of them see.

%s = f32[] reduce(%x, 0)     %x: f32[64], the lanes     a vector, to which each block adds its lanes
%c = f32[64] copy(%x)                                   memory, in which each block stores its lanes

Both are taken in block by block; `finish` then makes them known to all lanes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol, final

from llvmlite import ir

from fuselane.codegen import indexing
from fuselane.codegen.arrays import Memory, Scratch, View, Written
from fuselane.codegen.combining import combine, without_missing
from fuselane.codegen.emitter import Emitter
from fuselane.codegen.entry import KernelEntry
from fuselane.codegen.frame import Frame
from fuselane.codegen.indexing import Element, Index, with_lane, without_lane
from fuselane.codegen.loops import emit_fold, emit_for_each
from fuselane.codegen.types import constant, memory_type
from fuselane.hlo.combiners import identity, match_combiner
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.shape import Shape


class Meeting(Protocol):
    """What is taken in from each block of lanes, and then known to all lanes."""

    def add(self, block: Emitter, start: ir.Value) -> None:
        """Takes in what the lanes of a block have; the block starts at a lane of the tile."""
        ...

    def finish(self) -> None:
        """Makes it known to all lanes."""
        ...


def make_meeting(emitter: Emitter, instruction: HloInstruction, frame: Frame) -> Meeting:
    """Returns what an instruction that lanes meet in is, before the first block."""
    if instruction.opcode == "copy":
        return Shared(emitter, instruction, frame)
    return Reduced(emitter, instruction, frame.entry)


@final
class Shared:
    """A value of each lane that all lanes see, with the lanes innermost in memory.

    Its lanes may lie along another dimension then: each has a column where it wrote a row. What a
    loop never changes is in memory anyway. The memory is all threads' on a GPU, which wait for each
    other before the first of them stores its lanes, and behind the last.
    """

    def __init__(self, emitter: Emitter, copy: HloInstruction, frame: Frame) -> None:
        self.emitter = emitter
        self.copy = copy
        self.source = copy.operands[0]
        self.lane = emitter.lane(self.source)
        self.is_common = frame.entry.warp is not None
        self.known = self._find_known()
        self.pointer: ir.Value | None = None
        self.pitch = 0
        if self.known is None:
            size = indexing.residual_size(copy.shape.dimensions, self.lane)
            self.pointer, self.pitch = frame.allocate_for_all(copy.shape.element_type, size)

    def _find_known(self) -> Memory | None:
        """Returns where the value is, if it is an array that the loop never changes."""
        array = self.emitter.values.get(self.source)
        if isinstance(array, Memory) and array.written is Written.NEVER:
            return replace(array, lane=self.emitter.lane(self.copy), loaded={})
        return None

    def add(self, block: Emitter, start: ir.Value) -> None:
        """See `Meeting.add`: stores the lanes."""
        if self.pointer is None:
            return
        target = Scratch(
            shape=self.copy.shape,
            lane=self.lane,
            pointer=self.pointer,
            pitch=self.pitch,
            start=block.place.block.offset if self.is_common else start,
        )
        block.copy(block.array(self.source), target)

    def finish(self) -> None:
        """See `Meeting.finish`."""
        if self.pointer is None:
            assert self.known is not None, "what has no memory of its own has other"
            self.emitter.values[self.copy] = self.known
            return
        self.emitter.values[self.copy] = Memory(
            shape=self.copy.shape,
            lane=self.emitter.lane(self.copy),
            pointer=self.pointer,
            strides=self._strides(),
            written=Written.ANY_TIME,
        )

    def _strides(self) -> tuple[int, ...]:
        strides = [1] * self.copy.shape.rank
        stride = self.pitch
        for dimension in reversed(range(self.copy.shape.rank)):
            if dimension != self.lane:
                strides[dimension] = stride
                stride *= self.copy.shape.dimensions[dimension]
        return tuple(strides)


@final
class Reduced:
    """A reduction over lanes: a vector for every element of its result."""

    def __init__(self, emitter: Emitter, reduction: HloInstruction, entry: KernelEntry) -> None:
        combiner = match_combiner(reduction.to_apply)
        assert combiner is not None, "analysis.lanes takes no other reductions for meetings"
        self.emitter = emitter
        self.reduction = reduction
        self.entry = entry
        self.combiner = combiner
        self.element_type = reduction.shape.element_type
        width = emitter.place.block.width
        count = reduction.shape.num_elements * width
        self.vectors = Scratch(
            shape=Shape.array(self.element_type, (width, *reduction.shape.dimensions)),
            lane=0,
            pointer=emitter.place.allocate(memory_type(self.element_type), count),
            pitch=width,
        )
        start = constant(self.element_type, identity(combiner, self.element_type))
        self._for_each(lambda at: self.vectors.put(emitter.place, at, start))

    def _for_each(self, run: Callable[[Element], None]) -> None:
        def visit(index: tuple[Index, ...]) -> None:
            run(with_lane(index, 0))

        dimensions = self.reduction.shape.dimensions
        emit_for_each(
            self.emitter.builder, dimensions, visit, max_unrolled=self.emitter.max_unrolled
        )

    def add(self, block: Emitter, start: ir.Value) -> None:
        """See `Meeting.add`: combines it with what the lanes have.

        Many elements of a lane are combined by themselves first: added one by one to what the other
        lanes had, floats would lose their last digits.
        """
        del start
        operand = block.array(self.reduction.operands[0])
        place, builder = block.place, block.builder
        sizes, lane = operand.shape.dimensions, operand.lane
        present = without_missing(place, operand, self.combiner)
        inner = [d for d in self.reduction.dimensions if d != lane]
        kept = [d for d in range(len(sizes)) if d not in self.reduction.dimensions]
        counts = [sizes[d] for d in inner]
        is_long = math.prod(counts) > block.max_unrolled
        none_yet = identity(self.combiner, self.element_type)
        nothing = constant(self.element_type, none_yet, place.block.width)

        def run(at: Element) -> None:
            def step(index: tuple[Index, ...], values: Sequence[ir.Value]) -> list[ir.Value]:
                where: dict[int, Index | None] = dict(zip(kept, without_lane(at), strict=True))
                where.update(zip(inner, index, strict=True))
                if lane is not None:
                    where[lane] = None
                entry = present.get(place, tuple(where[d] for d in range(len(sizes))))
                return [combine(builder, self.combiner, values[0], entry, self.element_type)]

            so_far = self.vectors.get(place, at)
            (value,) = emit_fold(
                builder,
                counts,
                [nothing if is_long else so_far],
                step,
                max_unrolled=block.max_unrolled,
            )
            if is_long:
                value = combine(builder, self.combiner, so_far, value, self.element_type)
            self.vectors.put(place, at, value)

        self._for_each(run)

    def finish(self) -> None:
        """See `Meeting.finish`: combines the entries of its vectors."""
        emitter, reduction = self.emitter, self.reduction
        initial = emitter.array(reduction.operands[1]).get(emitter.place, ())

        def combined(index: Element) -> ir.Value:
            vector = self.vectors.get(emitter.place, with_lane(index, 0))
            value = self.entry.combine_all(
                emitter.builder, self.combiner, vector, self.element_type
            )
            return combine(emitter.builder, self.combiner, initial, value, self.element_type)

        view = View(shape=reduction.shape, lane=None, element=combined)
        emitter.values[reduction] = emitter.materialize(view)
