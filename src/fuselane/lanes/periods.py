"""How often a branch is taken, as far as its condition tells.

    if i % 50 == 0       once in 50 steps, whatever else it asks; in each if i grows by 50
    if x.sum() > 0       not known

What is said here is for estimates: nothing is proven.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

from fuselane.hlo.computation import HloComputation
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.shape import PrimitiveType


def find_period(conditional: HloInstruction, branch: int) -> int | None:
    """Returns in how many steps a branch is taken once by all appearances, at least 2; None if it
    isn't known.

    Args:
        conditional: One in the body of a loop of XLA's, whose condition may be fused.
        branch: The number of the branch.
    """
    index = conditional.operands[0]
    is_pred = index.shape.element_type is PrimitiveType.PRED
    if len(conditional.called_computations) != 2 or branch != (0 if is_pred else 1):
        return None  # not the branch of what is true
    for place in _scalars_behind(_Place(index)):
        value = place.value
        if value.opcode == "compare" and value.comparison_direction == "EQ":
            for remainder in _scalars_behind(place):
                divisor = _divisor(remainder)
                if divisor is not None:
                    period = divisor // math.gcd(divisor, _stride(remainder))
                    return period if period > 1 else None
    return None


@final
@dataclass(frozen=True, slots=True)
class _Place:
    """A value, and the fusion or conditional that it is in."""

    value: HloInstruction
    caller: HloInstruction | None = None

    def sources(self) -> Iterator[_Place]:
        """Yields what a value is made of, in fusions and branches and around them."""
        value, caller = self.value, self.caller
        if value.opcode == "parameter" and caller is not None:
            yield _Place(caller.operands[value.parameter_number])
        elif value.opcode == "fusion":
            yield _Place(value.called_computations[0].root, value)
        elif value.opcode != "get-tuple-element":
            yield from (_Place(operand, caller) for operand in value.operands)
        else:
            owner, index = value.operands[0], value.tuple_index
            if owner.opcode in ("conditional", "fusion"):
                for called in owner.called_computations:
                    yield from _element(_Place(called.root, owner), index)
            elif owner.opcode == "parameter" and caller is not None:
                number = 1 + caller.called_computations.index(_computation(value))
                yield from _element(_Place(caller.operands[number]), index)


def _element(place: _Place, index: int) -> Iterator[_Place]:
    """Yields an element of a tuple, if that is made where it is."""
    if place.value.opcode == "tuple":
        yield _Place(place.value.operands[index], place.caller)


def _computation(value: HloInstruction) -> HloComputation:
    assert value.computation is not None, "it is in a module"
    return value.computation


def _scalars_behind(place: _Place) -> Iterator[_Place]:
    """Yields the integers and booleans that a value is made of, the nearest first."""
    queue, seen = deque([place]), {place}
    while queue:
        found = queue.popleft()
        yield found
        for source in found.sources():
            shape = source.value.shape
            is_scalar = shape.is_array and shape.num_elements == 1
            if is_scalar and not shape.element_type.is_floating and source not in seen:
                seen.add(source)
                queue.append(source)


def _divisor(place: _Place) -> int | None:
    """Returns by what a value is divided, if it is the remainder by a constant."""
    value = place.value
    if value.opcode not in ("remainder", "and") or not value.shape.element_type.is_integral:
        return None
    number = _constant(list(place.sources())[1])
    if number is None:
        return None
    if value.opcode == "and":
        return number + 1 if number > 0 and not number & (number + 1) else None
    return abs(number) or None


def _stride(remainder: _Place) -> int:
    """Returns by how much what is divided grows in a step of its loop; 1 if that isn't known.

    Example: 10 for `i * 10 + 10`, of which XLA makes what grows by 10, if `i` counts.
    """
    factor = 1
    for place in _scalars_behind(next(remainder.sources())):
        value = place.value
        if value.opcode == "multiply":
            factor *= _amount(place)
        is_element = value.opcode == "get-tuple-element" and place.caller is None
        if is_element and value.operands[0].opcode == "parameter":
            root = _computation(value).root
            steps = _scalars_behind(_Place(root.operands[value.tuple_index]))
            addition = next((step for step in steps if step.value.opcode == "add"), None)
            return factor if addition is None else factor * _amount(addition)
    return 1


def _amount(place: _Place) -> int:
    """Returns the constant that is added or multiplied by; 1 if there is none."""
    return next((abs(number) for number in map(_constant, place.sources()) if number), 1)


def _constant(place: _Place) -> int | None:
    """Returns the integer that a value is, None if it is no constant."""
    while place.value.opcode in ("bitcast", "broadcast", "parameter", "reshape"):
        source = next(place.sources(), None)
        if source is None:
            return None
        place = source
    value = place.value
    is_integer = value.opcode == "constant" and value.shape.element_type.is_integral
    return int(value.literal.flat[0]) if is_integer else None
