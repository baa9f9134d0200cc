"""Checks each step of a loop that is verified, inside the loop that stays with XLA.

In each step, a kernel that runs the loop for one step, and the body on varied inputs, start from
the very state that XLA's step starts from.

Before                                     After
    %p = parameter(0)                          %p = parameter(0)
    ROOT tuple(f(%p))                          %k = custom-call(copy(%p))     one step of a kernel
                                               %a, %b = while(..), while(..)  one step, varied
                                               %f = f(%p)                     after the above
                                               %n = custom-call(%f, %k, %a, %b, step, ..)
                                               ROOT tuple(%f, %n)

Step and check are counted in the loop itself. Arrays that the loop fills row by row are compared
after the loop only. Where no kernel can be made of one step, there is no such check.
"""

from __future__ import annotations

from typing import Final

from fuselane.analysis.small_calls import is_small_loop
from fuselane.hlo.computation import HloComputation
from fuselane.hlo.instruction import HloInstruction
from fuselane.lanes.checked_loop import CheckedLoop, Values, mark
from fuselane.lanes.small_calls import make_small_call
from fuselane.lanes.variation import (
    PRED,
    S32,
    constant,
    element,
    root_values,
    set_root_values,
    vary,
    vary_sums,
    widen,
)

_LAZY_OPCODES: Final = frozenset({"parameter", "constant", "get-tuple-element", "tuple", "bitcast"})
"""Instructions that neither read nor write the memory of arrays."""

_SHARING_OPCODES: Final = frozenset({"tuple", "while", "call", "conditional"})


def step_checked_body(checked: CheckedLoop) -> HloComputation | None:
    """Returns the loop's body with a check of each step; None if that cannot be had.

    It carries two counters more: steps, and unexplained differences.
    """
    if not checked.states:
        return None
    body = _given_body(checked)
    given = [i for i in body.instructions if i.opcode not in _LAZY_OPCODES]
    step, num_wrong = widen(body, [S32, S32])
    loop = _add_step(checked, body, _start(checked, body))
    holder = checked.hold(loop, checked.states)
    compiled = checked.calls.compile_step(loop)
    if compiled is None:
        return None
    program, attributes = compiled
    kernel, call = checked.replace(loop, holder, program, attributes)
    before = [call]
    varied = []
    for sign in checked.signs:
        loop = _add_step(checked, body, _varied_start(checked, body, sign))
        vary_sums(loop.body, sign)
        varied.append([element(body, loop, i) for i in checked.states])
        before.append(loop)
    for instruction in given:
        for predecessor in before:
            instruction.add_control_predecessor(predecessor)
    values = root_values(body)
    results = [values[i] for i in checked.states]
    check = checked.check(program, checked.states, is_step=True)
    done = checked.add_check(body, check, [results, kernel, *varied], [step, num_wrong])
    set_root_values(body, [*values, element(body, done, 0), element(body, done, 1)])
    return body


def _given_body(checked: CheckedLoop) -> HloComputation:
    """Returns the loop's body; as one function, if XLA makes the loop one: in other code it would
    be rounded otherwise."""
    body = checked.clone(checked.loop.body)
    if not is_small_loop(checked.loop):
        return body
    outside = HloComputation.create(body.name)
    parameter = outside.add(HloInstruction.parameter(0, body.root.shape, "state"))
    outside.root = outside.add(make_small_call(parameter, body, checked.loop))
    return checked.module.add(outside)


def _add_step(checked: CheckedLoop, body: HloComputation, values: Values) -> HloInstruction:
    """Adds a loop that runs one step; streams it leaves as they are."""
    inner = checked.clone(checked.loop.body)
    (counter,) = widen(inner, [S32])
    results = root_values(inner)
    for i in checked.changed:
        if i not in checked.states:
            results[i] = element(inner, inner.parameters[0], i)
    following = checked.add(inner, "add", S32, [counter, constant(inner, S32, 1)])
    set_root_values(inner, [*results, following])
    condition = HloComputation.create(f"{checked.loop.name}.once")
    parameter = HloInstruction.create("parameter", inner.root.shape, parameter_number=0)
    condition.add(parameter)
    operands = [element(condition, parameter, len(values)), constant(condition, S32, 1)]
    condition.root = checked.add(condition, "compare", PRED, operands, comparison_direction="LT")
    checked.module.add(condition)
    loop = checked.add_loop(body, [*values, checked.zero(body)], inner, condition)
    mark(loop, "step")
    return loop


def _start(checked: CheckedLoop, body: HloComputation) -> Values:
    """Returns the state at the beginning of a step, in memory of its own."""
    values = _given_values(checked, body)
    for i in checked.states:
        values[i] = checked.add(body, "copy", values[i].shape, [values[i]])
    return values


def _varied_start(checked: CheckedLoop, body: HloComputation, sign: float) -> Values:
    """Returns the same, varied, and streams in memory of their own where XLA needs that."""
    values = _given_values(checked, body)
    for i in checked.changed:
        if i in checked.states:
            values[i] = vary(body, values[i], sign, i)
        elif _is_shared(checked.loop, i):
            values[i] = checked.add(body, "copy", values[i].shape, [values[i]])
    return values


def _given_values(checked: CheckedLoop, body: HloComputation) -> Values:
    return [element(body, body.parameters[0], i) for i in range(len(checked.initial))]


def _is_shared(loop: HloInstruction, index: int) -> bool:
    """Whether the body hands an element on to a computation that may update it in place."""
    return is_small_loop(loop) or any(
        user.opcode in _SHARING_OPCODES
        for value in loop.body.parameters[0].users
        if value.opcode == "get-tuple-element" and value.tuple_index == index
        for user in value.users
        if user is not loop.body.root
    )
