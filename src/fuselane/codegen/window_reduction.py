"""The rule for reduce-window: overlapping windows of one lane's elements, each combined in order.

%r = f32[8,5] reduce-window(%x, %zero), window={size=1x5 pad=0_0x4_0}, to_apply=%add

    r[lane, j] = ((zero + x[lane, 0]) + ..) + x[lane, j]     cumulative: each made from the last

Numerics: bitwise-equal to a reduction of every window, in row-major order, from the initial value;
places outside the operand are left out, as XLA leaves them out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from llvmlite import ir

from fuselane.codegen import indexing
from fuselane.codegen.arrays import Array, Registers, Scratch, new_scratch, widen
from fuselane.codegen.emitter import Emitter
from fuselane.codegen.indexing import LANE, Element, Index
from fuselane.codegen.loops import emit_counted_loop, emit_for_each
from fuselane.codegen.reduction import apply_computation
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.shape import Shape
from fuselane.hlo.window import WindowDimension, get_window

Values = list[ir.Value]


def emit_reduce_window(emitter: Emitter, instruction: HloInstruction) -> None:
    """Emits a reduce-window of one array or of several; several give a tuple."""
    reduction = _WindowReduction(
        emitter=emitter,
        instruction=instruction,
        arrays=[emitter.array(o) for o in instruction.operands[: len(instruction.operands) // 2]],
        windows=get_window(instruction),
    )
    results = reduction.emit()
    emitter.values[instruction] = results if instruction.shape.is_tuple else results[0]


@final
@dataclass(slots=True, kw_only=True)
class _WindowReduction:
    """One reduce-window on its way."""

    emitter: Emitter
    instruction: HloInstruction
    arrays: list[Array]
    windows: Sequence[WindowDimension]

    def emit(self) -> list[Array]:
        """Emits all elements and returns the results."""
        axis = self._cumulative_axis()
        shape = (self.instruction.shape.tuple_shapes or (self.instruction.shape,))[0]
        size = indexing.residual_size(shape.dimensions, self._lane)
        if size <= self.emitter.max_unrolled:
            return self._in_registers(axis, shape.dimensions)
        return self._in_scratch(axis, shape.dimensions)

    @property
    def _lane(self) -> int | None:
        return self.arrays[0].lane

    def _cumulative_axis(self) -> int | None:
        """Returns the only windowed dimension if its windows are cumulative."""
        windowed = [axis for axis, window in enumerate(self.windows) if not window.is_trivial]
        if len(windowed) != 1:
            return None
        (axis,) = windowed
        sizes = self.arrays[0].shape.dimensions
        return axis if self.windows[axis].is_cumulative(sizes[axis]) else None

    @property
    def _shapes(self) -> Sequence[Shape]:
        return self.instruction.shape.tuple_shapes or (self.instruction.shape,)

    # Where results live.

    def _in_registers(self, axis: int | None, dimensions: tuple[int, ...]) -> list[Array]:
        made: dict[Element, Values] = {}

        def make(inner: tuple[Index, ...]) -> None:
            index = indexing.with_lane(inner, self._lane)
            if axis is None:
                made[index] = self._combine_window(index)
            else:
                before = made.get(_before(index, axis))
                made[index] = self._combine(before or self._starts(), index)

        sizes = indexing.residual_dimensions(dimensions, self._lane)
        limit = self.emitter.max_unrolled
        emit_for_each(self.emitter.builder, sizes, make, max_unrolled=limit)
        return [
            Registers(shape=shape, lane=self._lane, elements=tuple(column))
            for shape, column in zip(self._shapes, zip(*made.values(), strict=True), strict=True)
        ]

    def _in_scratch(self, axis: int | None, dimensions: tuple[int, ...]) -> list[Array]:
        builder = self.emitter.builder
        scratch = [new_scratch(self.emitter.place, shape, self._lane) for shape in self._shapes]

        def make(inner: tuple[Index, ...]) -> None:
            index = indexing.with_lane(inner, self._lane)
            self._store(scratch, index, self._combine_window(index))

        def accumulate(inner: tuple[Index, ...]) -> None:
            index = indexing.with_lane(inner, self._lane)
            assert axis is not None, "only cumulative windows are made one from the other"

            def step(position: Index, carried: Values) -> Values:
                at = (*index[:axis], position, *index[axis + 1 :])
                values = self._combine(carried, at)
                self._store(scratch, at, values)
                return values

            emit_counted_loop(builder, dimensions[axis], self._starts(), step, name="cumulative")

        lines = tuple(1 if number == axis else size for number, size in enumerate(dimensions))
        each = make if axis is None else accumulate
        emit_for_each(builder, indexing.residual_dimensions(lines, self._lane), each)
        return [*scratch]

    def _store(self, scratch: Sequence[Scratch], index: Element, values: Values) -> None:
        for target, value in zip(scratch, values, strict=True):
            target.put(self.emitter.place, index, value)

    # What an element is.

    def _starts(self) -> Values:
        """Returns the initial values, as vectors where there are lanes."""
        place = self.emitter.place
        initial = self.instruction.operands[len(self.arrays) :]
        values = [self.emitter.array(operand).get(place, ()) for operand in initial]
        return values if self._lane is None else [widen(place, value) for value in values]

    def _combine(self, carried: Sequence[ir.Value], index: Element) -> Values:
        """Returns what is carried combined with one element of the operands."""
        values = [array.lanes(self.emitter.place, index) for array in self.arrays]
        return apply_computation(self.emitter, self.instruction.to_apply, [*carried, *values])

    def _combine_window(self, index: Element) -> Values:
        """Returns all elements of one window, combined."""
        sizes = [window.size for window in self.windows]
        total = math.prod(sizes)
        is_known = all(at is None or isinstance(at, int) for at in index)
        carried = self._starts()
        if is_known and total <= self.emitter.max_unrolled:
            for position in range(total):
                carried = self._combine_place(index, sizes, position, carried)
            return carried
        return emit_counted_loop(
            self.emitter.builder,
            total,
            carried,
            lambda position, values: self._combine_place(index, sizes, position, values),
            name="window",
        )

    def _combine_place(
        self, index: Element, sizes: Sequence[int], position: Index, carried: Values
    ) -> Values:
        """Returns what is carried combined with one place of a window, if it is inside."""
        builder = self.emitter.builder
        places = indexing.unflatten(builder, position, sizes)
        inside: bool | ir.Value = True
        element: list[Index | None] = []
        for axis, (at, window) in enumerate(zip(index, self.windows, strict=True)):
            if at is None:
                element.append(LANE)
                continue
            size = self.arrays[0].shape.dimensions[axis]
            first = indexing.multiply(builder, at, window.stride)
            step = indexing.multiply(builder, places[axis], window.dilation)
            found = indexing.subtract(builder, indexing.add(builder, first, step), window.low)
            if not window.is_trivial:
                inside = indexing.both(builder, inside, indexing.less(builder, -1, found))
                inside = indexing.both(builder, inside, indexing.less(builder, found, size))
                found = indexing.clamp(builder, found, 0, size - 1)
            element.append(found)
        if inside is False:
            return list(carried)
        combined = self._combine(carried, tuple(element))
        if inside is True:
            return combined
        pairs = zip(combined, carried, strict=True)
        return [builder.select(inside, new, old) for new, old in pairs]


def _before(index: Element, axis: int) -> Element:
    """Returns the index of the element in front, which is none at the start."""
    at = index[axis]
    assert isinstance(at, int), "elements in registers have known indices"
    return (*index[:axis], at - 1, *index[axis + 1 :])
