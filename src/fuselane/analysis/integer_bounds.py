"""How large an integer that a loop carries can become: it starts small and grows by little.

    inner:  n' = select(p, n + 1, n)        at most 20 steps in each of
    outer:  n' = inner's n                  at most 4096 steps, from 0         |n| <= 81,920

With that, a conversion to a narrower type is known to keep the number, and what is made of it in
one type is what is made of it in the other.

Numerics: none; what may wrap around has no bound.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, final

import numpy as np

from fuselane.analysis.valuation import Valuation, is_reshape_in_place
from fuselane.analysis.while_loops import compute_trip_count, match_counter
from fuselane.hlo.computation import HloComputation
from fuselane.hlo.instruction import HloInstruction

_MOVED: Final = frozenset({"broadcast", "reshape", "transpose"})


def count_most_steps(loop: HloInstruction) -> int | None:
    """Returns how often a loop runs at most, or None if that isn't known.

    Args:
        loop: A `while` in normal form, whose condition may ask for more than a counter.
    """
    known = compute_trip_count(loop)
    if known is not None:
        return known
    counts = (_count_steps(loop, value) for value in _conjuncts(loop.condition.root))
    return min((count for count in counts if count is not None), default=None)


def _conjuncts(value: HloInstruction) -> Iterator[HloInstruction]:
    """Yields what must hold for a boolean to hold."""
    if value.opcode == "and":
        for operand in value.operands:
            yield from _conjuncts(operand)
    else:
        yield value


def _count_steps(loop: HloInstruction, test: HloInstruction) -> int | None:
    """Returns how often a test of a counter that only rises, `i < N`, can hold."""
    if test.opcode != "compare" or test.comparison_direction != "LT":
        return None
    counted, limit = test.operands
    is_element = counted.opcode == "get-tuple-element" and (
        counted.operands[0] is loop.condition.parameters[0]
    )
    if not is_element or limit.opcode != "constant" or limit.shape.dimensions:
        return None
    if not limit.shape.element_type.is_signed:
        return None
    counter = match_counter(loop, counted.tuple_index, 1)
    if counter is None or counter.slope <= 0:
        return None
    count = max(0, -(-(int(limit.literal) - counter.offset) // counter.slope))
    return count if match_counter(loop, counted.tuple_index, count + 1) else None


@final
class IntegerBounds:
    """Bounds of the integers of some loops, which may be in each other's bodies."""

    def __init__(self, loops: Iterable[HloInstruction]) -> None:
        self._loops = {loop.body.parameters[0]: loop for loop in loops}
        self._bounds: dict[HloInstruction, int | None] = {}
        self._growths: dict[tuple[HloInstruction, int], int | None] = {}

    def bound(self, value: HloInstruction) -> int | None:
        """Returns what an integer never exceeds in magnitude, or None."""
        element_type = value.shape.element_type if value.shape.is_array else None
        if element_type is None or not element_type.is_signed:
            return None
        if value not in self._bounds:
            # None where it is asked for while it is sought.
            self._bounds[value] = None
            found = self._find(value)
            if found is not None and found < 1 << (element_type.bits - 1):
                self._bounds[value] = found
        return self._bounds[value]

    def _find(self, value: HloInstruction) -> int | None:
        operands = value.operands
        if value.opcode == "constant":
            return max((abs(int(n)) for n in np.unique(value.literal)), default=0)
        if value.opcode in _MOVED or value.opcode == "convert":
            return self.bound(operands[0])
        if value.opcode in ("add", "subtract"):
            left, right = map(self.bound, operands)
            return None if left is None or right is None else left + right
        if value.opcode == "select":
            bounds = [self.bound(operand) for operand in operands[1:]]
            return None if None in bounds else max(b for b in bounds if b is not None)
        if value.opcode == "get-tuple-element" and operands[0] in self._loops:
            loop, index = self._loops[operands[0]], value.tuple_index
            first = self.bound(loop.operands[0].operands[index])
            growth = self._growth_in(loop, index)
            return None if first is None or growth is None else first + growth
        return None

    def _growth_in(self, loop: HloInstruction, index: int) -> int | None:
        """Returns by how much an element changes at most while a loop runs."""
        steps = count_most_steps(loop)
        step = self._growth(loop.body.root.operands[index], loop.body, index)
        return None if steps is None or step is None else steps * step

    def _growth(self, value: HloInstruction, body: HloComputation, index: int) -> int | None:
        """Returns by how much a value of a loop's body is at most off an element, or None."""
        if (value, index) not in self._growths:
            self._growths[value, index] = self._find_growth(value, body, index)
        return self._growths[value, index]

    def _find_growth(self, value: HloInstruction, body: HloComputation, index: int) -> int | None:
        operands = value.operands
        if value.opcode == "get-tuple-element":
            if operands[0] is body.parameters[0]:
                return 0 if value.tuple_index == index else None
            if operands[0].opcode != "while":
                return None
            inner = operands[0]
            before = self._growth(inner.operands[0].operands[value.tuple_index], body, index)
            during = self._growth_in(inner, value.tuple_index)
            return None if before is None or during is None else before + during
        if value.opcode == "select":
            growths = [self._growth(operand, body, index) for operand in operands[1:]]
            return None if None in growths else max(g for g in growths if g is not None)
        if value.opcode in ("add", "subtract"):
            for base, amount in (operands, operands[::-1])[: 1 + (value.opcode == "add")]:
                growth = self._growth(base, body, index)
                added = self.bound(amount) if growth is not None else None
                if growth is not None and added is not None:
                    return growth + added
        return None


