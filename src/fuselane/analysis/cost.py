"""What instructions cost, in vector operations of one block of lanes.

The unit is one cheap vector instruction on one register of lanes. Transcendentals are weighed by
the length of their polynomial, 64-bit integer multiplications and divisions by how vector units do
them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Final

from fuselane.analysis.opcodes import UPDATING_OPCODES
from fuselane.hlo.dots import DotDimensions
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.window import get_window

OPCODE_COST: Final[dict[str, float]] = {
    # Elementwise, one instruction or two.
    "abs": 1,
    "add": 1,
    "and": 1,
    "bitcast-convert": 0,
    "ceil": 1,
    "clamp": 2,
    "compare": 1,
    "convert": 1,
    "floor": 1,
    "is-finite": 2,
    "maximum": 2,
    "minimum": 2,
    "mulhi": 4,
    "multiply": 1,
    "negate": 1,
    "not": 1,
    "or": 1,
    "round-nearest-afz": 4,
    "round-nearest-even": 1,
    "select": 1,
    "shift-left": 1,
    "shift-right-arithmetic": 1,
    "shift-right-logical": 1,
    "sign": 3,
    "subtract": 1,
    "xor": 1,
    # Elementwise, a sequence of instructions.
    "atan2": 30,
    "cbrt": 20,
    "cosine": 15,
    "count-leading-zeros": 4,
    "divide": 6,
    "erf": 20,
    "exponential": 12,
    "exponential-minus-one": 15,
    "log": 15,
    "log-plus-one": 18,
    "logistic": 18,
    "popcnt": 4,
    "power": 120,
    "reduce-precision": 6,
    "remainder": 12,
    "rsqrt": 6,
    "sine": 15,
    "sqrt": 6,
    "tan": 25,
    "tanh": 36,
    # Data movement: in registers it is free, from memory it is a load or store.
    "broadcast": 0,
    "concatenate": 0,
    "constant": 0,
    "copy": 1,
    "dot": 1,
    "dynamic-slice": 1,
    "dynamic-update-slice": 1,
    "gather": 8,
    "get-tuple-element": 0,
    "iota": 0,
    "pad": 0,
    "parameter": 0,
    "reduce": 1,
    "reduce-window": 1,
    "reshape": 0,
    "reverse": 0,
    "scatter": 16,
    "slice": 0,
    "sort": 1,
    "transpose": 0,
    "tuple": 0,
    # A loop costs what its body costs, each time, and branches what the dearest of them costs.
    "conditional": 0,
    "while": 0,
}
"""Vector operations per element of the result."""

MAX_NEIGHBOUR_SORT: Final = 16
"""Elements that are sorted by exchanging neighbours; more are merged."""

_MAX_KEY_BITS: Final = 32
_WORD_EXCHANGE: Final = 10
"""Operations of an exchange of words of a key and a place: a comparison and two selects, twice as
wide as others, two loads and two stores."""

UNKNOWN_TRIP_COUNT: Final = 16
"""Assumed for an inner loop whose trip count is not known."""

TripCount = Callable[[HloInstruction], int | None]
"""Trip count of a `while`, or None if unknown."""


def is_known(value: HloInstruction) -> bool:
    """Whether a value is a constant, or many copies of one."""
    return _one_of(value).opcode == "constant"


def known_number(value: HloInstruction) -> float | None:
    """Returns the real number that all elements of a value are known to be, if any."""
    constant = _one_of(value)
    is_number = constant.opcode == "constant" and constant.shape.num_elements == 1
    element = constant.shape.element_type if is_number else None
    if element is None or not (element.is_floating or element.is_integral):
        return None
    return float(constant.literal.item())


def _one_of(value: HloInstruction) -> HloInstruction:
    """Returns what a value is many copies of, or the value."""
    while value.opcode in ("bitcast", "broadcast", "reshape"):
        value = value.operands[0]
    return value


def residual_elements(instruction: HloInstruction, lane_dimension: int | None) -> int:
    """Returns how many values an array-shaped instruction holds per lane."""
    count = instruction.shape.num_elements
    if lane_dimension is not None:
        count //= max(1, instruction.shape.dimensions[lane_dimension])
    return count


def instruction_cost(
    instruction: HloInstruction,
    lane_dimension: Callable[[HloInstruction], int | None],
    trip_count: TripCount,
) -> float:
    """Returns the vector operations one block of lanes spends on one run of an instruction.

    Args:
        instruction: An instruction of a lane program; a `while` counts all its iterations.
        lane_dimension: Lane dimension of an array-shaped instruction, None where it is uniform.
        trip_count: Trip counts of loops.
    Raises:
        KeyError: for an opcode that lane programs don't have.
    """
    opcode = instruction.opcode
    if opcode == "sort":
        return _sort_cost(instruction, lane_dimension)
    if opcode == "reduce-window":
        return _window_cost(instruction, lane_dimension)
    if opcode == "while":
        count = trip_count(instruction)
        body = total_cost(instruction.body.instructions, lane_dimension, trip_count)
        return body * (UNKNOWN_TRIP_COUNT if count is None else count)
    if opcode == "conditional":
        return max(
            total_cost(branch.instructions, lane_dimension, trip_count)
            for branch in instruction.called_computations
        )
    weight = OPCODE_COST[opcode]
    if weight == 0 or instruction.shape.is_tuple:
        return 0 if opcode != "reduce" else _operand_elements(instruction, lane_dimension)
    if opcode == "reduce":
        return _operand_elements(instruction, lane_dimension)
    if opcode == "copy":
        source = instruction.operands[0]
        return weight * residual_elements(source, lane_dimension(source))
    if opcode == "dot":
        products = DotDimensions.of(instruction).contracted_size(instruction)
        return weight * products * residual_elements(instruction, lane_dimension(instruction))
    if opcode in UPDATING_OPCODES:
        update = instruction.operands[1 if opcode == "dynamic-update-slice" else -1]
        return weight * residual_elements(update, lane_dimension(update))
    return weight * residual_elements(instruction, lane_dimension(instruction))


def total_cost(
    instructions: Iterable[HloInstruction],
    lane_dimension: Callable[[HloInstruction], int | None],
    trip_count: TripCount,
) -> float:
    """Returns the sum of `instruction_cost` over instructions."""
    return sum(instruction_cost(i, lane_dimension, trip_count) for i in instructions)


def _operand_elements(
    reduce: HloInstruction, lane_dimension: Callable[[HloInstruction], int | None]
) -> float:
    operand = reduce.operands[0]
    ops = sum(OPCODE_COST[i.opcode] for i in reduce.to_apply.instructions)
    return ops * residual_elements(operand, lane_dimension(operand))


def _window_cost(
    reduce_window: HloInstruction, lane_dimension: Callable[[HloInstruction], int | None]
) -> float:
    operand = reduce_window.operands[0]
    ops = sum(OPCODE_COST[i.opcode] for i in reduce_window.to_apply.instructions)
    sizes = operand.shape.dimensions
    places = 1
    for window, size in zip(get_window(reduce_window), sizes, strict=True):
        places *= 1 if window.is_cumulative(size) else window.size
    return ops * places * residual_elements(operand, lane_dimension(operand))


def packed_key(sort: HloInstruction) -> int | None:
    """Returns the number of the operand that a sort orders by, if that is integers of at most 32
    bits, which have room in a word beside where they came from; else None."""
    root = sort.to_apply.root
    if root.opcode != "compare" or root.comparison_direction not in ("LT", "GT"):
        return None
    left, right = root.operands
    if (left.opcode, right.opcode) != ("parameter", "parameter"):
        return None
    element = left.shape.element_type
    is_word = element.is_integral and element.bits <= _MAX_KEY_BITS
    number = left.parameter_number
    is_pair = number % 2 == 0 and right.parameter_number == number + 1
    return number // 2 if is_word and is_pair else None


def exchanges_neighbours(sort: HloInstruction) -> bool:
    """Whether a sort puts few enough elements in order to exchange neighbours; more are merged."""
    return _sorted_length(sort) <= MAX_NEIGHBOUR_SORT


def _sorted_length(sort: HloInstruction) -> int:
    return sort.operands[0].shape.dimensions[sort.dimensions[0]]


def count_exchanges(
    sort: HloInstruction, lane_dimension: Callable[[HloInstruction], int | None]
) -> float:
    """Returns how often a sort compares two elements of a lane, and exchanges them or not."""
    operand, size = sort.operands[0], _sorted_length(sort)
    elements = residual_elements(operand, lane_dimension(operand))
    if exchanges_neighbours(sort):
        return (size - 1) / 2 * elements
    return math.log2(size) * (math.log2(size) + 1) / 4 * elements


def _sort_cost(
    sort: HloInstruction, lane_dimension: Callable[[HloInstruction], int | None]
) -> float:
    """Returns the operations of all exchanges: a comparison and two selects for each array, or for
    words alone, by which each array is looked up in the end."""
    exchanges = count_exchanges(sort, lane_dimension)
    compare = sum(OPCODE_COST[i.opcode] for i in sort.to_apply.instructions)
    arrays = len(sort.operands)
    if exchanges_neighbours(sort):
        return (compare + 2 * arrays) * exchanges
    if packed_key(sort) is not None:
        elements = residual_elements(sort.operands[0], lane_dimension(sort.operands[0]))
        return _WORD_EXCHANGE * exchanges + 2 * arrays * elements
    return (2 * compare + 3 + 4 * (arrays + 1)) * exchanges
