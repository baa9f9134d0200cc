"""Classes of dimensions: which dimensions of which values run in parallel.

Every dimension of every value of a region gets a class; instructions unite the classes of
dimensions that they map onto each other, and mark the class of a dimension along which they mix
data: see `fuselane.analysis.dimension_rules`.

Constants, iotas and broadcasts of scalars have no dimensions of their own: each use gets fresh
classes, so that a zero array shared by two unrelated values does not tie these together.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Final, final

from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.shape import Shape

Nodes = tuple[int, ...]
"""One class member per dimension of an array."""

_MIN_LANES: Final = 2


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
        return [by for node, by, _ in self._marks if self.find(node) == lane_class]

    # Choosing.

    def mark_repeated(self) -> None:
        """Marks classes that have two dimensions in one value, then settles `mixing`."""
        for instruction, nodes in self._all_values():
            if len(nodes) > 1:
                roots = [self.find(n) for n in nodes if self._size[n] > 1]
                if len(roots) != len(set(roots)):
                    repeated = next(r for r in roots if roots.count(r) > 1)
                    self._repeated.add(repeated)
                    self.mixing.setdefault(repeated, (instruction, "pairs all along it with all"))
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
                found = (d for d, node in enumerate(nodes) if self.find(node) == lane_class)
                cache[nodes] = next(found, None)
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

    def mergeable(self, lane_class: int, other: int) -> dict[HloInstruction, int] | None:
        """Returns where the lanes can be one dimension with another parallel class, or None.

        They can if every value has both, next to each other and always in the same order, or none.

        Returns:
            For each value that has both the number of the first of the two dimensions.
        """
        result: dict[HloInstruction, int] = {}
        lane_is_minor: bool | None = None
        for value, nodes, use_of_leaf in self._uses_of_values():
            roots = [self.find(node) for node in nodes]
            if lane_class not in roots and other not in roots:
                if value in result:
                    return None
                continue
            if lane_class not in roots or other not in roots:
                return None
            lane, partner = roots.index(lane_class), roots.index(other)
            first = min(lane, partner)
            is_minor = lane > partner
            if abs(lane - partner) != 1 or lane_is_minor not in (None, is_minor):
                return None
            if use_of_leaf and not _is_merged_easily(value, first):
                return None
            if result.setdefault(value, first) != first:
                return None
            lane_is_minor = is_minor
        return result

    def _uses_of_values(self) -> Iterator[tuple[HloInstruction, Nodes, bool]]:
        for leaf, uses in self._uses.items():
            for _, _, nodes in uses:
                yield leaf, nodes, True
        for instruction, nodes in self.nodes.items():
            if instruction not in self._uses:
                yield instruction, nodes, False


def _is_merged_easily(leaf: HloInstruction, first: int) -> bool:
    """Whether a leaf stays what it is when two of its dimensions become one."""
    if leaf.opcode == "iota":
        return leaf.dimensions[0] not in (first, first + 1)
    return leaf.opcode == "broadcast"
