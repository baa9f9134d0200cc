"""Loops in which lanes meet: every step takes all lanes together, in one tile on one thread, or in
one block of a GPU's threads.

for each step
    for each phase      what all lanes share, as far as it is known
                        for each lane block    what needs no more than that;
                                               each meeting := combined with this block's value
                        the entries of each meeting's vector, and what other threads have of it,
                        are combined: now all lanes share it

A meeting is a reduction over lanes whose result the loop itself needs: `any(restart)`, a maximum, a
mean. What depends on none belongs to the first phase, what depends on one of those to the second.
What a phase leaves to later ones passes through scratch memory, as between sweeps. The condition
may have meetings too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import final

from llvmlite import ir

from fuselane.codegen.arrays import Array, Scratch, View
from fuselane.codegen.carry import rewrite
from fuselane.codegen.combining import combine, without_missing
from fuselane.codegen.control import emit_shared_steps, emit_steps
from fuselane.codegen.emitter import Emitter
from fuselane.codegen.entry import KernelEntry
from fuselane.codegen.indexing import Element, Index, with_lane, without_lane
from fuselane.codegen.loops import emit_fold, emit_for_each
from fuselane.codegen.schedule import Step, needs_lanes
from fuselane.codegen.sweeps import Sweep, cut_in_phases, find_phases
from fuselane.codegen.tiles import Passed, TiledLoop
from fuselane.codegen.types import constant, memory_type
from fuselane.hlo.combiners import identity, match_combiner
from fuselane.hlo.computation import HloComputation
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.shape import Shape


@final
class InStepLoop(TiledLoop):
    """The loop of a tile of all lanes, which meet in every step."""

    def _emit_step(self, arrays: list[Array]) -> list[Array]:
        body = self.loop.instruction.body
        self._emit_phases(body, arrays)
        return self._uniform_roots(arrays)

    def _emit_condition(self, arrays: list[Array]) -> ir.Value:
        condition = self.loop.instruction.condition
        self._emit_phases(condition, arrays)
        return self.emitter.array(condition.root).get(self.emitter.place, ())

    def _emit_phases(self, computation: HloComputation, arrays: list[Array]) -> None:
        self.emitter.values[computation.parameters[0]] = arrays
        steps = self.emitter.schedule(computation).steps
        is_body = computation is self.loop.instruction.body
        phases = find_phases(steps, self.program)
        roots = computation.root.operands
        results = [roots[element.index] for element in self.state] if is_body else []
        skipped = computation.root if is_body else None
        per_lane = [s for s in steps if needs_lanes(s, self.program) and s is not skipped]
        sweeps = cut_in_phases(per_lane, phases, results, self.program)
        passed = Passed(self.frame)
        for number, sweep in enumerate(sweeps):
            shared = [s for s in steps if phases[id(s)] == number]
            emit_shared_steps(self.emitter, computation, shared)
            later = {value for following in sweeps[number + 1 :] for value in following.received}
            received = {value: passed.slots[value] for value in sweep.received}
            passed.release([value for value in sweep.received if value not in later])
            passed.assign(sweep.left)
            meetings = [
                _Meeting(self.emitter, step, self.frame.entry)
                for step in sweep.steps
                if isinstance(step, HloInstruction) and step in self.program.meetings
            ]
            if sweep.steps or is_body:
                self._emit_phase(computation, sweep, arrays, passed, received, meetings)
            for meeting in meetings:
                meeting.finish()
        last = [s for s in steps if phases[id(s)] == len(sweeps)]
        emit_shared_steps(self.emitter, computation, last)

    def _emit_phase(
        self,
        computation: HloComputation,
        sweep: Sweep,
        arrays: Sequence[Array],
        passed: Passed,
        received: dict[HloInstruction, ir.Value],
        meetings: Sequence[_Meeting],
    ) -> None:
        steps: list[Step] = [s for s in sweep.steps if s not in self.program.meetings]
        is_last = sweep.is_last and computation is self.loop.instruction.body

        def advance(block: Emitter, start: ir.Value) -> None:
            current = self._with_lane_invariants(block, arrays, start)
            views = {element.index: self._view(element, start) for element in self.state}
            for index, view in views.items():
                current[index] = block.materialize(view)
            block.values[computation.parameters[0]] = current
            for value, slot in received.items():
                block.values[value] = block.materialize(passed.view(value, slot, start))
            emit_steps(block, steps)
            for meeting in meetings:
                meeting.add(block)
            for version in self.program.mutable.intersection(block.values):
                self.emitter.values[version] = block.values[version]
            for value in sweep.left:
                block.copy(block.array(value), passed.view(value, passed.slots[value], start))
            if is_last:
                roots = computation.root.operands
                following = {e.index: block.array(roots[e.index]) for e in self.state}
                changed = [i for i in views if following[i] is not current[i]]
                rewrite(block, [(views[i], following[i]) for i in changed])

        self._for_each_block(advance)


@final
class _Meeting:
    """One reduction over lanes: a vector for every element of its result."""

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

    def add(self, block: Emitter) -> None:
        """Combines it with what the lanes of a block have."""
        operand = block.array(self.reduction.operands[0])
        place, builder = block.place, block.builder
        sizes, lane = operand.shape.dimensions, operand.lane
        present = without_missing(place, operand, self.combiner)
        inner = [d for d in self.reduction.dimensions if d != lane]
        kept = [d for d in range(len(sizes)) if d not in self.reduction.dimensions]

        def run(at: Element) -> None:
            def step(index: tuple[Index, ...], values: Sequence[ir.Value]) -> list[ir.Value]:
                where: dict[int, Index | None] = dict(zip(kept, without_lane(at), strict=True))
                where.update(zip(inner, index, strict=True))
                if lane is not None:
                    where[lane] = None
                entry = present.get(place, tuple(where[d] for d in range(len(sizes))))
                return [combine(builder, self.combiner, values[0], entry, self.element_type)]

            (value,) = emit_fold(
                builder,
                [sizes[d] for d in inner],
                [self.vectors.get(place, at)],
                step,
                max_unrolled=block.max_unrolled,
            )
            self.vectors.put(place, at, value)

        self._for_each(run)

    def finish(self) -> None:
        """Makes it known to all lanes."""
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