@final
class IntegerComparison:
    """Which arrays certainly hold the same integers, perhaps of different types."""

    def __init__(self, values: Valuation, bounds: IntegerBounds) -> None:
        """Args: see below.

        values: What has the same number is the same.
        bounds: What has a bound has not wrapped around on the way.
        """
        self._values = values
        self._bounds = bounds
        self._known: dict[tuple[HloInstruction, HloInstruction], bool] = {}

    def are_same(self, one: HloInstruction, other: HloInstruction) -> bool:
        """Whether two arrays are the same but for their types."""
        if one.shape.dimensions != other.shape.dimensions:
            return False
        pair = _unconverted(one, self._bounds), _unconverted(other, self._bounds)
        if pair not in self._known:
            self._known[pair] = self._compare(*pair)
        return self._known[pair]

    def _compare(self, one: HloInstruction, other: HloInstruction) -> bool:
        if self._values.number(one) == self._values.number(other):
            return True
        if one.opcode != other.opcode or not self._are_bounded(one, other):
            return False
        match one.opcode:
            case "constant":
                is_same_size = one.literal.shape == other.literal.shape
                return is_same_size and bool(np.all(one.literal == other.literal))
            case "broadcast":
                return one.dimensions == other.dimensions and self._have_same(one, other, (0,))
            case "add" | "subtract":
                return self._have_same(one, other, (0, 1))
            case "select":
                is_same = self._ask_the_same(one.operands[0], other.operands[0])
                return is_same and self._have_same(one, other, (1, 2))
        return False

    def _ask_the_same(self, one: HloInstruction, other: HloInstruction) -> bool:
        """Whether two tests have the same outcome."""
        if self._values.number(one) == self._values.number(other):
            return True
        return (
            one.opcode == other.opcode == "compare"
            and one.comparison_direction == other.comparison_direction
            and all(map(self._are_bounded, one.operands, other.operands))
            and self._have_same(one, other, (0, 1))
        )

    def _have_same(
        self, one: HloInstruction, other: HloInstruction, operands: tuple[int, ...]
    ) -> bool:
        return all(self.are_same(one.operands[n], other.operands[n]) for n in operands)

    def _are_bounded(self, *values: HloInstruction) -> bool:
        return all(self._bounds.bound(value) is not None for value in values)


def _unconverted(value: HloInstruction, bounds: IntegerBounds) -> HloInstruction:
    """Returns what an array was before reshapes and conversions that keep its integers."""
    while is_reshape_in_place(value) or (
        value.opcode == "convert"
        and bounds.bound(value) is not None
        and value.operands[0].shape.element_type.is_signed
    ):
        value = value.operands[0]
    return value
