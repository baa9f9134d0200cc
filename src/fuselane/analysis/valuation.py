"""What values of a loop are in terms of the elements it carries: numbers and boolean functions.

Two values with the same number are certainly equal, index by index: their opcodes, attributes,
operands' numbers and applied computations are. So are two booleans that are the same function of
the same unknowns. Both are also told apart by what their dimensions stand for, since a mask along
one dimension is not the same mask along another.

A valuation says what parameters stand for: the elements themselves, or what the body makes of them.
`under` gives one that may take for granted that a condition holds in a lane:

    s' = select(flag, s + 1, s)         t = s' + 20  is  s + 21  under `flag`

Numerics: none; integers wrap around.
"""

from __future__ import annotations

import operator
from collections.abc import Hashable, Mapping, Sequence
from typing import Final, final

import numpy as np

from fuselane.analysis.booleans import FALSE, TRUE, Booleans, Node
from fuselane.analysis.dimension_classes import DimensionClasses, is_leaf
from fuselane.analysis.dimension_rules import matching_dimensions
from fuselane.analysis.loop_ends import constant_of
from fuselane.analysis.opcodes import ELEMENTWISE_OPCODES
from fuselane.hlo.computation import HloComputation
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.shape import Shape

_NOT_ATTRIBUTES: Final = (
    "name",
    "id",
    "opcode",
    "shape",
    "metadata",
    "operand_ids",
    "control_predecessor_ids",
    "called_computation_ids",
    "frontend_attributes",
    "backend_config",
)
_ELEMENTWISE_ATTRIBUTES: Final = frozenset({"compare", "reduce-precision"})
_LANE_BY_LANE: Final = ELEMENTWISE_OPCODES | {"broadcast", "gather", "transpose"}
_MIRRORED: Final = {"GT": "LT", "GE": "LE"}
_REARRANGING: Final = frozenset({"broadcast", "concatenate", "pad", "reverse", "slice"})
"""Opcodes that make dimensions of their own, which stand for what their operands' do."""


@final
class Terms:
    """What valuations of one proof have in common, so that their numbers can be compared."""

    def __init__(self, classes: DimensionClasses) -> None:
        self.classes = classes
        self.booleans = Booleans()
        self.sums: dict[int, tuple[int, int]] = {}
        self.integers: dict[int, int] = {}
        self._numbers: dict[Hashable, int] = {}
        self._computations: dict[HloComputation, Hashable] = {}
        self._first: dict[Hashable, tuple[int, ...]] = {}
        self._same: dict[int, int] = {}
        self._carried: frozenset[int] | None = None

    def number(self, key: Hashable) -> int:
        """Returns the number of what a key describes."""
        return self._numbers.setdefault(key, len(self._numbers))

    def places(self, value: HloInstruction) -> tuple[int, ...]:
        """Returns what the dimensions of a value stand for; leaves have none of their own."""
        return (
            () if is_leaf(value) else self.places_of(value.shape, self.classes.nodes.get(value, ()))
        )

    def operand_places(self, user: HloInstruction, index: int) -> tuple[int, ...]:
        """Returns what the dimensions of an operand stand for in one use."""
        return self.places_of(user.operands[index].shape, self.classes.operand_nodes(user, index))

    def places_of(self, shape: Shape, nodes: Sequence[int]) -> tuple[int, ...]:
        """Returns the classes of the dimensions of a shape that are larger than one."""
        sizes = shape.dimensions if nodes else ()
        found = (self.classes.find(n) for n, s in zip(nodes, sizes, strict=True) if s > 1)
        return tuple(self._same.get(place, place) for place in found)

    def rearranged_places(self, value: HloInstruction, key: Hashable) -> tuple[int, ...]:
        """Returns what the dimensions of a rearranged value stand for; wherever equal values are
        rearranged in the same way, that is the same:

            %s = f32[8,9] slice(%x), in the condition        %t = f32[8,9] slice(%x), in the body

        Args:
            value: Rearranged from what has places of its own.
            key: Describes it, but for its places.
        """
        places = self.places(value)
        first = self._first.setdefault(key, places)
        pairs = zip(places, first, strict=True)
        self._same.update((own, other) for own, other in pairs if own != other)
        return first

    def has_dimensions_of_its_own(self, broadcast: HloInstruction) -> bool:
        """Whether no loop carries the dimensions that a broadcast adds."""
        if self._carried is None:
            tuples = self.classes.elements.values()
            carried = (node for nodes in tuples for element in nodes for node in element)
            self._carried = frozenset(map(self.classes.find, carried))
        nodes = enumerate(self.classes.nodes.get(broadcast, ()))
        added = [self.classes.find(n) for d, n in nodes if d not in broadcast.dimensions]
        return self._carried.isdisjoint(added)

    def describe(self, computation: HloComputation) -> Hashable:
        """Returns what is equal for computations that are."""
        known = self._computations.get(computation)
        if known is None:
            places = {instruction: n for n, instruction in enumerate(computation.instructions)}
            known = self._computations[computation] = (
                places[computation.root],
                *(
                    (
                        instruction.opcode,
                        str(instruction.shape),
                        _attributes(instruction),
                        tuple(places[operand] for operand in instruction.operands),
                        tuple(map(self.describe, instruction.called_computations)),
                    )
                    for instruction in computation.instructions
                ),
            )
        return known


