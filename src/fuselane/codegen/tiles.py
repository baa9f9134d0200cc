"""Tiles of several lane blocks: for every step, every block, with the state in scratch memory.

for each tile                                 state: scratch, [elements, lanes of the tile]
    for each block   bring its state in
    for each step
        what all lanes share
        for each sweep, for each block        read state, work, read and write rows of streams,
                                              write state
    for each block   write its state out
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import final

from llvmlite import ir

from fuselane.codegen import indexing
from fuselane.codegen.arrays import Array, Memory, Partial, Scratch
from fuselane.codegen.carry import is_there, rewrite
from fuselane.codegen.control import emit_loop, emit_shared_steps, emit_steps
from fuselane.codegen.emitter import Emitter
from fuselane.codegen.frame import Frame
from fuselane.codegen.indexing import i64
from fuselane.codegen.loops import counted_loop
from fuselane.codegen.partials import Folding
from fuselane.codegen.rows import has_rows
from fuselane.codegen.schedule import Step, steps_for
from fuselane.codegen.staging import with_rows_staged
from fuselane.codegen.sweeps import Sweep, cut_into_sweeps, order_of
from fuselane.codegen.types import memory_type
from fuselane.hlo.computation import HloComputation
from fuselane.hlo.instruction import HloInstruction
from fuselane.lanes.program import ElementKind, LoopElement


@final
class Passed:
    """Scratch memory for what one sweep over a tile leaves to later ones, used again and again.

    A new state that has been made where the old one was stays there: no other is made of it.
    """

    def __init__(self, frame: Frame) -> None:
        self.frame = frame
        self.slots: dict[HloInstruction, ir.Value] = {}
        self.free: dict[tuple[str, int], list[ir.Value]] = {}

    def begin(self, sweep: Sweep, following: Sequence[Sweep]) -> Mapping[HloInstruction, ir.Value]:
        """Returns the slots of what a sweep receives, some of which are free from then on."""
        received = {value: self.slots[value] for value in sweep.received}
        later = {value for other in following for value in other.received}
        self._release([value for value in sweep.received if value not in later])
        return received

    def leave(self, block: Emitter, value: HloInstruction, start: ir.Value) -> None:
        """Stores a value for later sweeps, in a slot of its own."""
        element, size = memory_type(value.shape.element_type), self._size(value)
        free = self.free.get((str(element), size))
        count = size * self.frame.plan.pitch
        slot = self.slots[value] = free.pop() if free else self.frame.allocate(element, count)
        block.copy(block.array(value), self.view(value, slot, start))

    def _release(self, values: Sequence[HloInstruction]) -> None:
        """Takes back the slots of values for the last time received.

        The sweep that receives them may leave others there: each block of lanes reads all it
        receives into registers before it writes. Values too large for registers keep their slots.
        """
        for value in values:
            size = self._size(value)
            if size <= self.frame.plan.max_unrolled:
                key = (str(memory_type(value.shape.element_type)), size)
                self.free.setdefault(key, []).append(self.slots[value])

    def _size(self, value: HloInstruction) -> int:
        lane = self.frame.program.lane_dimensions[value]
        return indexing.residual_size(value.shape.dimensions, lane)

    def view(self, value: HloInstruction, slot: ir.Value, start: ir.Value) -> Scratch:
        """Returns a value's array for the block that starts at a lane of the tile."""
        return Scratch(
            shape=value.shape,
            lane=self.frame.program.lane_dimensions[value],
            pointer=slot,
            pitch=self.frame.plan.pitch,
            start=start,
        )


