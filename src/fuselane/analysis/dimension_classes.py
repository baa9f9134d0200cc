"""Classes of dimensions: which dimensions of which values run in parallel.

Every dimension of every value of a region gets a class; instructions unite the classes of
dimensions that they map onto each other, and mark the class of a dimension along which they mix
data: see `fuselane.analysis.dimension_rules`.

Constants, iotas and broadcasts of scalars have no dimensions of their own: each use gets fresh
classes, so that a zero array shared by two unrelated values does not tie these together.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, final

from fuselane.analysis.opcodes import ELEMENTWISE_OPCODES
from fuselane.analysis.while_loops import is_invariant, is_passed_along
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.shape import Shape

Nodes = tuple[int, ...]
"""One class member per dimension of an array."""

_MIN_LANES: Final = 2
_PASSING_OPCODES: Final = frozenset({"parameter", "while", "conditional"})
_WIDENED_OPCODES: Final = ELEMENTWISE_OPCODES | {
    "broadcast",
    "constant",
    "get-tuple-element",
    "iota",
    "parameter",
    "reshape",
}
_WIDENING_OPCODES: Final = ELEMENTWISE_OPCODES | {"broadcast", "reshape", "tuple"}


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LeafSplit:
    """A constant, iota or broadcast of a scalar that one of its users needs with other lanes.

    Attributes:
        leaf: The shared instruction.
        uses: The users and operand numbers that need a copy.
        lane_dimension: The lane dimension the copy has.
    """

    leaf: HloInstruction
    uses: tuple[tuple[HloInstruction, int], ...]
    lane_dimension: int | None


def is_leaf(instruction: HloInstruction) -> bool:
    """Whether a value is made of nothing or of one scalar, so that every use may have its own."""
    opcode = instruction.opcode
    return opcode in ("iota", "constant") or (
        opcode == "broadcast" and not instruction.operands[0].shape.dimensions
    )


@final
@dataclass(frozen=True, slots=True)
class Alone:
    """A value that has one of two dimensions to be merged, and could have the other too.

    Attributes:
        dimension: Where it has it.
        is_major: Whether it is the major one of the two.
    """

    dimension: int
    is_major: bool


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Mergeable:
    """Two parallel dimensions that can be one.

    Attributes:
        first: For each value that has both, next to each other, the number of the first.
        alone: The values that have one of the two.
        major_size, minor_size: Their sizes.
    """

    first: Mapping[HloInstruction, int]
    alone: Mapping[HloInstruction, Alone]
    major_size: int
    minor_size: int


@final
class DimensionClasses:
    """Union-find over the dimensions of all values of a region."""

    def __init__(self) -> None:
        self._parent: list[int] = []
        self._size: list[int] = []
        self.nodes: dict[HloInstruction, Nodes] = {}
        self.elements: dict[HloInstruction, list[Nodes]] = {}
        self._uses: dict[HloInstruction, list[tuple[HloInstruction, int, Nodes]]] = {}
        self._marks: list[tuple[int, HloInstruction, str]] = []
        self._repeated: set[int] = set()
        self.mixing: dict[int, tuple[HloInstruction, str]] = {}
        self.waiting: set[int] = set()
        self.ends: dict[HloInstruction, HloInstruction] = {}
        self._ended: list[tuple[int, HloInstruction]] = []

    # Classes.

    def fresh(self, shape: Shape) -> Nodes:
        """Returns new classes for the dimensions of a shape."""
        start = len(self._parent)
        end = start + len(shape.dimensions)
        self._parent.extend(range(start, end))
        self._size.extend(shape.dimensions)
        return tuple(range(start, end))

    def find(self, node: int) -> int:
        """Returns the class of a node."""
        parent = self._parent
        while parent[node] != node:
            parent[node] = parent[parent[node]]
            node = parent[node]
        return node

    def place(self, nodes: Nodes, lane_class: int) -> int | None:
        """Returns the first of some dimensions that is of a class, None if none is."""
        return next((d for d, node in enumerate(nodes) if self.find(node) == lane_class), None)

    def unite(self, some: Nodes, others: Nodes) -> None:
        """Makes one class of each pair of nodes."""
        for a, b in zip(some, others, strict=True):
            if a != b:
                self._parent[self.find(b)] = self.find(a)

    def meeting(self, of: Collection[int]) -> set[tuple[int, int]]:
        """Returns the pairs of these classes that some value has both of, each pair both ways."""
        result: set[tuple[int, int]] = set()
        for _, nodes in self._all_values():
            if len(nodes) > 1:
                roots = {self.find(node) for node in nodes}
                result.update(itertools.permutations(roots.intersection(of), 2))
        return result

    def mark(self, node: int, instruction: HloInstruction, why: str) -> None:
        """Notes that an instruction mixes data along a dimension; size one has nothing to mix."""
        if self._size[node] > 1:
            self._marks.append((node, instruction, why))

    def mark_end(self, node: int, reduction: HloInstruction) -> None:
        """Notes that a loop, `ends[reduction]`, ends when all along a dimension is done."""
        if self._size[node] > 1:
            self._ended.append((node, reduction))

    def reductions_at_ends(self, lane_class: int) -> dict[HloInstruction, list[HloInstruction]]:
        """Returns the loops that end when all along a class is done, with what tells them so."""
        result: dict[HloInstruction, list[HloInstruction]] = {}
        for node, reduction in self._ended:
            if self.find(node) == lane_class:
                found = result.setdefault(self.ends[reduction], [])
                if reduction not in found:
                    found.append(reduction)
        return result

    def use(self, user: HloInstruction, index: int) -> Nodes:
        """Returns the classes of an operand; fresh ones for a leaf."""
        operand = user.operands[index]
        if operand.shape.dimensions and is_leaf(operand):
            nodes = self.fresh(operand.shape)
            self._uses.setdefault(operand, []).append((user, index, nodes))
            return nodes
        return self.nodes[operand]

    def operand_nodes(self, user: HloInstruction, index: int) -> Nodes:
        """Returns the classes that an operand has had since `use`."""
        for other, position, nodes in self._uses.get(user.operands[index], ()):
            if other is user and position == index:
                return nodes
        return self.nodes[user.operands[index]]

    def places(self, value: HloInstruction, lane_class: int) -> tuple[int, ...]:
        """Returns the dimensions of a value that are of a class."""
        return tuple(
            d for d, node in enumerate(self.nodes.get(value, ())) if self.find(node) == lane_class
        )

    def has(self, value: HloInstruction, lane_class: int) -> bool:
        """Whether some dimension of a value is of a class."""
        elements = self.elements.get(value) or [self.nodes.get(value, ())]
        return any(self.find(node) == lane_class for nodes in elements for node in nodes)

    def marking(self, lane_class: int) -> list[HloInstruction] | None:
        """Returns the instructions that mix data along a class.

        None if the class has two dimensions in one value, which no instruction is to blame for.
        """
        if lane_class in self._repeated:
            return None
        return self.marks(lane_class)

    def marks(self, lane_class: int) -> list[HloInstruction]:
        """Returns the instructions that mix data along a class; not what has it twice."""
        return [by for node, by, _ in self._marks if self.find(node) == lane_class]

    # Choosing.

    def mark_repeated(self) -> None:
        """Marks classes that have two dimensions in one value, then settles `mixing`."""
        for instruction, nodes in self._all_values():
            if len(nodes) > 1:
                roots = [self.find(node) for node in nodes if self._size[node] > 1]
                if len(set(roots)) == len(roots):
                    continue
                for root in dict.fromkeys(r for r in roots if roots.count(r) > 1):
                    self._repeated.add(root)
                    self.mixing.setdefault(root, (instruction, "pairs all along it with all"))
        for node, instruction, why in self._marks:
            self.mixing.setdefault(self.find(node), (instruction, why))

    def _all_values(self) -> Iterator[tuple[HloInstruction, Nodes]]:
        yield from self.nodes.items()
        for uses in self._uses.values():
            for user, _, nodes in uses:
                yield user, nodes

    def carried_classes(self, loop: HloInstruction) -> dict[int, tuple[int, int]]:
        """Returns the classes of changing loop elements -> (size, minus distance from minor)."""
        parameter = loop.body.parameters[0]
        result: dict[int, tuple[int, int]] = {}
        for index, nodes in enumerate(self.elements[loop]):
            value = loop.body.root.operands[index]
            if value.opcode == "get-tuple-element" and value.operands[0] is parameter:
                continue
            for dimension, node in enumerate(nodes):
                rank = (self._size[node], dimension + 1 - len(nodes))
                if rank[0] >= _MIN_LANES:
                    root = self.find(node)
                    result[root] = max(rank, result.get(root, rank))
        return result

    def num_changing(
        self, loop: HloInstruction, some: Collection[int], none: Collection[int]
    ) -> int:
        """Returns how many numbers a loop changes in arrays with one of some classes, without
        any of others."""
        result = 0
        for index, nodes in enumerate(self.elements[loop]):
            roots = {self.find(node) for node in nodes}
            is_counted = not roots.isdisjoint(some) and roots.isdisjoint(none)
            if is_counted and not is_invariant(loop, index):
                result += loop.shape.tuple_shapes[index].num_elements
        return result

    def lane_dimensions(
        self, lane_class: int | None
    ) -> tuple[dict[HloInstruction, int | None], tuple[LeafSplit, ...]]:
        """Returns each value's lane dimension, and the leaves whose uses disagree about it.

        Without a class of lanes all values are uniform.
        """
        cache: dict[Nodes, int | None] = {(): None}
        result: dict[HloInstruction, int | None] = {}
        splits: list[LeafSplit] = []

        def position(nodes: Nodes) -> int | None:
            if nodes not in cache:
                cache[nodes] = None if lane_class is None else self.place(nodes, lane_class)
            return cache[nodes]

        for instruction, nodes in self.nodes.items():
            result[instruction] = position(nodes)
        for leaf, uses in self._uses.items():
            groups: dict[int | None, list[tuple[HloInstruction, int]]] = {}
            for user, index, nodes in uses:
                groups.setdefault(position(nodes), []).append((user, index))
            (result[leaf], _), *others = groups.items()
            splits.extend(
                LeafSplit(leaf=leaf, uses=tuple(group), lane_dimension=dimension)
                for dimension, group in others
            )
        return result, tuple(splits)

    def mergeable(self, lane_class: int, other: int) -> Mergeable | None:
        """Returns where the lanes can be one dimension with another parallel class, or None.

        They can if every value has both, next to each other and always in the same order, or none,
        or has one alone and is made by elementwise instructions and reshapes from what loops don't
        change, or only pass along.
        """
        places: dict[HloInstruction, tuple[int, ...]] = {}
        sizes: dict[tuple[int, int], tuple[int, int]] = {}
        for value, nodes, use_of_leaf in self._uses_of_values():
            roots = [self.find(node) for node in nodes]
            place = tuple(d for d, root in enumerate(roots) if root in (lane_class, other))
            if places.setdefault(value, place) != place:
                return None
            if len(place) == 2:
                if place[1] - place[0] != 1 or (use_of_leaf and not _is_merged_easily(value)):
                    return None
                major, minor = (nodes[d] for d in place)
                sizes[self.find(major), self.find(minor)] = self._size[major], self._size[minor]
        if len(sizes) != 1:
            return None
        (((major, _), (major_size, minor_size)),) = sizes.items()
        alone: dict[HloInstruction, Alone] = {}
        for value, nodes, _ in self._uses_of_values():
            if len(places[value]) == 1:
                (dimension,) = places[value]
                is_major = self.find(nodes[dimension]) == major
                if alone.setdefault(value, Alone(dimension, is_major)).is_major != is_major:
                    return None
        if not all(map(_can_be_widened, alone)) or self._changes_alone(lane_class, other):
            return None
        first = {value: place[0] for value, place in places.items() if len(place) == 2}
        return Mergeable(first=first, alone=alone, major_size=major_size, minor_size=minor_size)

    def _changes_alone(self, one: int, other: int) -> bool:
        """Whether a loop makes anew a value that has only one of two classes."""
        for loop, elements in self.elements.items():
            if loop.opcode == "while":
                for index, nodes in enumerate(elements):
                    roots = {self.find(node) for node in nodes}
                    if (one in roots) != (other in roots) and not is_passed_along(loop, index):
                        return True
        return False

    def _uses_of_values(self) -> Iterator[tuple[HloInstruction, Nodes, bool]]:
        for leaf, uses in self._uses.items():
            for _, _, nodes in uses:
                yield leaf, nodes, True
        for instruction, nodes in self.nodes.items():
            if instruction not in self._uses:
                yield instruction, nodes, False


def _is_merged_easily(leaf: HloInstruction) -> bool:
    """Whether a leaf can be made anew when two of its dimensions become one."""
    return leaf.opcode in ("iota", "broadcast")


def _can_be_widened(value: HloInstruction) -> bool:
    """Whether a value with one of two dimensions can have the other too, and so all its users."""
    if value.opcode == "get-tuple-element" and value.operands[0].opcode not in _PASSING_OPCODES:
        return False
    if value.opcode not in _WIDENED_OPCODES:
        return False
    return all(
        user.opcode in _WIDENING_OPCODES and not _leaves_region(user) for user in value.users
    )


def _leaves_region(user: HloInstruction) -> bool:
    """Whether an instruction is the tuple of all that a region returns."""
    computation = user.computation
    assert computation is not None, "instructions of a region are in a computation"
    is_body = any(parameter.shape.is_tuple for parameter in computation.parameters)
    return user is computation.root and not is_body