@final
class Valuation:
    """Numbers and functions of values, given what parameters stand for and what holds."""

    def __init__(
        self,
        terms: Terms,
        elements: Sequence[HloInstruction] = (),
        standing: Mapping[HloInstruction, tuple[Valuation, Sequence[HloInstruction]]] | None = None,
        given: Node = TRUE,
        plain: Valuation | None = None,
        settled: Mapping[int, tuple[Valuation, HloInstruction]] | None = None,
    ) -> None:
        """Args: see below.

        terms: Shared by all valuations that are compared.
        elements: Parameters whose elements stand for themselves, such as a loop's two.
        standing: Parameters whose elements are these values of another valuation.
        given: What may be taken for granted of a lane.
        plain: The valuation that takes nothing for granted, if `given` does.
        settled: Elements that are values of another valuation all along, by index.
        """
        self.terms = terms
        self.booleans = terms.booleans
        self._elements = frozenset(elements)
        self._standing = standing or {}
        self._given = given
        self._plain = plain
        self._settled = settled or {}
        self._numbers: dict[HloInstruction, int] = {}
        self._functions: dict[HloInstruction, Node] = {}

    def under(self, given: Node) -> Valuation:
        """Returns the valuation of lanes of which something may be taken for granted.

        It says what values are in these lanes only. So it looks no further than through operations
        whose result in a lane depends on nothing but that lane.
        """
        standing = {p: (inner.under(given), v) for p, (inner, v) in self._standing.items()}
        elements = tuple(self._elements)
        return Valuation(self.terms, elements, standing, given, self, self._settled)

    # Numbers.

    def is_element(self, value: HloInstruction, index: int) -> bool:
        """Whether a value is an element as it is."""
        return self._is_own_element(value) and value.tuple_index == index

    def number(self, value: HloInstruction) -> int:
        """Returns the number of a value."""
        stack = [value]
        while stack:
            top = stack[-1]
            missing = [] if top in self._numbers else self._missing(top)
            if missing:
                stack.extend(missing)
                continue
            stack.pop()
            if top not in self._numbers:
                self._numbers[top] = self._find_number(top)
        return self._numbers[value]

    def _missing(self, value: HloInstruction) -> list[HloInstruction]:
        if self._find_elsewhere(value) is not None or self._is_own_element(value):
            return []
        return [operand for operand in value.operands if operand not in self._numbers]

    def _is_own_element(self, value: HloInstruction) -> bool:
        return value.opcode == "get-tuple-element" and value.operands[0] in self._elements

    def _find_elsewhere(self, value: HloInstruction) -> tuple[Valuation, HloInstruction] | None:
        """Returns the valuation and the value that say what a value is, if not this one does."""
        if value.opcode == "get-tuple-element" and value.operands[0] in self._standing:
            inner, values = self._standing[value.operands[0]]
            return inner, values[value.tuple_index]
        if self._is_own_element(value):
            return self._settled.get(value.tuple_index)
        if self._plain is None or value.opcode in _LANE_BY_LANE or is_reshape_in_place(value):
            return None
        return self._plain, value

    def _find_number(self, value: HloInstruction) -> int:
        elsewhere = self._find_elsewhere(value)
        if elsewhere is not None:
            return elsewhere[0].number(elsewhere[1])
        if self._is_own_element(value):
            return self.terms.number(("element", value.tuple_index))
        if value.opcode == "parameter":
            return self.terms.number(("parameter", value.computation, value.parameter_number))
        if value.opcode == "select" and self._plain is not None:
            taken = self._find_taken(value)
            if taken is not None:
                return self._numbers[taken]
        total = self._find_sum(value)
        return self._find_by_structure(value) if total is None else total

    def _find_taken(self, select: HloInstruction) -> HloInstruction | None:
        """Returns the only operand that a select takes where what is given holds, or None."""
        holds, booleans = self.operand_function(select, 0), self.booleans
        for side, fails in ((1, booleans.negate(holds)), (2, holds)):
            if booleans.both(self._given, fails) == FALSE:
                taken = select.operands[side]
                return None if has_places_by_use(taken) else taken
        return None

    def _find_sum(self, value: HloInstruction) -> int | None:
        """Returns the number of an integer plus constants; None if it is something else."""
        if value.opcode not in ("add", "subtract") or not value.shape.element_type.is_integral:
            return None
        left, right = value.operands
        if value.opcode == "add" and _splat_of(right) is None:
            left, right = right, left
        amount = _splat_of(right)
        if amount is None or has_places_by_use(left):
            return None
        number = self._numbers[left]
        base, offset = self.terms.sums.get(number, (number, 0))
        offset += int(amount) if value.opcode == "add" else -int(amount)
        offset %= 1 << value.shape.element_type.bits
        if not offset:
            return base
        total = self.terms.number(("sum", base, offset))
        self.terms.sums[total] = (base, offset)
        return total

    def _find_by_structure(self, value: HloInstruction) -> int:
        splat = _splat_of(value)
        shape = str(value.shape)
        if splat is not None:
            number = self.terms.number(("splat", shape, splat.tobytes()))
            if value.shape.element_type.is_integral:
                self.terms.integers[number] = int(splat)
            return number
        key = (
            value.opcode,
            shape,
            _attributes(value),
            tuple(self._numbers[operand] for operand in value.operands),
            tuple(map(self.terms.describe, value.called_computations)),
        )
        is_own = value.opcode != "broadcast" or self.terms.has_dimensions_of_its_own(value)
        if is_own and _is_rearranged(value):
            return self.terms.number((key, self.terms.rearranged_places(value, key)))
        return self.terms.number((key, self.terms.places(value)))

    # Booleans.

    def element_function(self, index: int) -> Node:
        """Returns a boolean element as a function."""
        if index in self._settled:
            inner, value = self._settled[index]
            return inner.function(value)
        return self.booleans.unknown(self.terms.number(("element", index)))

    def function(self, value: HloInstruction) -> Node:
        """Returns a boolean as a function of what it is combined from.

        Raises:
            TooManyNodesError: if the function becomes too large.
        """
        if has_places_by_use(value):
            return self.booleans.unknown(("constant", object()))
        known = self._functions.get(value)
        if known is None:
            elsewhere = self._find_elsewhere(value)
            known = elsewhere[0].function(elsewhere[1]) if elsewhere else self._combine(value)
            self._functions[value] = known
        return known

    def operand_functions(self, value: HloInstruction) -> list[Node]:
        """Returns what a value is made from, all of it boolean, as functions."""
        return [self.operand_function(value, index) for index in range(len(value.operands))]

    def operand_function(self, user: HloInstruction, index: int) -> Node:
        """Returns a boolean operand as a function."""
        operand = user.operands[index]
        if has_places_by_use(operand):
            places = self.terms.operand_places(user, index)
            return self.booleans.unknown(("constant", self.number(operand), places))
        return self.function(operand)

    def _combine(self, value: HloInstruction) -> Node:
        match value.opcode:
            case "constant":
                return TRUE if constant_of(value) else FALSE
            case "broadcast" | "transpose":
                return self.operand_function(value, 0)
            case "reshape" if is_reshape_in_place(value):
                return self.operand_function(value, 0)
            case "not":
                return self.booleans.negate(self.operand_function(value, 0))
            case "and":
                return self.booleans.both(*self.operand_functions(value))
            case "or":
                return self.booleans.either(*self.operand_functions(value))
            case "xor":
                return self.booleans.differ(*self.operand_functions(value))
            case "select":
                return self.booleans.choose(*self.operand_functions(value))
            case "compare":
                return self._compare(value)
        return self.booleans.unknown(self.number(value))

    def _compare(self, value: HloInstruction) -> Node:
        """Returns a comparison; of those that say the same, or the opposite, there is one."""
        left, right = map(self.number, value.operands)
        direction = value.comparison_direction
        element_type = value.operands[0].shape.element_type
        if direction in _MIRRORED:
            direction, left, right = _MIRRORED[direction], right, left
        is_opposite = direction == "NE"
        if direction == "LE" and element_type.is_integral:
            # a <= b where b < a is false; not so for NaN.
            direction, left, right, is_opposite = "LT", right, left, True
        elif direction in ("NE", "EQ"):
            direction = "EQ"
            left, right = min(left, right), max(left, right)
        integers = self.terms.integers
        if left in integers and right in integers:
            holds = (operator.eq if direction == "EQ" else operator.lt)(
                integers[left], integers[right]
            )
            return TRUE if holds != is_opposite else FALSE
        key = (direction, value.comparison_type, left, right, self.terms.places(value))
        function = self.booleans.unknown(key)
        return self.booleans.negate(function) if is_opposite else function


