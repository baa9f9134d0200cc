"""Keeps a loop beside the kernel that replaces it, and compares the two.

Before                                     After
    %t = tuple(%x, %y)                         %k = custom-call(copy(%x), copy(%y))     the kernel
    %w = while(%t)                             %w = while(tuple(%x, %y, 0, 0))          XLA
    %r = get-tuple-element(%w), index=0        %a = while(.. varied upwards ..)         XLA, twice
    ROOT f(%r)                                 %b = while(.. varied downwards ..)
                                               %r = get-tuple-element(%w), index=0
                                               custom-call(%r, %k, %a, %b)              the check
                                               ROOT f(%r)

The program goes on with XLA's result. The kernel is the one that runs without verification: it gets
copies of what it updates in place. Two more runs of the loop, on inputs and with every step a few
units in the last place off, show what rounding grows to; see `contract`.

A chaotic loop soon leaves nothing to compare that way. So there is a second check, inside XLA's
loop, of each step; see `lanes.step_check`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fuselane.errors import VerificationError
from fuselane.hlo.computation import HloComputation
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.module import HloModule
from fuselane.lanes.checked_loop import CheckCalls, CheckedLoop, Values, mark
from fuselane.lanes.program import LaneProgram
from fuselane.lanes.replace import Attributes, replace_loop
from fuselane.lanes.step_check import step_checked_body
from fuselane.lanes.variation import (
    PRED,
    S32,
    constant,
    element,
    is_float,
    move_users,
    root_values,
    set_root_values,
    vary,
    vary_sums,
    widen,
)


def replace_and_check(
    module: HloModule,
    loop: HloInstruction,
    program: LaneProgram,
    attributes: Attributes,
    calls: CheckCalls,
) -> None:
    """Puts a kernel, and checks of it, beside a `while`.

    Args:
        module: The module the loop is in.
        loop: The `while` that `program` was formed from; another one takes its place.
        program: The lane program.
        attributes: Attributes of the kernel's custom call.
        calls: How kernels and checks are called.
    Raises:
        VerificationError: if `program` does not belong to `loop`.
    """
    if loop.computation is None or loop.operands[0].opcode != "tuple":
        raise VerificationError(f"{loop.name} cannot be replaced by a kernel.")
    checked = CheckedLoop(module, loop, loop.computation, program, calls)
    if not checked.compared:
        replace_loop(loop, program, calls.kernel_target, attributes)
        return
    computation, count = checked.computation, len(checked.initial)
    kernel, call = _add_kernel(checked, attributes)
    starts = [_varied_start(checked, sign) for sign in checked.signs]
    reference, moved = _add_reference(checked)
    reference.add_control_predecessor(call)
    for value in (start[i] for start in starts for i in checked.changed):
        reference.add_control_predecessor(value)
    steps = element(computation, reference, count)
    varied = [
        _add_varied_loop(checked, start, sign, steps)
        for start, sign in zip(starts, checked.signs, strict=True)
    ]
    results = [element(computation, reference, i) for i in checked.compared]
    scalars = [steps, element(computation, reference, count + 1)]
    check = checked.check(program, checked.compared, is_step=False)
    done = checked.add_check(computation, check, [results, kernel, *varied], scalars)
    _keep_order(checked, reference, done, moved)


# The kernel of the whole loop.


def _add_kernel(checked: CheckedLoop, attributes: Attributes) -> tuple[Values, HloInstruction]:
    """Returns the kernel's results, in the order of `compared`, and its call."""
    copies: dict[HloInstruction, HloInstruction] = {}
    for i in checked.changed:
        value = checked.initial[i]
        if value not in copies:
            copies[value] = checked.add(checked.computation, "copy", value.shape, [value])
    values = [copies.get(value, value) for value in checked.initial]
    program = replace(
        checked.program,
        operands=tuple(copies.get(operand, operand) for operand in checked.program.operands),
    )
    user_loop = checked.loop
    loop = checked.add_loop(checked.computation, values, user_loop.body, user_loop.condition)
    for predecessor in user_loop.control_predecessors:
        loop.add_control_predecessor(predecessor)
    return checked.replace(loop, checked.hold(loop, checked.compared), program, attributes)


