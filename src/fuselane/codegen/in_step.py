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

from collections.abc import Sequence
from functools import partial
from typing import final

from llvmlite import ir

from fuselane.codegen.arrays import Array
from fuselane.codegen.control import emit_shared_steps, emit_steps
from fuselane.codegen.emitter import Emitter
from fuselane.codegen.meetings import Meeting, Shared, make_meeting
from fuselane.codegen.schedule import needs_lanes
from fuselane.codegen.sweeps import Sweep, cut_in_phases, find_phases, order_of
from fuselane.codegen.tiles import Passed, TiledLoop
from fuselane.hlo.computation import HloComputation
from fuselane.hlo.instruction import HloInstruction


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
        groups = [[s for s in steps if phases[id(s)] == n] for n in range(len(sweeps) + 1)]
        self.emitter.orders[computation] = order_of(groups, sweeps)
        passed = Passed(self.frame)
        for number, sweep in enumerate(sweeps):
            emit_shared_steps(self.emitter, computation, groups[number])
            received = passed.begin(sweep, sweeps[number + 1 :])
            meetings = [
                make_meeting(self.emitter, step, self.frame)
                for step in sweep.steps
                if isinstance(step, HloInstruction) and step in self.program.meetings
            ]
            is_shared = any(isinstance(meeting, Shared) for meeting in meetings)
            if is_shared:
                self._wait_for_others()
            if sweep.steps or is_body:
                emit = partial(self._emit_phase, sweep, meetings)
                self._emit_sweep(computation, sweep, arrays, passed, received, emit)
            if is_shared:
                self._wait_for_others()
            for meeting in meetings:
                meeting.finish()
        emit_shared_steps(self.emitter, computation, groups[-1])

    def _wait_for_others(self) -> None:
        """Lets the threads of a GPU's block wait for each other."""
        if self.frame.entry.warp is not None:
            self.frame.entry.warp.wait(self.builder)

    def _emit_phase(
        self, sweep: Sweep, meetings: Sequence[Meeting], block: Emitter, start: ir.Value
    ) -> None:
        emit_steps(block, [s for s in sweep.steps if s not in self.program.meetings])
        for meeting in meetings:
            meeting.add(block, start)