def has_places_by_use(value: HloInstruction) -> bool:
    """Whether a value differs along dimensions that stand for something in each use alone."""
    return value.opcode in ("constant", "iota") and _splat_of(value) is None


def _is_rearranged(value: HloInstruction) -> bool:
    """Whether a value is rearranged from what has places of its own, beside single numbers."""
    return value.opcode in _REARRANGING and all(
        operand.shape.num_elements == 1 or (not is_leaf(operand) and _splat_of(operand) is None)
        for operand in value.operands
    )


def is_reshape_in_place(value: HloInstruction) -> bool:
    """Whether a value is a reshape that only adds or drops dimensions of size one."""
    if value.opcode != "reshape":
        return False
    source, target = value.operands[0].shape.dimensions, value.shape.dimensions
    kept = len(list(matching_dimensions(source, target)))
    return kept == sum(size != 1 for size in source) == sum(size != 1 for size in target)


def _splat_of(value: HloInstruction) -> np.generic | None:
    """Returns what a value is at every index, if that is one constant."""
    while value.opcode in ("broadcast", "reshape"):
        value = value.operands[0]
    if value.opcode != "constant" or not value.shape.is_array or not value.literal.size:
        return None
    entries = value.literal.reshape(-1)
    first: np.generic = entries[0]
    return first if entries.tobytes() == first.tobytes() * entries.size else None


def _attributes(value: HloInstruction) -> bytes:
    """Returns the attributes of an instruction that its result depends on."""
    if value.opcode in ELEMENTWISE_OPCODES and value.opcode not in _ELEMENTWISE_ATTRIBUTES:
        return b""
    proto = type(value.proto)()
    proto.CopyFrom(value.proto)
    for field in _NOT_ATTRIBUTES:
        proto.ClearField(field)
    return bytes(proto.SerializeToString(deterministic=True))