# The loop that stays.


def _add_reference(checked: CheckedLoop) -> tuple[HloInstruction, Values]:
    """Adds the loop that goes on, with two counters: steps, and unexplained differences.

    Returns:
        It, and what has become of the old loop's elements.
    """
    body = step_checked_body(checked) or _counting_body(checked)
    condition = checked.clone(checked.loop.condition)
    widen(condition, [S32, S32])
    computation = checked.computation
    values = [*checked.initial, checked.zero(computation), checked.zero(computation)]
    reference = checked.add_loop(computation, values, body, condition)
    reference.proto.backend_config = checked.loop.backend_config
    reference.proto.frontend_attributes.CopyFrom(checked.loop.proto.frontend_attributes)
    mark(reference, "reference")
    return reference, move_users(checked.loop, reference)


def _counting_body(checked: CheckedLoop) -> HloComputation:
    """Returns the loop's body with the two counters."""
    body = checked.clone(checked.loop.body)
    step, num_wrong = widen(body, [S32, S32])
    following = checked.add(body, "add", S32, [step, constant(body, S32, 1)])
    set_root_values(body, [*root_values(body), following, num_wrong])
    return body


def _keep_order(
    checked: CheckedLoop,
    reference: HloInstruction,
    done: HloInstruction,
    moved: Sequence[HloInstruction],
) -> None:
    """Makes what comes after the loop come after the check, too, and removes the old loop."""
    loop, computation = checked.loop, checked.computation
    for predecessor in loop.control_predecessors:
        reference.add_control_predecessor(predecessor)
    for successor in loop.control_successors:
        successor.add_control_predecessor(done)
    for value in moved:
        for user in value.users:
            user.add_control_predecessor(done)
    initial = loop.operands[0]
    loop.drop_control_edges()
    computation.sort()
    computation.remove(loop)
    if not (initial.users or initial.is_root or initial.control_successors):
        computation.remove(initial)


# Whole loops on varied inputs.


def _varied_start(checked: CheckedLoop, sign: float) -> Values:
    """Returns initial values, in memory of their own if they change: the state, and what every step
    reads, are varied."""
    computation, values = checked.computation, list(checked.initial)
    for i, value in enumerate(checked.initial):
        is_changed = i in checked.changed
        if i in checked.states or (not is_changed and is_float(value.shape)):
            values[i] = vary(computation, value, sign, i)
        elif is_changed:
            values[i] = checked.add(computation, "copy", value.shape, [value])
    return values


def _add_varied_loop(
    checked: CheckedLoop, start: Values, sign: float, steps: HloInstruction
) -> Values:
    """Adds the loop with every step varied; runs it for as many steps as XLA's at most.

    Returns:
        Its results, in the order of `compared`.
    """
    body = checked.clone(checked.loop.body)
    counter, limit = widen(body, [S32, S32])
    vary_sums(body, sign)
    results = root_values(body)
    for i in checked.states:
        if is_float(results[i].shape):
            results[i] = vary(body, results[i], sign, i)
    following = checked.add(body, "add", S32, [counter, constant(body, S32, 1)])
    set_root_values(body, [*results, following, limit])
    condition = checked.clone(checked.loop.condition)
    is_left = checked.add(
        condition, "compare", PRED, widen(condition, [S32, S32]), comparison_direction="LT"
    )
    condition.root = checked.add(condition, "and", PRED, [condition.root, is_left])
    condition.sort()
    computation = checked.computation
    limit = checked.add(computation, "copy", S32, [steps])
    values = [*start, checked.zero(computation), limit]
    loop = checked.add_loop(computation, values, body, condition)
    mark(loop, "varied")
    return [element(computation, loop, i) for i in checked.compared]
