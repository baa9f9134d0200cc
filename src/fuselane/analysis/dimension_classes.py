"""Classes of dimensions: which dimensions of which values run in parallel.

Every dimension of every value of a region gets a class; instructions unite the classes of
dimensions that they map onto each other, and mark the class of a dimension along which they mix
data.

Constants, iotas and broadcasts of scalars have no dimensions of their own: each use gets fresh
classes, so that a zero array shared by two unrelated values does not tie these together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, final

from fuselane.analysis.opcodes import ELEMENTWISE_OPCODES
from fuselane.analysis.refusal import refuse
from fuselane.decisions import Reason
from fuselane.hlo.computation import HloComputation
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
        self._nodes: dict[HloInstruction, Nodes] = {}
        self._elements: dict[HloInstruction, list[Nodes]] = {}
        self._uses: dict[HloInstruction, list[tuple[HloInstruction, int, Nodes]]] = {}
        self._marks: list[tuple[int, HloInstruction, str]] = []
        self.mixing: dict[int, tuple[HloInstruction, str]] = {}

    # Classes.

    def _fresh(self, shape: Shape) -> Nodes:
        start = len(self._parent)
        end = start + len(shape.dimensions)
        self._parent.extend(range(start, end))
        self._size.extend(shape.dimensions)
        return tuple(range(start, end))

    def _find(self, node: int) -> int:
        parent = self._parent
        while parent[node] != node:
            parent[node] = parent[parent[node]]
            node = parent[node]
        return node

    def _unite(self, some: Nodes, others: Nodes) -> None:
        for a, b in zip(some, others, strict=True):
            if a != b:
                self._parent[self._find(b)] = self._find(a)

    def _mark(self, node: int, instruction: HloInstruction, why: str) -> None:
        if self._size[node] > 1:
            self._marks.append((node, instruction, why))

    def _use(self, user: HloInstruction, index: int) -> Nodes:
        """Returns the classes of an operand; fresh ones for a leaf."""
        operand = user.operands[index]
        if operand.shape.dimensions and is_leaf(operand):
            nodes = self._fresh(operand.shape)
            self._uses.setdefault(operand, []).append((user, index, nodes))
            return nodes
        return self._nodes[operand]

    # Instructions.

    def visit(self, computation: HloComputation) -> None:
        """Gives all values of a computation their classes; its parameter has them already."""
        for instruction in computation.instructions:
            opcode = instruction.opcode
            if opcode in ELEMENTWISE_OPCODES:
                self._nodes[instruction] = self._visit_elementwise(instruction)
            elif is_leaf(instruction):
                self._nodes[instruction] = self._fresh(instruction.shape)
            elif opcode == "parameter":
                if instruction.shape.is_array:
                    self._nodes[instruction] = self._fresh(instruction.shape)
            elif opcode == "get-tuple-element":
                elements = self._elements[instruction.operands[0]]
                self._nodes[instruction] = elements[instruction.tuple_index]
            elif opcode == "while":
                self._visit_while(instruction)
            elif opcode == "reduce":
                self._visit_reduce(instruction)
            elif opcode != "tuple":
                self._nodes[instruction] = self._visit_structural(instruction)

    def _visit_elementwise(self, instruction: HloInstruction) -> Nodes:
        if not instruction.shape.dimensions:
            return ()
        first = self._use(instruction, 0)
        for index in range(1, len(instruction.operands)):
            self._unite(first, self._use(instruction, index))
        return first

    def _visit_structural(self, instruction: HloInstruction) -> Nodes:
        match instruction.opcode:
            case "broadcast":
                return self._visit_broadcast(instruction)
            case "reshape":
                return self._visit_reshape(instruction)
            case "transpose":
                operand = self._use(instruction, 0)
                return tuple(operand[d] for d in instruction.dimensions)
            case "dynamic-update-slice":
                return self._visit_update(instruction)
            case "slice" | "dynamic-slice":
                return self._visit_slice(instruction)
            case "pad":
                touched = [d for d, edges in enumerate(instruction.padding) if any(edges)]
            case "reverse" | "concatenate":
                touched = list(instruction.dimensions)
            case opcode:
                raise refuse(Reason.UNSUPPORTED_OPCODE, instruction, opcode=opcode)
        return self._visit_rearranging(instruction, touched)

    def _visit_rearranging(self, instruction: HloInstruction, touched: Sequence[int]) -> Nodes:
        """Handles opcodes whose result has the operands' dimensions, some of them rearranged."""
        result = self._fresh(instruction.shape)
        for index, operand in enumerate(instruction.operands):
            if operand.shape.rank != len(result) or operand.shape.rank == 0:
                continue
            for dimension, node in enumerate(self._use(instruction, index)):
                if dimension in touched:
                    self._mark(node, instruction, "moves data along it")
                else:
                    self._unite((result[dimension],), (node,))
        for dimension in touched:
            self._mark(result[dimension], instruction, "moves data along it")
        return result

    def _visit_broadcast(self, instruction: HloInstruction) -> Nodes:
        result = list(self._fresh(instruction.shape))
        operand = self._use(instruction, 0)
        for node, dimension in zip(operand, instruction.dimensions, strict=True):
            result[dimension] = node
        return tuple(result)

    def _visit_reshape(self, instruction: HloInstruction) -> Nodes:
        operand = self._use(instruction, 0)
        result = list(self._fresh(instruction.shape))
        source, target = instruction.operands[0].shape.dimensions, instruction.shape.dimensions
        mapped = dict(matching_dimensions(source, target))
        for dimension, node in enumerate(operand):
            if dimension in mapped:
                result[mapped[dimension]] = node
            else:
                self._mark(node, instruction, "merges or splits it")
        kept = set(mapped.values())
        for dimension, node in enumerate(result):
            if dimension not in kept:
                self._mark(node, instruction, "merges or splits it")
        return tuple(result)

    def _visit_slice(self, instruction: HloInstruction) -> Nodes:
        operand = self._use(instruction, 0)
        result = list(self._fresh(instruction.shape))
        sizes = instruction.operands[0].shape.dimensions
        for dimension, size in enumerate(instruction.shape.dimensions):
            if size == sizes[dimension]:
                result[dimension] = operand[dimension]
            else:
                self._mark(operand[dimension], instruction, "takes a part of it")
                self._mark(result[dimension], instruction, "takes a part of it")
        return tuple(result)

    def _visit_update(self, instruction: HloInstruction) -> Nodes:
        result = self._use(instruction, 0)
        update = self._use(instruction, 1)
        sizes = instruction.operands[1].shape.dimensions
        for dimension, size in enumerate(instruction.shape.dimensions):
            if size == sizes[dimension]:
                self._unite((result[dimension],), (update[dimension],))
            else:
                self._mark(result[dimension], instruction, "updates a part of it")
                self._mark(update[dimension], instruction, "updates a part of it")
        return result

    def _visit_reduce(self, instruction: HloInstruction) -> None:
        arrays = len(instruction.operands) // 2
        operand = self._use(instruction, 0)
        for index in range(1, arrays):
            self._unite(operand, self._use(instruction, index))
        reduced = set(instruction.dimensions)
        for dimension in reduced:
            self._mark(operand[dimension], instruction, "reduces it")
        kept = tuple(node for d, node in enumerate(operand) if d not in reduced)
        if instruction.shape.is_tuple:
            self._elements[instruction] = [kept] * arrays
        else:
            self._nodes[instruction] = kept

    def _visit_while(self, loop: HloInstruction) -> None:
        elements = [self._fresh(shape) for shape in loop.shape.tuple_shapes]
        self._elements[loop] = elements
        self._unite_elements(elements, loop.operands[0])
        for computation in (loop.body, loop.condition):
            self._elements[computation.parameters[0]] = elements
            self.visit(computation)
        self._unite_elements(elements, loop.body.root)

    def _unite_elements(self, elements: list[Nodes], tuple_instruction: HloInstruction) -> None:
        for index, nodes in enumerate(elements):
            self._unite(nodes, self._use(tuple_instruction, index))

    # Choosing.

    def mark_repeated(self) -> None:
        """Marks classes that have two dimensions in one value, then settles `mixing`."""
        for instruction, nodes in self._all_values():
            if len(nodes) > 1:
                roots = [self._find(n) for n in nodes if self._size[n] > 1]
                if len(roots) != len(set(roots)):
                    repeated = next(r for r in roots if roots.count(r) > 1)
                    self.mixing.setdefault(repeated, (instruction, "pairs all along it with all"))
        for node, instruction, why in self._marks:
            self.mixing.setdefault(self._find(node), (instruction, why))

    def _all_values(self) -> Iterator[tuple[HloInstruction, Nodes]]:
        yield from self._nodes.items()
        for uses in self._uses.values():
            for user, _, nodes in uses:
                yield user, nodes

    def carried_classes(self, loop: HloInstruction) -> dict[int, tuple[int, int]]:
        """Returns the classes of changing loop elements -> (size, minus distance from minor)."""
        parameter = loop.body.parameters[0]
        result: dict[int, tuple[int, int]] = {}
        for index, nodes in enumerate(self._elements[loop]):
            value = loop.body.root.operands[index]
            if value.opcode == "get-tuple-element" and value.operands[0] is parameter:
                continue
            for dimension, node in enumerate(nodes):
                rank = (self._size[node], dimension + 1 - len(nodes))
                if rank[0] >= _MIN_LANES:
                    root = self._find(node)
                    result[root] = max(rank, result.get(root, rank))
        return result

    def lane_dimensions(
        self, lane_class: int
    ) -> tuple[dict[HloInstruction, int | None], tuple[LeafSplit, ...]]:
        """Returns each value's lane dimension, and the leaves whose uses disagree about it."""
        cache: dict[Nodes, int | None] = {(): None}
        result: dict[HloInstruction, int | None] = {}
        splits: list[LeafSplit] = []

        def position(nodes: Nodes) -> int | None:
            if nodes not in cache:
                found = (d for d, node in enumerate(nodes) if self._find(node) == lane_class)
                cache[nodes] = next(found, None)
            return cache[nodes]

        for instruction, nodes in self._nodes.items():
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
            roots = [self._find(node) for node in nodes]
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
        for instruction, nodes in self._nodes.items():
            if instruction not in self._uses:
                yield instruction, nodes, False


def _is_merged_easily(leaf: HloInstruction, first: int) -> bool:
    """Whether a leaf stays what it is when two of its dimensions become one."""
    if leaf.opcode == "iota":
        return leaf.dimensions[0] not in (first, first + 1)
    return leaf.opcode == "broadcast"


def matching_dimensions(source: Sequence[int], target: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yields the pairs of dimensions that a reshape carries over one to one.

    Dimensions of size one are passed over; what is merged or split is not among the pairs.

    Example: (4, 1, 6, 5) -> (4, 3, 2, 5) yields (0, 0) and (3, 3).
    """
    left = [d for d, size in enumerate(source) if size != 1]
    right = [d for d, size in enumerate(target) if size != 1]
    i = j = 0
    while i < len(left) and j < len(right):
        first, second = source[left[i]], target[right[j]]
        if first == second:
            yield left[i], right[j]
        while first != second:
            if first < second:
                i += 1
                first *= source[left[i]]
            else:
                j += 1
                second *= target[right[j]]
        i += 1
        j += 1
