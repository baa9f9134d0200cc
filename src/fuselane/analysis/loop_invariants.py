"""Flags that a loop carries and that hold only in lanes that go on.

`diffrax` and others carry what the condition asks for, and the body goes by that:

    condition:  any(p(s))
    body:       s'    = select(flag, s + 1, s)
                flag' = flag and p(s + 1)

Nothing in the body says that a lane in which `p` fails keeps its `s`. But `flag` implies `p`: the
loop starts like that, and every step leaves it so, since where `flag'` holds, `flag` does, and `s'`
is `s + 1`. So a lane in which `p` fails has no `flag`, and keeps its `s`.

The proof is by induction over the steps, for each lane by itself: the initial flag has to imply `p`
of the initial elements, and a step's flag `p` of the step's elements. Either is shown by comparing
boolean functions of what both are made from.

Numerics: none.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import final

from fuselane.analysis.booleans import FALSE, TRUE, Node, TooManyNodesError
from fuselane.analysis.valuation import Valuation
from fuselane.analysis.while_loops import is_invariant
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.shape import PrimitiveType


def find_invariant(
    values: Valuation,
    loop: HloInstruction,
    predicate: HloInstruction,
    lane_class: int,
    *,
    is_negated: bool,
) -> Node:
    """Returns what holds in every lane whenever the condition of a loop is asked.

    Args:
        values: What values of the loop's body and condition are in terms of its elements.
        loop: A `while` in normal form.
        predicate: A boolean of its condition, of which lanes that go on have some.
        lane_class: The class of the lanes, which nothing in the loop mixes.
        is_negated: Whether lanes go on where the predicate fails.
    """
    if values.terms.places(predicate) != (lane_class,):
        return TRUE
    search = _Search(values, loop, predicate, is_negated)
    try:
        return search.run()
    except (TooManyNodesError, RecursionError):
        return TRUE


@final
class _Search:
    """The search for the flags of one loop."""

    def __init__(
        self, values: Valuation, loop: HloInstruction, predicate: HloInstruction, is_negated: bool
    ) -> None:
        self.values = values
        self.booleans = values.booleans
        self.loop = loop
        self.predicate = predicate
        self.is_negated = is_negated
        self.initial = loop.operands[0].operands
        self.following = loop.body.root.operands
        parameter = loop.condition.parameters[0]
        self.outside = Valuation(values.terms)
        self.at_entry = Valuation(values.terms, standing={parameter: (self.outside, self.initial)})
        self.after_step = Valuation(values.terms, standing={parameter: (values, self.following)})

    def run(self) -> Node:
        """Returns all that was proven."""
        found = TRUE
        for index in self._find_flags():
            for is_opposite in (False, True):
                if self._holds_at_entry(index, is_opposite) and self._stays(index, is_opposite):
                    found = self.booleans.both(found, self._invariant(index, is_opposite))
        return found

    def _find_flags(self) -> Iterator[int]:
        """Yields the elements that may be flags: changing booleans, one for each lane."""
        terms = self.values.terms
        places = terms.places(self.predicate)
        for index, nodes in enumerate(terms.classes.elements[self.loop]):
            shape = self.loop.shape.tuple_shapes[index]
            if shape.element_type is not PrimitiveType.PRED or is_invariant(self.loop, index):
                continue
            if terms.places_of(shape, nodes) == places:
                yield index

    def _holds_at_entry(self, index: int, is_opposite: bool) -> bool:
        value = self.initial[index]
        flag = self._signed(self.outside.function(value), is_opposite)
        # In these lanes the same flag, with what is known by now.
        known = self._signed(self.outside.under(flag).function(value), is_opposite)
        return self._implies(
            self.booleans.both(flag, known), self._goes_on(self.at_entry.under(flag))
        )

    def _stays(self, index: int, is_opposite: bool) -> bool:
        new = self.following[index]
        flag = self._signed(self.values.function(new), is_opposite)
        given = self.booleans.both(flag, self._invariant(index, is_opposite))
        # In these lanes the same flag, with what is known by now.
        known = self._signed(self.values.under(given).function(new), is_opposite)
        goes_on = self._goes_on(self.after_step.under(given))
        return self._implies(self.booleans.both(given, known), goes_on)

    def _invariant(self, index: int, is_opposite: bool) -> Node:
        """Returns that the flag in front of a step implies the predicate there."""
        flag = self._signed(self.values.element_function(index), is_opposite)
        goes_on = self._goes_on(self.values)
        return self.booleans.either(self.booleans.negate(flag), goes_on)

    def _goes_on(self, values: Valuation) -> Node:
        return self._signed(values.function(self.predicate), self.is_negated)

    def _signed(self, function: Node, is_opposite: bool) -> Node:
        return self.booleans.negate(function) if is_opposite else function

    def _implies(self, one: Node, other: Node) -> bool:
        return self.booleans.both(one, self.booleans.negate(other)) == FALSE
