"""How often a `while` runs and which of its tuple elements count its iterations.

All loops here are in normal form (`fuselane.lanes.normalise`): operand, body parameter and root are
tuples of arrays, and nothing hides behind fusions or copies.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, final

import numpy as np

from fuselane.errors import VerificationError
from fuselane.hlo.computation import HloComputation
from fuselane.hlo.instruction import HloInstruction

_MIRRORED: Final = {"LT": "GT", "LE": "GE", "GT": "LT", "GE": "LE", "NE": "NE", "EQ": "EQ"}
_MIN_INDEX_BITS: Final = 32


@final
@dataclass(frozen=True, slots=True)
class Affine:
    """An integer that is `offset + slope * iteration`, iterations counted from 0."""

    slope: int
    offset: int

    def at(self, iteration: int) -> int:
        """Returns the value in one iteration."""
        return self.offset + self.slope * iteration

    def range(self, trip_count: int) -> tuple[int, int]:
        """Returns the smallest and the largest value in so many iterations, at least one."""
        ends = (self.at(0), self.at(max(0, trip_count - 1)))
        return min(ends), max(ends)


def compute_trip_count(loop: HloInstruction) -> int | None:
    """Returns the exact trip count of a while instruction, or None if not statically known.

    Matches `i = K; while i < N: i += C` with constant K, N and C, the comparison being any but
    equality; for other loops takes what XLA attached as `known_trip_count`, which is wrong for
    unsigned counters that go down: XLA makes an addition of 255 of `i - 1`, and takes its word for
    it. Does not handle: counters that wrap around, two exits.

    Args:
        loop: A `while`; only XLA's own count is seen if it is not in normal form.
    Returns:
        Iterations, not an upper bound; 0 when the condition is false on entry.
    Raises:
        VerificationError: if `loop` is not a while instruction.
    """
    if loop.opcode != "while":
        raise VerificationError(f"{loop.name} is a {loop.opcode}, not a while.")
    is_normal = loop.operands[0].opcode == loop.body.root.opcode == "tuple"
    counted = _match_counted(loop) if is_normal else None
    return get_known_trip_count(loop) if counted is None else counted.count()


def get_known_trip_count(loop: HloInstruction) -> int | None:
    """Returns the trip count that XLA attached to a `while`, or None."""
    return read_trip_count(loop.backend_config)


@lru_cache(maxsize=256)  # each look at a loop asks several times
def read_trip_count(backend_config: bytes) -> int | None:
    """Returns the trip count that is in the configuration XLA attached to a `while`, or None."""
    try:
        return int(json.loads(backend_config)["known_trip_count"]["n"])
    except (ValueError, KeyError, TypeError):
        return None


def get_induction_index(loop: HloInstruction) -> int | None:
    """Returns the tuple index of the counter that the loop's condition compares, or None.

    The counter changes by a constant each time; its limit may be anything that does not change.
    """
    compared = _compared_element(loop)
    if compared is None or match_step(loop, compared[0]) is None:
        return None
    return compared[0]


def match_counter(loop: HloInstruction, index: int, trip_count: int) -> Affine | None:
    """Returns the value of a tuple element at the start of an iteration if it is affine in it, else
    None.

    Matches a constant initial value and a body that adds a constant or leaves the element as it is;
    not what wraps around before the last of so many iterations has begun.
    """
    counter = _match_counter(loop, index)
    if counter is None or not _holds_all(loop.body.root.operands[index], counter, trip_count):
        return None
    return counter


def match_affine(value: HloInstruction, loop: HloInstruction, trip_count: int) -> Affine | None:
    """Returns a scalar of the loop's body as an affine function of the iteration, or None.

    Sees through integer arithmetic with constants, widening conversions, reshapes, clamps within
    whose bounds it always is, and selects whose comparison has the same outcome in all iterations,
    such as those that wrap negative indices.

    Args:
        value: An integer scalar in `loop.body`, or an array of one element.
        loop: A `while` in normal form.
        trip_count: Its trip count.
    """
    return _AffineMatcher(loop, trip_count).match(value)


class _AffineMatcher:
    """Matches the scalars of one loop's body; each is looked at once."""

    def __init__(self, loop: HloInstruction, trip_count: int) -> None:
        self._loop = loop
        self._trip_count = trip_count
        self._known: dict[HloInstruction, Affine | None] = {}

    def match(self, value: HloInstruction) -> Affine | None:
        if value not in self._known:
            is_index = value.shape.element_type.is_integral and value.shape.num_elements == 1
            self._known[value] = self._match(value) if is_index else None
        return self._known[value]

    def _match(self, value: HloInstruction) -> Affine | None:
        match value.opcode:
            case "constant":
                return Affine(0, int(value.literal.reshape(())))
            case "get-tuple-element" if value.operands[0] is self._loop.body.parameters[0]:
                return match_counter(self._loop, value.tuple_index, self._trip_count)
            case "reshape":
                return self.match(value.operands[0])
            case "convert" if value.shape.element_type.bits >= _MIN_INDEX_BITS:
                inner = self.match(value.operands[0])
                return inner if inner and _holds_all(value, inner, self._trip_count) else None
            case "add" | "subtract" | "multiply":
                return self._match_arithmetic(value)
            case "clamp":
                return self._match_clamp(value)
            case "select":
                outcome = self._constant_outcome(value.operands[0])
                return None if outcome is None else self.match(value.operands[1 if outcome else 2])
        return None

    def _match_arithmetic(self, value: HloInstruction) -> Affine | None:
        left, right = map(self.match, value.operands)
        if left is None or right is None:
            return None
        match value.opcode:
            case "add":
                result = Affine(left.slope + right.slope, left.offset + right.offset)
            case "subtract":
                result = Affine(left.slope - right.slope, left.offset - right.offset)
            case _ if left.slope and right.slope:
                return None
            case _:
                slope = left.slope * right.offset + right.slope * left.offset
                result = Affine(slope, left.offset * right.offset)
        return result if _holds_all(value, result, self._trip_count) else None

    def _match_clamp(self, value: HloInstruction) -> Affine | None:
        low, inner, high = map(self.match, value.operands)
        if low is None or inner is None or high is None or low.slope or high.slope:
            return None
        smallest, largest = inner.range(self._trip_count)
        return inner if low.offset <= smallest and largest <= high.offset else None

    def _constant_outcome(self, predicate: HloInstruction) -> bool | None:
        """Returns what a comparison gives if it gives the same in all iterations, else None."""
        if predicate.opcode != "compare":
            return None
        left, right = map(self.match, predicate.operands)
        if left is None or right is None:
            return None
        difference = Affine(left.slope - right.slope, left.offset - right.offset)
        low, high = difference.range(self._trip_count)
        always, never = {
            "LT": (high < 0, low >= 0),
            "LE": (high <= 0, low > 0),
            "GT": (low > 0, high <= 0),
            "GE": (low >= 0, high < 0),
            "NE": (low > 0 or high < 0, low == high == 0),
            "EQ": (low == high == 0, low > 0 or high < 0),
        }[predicate.comparison_direction]
        return True if always else False if never else None


