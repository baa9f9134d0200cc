"""From a `while` of the user's module to a lane program, or to a reason why there is none.

normalise   the loop as a region of row-major arrays          fuselane.lanes.normalise
    pass in     constants too large for code                      fuselane.lanes.passed_in
    frozen      a loop that can end once its lanes are frozen     fuselane.lanes.frozen
find lanes  the dimension along which nothing is mixed        fuselane.analysis.lanes
    spread      iterations that are lanes                         fuselane.lanes.iterations
    part        lanes cut into parts, or put together from them   fuselane.lanes.parting
    take out    reductions over lanes that leave the loop         fuselane.lanes.partials
    meet        reductions over lanes that the loop goes on with  fuselane.lanes.meetings
    share       what lanes see of each other                      fuselane.lanes.sharing
    carry ends  what a condition and a body both ask, unless      fuselane.lanes.carried_ends
                lanes leave one by one, with their own answers
compose     loops, streams, guards, and whether it fits       fuselane.lanes.composition

Most of these change the region, so that each way of finding lanes starts from a normal form of its
own. The first that leads to a program is taken; with few lanes, one that shares is its rival.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from fuselane.analysis.cost import total_cost
from fuselane.analysis.lanes import LaneAnalysis, find_lanes
from fuselane.analysis.meeting_lanes import find_meeting_lanes, find_staged_meetings
from fuselane.analysis.refusal import refuse, source_line
from fuselane.analysis.while_loops import loop_of
from fuselane.decisions import Decision, Reason
from fuselane.errors import UnsupportedError
from fuselane.hlo.computation import HloComputation, instructions_with_branches
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.module import HloModule
from fuselane.lanes.carried_ends import carry_ends
from fuselane.lanes.composition import MAX_SCALAR_COST, compose
from fuselane.lanes.flatten import flatten
from fuselane.lanes.frozen import end_when_frozen
from fuselane.lanes.iterations import spread_iterations
from fuselane.lanes.meetings import join_stages
from fuselane.lanes.normal_loop import Copies, NormalLoop
from fuselane.lanes.normalise import normalise
from fuselane.lanes.partials import PartialLoop, get_combiners, take_out_reductions
from fuselane.lanes.parting import part_lanes
from fuselane.lanes.passed_in import pass_in
from fuselane.lanes.program import LaneProgram
from fuselane.lanes.reduction_trees import find_padded
from fuselane.lanes.residuals import Residuals, recompute
from fuselane.lanes.sharing import share_lanes

_LANES: Final = 8
"""Of a vector, more or less."""

MIN_MEETING_LANES: Final = 16
"""Lanes that meet in every step are worth vectors from this many on."""


def form(
    module: HloModule,
    loop: HloInstruction,
    residuals: Residuals | None = None,
    *,
    is_for_one_thread: Callable[[NormalLoop], bool] = lambda _: True,
    normal: NormalLoop | None = None,
) -> LaneProgram:
    """Returns the lane program of a `while`.

    Args:
        module: The module the loop is in; it is not changed.
        loop: A `while` of any of its computations.
        residuals: What the loop may compute instead of reading it.
        is_for_one_thread: Whether a program is of use that one thread runs, as it has no lanes, or
            lanes that see each other.
        normal: The loop's normal form, if it is known; it is not to be used again.
    Raises:
        UnsupportedError: if there is none; its decision names the reason, the instruction and the
            user's source line.
    """
    num_recomputed = 0
    try:
        normal = normal or normalise(loop)
        if residuals is not None:
            normal, num_recomputed = recompute(normal, residuals)
        normal = pass_in(normal)
        one_thread = is_for_one_thread(normal)
        program = _form_any(loop.name, Copies(normal), one_thread)
    except UnsupportedError as error:
        raise UnsupportedError(_with_source(error.decision, module, loop)) from None
    if num_recomputed:
        rival = program.rival and replace(program.rival, num_recomputed=num_recomputed)
        program = replace(program, num_recomputed=num_recomputed, rival=rival)
    if program.obstacle is None:
        return program
    obstacle = _with_source(program.obstacle, module, loop)
    if not one_thread:
        raise UnsupportedError(obstacle)
    return replace(program, obstacle=obstacle)


def _form_any(name: str, copies: Copies, one_thread: bool) -> LaneProgram:
    program = _form_frozen(name, copies, one_thread)
    if program.has_lanes and not program.meetings:
        return program
    carried = carry_ends(copies.get())
    return program if carried is None else _form_frozen(name, Copies(carried), one_thread)


def _form_frozen(name: str, copies: Copies, one_thread: bool) -> LaneProgram:
    normal = copies.get()
    if end_when_frozen(normal.region):
        try:
            return _form_normal(name, copies, normal, one_thread)
        except UnsupportedError:
            normal = copies.get()
    return _form_normal(name, copies, normal, one_thread)


def _form_normal(name: str, copies: Copies, normal: NormalLoop, one_thread: bool) -> LaneProgram:
    leaving = find_lanes(normal.region, with_leaving=True)
    for other, lanes in itertools.chain(
        spread_iterations(copies, leaving), part_lanes(copies, leaving)
    ):
        try:
            return _form_found(name, copies, other, lanes)
        except UnsupportedError:
            continue
    if leaving.obstacle is not None and not one_thread:
        raise leaving.obstacle
    try:
        program = _form_found(name, copies, normal, leaving)
    except UnsupportedError:
        shared = _form_shared(name, copies.get()) if one_thread else None
        if shared is None:
            raise
        return shared
    if one_thread and program.num_lanes < MIN_MEETING_LANES:
        program = replace(program, rival=_form_shared(name, copies.get()))
    return program


def _form_shared(name: str, normal: NormalLoop) -> LaneProgram | None:
    """Returns the program of a loop whose lanes see each other, None if there is none."""
    normal = carry_ends(normal) or normal
    loop = normal.loop
    lanes = share_lanes(normal.region)
    if lanes is None:
        return None
    analysis = find_meeting_lanes(normal.region, lanes)
    if analysis is None:
        return None
    try:
        program = compose(normal, loop, analysis, name, None)
    except UnsupportedError:
        return None
    # One thread takes all lanes, where loops in the loop may have several.
    if _inner_cost(program, loop) * program.num_lanes / _LANES > MAX_SCALAR_COST:
        return None
    return program


def _inner_cost(program: LaneProgram, loop: HloInstruction) -> float:
    """Returns the operations that a block of lanes spends on the loops in a loop, in one step."""
    inner = [i for i in instructions_with_branches(loop.body) if i.opcode == "while"]
    return total_cost(
        inner,
        program.lane_dimensions.get,
        lambda instruction: program.loops[instruction].trip_count,
    )


def _form_found(
    name: str, copies: Copies, normal: NormalLoop, leaving: LaneAnalysis
) -> LaneProgram:
    if not leaving.leaving:
        return _form_whole(normal, name, found=leaving)
    try:
        partial = take_out_reductions(normal, leaving.leaving, leaving.num_lanes)
        return _form_whole(partial.normal, name, partial)
    except UnsupportedError as failure:
        return _form_without_leaving(name, copies, failure)


def _form_without_leaving(name: str, copies: Copies, failure: UnsupportedError) -> LaneProgram:
    """Forms a loop over a dimension that no reduction mixes, since the largest did not work out."""
    try:
        return _form_whole(copies.get(), name)
    except UnsupportedError:
        raise failure from None


def _form_whole(
    normal: NormalLoop,
    name: str,
    partial: PartialLoop | None = None,
    found: LaneAnalysis | None = None,
) -> LaneProgram:
    """Forms a loop as a whole, whose lanes are looked for if they have not been `found`."""
    region = normal.region
    loop = loop_of(region)
    combiners = {} if partial is None else get_combiners(normal, partial.epilogue)

    def find_again() -> LaneAnalysis:
        shares = [loop.body.root.operands[index] for index, how in combiners.items() if how]
        return find_lanes(region, along=shares[0] if shares else None)

    analysis = found or find_again()
    # What is summed up over the lanes leaves with the other dimensions that it has.
    while analysis.mergeable and partial is None:
        flatten(region, analysis.mergeable)
        analysis = find_again()
    try:
        if partial is not None and loop in analysis.conditions:
            raise refuse(Reason.CROSS_LANE, loop, detail="sums over lanes that stop one by one")
        if analysis.obstacle is not None:
            staged = find_staged_meetings(region)
            join_stages(staged)
            analysis = _find_meeting_lanes(region) or (find_again() if staged else analysis)
        if partial is not None and analysis.meetings:  # they may as well meet for what leaves
            raise refuse(Reason.CROSS_LANE, loop, detail="sums over lanes that meet")
        padded = find_padded(region) if analysis.num_lanes == 1 else []
        if padded:
            join_stages(padded)
            analysis = find_again()
        return compose(normal, loop, analysis, name, partial)
    except UnsupportedError:
        if analysis.obstacle is None:
            raise
        raise analysis.obstacle from None


def _find_meeting_lanes(region: HloComputation) -> LaneAnalysis | None:
    """Returns the lanes of a loop in which they meet, if there are enough of them."""
    analysis = find_meeting_lanes(region)
    is_enough = analysis is not None and analysis.num_lanes >= MIN_MEETING_LANES
    return analysis if is_enough else None


def _with_source(decision: Decision, module: HloModule, loop: HloInstruction) -> Decision:
    """Returns a refusal with the user's source line of its instruction, or else of the loop."""
    if decision.source:
        return decision
    named = (
        instruction
        for computation in module.computations
        for instruction in computation.instructions
        if instruction.name == decision.instruction
    )
    culprit = next(named, loop)
    source = source_line(culprit, module) or source_line(loop, module)
    return replace(decision, source=source, opcode=culprit.opcode)
