"""Classes of dimensions that nothing mixes, and those that lanes only meet in.

Nothing mixes a class either if all that combines its lanes is a loop's end, and each lane can be
proven to be done by itself; see `fuselane.analysis.lane_conditions`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import final

from fuselane.analysis.dimension_classes import DimensionClasses
from fuselane.analysis.lane_conditions import LaneCondition, Unproven, prove
from fuselane.hlo.combiners import match_combiner
from fuselane.hlo.instruction import HloInstruction


def find_parallel(
    classes: DimensionClasses, candidates: Collection[int]
) -> tuple[dict[int, dict[HloInstruction, LaneCondition]], list[int]]:
    """Returns the classes that nothing mixes, with when their lanes are done in which loops."""
    proven = {c: _prove_ends(classes, c) for c in candidates if c not in classes.mixing}
    parallel = [c for c in candidates if c not in classes.mixing]
    return {c: proven[c] for c in parallel}, parallel


@final
class Joiner:
    """Makes one class of parallel ones that never meet.

    Recurrences that have nothing to do with each other then run together. What is proven of loops
    that lanes leave one by one stays so: these don't carry the class that is added.
    """

    def __init__(
        self,
        classes: DimensionClasses,
        parallel: Sequence[int],
        conditions: Mapping[int, Mapping[HloInstruction, LaneCondition]],
    ) -> None:
        self._classes = classes
        self._conditions = conditions
        self._meeting = classes.meeting(parallel)
        self._groups = {lane_class: [lane_class] for lane_class in parallel}

    def join(self, one: int, other: int) -> None:
        """Adds a class to another, whose name stays, if that can be."""
        mine, theirs = self._groups.get(one), self._groups.get(other)
        if one == other or mine is None or theirs is None or self._conditions[other]:
            return
        if any((a, b) in self._meeting for a in mine for b in theirs) or self._carries(one, other):
            return
        self._classes.unite((one,), (other,))
        mine.extend(self._groups.pop(other))

    def _carries(self, one: int, other: int) -> bool:
        """Whether a loop that lanes of one class leave one by one carries the other class."""
        find, elements = self._classes.find, self._classes.elements
        return any(
            find(node) == other
            for loop in self._conditions[one]
            for nodes in elements[loop]
            for node in nodes
        )


def _prove_ends(classes: DimensionClasses, lane_class: int) -> dict[HloInstruction, LaneCondition]:
    """Returns when lanes are done in the loops that wait for all of them.

    If one has to wait, the class is noted as mixing.
    """
    conditions: dict[HloInstruction, LaneCondition] = {}
    for loop, reductions in classes.reductions_at_ends(lane_class).items():
        condition = prove(classes, loop, reductions, lane_class)
        if isinstance(condition, Unproven):
            classes.mixing[lane_class] = (condition.culprit, condition.why)
            classes.waiting.add(lane_class)
            return {}
        conditions[loop] = condition
    return conditions


def meets(classes: DimensionClasses, loop: HloInstruction, lane_class: int) -> bool:
    """Whether reductions of a loop's own, and nothing else, mix a class."""
    marking = classes.marking(lane_class)
    return marking is not None and all(is_meeting(by, loop) for by in marking)


def has_meetings(loop: HloInstruction) -> bool:
    """Whether a loop has instructions of its own that lanes might meet in: `is_meeting` says."""
    instructions = (*loop.body.instructions, *loop.condition.instructions)
    return any(instruction.opcode in ("copy", "reduce") for instruction in instructions)


def is_meeting(instruction: HloInstruction, loop: HloInstruction) -> bool:
    """Whether all lanes of a loop may meet in an instruction of its own."""
    if instruction.opcode == "copy":
        return instruction.computation is loop.body
    return (
        instruction.opcode == "reduce"
        and instruction.shape.is_array
        and match_combiner(instruction.to_apply) is not None
        and instruction.computation in (loop.body, loop.condition)
    )
