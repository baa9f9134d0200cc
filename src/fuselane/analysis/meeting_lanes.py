"""Lanes that meet: which dimension only reductions mix that the outermost loop goes on with.

All lanes need a sum, a maximum or an `any` of all of them, in the rest of the step or in the next.
They take each step together then.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final

from fuselane.analysis.dimension_rules import find_classes
from fuselane.analysis.lane_conditions import LaneCondition, prove
from fuselane.analysis.lanes import LaneAnalysis
from fuselane.analysis.leaving import Reduction, find_reductions, reduced_classes
from fuselane.analysis.parallel_classes import Joiner, find_parallel, has_meetings, meets
from fuselane.analysis.while_loops import loop_of
from fuselane.hlo.computation import HloComputation
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.shape import WIDE_FLOATS

_MAX_MET: Final = 64
"""Results of a dot over lanes, each of which is a product of every lane."""


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LaneSeed:
    """A value of a loop's body, no leaf, and the dimension along which its lanes are to lie."""

    value: HloInstruction
    dimension: int


def find_meeting_lanes(
    region: HloComputation, along: LaneSeed | None = None
) -> LaneAnalysis | None:
    """Returns the largest class that only reductions of the outermost loop mix, or None; together
    with others of its size.

    Either state has it, or what is reduced: a fit to data carries parameters, and its lanes are the
    data's.

    Their results may be needed by all lanes, in the body or in the condition: lanes that meet like
    this take each step together. In nested loops lanes are still on their own.

    Args:
        region: The region.
        along: The lanes, if they are known.
    """
    loop = loop_of(region)
    if along is None and not has_meetings(loop):
        return None
    classes = find_classes(region)
    carried = classes.carried_classes(loop)
    reduced = reduced_classes(classes, find_reductions(loop.body))
    candidates = {**reduced, **carried}
    proven, parallel = find_parallel(classes, carried)
    order = sorted(candidates, key=lambda c: candidates[c], reverse=True)
    if along is not None:
        seed = classes.find(classes.nodes[along.value][along.dimension])
        candidates.setdefault(seed, (along.value.shape.dimensions[along.dimension], 0))
        order = [seed]
    for lane_class in order:
        if not meets(classes, loop, lane_class):
            continue
        ends = classes.reductions_at_ends(lane_class)
        at_end = ends.pop(loop, ())
        proofs = {inner: prove(classes, inner, at, lane_class) for inner, at in ends.items()}
        conditions = {i: p for i, p in proofs.items() if isinstance(p, LaneCondition)}
        if (classes.marking(lane_class) or at_end) and len(conditions) == len(proofs):
            beside = [c for c in candidates if candidates[c][0] == candidates[lane_class][0]]
            meeting = [c for c in beside if meets(classes, loop, c) and c not in parallel]
            meeting = [c for c in meeting if not classes.reductions_at_ends(c)]
            known = {**proven, **{c: {} for c in meeting}, lane_class: conditions}
            joiner = Joiner(classes, [c for c in beside if c in known], known)
            for other in beside:
                joiner.join(lane_class, other)
            meetings = {*(classes.marking(lane_class) or ()), *at_end}
            lane_dimensions, splits = classes.lane_dimensions(lane_class)
            return LaneAnalysis(
                num_lanes=candidates[lane_class][0],
                lane_dimensions=lane_dimensions,
                splits=splits,
                conditions=conditions,
                meetings=frozenset(meetings),
            )
    return None


def find_staged_meetings(region: HloComputation) -> list[Reduction]:
    """Returns the reductions of several stages, and the dots, that lanes may meet in, once each is
    one `reduce`.

    They are those of the largest class that only reductions of the outermost loop mix, and of
    others of its size.
    """
    loop = loop_of(region)
    reductions = [
        reduction
        for computation in (loop.body, loop.condition)
        for reduction in find_reductions(computation)
        if _is_stage_of_meeting(reduction)
    ]
    if not any(_has_stages(reduction) for reduction in reductions):
        return []
    classes = find_classes(region)
    candidates = {**reduced_classes(classes, reductions), **classes.carried_classes(loop)}
    members = {member for reduction in reductions for member in reduction.members}
    markings = {c: set(classes.marking(c) or ()) for c in candidates}
    mixed = [c for c, marking in markings.items() if marking and members.issuperset(marking)]
    size = max((candidates[c][0] for c in mixed), default=0)
    marking = set().union(*(markings[c] for c in mixed if candidates[c][0] == size))
    taken = [r for r in reductions if not marking.isdisjoint(r.members)]
    return [reduction for reduction in taken if _has_stages(reduction)]


def _has_stages(reduction: Reduction) -> bool:
    return len(reduction.members) > 1 or reduction.root.opcode == "dot"


def _is_stage_of_meeting(reduction: Reduction) -> bool:
    """Whether a reduction can be one `reduce`; the products of a dot become as many elements of
    each lane as it has results."""
    if reduction.root.opcode == "reduce":
        return reduction.source.opcode != "dot"
    dot = reduction.root
    is_wide = all(i.shape.element_type in WIDE_FLOATS for i in (dot, *dot.operands))
    return dot.opcode == "dot" and is_wide and dot.shape.num_elements <= _MAX_MET
