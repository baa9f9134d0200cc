"""Loops in normal form: they carry what is needed of them and is no constant.

    %t = tuple(%zero, %x, %weights, %n)          %t = tuple(%zero, %x, %n)
    %w = while(%t), body=%b                  ->  %w = while(%t), body=%b
    b: %s = get-tuple-element(%p), index=2       b: %s = constant({..})     never changes

An index vector that never changes is carried as those of its parts that are no constants (see
`fuselane.lanes.index_vectors`). What never changes is the same behind the loop as before it.

Numerics: bitwise-equal.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from fuselane.analysis.while_loops import get_known_trip_count, is_invariant
from fuselane.hlo.instruction import HloInstruction
from fuselane.lanes.builder import Attributes, ComputationBuilder
from fuselane.lanes.carry import Carry
from fuselane.lanes.constants import is_constant, transplant
from fuselane.lanes.hoisted import hand_on, may_repeat_conditions
from fuselane.lanes.index_vectors import put_together, variable_parts
from fuselane.lanes.merged_ends import take_apart
from fuselane.lanes.values import Inline, Value, array_of, leaves_of, rebuild


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class NormalWhile:
    """A `while` in normal form.

    Attributes:
        values: Those of the user's elements behind it.
        element_indices: For each element it carries that of the user's `while`.
        invariant: The user's elements that never change.
    """

    values: tuple[Value, ...]
    element_indices: tuple[int, ...]
    invariant: frozenset[int]


def lower_while(
    builder: ComputationBuilder,
    loop: HloInstruction,
    initial: Sequence[Value],
    inline_body: Inline,
    inline_condition: Inline,
) -> NormalWhile:
    """Lowers a loop.

    Args:
        builder: Where.
        loop: A `while` of the user's module.
        initial: What its initial elements became.
        inline_body: How to emit its body.
        inline_condition: How to emit its condition.
    """
    carry = Carry(loop)
    constants = {
        i: array_of(initial[i])
        for i in carry.invariant & carry.needed
        if is_constant(array_of(initial[i]))
    }
    kept = [i for i in sorted(carry.needed) if i not in constants]
    carried = list(initial)
    vectors: dict[int, HloInstruction] = {}
    for i in carry.invariant.intersection(kept):
        parts = variable_parts(initial[i])
        if parts is not None:
            carried[i], vectors[i] = parts, array_of(initial[i])
    initial_tuple = builder.make_tuple([leaf for i in kept for leaf in leaves_of(carried[i])])
    fixed: dict[int, HloInstruction] = {}
    if may_repeat_conditions(loop):
        among = carry.invariant.intersection(kept)
        fixed = {
            i: v for i, v in enumerate(initial) if i in among and isinstance(v, HloInstruction)
        }
    called = []
    for computation, inline in ((loop.body, inline_body), (loop.condition, inline_condition)):
        inner = ComputationBuilder(computation.name)
        parameter = inner.parameter(0, initial_tuple.shape, computation.parameters[0])
        arguments: list[Value] = [None] * len(initial)
        position = 0
        for i in kept:
            arguments[i], position = rebuild(carried[i], inner, parameter, position)
        passed = {i: arguments[i] for i in vectors}
        for i, vector in vectors.items():
            arguments[i] = put_together(vector, arguments[i], inner)
        for i, constant in constants.items():
            arguments[i] = transplant(constant, inner)
        hand_on(builder, inner, {value: array_of(arguments[i]) for i, value in fixed.items()})
        argument = tuple(arguments) if loop.shape.is_tuple else arguments[0]
        root = inline(computation, (argument,), inner)
        if computation is loop.body:
            values = root if isinstance(root, tuple) else (root,)
            leaves = [leaf for i in kept for leaf in leaves_of(passed.get(i, values[i]))]
            root = inner.make_tuple(leaves)
        called.append(inner.finish(array_of(root)))
    take_apart(condition=called[1], body=called[0])
    instruction = builder.emit(
        "while",
        initial_tuple.shape,
        (initial_tuple,),
        _trip_count_attribute(loop),
        origin=loop,
        called=tuple(called),
    )
    results = list(initial)
    invariant = set(carry.invariant)
    position = 0
    for i in kept:
        first = position
        value, position = rebuild(carried[i], builder, instruction, position)
        if all(is_invariant(instruction, leaf) for leaf in range(first, position)):
            invariant.add(i)  # perhaps only since a select chooses among equals
        if i not in invariant:
            results[i] = value
    return NormalWhile(
        values=tuple(results),
        element_indices=tuple(i for i in kept for _ in leaves_of(carried[i])),
        invariant=frozenset(invariant),
    )


def _trip_count_attribute(loop: HloInstruction) -> Attributes:
    """Returns the backend config that says how often the loop runs, if XLA's own says so."""
    count = get_known_trip_count(loop)
    if count is None:
        return ()
    text = json.dumps({"known_trip_count": {"n": str(count)}})
    return (("backend_config", text.encode()),)
