"""Loops whose state may come back, after which all that follows has happened before.

    x' = x - f(x) / g(x)      Newton's method: from some step on `x'` is `x`, bit for bit

A step that goes by nothing but the state makes the same of the same. Where the state is what it was
N steps ago it will be so again N steps from here, however often: what is left are the steps that
don't fill another N. So ends what converges long before its last step, and what swings to and fro.

Only loops of a known number of steps are looked at; others say themselves when they have enough.

Numerics: none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fuselane.analysis.cost import residual_elements
from fuselane.analysis.loop_ends import cone
from fuselane.analysis.while_loops import (
    get_induction_index,
    is_invariant,
    is_passed_along,
)
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.shape import PrimitiveType

_MIN_STEPS: Final = 4
_MAX_STEPS: Final = 64
_COMPARISONS: Final = 16
"""How often a loop asks, unless that is more often than every few steps."""

_MIN_ROUNDS: Final = 3
"""The first two find out what the third can make use of."""

_COMPARISON_COST: Final = 3.0
"""Operations for an element of the state: it is kept, fetched and compared."""

_MAX_SHARE: Final = 0.03
"""Of the work of all steps that comparisons may add."""

_CHOOSING: Final = frozenset({"clamp", "maximum", "minimum", "select"})
"""What may leave an integer as it is from some step on; arithmetic seldom does."""


def steps_until_compared(
    loop: HloInstruction,
    trip_count: int | None,
    cost: float,
    lane_dimensions: Mapping[HloInstruction, int | None],
) -> int:
    """Returns after how many steps, a power of two, a loop had better ask whether its state is what
    it was then; 0 if it can't be so, or hardly ever is, or asking costs too much.

    Args:
        loop: A `while` in normal form, whose steps do nothing but make the next state.
        trip_count: Its number of steps.
        cost: Operations of a step for a lane.
        lane_dimensions: Where the lanes lie in what it carries.
    """
    if trip_count is None:
        return 0
    counter = get_induction_index(loop)
    state = [i for i in range(len(loop.shape.tuple_shapes)) if not is_invariant(loop, i)]
    state = [index for index in state if index != counter]
    if not state or not all(_may_settle(loop, index) for index in state):
        return 0
    if counter is not None and _decides(loop, counter):
        return 0
    initial = loop.operands[0].operands
    elements = sum(residual_elements(initial[i], lane_dimensions[initial[i]]) for i in state)
    wanted = max(
        trip_count / _COMPARISONS, _COMPARISON_COST * elements / (_MAX_SHARE * max(cost, 1.0))
    )
    steps = _MIN_STEPS
    while steps < min(wanted, _MAX_STEPS):
        steps *= 2
    is_worth = _COMPARISON_COST * elements <= _MAX_SHARE * cost * steps
    return steps if is_worth and trip_count >= _MIN_ROUNDS * steps else 0


def _may_settle(loop: HloInstruction, index: int) -> bool:
    """Whether an element may well become what it was.

    Numbers to which each step adds don't, such as the state of a differential equation, unless what
    is added is a quotient, as in Newton's method.
    """
    value = loop.body.root.operands[index]
    element = value.shape.element_type
    if is_passed_along(loop, index) or element is PrimitiveType.PRED:
        return True
    added = _added(loop, value, index)
    if element.is_floating:
        return added is None or _has_quotient(loop, added)
    return value.opcode in _CHOOSING or (added is not None and _is_truth(added))


def _is_truth(value: HloInstruction) -> bool:
    """Whether a number is 0 or 1, by a predicate."""
    element = value.operands[0].shape.element_type if value.opcode == "convert" else None
    return element is PrimitiveType.PRED


def _added(loop: HloInstruction, value: HloInstruction, index: int) -> HloInstruction | None:
    """Returns what a step adds to an element, or takes from it; None if it does something else."""
    if value.opcode not in ("add", "subtract"):
        return None
    others = [operand for operand in value.operands if _element(loop, operand) != index]
    return others[0] if len(others) == 1 else None


def _has_quotient(loop: HloInstruction, value: HloInstruction) -> bool:
    """Whether a value is made with a division by what changes from step to step."""
    return any(
        part.opcode == "divide" and any(_changes(loop, other) for other in cone(part.operands[1]))
        for part in cone(value)
    )


def _changes(loop: HloInstruction, value: HloInstruction) -> bool:
    index = _element(loop, value)
    return index is not None and not is_invariant(loop, index)


def _element(loop: HloInstruction, value: HloInstruction) -> int | None:
    """Returns which element of the loop a value of the body is, None if it is none."""
    is_one = value.opcode == "get-tuple-element" and value.operands[0] is loop.body.parameters[0]
    return value.tuple_index if is_one else None


def _decides(loop: HloInstruction, counter: int) -> bool:
    """Whether anything but the next value of a counter is made from it."""
    root = loop.body.root
    following = root.operands[counter]
    readers = (user for user in loop.body.parameters[0].users if user.tuple_index == counter)
    makes_others = any(user is not following for reader in readers for user in reader.users)
    return makes_others or root.operands.count(following) > 1 or set(following.users) != {root}
