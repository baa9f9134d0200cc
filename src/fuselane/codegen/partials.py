"""What the lanes of a tile make together: sums, products, extremes.

for each tile                           shares: scratch, one vector for each
    for each step
        each fold := its combiner's identity
        for each sweep, for each block  .. ; each fold := combine(fold, this block's value)
        what follows from folds, once, on vectors
    combine the entries of each vector and write them to the tile's row of the result

As all tiles are put together in the same order each time, results don't depend on who ran which.
Lanes that don't exist take no part: a fold leaves the identity there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import final

from fuselane.codegen.arrays import Array, Partial, Scratch, new_scratch, widen
from fuselane.codegen.combining import combine, without_missing
from fuselane.codegen.control import emit_steps, rewrite
from fuselane.codegen.emitter import Emitter
from fuselane.codegen.indexing import Index, with_lane
from fuselane.codegen.loops import emit_for_each
from fuselane.codegen.schedule import Step
from fuselane.codegen.types import constant
from fuselane.hlo.combiners import identity
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.shape import Shape
from fuselane.lanes.program import ElementKind


@final
class Folding:
    """The folds of a tile of several lane blocks, and what follows from them.

    Attributes:
        state: What the tile accumulates over all steps, by element of the loop.
    """

    def __init__(self, emitter: Emitter) -> None:
        """Args: `emitter` is the tile's, which knows what all lanes share."""
        self.program = emitter.program
        self.emitter = emitter
        self.state = {
            element.index: self._new(element.shape)
            for element in self.program.loop.elements
            if element.kind is ElementKind.STATE and element.combiner
        }
        self.folds = {fold: self._new(fold.shape) for fold in self.program.folds}

    def _new(self, shape: Shape) -> Scratch:
        return new_scratch(self.emitter.place, shape, 0)

    def start(self) -> None:
        """Emits the beginning of a tile, when nothing is accumulated yet."""
        for index, scratch in self.state.items():
            self._clear(scratch, self.program.loop.elements[index].combiner)

    def start_step(self) -> None:
        """Emits the beginning of a step, when nothing is folded yet."""
        for fold, combiner in self.program.folds.items():
            self._clear(self.folds[fold], combiner)

    def _clear(self, scratch: Scratch, combiner: str) -> None:
        element = scratch.shape.element_type
        nothing = constant(element, identity(combiner, element))
        place = self.emitter.place

        def clear(index: tuple[Index, ...]) -> None:
            scratch.put(place, with_lane(index, scratch.lane), nothing)

        limit = self.emitter.max_unrolled
        emit_for_each(place.builder, scratch.dimensions, clear, max_unrolled=limit)

    def add(self, block: Emitter, steps: Iterable[Step]) -> None:
        """Emits what a lane block contributes to those of some steps that are folds."""
        for step in steps:
            if isinstance(step, HloInstruction) and step in self.folds:
                self._add(block, step)

    def _add(self, block: Emitter, fold: HloInstruction) -> None:
        scratch, combiner = self.folds[fold], self.program.folds[fold]
        value, place = block.array(fold.operands[0]), block.place
        element = fold.shape.element_type

        def add(index: tuple[Index, ...]) -> None:
            at = with_lane(index, scratch.lane)
            new = widen(place, value.get(place, at))
            new = without_missing(place.builder, combiner, new, place.block.mask, element)
            total = combine(place.builder, combiner, scratch.get(place, at), new, element)
            scratch.put(place, at, total)

        emit_for_each(place.builder, scratch.dimensions, add, max_unrolled=block.max_unrolled)

    def finish_step(self, arrays: Sequence[Array]) -> None:
        """Emits what follows from the step's folds.

        Args:
            arrays: The loop's arrays at the beginning of the step.
        """
        body = self.program.loop.instruction.body
        late = self._late_emitter()
        current = list(arrays)
        for index, scratch in self.state.items():
            current[index] = late.materialize(scratch)
        late.values[body.parameters[0]] = current
        for fold, scratch in self.folds.items():
            late.values[fold] = late.materialize(scratch)
        steps = late.schedule(body).per_lane(self.program)
        emit_steps(late, [step for step in steps if step in self.program.late])
        following = {i: late.array(body.root.operands[i]) for i in self.state}
        rewrite(late, [(scratch, following[index]) for index, scratch in self.state.items()])

    def finish(self, outputs: Sequence[tuple[int, Array]]) -> None:
        """Emits the end of a tile.

        Args:
            outputs: The elements of the loop that are wanted, and where.
        """
        late = self._late_emitter()
        for index, target in outputs:
            if index in self.state and isinstance(target, Partial):
                late.copy(self.state[index], target)

    def _late_emitter(self) -> Emitter:
        """Returns an emitter for vectors in which all lanes exist."""
        return self.emitter.at(replace(self.emitter.place.block, mask=None))
