"""Iterations as lanes: a loop whose iterations have nothing to do with each other, as `lax.map`'s.

    for 5000 iterations                                      one iteration of 5000 lanes
        %x = f32[1,3] dynamic-slice(%xs, %i, 0)          ->      %x = f32[5000,3] %xs
        %y = f32[1] f(%x)                                        %y = f32[5000] f(%x)
        %a = f32[5000] dynamic-update-slice(%a, %y, %i)          %a = f32[5000] %y

Each iteration reads its own row of some arrays, and what never changes, and writes its own row of
others; the loop carries nothing else but what counts.

Does not handle: rows in reverse, arrays of which some rows stay.
Numerics: bitwise-equal.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, final

import numpy as np

from fuselane.analysis.lanes import LaneAnalysis, find_lanes
from fuselane.analysis.while_loops import (
    Affine,
    compute_trip_count,
    get_induction_index,
    is_invariant,
    match_affine,
    match_counter,
)
from fuselane.errors import UnsupportedError
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.shape import Shape
from fuselane.lanes.builder import ComputationBuilder, array_shape
from fuselane.lanes.normal_loop import Copies, NormalLoop
from fuselane.lanes.spreading import Spreading

MIN_ITERATIONS: Final = 16
"""Fewer are not worth being lanes."""

MAX_ELEMENTS: Final = 1024
"""Arrays of more elements had better be lanes themselves, or stay with XLA."""


def spread_iterations(
    copies: Copies, found: LaneAnalysis
) -> Iterator[tuple[NormalLoop, LaneAnalysis]]:
    """Yields a loop whose lanes are its iterations, and these lanes, if that can be.

    It cannot if an iteration needs what another one computed, holds much, or cannot be done side by
    side with others.

    Args:
        copies: Of the loop in normal form.
        found: The lanes it has as it is.
    """
    if found.num_lanes >= MIN_ITERATIONS and found.obstacle is None:
        return
    normal = copies.get()
    loop = normal.loop
    trips = compute_trip_count(loop)
    rows = None if trips is None else _find_rows(loop, trips)
    if trips is None or rows is None:
        copies.put_back(normal)
        return
    try:
        _Spread(loop, trips, rows).run()
    except UnsupportedError:
        return
    lanes = find_lanes(normal.region)
    if lanes.obstacle is None and lanes.num_lanes >= trips:
        yield replace(normal, iterations=trips), lanes


@final
@dataclass(frozen=True, slots=True)
class _Row:
    """An array of which each iteration writes a part, one behind the other.

    Attributes:
        update: The `dynamic-update-slice`.
        dimension: Along which.
    """

    update: HloInstruction
    dimension: int


def _find_rows(loop: HloInstruction, trips: int) -> dict[int, _Row] | None:
    """Returns the elements that are written row by row; None if others but counters change, or if
    there are few iterations, or none that are counted."""
    if trips < MIN_ITERATIONS or get_induction_index(loop) is None:
        return None
    root, rows = loop.body.root, dict[int, _Row]()
    for index, value in enumerate(root.operands):
        if is_invariant(loop, index) or match_counter(loop, index, trips) is not None:
            continue
        if value.opcode != "dynamic-update-slice" or value.users != [root]:
            return None
        array, update, *starts = value.operands
        is_own = array.opcode == "get-tuple-element" and array.operands[0].opcode == "parameter"
        if not is_own or array.tuple_index != index or array.users != [value]:
            return None
        dimension = _moving(loop, trips, array.shape, update.shape.dimensions, starts)
        if dimension is None or root.operands.count(value) != 1:
            return None
        rows[index] = _Row(value, dimension)
    sizes = [
        instruction.shape.num_elements
        for instruction in loop.body.instructions
        if instruction.shape.is_array
        and instruction.opcode not in ("get-tuple-element", "dynamic-update-slice", "constant")
    ]
    return rows if rows and max(sizes) <= MAX_ELEMENTS else None


def _moving(
    loop: HloInstruction,
    trips: int,
    whole: Shape,
    window: tuple[int, ...],
    starts: list[HloInstruction],
) -> int | None:
    """Returns the dimension along which iterations go through all of an array, part by part."""
    moving = [d for d, size in enumerate(whole.dimensions) if window[d] != size]
    if len(moving) != 1:
        return None
    (dimension,) = moving
    start = match_affine(starts[dimension], loop, trips)
    step = window[dimension]
    is_whole = start == Affine(step, 0) and step * trips == whole.dimensions[dimension]
    return dimension if is_whole else None


@final
class _Spread:
    """One run of `spread_iterations` on one loop."""

    def __init__(self, loop: HloInstruction, trips: int, rows: dict[int, _Row]) -> None:
        self.loop = loop
        self.trips = trips
        self.rows = rows
        self.builder = ComputationBuilder(loop.body.name)
        self.spreading = Spreading(self.builder, trips)

    def run(self) -> None:
        """Does it."""
        loop, body, shape = self.loop, self.loop.body, self.loop.shape
        parameter = self.builder.parameter(0, shape, body.parameters[0])
        elements = self.builder.elements(parameter)
        self.spreading.run(body, elements, self._known)
        following = [self._following(i, element) for i, element in enumerate(elements)]
        changed = self.builder.finish(self.builder.make_tuple(following))
        loop.call(changed, loop.condition)
        loop.proto.backend_config = b""

    def _following(self, index: int, element: HloInstruction) -> HloInstruction:
        if is_invariant(self.loop, index):
            return element
        if index in self.rows:
            return self._together(self.rows[index])
        counter = match_counter(self.loop, index, self.trips)
        assert counter is not None, "what else changes is written row by row"
        step = self._constant(counter.slope * self.trips, element)
        return self.builder.emit("add", element.shape, (element, step))

    def _together(self, row: _Row) -> HloInstruction:
        """Returns the rows of all iterations, one behind the other."""
        update, builder = row.update.operands[1], self.builder
        value = self.spreading.lifted(self.spreading.get(update), update.shape)
        rank, place = update.shape.rank, row.dimension
        order = (*range(1, place + 1), 0, *range(place + 1, rank + 1))
        return builder.reshape(builder.transpose(value, order), row.update.shape.dimensions)

    def _known(self, instruction: HloInstruction) -> HloInstruction | None:
        """Returns what has its own value in each iteration: its number, and rows of arrays."""
        if instruction.opcode == "dynamic-slice":
            return self._row_of_each(instruction)
        if any(instruction is row.update for row in self.rows.values()):
            return self.spreading.get(instruction.operands[0])
        if instruction.shape.is_tuple or instruction.shape.dimensions:
            return None
        affine = match_affine(instruction, self.loop, self.trips)
        return None if affine is None or not affine.slope else self._count(affine, instruction)

    def _row_of_each(self, taken: HloInstruction) -> HloInstruction | None:
        array, *starts = taken.operands
        if self.spreading.differs(array):
            return None
        window, sizes = taken.dynamic_slice_sizes, list(array.shape.dimensions)
        for place, step in enumerate(window):
            start = match_affine(starts[place], self.loop, self.trips)
            if start == Affine(step, 0) and step * self.trips == sizes[place]:
                apart = (*sizes[:place], self.trips, step, *sizes[place + 1 :])
                rows = self.builder.reshape(self.spreading.get(array), apart, origin=taken)
                order = (place, *(d for d in range(len(apart)) if d != place))
                rows = self.builder.transpose(rows, order, origin=taken)
                return self.spreading.take(taken, rows, rows.shape.dimensions[1:])
        return None

    def _count(self, affine: Affine, value: HloInstruction) -> HloInstruction:
        """Returns `offset + slope * iteration` for all iterations."""
        shape = array_shape(value.shape.element_type, (self.trips,))
        result = self.builder.iota(shape, 0, origin=value)
        for opcode, number in (("multiply", affine.slope), ("add", affine.offset)):
            if number != (opcode == "multiply"):
                numbers = self.builder.broadcast(self._constant(number, value), (self.trips,), ())
                result = self.builder.emit(opcode, shape, (result, numbers), origin=value)
        return result

    def _constant(self, number: int, like: HloInstruction) -> HloInstruction:
        element_type = like.shape.element_type
        pattern = np.uint64(number % (1 << 64))  # wraps around, as the type does
        return self.builder.scalar(pattern.astype(element_type.dtype), element_type, like)