def _holds(value: HloInstruction, number: int) -> bool:
    """Whether a value's integer type has a number."""
    limits = np.iinfo(value.shape.element_type.dtype)
    return bool(limits.min <= number <= limits.max)


def _holds_all(value: HloInstruction, affine: Affine, trip_count: int) -> bool:
    """Whether a value's integer type has what an affine function is in so many iterations."""
    low, high = affine.range(trip_count)
    return _holds(value, low) and _holds(value, high)


def _match_counted(loop: HloInstruction) -> _Counted | None:
    """Matches a counter that is compared to a constant."""
    compared = _compared_element(loop)
    if compared is None:
        return None
    index, direction, limit_instruction = compared
    counter, limit = _match_counter(loop, index), _constant(limit_instruction)
    if counter is None or limit is None:
        return None
    return _Counted(loop.body.root.operands[index], counter, direction, limit)


@final
@dataclass(frozen=True, slots=True)
class _Counted:
    """What ends a loop: `counter <direction> limit`, with the counter in the type of a value."""

    value: HloInstruction
    counter: Affine
    direction: str
    limit: int

    def count(self) -> int | None:
        """Returns how often it holds, None if the counter wraps around before."""
        count = _count_iterations(self.counter, self.direction, self.limit)
        is_count = count is not None and _holds(self.value, self.counter.at(count))
        return count if is_count else None