class TiledLoop:
    """The loop of a tile of several lane blocks: steps outside, blocks inside."""

    def __init__(
        self, frame: Frame, emitter: Emitter, outputs: Sequence[Memory | Partial], offset: ir.Value
    ) -> None:
        self.frame = frame
        self.emitter = emitter
        self.outputs = outputs
        self.offset = offset
        self.program = frame.program
        self.loop = frame.program.loop
        self.builder = frame.builder
        self._operands = self.loop.instruction.operands[0].operands
        self.state = [
            e
            for e in self.loop.elements
            if e.kind is ElementKind.STATE and e.lane_dimension is not None and not e.combiner
        ]
        self.results = [e.index for e in self.state] if self.program.is_straight else []
        if self.results:
            self.state = []
        wanted = [output.tuple_index for output in self.program.outputs]
        self.folding = Folding(emitter, frame.plan, list(zip(wanted, outputs, strict=True)))
        self.scratch = {element.index: self._allocate(element) for element in self.state}
        self.staged = {e.index: self._allocate(e) for e in self._find_staged()}
        self.per_lane_prologue: Sequence[Step] = ()
        emitter.carries(self.loop, self.scratch)

    def emit(self) -> None:
        """Emits entry, steps and exit of the tile."""
        self._emit_entry()
        initial = self.frame.initial(self.emitter, self.outputs)
        results = emit_loop(
            self.emitter,
            self.loop,
            initial,
            self._emit_step,
            but=(*self.scratch, *self.results, *self.folding.carried),
            goes_on=self._emit_condition if self.program.meetings else None,
        )
        self._emit_exit(results)

    def _allocate(self, element: LoopElement) -> ir.Value:
        size = indexing.residual_size(element.shape.dimensions, element.lane_dimension)
        count = size * self.frame.plan.pitch
        return self.frame.allocate(memory_type(element.shape.element_type), count)

    def _find_staged(self) -> Iterator[LoopElement]:
        """Yields the invariants that are turned round, or made, once for the whole tile."""
        for element in self.loop.elements:
            if element.index in self.frame.plan.staged:
                array = self.emitter.values.get(self._operands[element.index])
                is_row = isinstance(array, Memory) and has_rows(array, self.emitter.place)
                if array is None or is_row:
                    yield element

    def _emit_entry(self) -> None:
        loop = self.loop.instruction
        program = self.program
        schedule = self.emitter.schedule(program.region)
        prologue = [s for s in schedule.steps if self.frame.is_prologue(s)]
        skipped = (loop, loop.operands[0])
        uniform = set(map(id, schedule.uniform(program)))
        emit_steps(self.emitter, [s for s in prologue if id(s) in uniform and s not in skipped])
        per_lane = [s for s in prologue if id(s) not in uniform and s not in skipped]
        self.per_lane_prologue = per_lane

        def enter(block: Emitter, start: ir.Value) -> None:
            emit_steps(block, per_lane)
            for element in self.state:
                source = block.array(self._operands[element.index])
                block.copy(source, self._view(element, start))
            for element in self.loop.elements:
                if element.index in self.staged:
                    source = block.array(self._operands[element.index])
                    limit = 1 if isinstance(source, Memory) else None
                    block.copy(source, self._view(element, start), limit)

        self._for_each_block(enter)
        self.folding.start()

    def _emit_condition(self, arrays: list[Array]) -> ir.Value:
        """Emits a condition that goes by lanes; see `codegen.in_step`."""
        raise AssertionError("lanes of tiles don't meet")

    def _emit_step(self, arrays: list[Array]) -> list[Array]:
        body = self.loop.instruction.body
        schedule = self.emitter.schedule(body)
        self.emitter.values[body.parameters[0]] = arrays
        separate = {body.root, *self.folding.separate}
        per_lane = [s for s in schedule.per_lane(self.program) if s not in separate]
        indices = [*self.results, *(element.index for element in self.state)]
        results = [body.root.operands[index] for index in indices]
        sweeps = cut_into_sweeps(per_lane, results, self.program)
        self.emitter.orders[body] = order_of([schedule.steps], sweeps)
        emit_shared_steps(self.emitter, body)
        self.folding.start_step()
        passed = Passed(self.frame)
        for number, sweep in enumerate(sweeps):
            received = passed.begin(sweep, sweeps[number + 1 :])
            emit = partial(self.folding.emit_steps, sweep.steps)
            self._emit_sweep(body, sweep, arrays, passed, received, emit)
        self.folding.finish_step(arrays, self._num_blocks())
        return self._uniform_roots(arrays)

    def _emit_sweep(
        self,
        computation: HloComputation,
        sweep: Sweep,
        arrays: Sequence[Array],
        passed: Passed,
        received: Mapping[HloInstruction, ir.Value],
        emit: Callable[[Emitter, ir.Value], None],
    ) -> None:
        """Emits a sweep of the body or the condition over all blocks.

        Args:
            computation: Which of the two.
            sweep: The sweep.
            arrays: The loop's elements.
            passed: Where sweeps leave values.
            received: Where those are that the sweep receives.
            emit: Emits the sweep's steps for the block that starts at a lane of the tile.
        """
        is_body = computation is self.loop.instruction.body

        def advance(block: Emitter, start: ir.Value) -> None:
            current = self._with_lane_invariants(block, arrays, start)
            views = {element.index: self._view(element, start) for element in self.state}
            for index, view in views.items():
                current[index] = block.materialize(view)
            block.values[computation.parameters[0]] = current
            for value, slot in received.items():
                block.values[value] = block.materialize(passed.view(value, slot, start))
            emit(block, start)
            for version in self.program.mutable.intersection(block.values):
                self.emitter.values[version] = block.values[version]
            roots = computation.root.operands
            states = {roots[index]: view for index, view in views.items()} if is_body else {}
            for value in sweep.left:
                if value in states and is_there(block.array(value), states[value]):
                    passed.slots[value] = states[value].pointer
                else:
                    passed.leave(block, value, start)
            if is_body and sweep.is_last:
                following = {e.index: block.array(roots[e.index]) for e in self.state}
                changed = [i for i in views if following[i] is not current[i]]
                rewrite(block, [(views[i], following[i]) for i in changed])
                self._leave(block)

        self._for_each_block(advance)

    def _leave(self, block: Emitter) -> None:
        """Stores the results of straight-line code, which are no state."""
        roots = self.loop.instruction.body.root.operands
        for output, target in zip(self.program.outputs, self.outputs, strict=True):
            if output.tuple_index in self.results:
                block.copy(block.array(roots[output.tuple_index]), target)

    def _with_lane_invariants(
        self, block: Emitter, arrays: Sequence[Array], start: ir.Value
    ) -> list[Array]:
        """Adds the invariants that the region makes per lane, such as an iota over the lanes, and
        those that are there for the whole tile."""
        late = {
            self._operands[e.index]: e.index
            for e in self.loop.elements
            if e.kind is ElementKind.INVARIANT
            and e.index not in self.staged
            and self._operands[e.index] not in self.emitter.values
        }
        current = list(arrays)
        emit_steps(block, steps_for(late, self.per_lane_prologue))
        for operand, index in late.items():
            current[index] = block.array(operand)
        if self.program.is_straight:
            return with_rows_staged(block, self.program, current, self.frame.plan)
        for element in self.loop.elements:
            if element.index in self.staged:
                current[element.index] = self._view(element, start)
        return current

    def _uniform_roots(self, arrays: list[Array]) -> list[Array]:
        roots = self.loop.instruction.body.root.operands
        following = list(arrays)
        for element in self.loop.elements:
            is_own = element.index in (*self.scratch, *self.results) or element.combiner
            if not is_own and element.kind is ElementKind.STATE:
                following[element.index] = self.emitter.array(roots[element.index])
        return following

    def _emit_exit(self, results: Sequence[Array]) -> None:
        pairs = list(zip(self.program.outputs, self.outputs, strict=True))
        by_index = {element.index: element for element in self.state}

        def leave(block: Emitter, start: ir.Value) -> None:
            for output, target in pairs:
                element = by_index.get(output.tuple_index)
                if element is not None:
                    block.copy(self._view(element, start), target)

        self._for_each_block(leave)
        for output, target in pairs:
            element = self.loop.elements[output.tuple_index]
            if element.kind is ElementKind.STATE and element.lane_dimension is None:
                self.emitter.copy(results[element.index], target)
        self.folding.finish()

    def _view(self, element: LoopElement, start: ir.Value) -> Scratch:
        return Scratch(
            shape=element.shape,
            lane=element.lane_dimension,
            pointer=(self.scratch | self.staged)[element.index],
            pitch=self.frame.plan.pitch,
            start=start,
        )

    def _num_blocks(self) -> ir.Value:
        """Returns how many lane blocks the tile has; the last tile may have fewer."""
        plan, builder = self.frame.plan, self.builder
        if plan.num_tiles * plan.tile_lanes == self.program.num_lanes:
            return i64(plan.tile_vectors)
        if plan.is_interleaved:
            following = builder.sub(i64(self.program.num_lanes + plan.num_tiles - 1), self.offset)
            return builder.udiv(following, i64(plan.num_tiles))
        remaining = builder.sub(i64(self.program.num_lanes), self.offset)
        whole = builder.icmp_signed("<", remaining, i64(plan.tile_lanes))
        lanes = builder.select(whole, remaining, i64(plan.tile_lanes))
        return builder.udiv(builder.add(lanes, i64(plan.width - 1)), i64(plan.width))

    def _for_each_block(self, body: Callable[[Emitter, ir.Value], None]) -> None:
        plan, builder = self.frame.plan, self.builder
        with counted_loop(builder, 0, self._num_blocks(), name="block") as v:
            start = builder.mul(v, i64(plan.width), flags=("nsw", "nuw"))
            distance = start
            if plan.is_interleaved:
                distance = builder.mul(v, i64(plan.num_tiles), flags=("nsw", "nuw"))
            offset = builder.add(self.offset, distance, flags=("nsw", "nuw"))
            first = builder.and_(
                self.emitter.place.block.is_first, builder.icmp_signed("==", v, i64(0))
            )
            block = self.frame.block(offset, first)
            body(self.emitter.at(block), start)
