"""The loops of a module: how often they run, and what XLA and Fuselane launch for them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fuselane.decisions import LoopDecision
from fuselane.explain.launches import Launches, Loop
from fuselane.explain.model import LoopModel
from fuselane.explain.provenance import Provenance
from fuselane.hlo.instruction import HloInstruction


def describe_loops(
    launches: Launches, provenance: Provenance, decisions: Iterable[LoopDecision]
) -> tuple[LoopModel, ...]:
    """Returns the loops of a module, outer ones before those inside them.

    Args:
        launches: What a run launches.
        provenance: Where instructions come from.
        decisions: What Fuselane decided about the loops of this module, by their names in it; loops
            without one are those inside a fused one, or those of a target it does not compile for.
    """
    chosen = {decision.name: decision for decision in decisions}
    counter = _Counter(launches, chosen)
    return tuple(
        LoopModel(
            name=loop.instruction.name,
            source=provenance.line(loop.instruction),
            parent=loop.parent.name if loop.parent else "",
            trip_count=loop.trip_count,
            kernels_per_iteration=counter.per_iteration(loop),
            launches=counter.launches(loop),
            fuselane_launches=counter.fuselane_launches(loop),
            function=loop.function.name if loop.function else "",
            carried_bytes=sum(s.byte_size for s in loop.instruction.shape.tuple_shapes),
            decision=chosen.get(loop.instruction.name),
        )
        for loop in launches.loops.values()
    )


class _Counter:
    """Counts the launches of loops."""

    def __init__(self, launches: Launches, decisions: Mapping[str, LoopDecision]) -> None:
        self._launches = launches
        self._decisions = decisions
        self._children: dict[HloInstruction | None, list[Loop]] = {}
        for loop in launches.loops.values():
            self._children.setdefault(loop.parent, []).append(loop)
        self._own: dict[HloInstruction | None, list[tuple[int | None, float]]] = {}
        for launch in launches.kernels.values():
            own = self._own.setdefault(launch.loop, [])
            own.append((launch.total, launch.total_per_iteration))

    def per_iteration(self, loop: Loop) -> float | None:
        """Returns the kernels of one iteration, those of inner loops included."""
        total = sum(times for _, times in self._own.get(loop.instruction, ()))
        for inner in self._inner(loop):
            step = self.per_iteration(inner)
            if step is None or inner.trip_count is None:
                return None
            total += inner.per_iteration * inner.trip_count * step
        return total

    def launches(self, loop: Loop) -> int | None:
        """Returns the kernels of a run, those of inner loops included."""
        return _sum(self._own_launches(loop), map(self.launches, self._inner(loop)))

    def fuselane_launches(self, loop: Loop) -> int | None:
        """Returns the kernels of a run with Fuselane on."""
        decision = self._decisions.get(loop.instruction.name)
        if decision is not None and decision.fused:
            return loop.entries
        return _sum(
            self._own_launches(loop),
            map(self.fuselane_launches, self._inner(loop)),
        )

    def _inner(self, loop: Loop) -> list[Loop]:
        return self._children.get(loop.instruction, [])

    def _own_launches(self, loop: Loop) -> int | None:
        counts = [count for count, _ in self._own.get(loop.instruction, ())]
        return _sum(0, counts)


def _sum(start: int | None, counts: Iterable[int | None]) -> int | None:
    total = start
    for count in counts:
        total = None if total is None or count is None else total + count
    return total