def _match_counter(loop: HloInstruction, index: int) -> Affine | None:
    """Returns what a counter is as long as it does not wrap around."""
    initial = _constant(loop.operands[0].operands[index])
    step = match_step(loop, index)
    return None if initial is None or step is None else Affine(step, initial)


def _count_iterations(counter: Affine, direction: str, limit: int) -> int | None:
    """Returns in which iteration `counter <direction> limit` first fails, or None."""
    distance, step = limit - counter.offset, counter.slope
    if direction in ("GT", "GE"):
        distance, step = -distance, -step
    if direction == "NE":
        if distance == 0:
            return 0
        return distance // step if step and distance % step == 0 and distance // step > 0 else None
    if direction == "EQ":
        return 0 if distance else None
    if direction in ("LE", "GE"):
        distance += 1
    if distance <= 0:
        return 0
    return None if step <= 0 else -(-distance // step)


def _compared_element(loop: HloInstruction) -> tuple[int, str, HloInstruction] | None:
    """Matches a condition `element <direction> limit`; returns index, direction and limit."""
    root = loop.condition.root
    parameter = loop.condition.parameters[0]
    if root.opcode != "compare" or not root.operands[0].shape.element_type.is_integral:
        return None
    left, right = root.operands
    for value, limit, direction in (
        (left, right, root.comparison_direction),
        (right, left, _MIRRORED[root.comparison_direction]),
    ):
        if (
            value.opcode == "get-tuple-element"
            and value.operands[0] is parameter
            and _is_unchanging(limit, loop)
            and not _is_unchanging(value, loop)
        ):
            return value.tuple_index, direction, limit
    return None


def _is_unchanging(value: HloInstruction, loop: HloInstruction) -> bool:
    """Whether a value of the condition is the same in all iterations."""
    if value.opcode == "constant":
        return True
    if value.opcode != "get-tuple-element" or value.operands[0].opcode != "parameter":
        return False
    return is_invariant(loop, value.tuple_index)


def is_passed_along(loop: HloInstruction, index: int) -> bool:
    """Whether a tuple element is what it or another has been the step before.

    The parts of a key, say, that go round among three elements.
    """
    value = loop.body.root.operands[index]
    return value.opcode == "get-tuple-element" and value.operands[0] is loop.body.parameters[0]


def loop_of(region: HloComputation) -> HloInstruction:
    """Returns the `while` of a computation that holds one, as a normal form does."""
    return next(i for i in region.instructions if i.opcode == "while")


def is_invariant(loop: HloInstruction, index: int) -> bool:
    """Whether the body passes a tuple element on unchanged."""
    return is_passed_along(loop, index) and loop.body.root.operands[index].tuple_index == index


def match_step(loop: HloInstruction, index: int) -> int | None:
    """Returns by how much the body changes a scalar element, or None if not by a constant.

    An addition that wraps around, as of 255 to 8 bits, is a subtraction.
    """
    value = loop.body.root.operands[index]
    if value.shape.dimensions or not value.shape.element_type.is_integral:
        return None
    if is_invariant(loop, index):
        return 0
    if value.opcode not in ("add", "subtract"):
        return None
    left, right = value.operands
    if value.opcode == "add" and left.opcode == "constant":
        left, right = right, left
    step = _constant(right)
    if step is None or left.opcode != "get-tuple-element" or left.tuple_index != index:
        return None
    if left.operands[0] is not loop.body.parameters[0]:
        return None
    step = step if value.opcode == "add" else -step
    half = 1 << (value.shape.element_type.bits - 1)
    return (step + half) % (2 * half) - half


def _constant(value: HloInstruction) -> int | None:
    if value.opcode != "constant" or value.shape.dimensions:
        return None
    return int(value.literal) if value.shape.element_type.is_integral else None
