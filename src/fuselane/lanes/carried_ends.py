"""What a loop's condition asks, and its body asks again, is asked once and carried.

    condition:  p = compare(f(x), t)         condition:  ROOT any = reduce(p, or)
                ROOT any = reduce(p, or)
    body:       p = compare(f(x), t)    ->   body:       y = select(p, g(x), x)
                y = select(p, g(x), x)                   next = compare(f(y), t)
                ROOT tuple(y, t)                         ROOT tuple(y, t, next)

So are the loops of `vmap` of `while_loop`. If `f` is rounded otherwise in the condition than in the
body, where lanes meet, say, the one may go on forever with what the other leaves as it is. It is
also half the work.

Numerics: what is carried is rounded as in the body, but for its initial value.
Does not handle: loops inside the loop; what the body asks otherwise.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from fuselane.analysis.loop_ends import cone_in_order
from fuselane.analysis.while_loops import loop_of
from fuselane.hlo.attributes import Works
from fuselane.hlo.computation import HloComputation
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.shape import PrimitiveType
from fuselane.hlo.transfer import add_copies
from fuselane.lanes.builder import ComputationBuilder
from fuselane.lanes.elements import NewElement, change_elements
from fuselane.lanes.normal_loop import NormalLoop

_EXACT: Final = frozenset(
    {
        "abs",
        "broadcast",
        "concatenate",
        "constant",
        "copy",
        "get-tuple-element",
        "iota",
        "maximum",
        "minimum",
        "negate",
        "parameter",
        "reshape",
        "select",
        "slice",
        "transpose",
    }
)
"""Opcodes of floats that are not rounded."""


def carry_ends(normal: NormalLoop) -> NormalLoop | None:
    """Carries what a loop's condition and body both ask of rounded numbers.

    Args:
        normal: Its region is changed in place, if anything is to be carried.
    Returns:
        The loop with more elements; None if nothing is asked twice.
    """
    region = normal.region
    loop = loop_of(region)
    condition = loop.condition
    twins = dict(_find_twins(loop))
    if not twins:
        return None
    added = [
        NewElement(
            initial=_copy(asked, region, loop.operands[0].operands),
            update=partial(_ask_behind, asked, again, loop.body),
            is_result=False,
        )
        for asked, again in twins.items()
    ]
    numbers = change_elements(region, (), added, ComputationBuilder.extending(loop.body))
    builder = ComputationBuilder.extending(condition)
    for number, asked in enumerate(twins, start=len(numbers)):
        asked.replace_all_uses_with(builder.element(condition.parameters[0], number))
    condition.remove_dead_instructions()
    for computation in (condition, loop.body):
        computation.sort()
    indices = *normal.element_indices, *(-1 for _ in added)
    return replace(normal, element_indices=indices)


def _find_twins(loop: HloInstruction) -> Iterator[tuple[HloInstruction, list[HloInstruction]]]:
    """Yields the largest parts of a condition that the body asks as well, each with all that asks
    it there."""
    asked = _find_asked(loop.condition)
    if not asked:
        return
    works, known = Works(), dict[Hashable, int]()
    here, there = (_number(c, works, known) for c in (loop.condition, loop.body))
    in_body: dict[int, list[HloInstruction]] = {}
    for value in _find_asked(loop.body):
        in_body.setdefault(there[value], []).append(value)
    stack, seen = [loop.condition.root], set[HloInstruction]()
    while stack:
        value = stack.pop()
        if value in seen:
            continue
        seen.add(value)
        again = in_body.get(here[value]) if value in asked else None
        if again is None:
            stack.extend(value.operands)
        else:
            yield value, again


def _find_asked(computation: HloComputation) -> list[HloInstruction]:
    """Returns the booleans of a computation that rounded numbers decide."""
    decided: set[HloInstruction] = set()
    for value in computation.post_order():
        if _is_rounded(value) or not decided.isdisjoint(value.operands):
            decided.add(value)
    return [value for value in computation.instructions if value in decided and _is_boolean(value)]


def _is_boolean(value: HloInstruction) -> bool:
    return value.shape.is_array and value.shape.element_type is PrimitiveType.PRED


def _is_rounded(value: HloInstruction) -> bool:
    is_float = value.shape.is_array and value.shape.element_type.is_floating
    return is_float and value.opcode not in _EXACT


def _number(
    computation: HloComputation, works: Works, known: dict[Hashable, int]
) -> dict[HloInstruction, int]:
    """Returns numbers that are equal for values, of either computation, that are made alike of the
    same elements."""
    numbers: dict[HloInstruction, int] = {}
    for value in computation.post_order():
        operands = tuple([numbers[operand] for operand in value.operands])
        work = value.opcode, value.shape, works.attributes(value)
        key = work, operands, tuple(value.called_computations)
        numbers[value] = known.setdefault(key, len(known))
    return numbers


def _ask_behind(
    asked: HloInstruction,
    again: Sequence[HloInstruction],
    body: HloComputation,
    element: HloInstruction,
) -> HloInstruction:
    """Returns what is asked of what the body makes; what it asked of its elements is one, too."""
    for value in again:
        value.replace_all_uses_with(element)
    return _copy(asked, body, body.root.operands)


def _copy(
    value: HloInstruction, target: HloComputation, elements: Sequence[HloInstruction]
) -> HloInstruction:
    """Returns a copy, in another computation, of a value of a condition whose elements are these
    there."""
    values: dict[HloInstruction, HloInstruction] = {}
    originals: list[HloInstruction] = []
    for member in cone_in_order(value):
        if member.opcode == "get-tuple-element" and member.operands[0].opcode == "parameter":
            values[member] = elements[member.tuple_index]
        elif member.opcode != "parameter":
            originals.append(member)
    add_copies(target, originals, values)
    return values[value]
