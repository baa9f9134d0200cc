"""Where the lanes are cut into parts of equal size, or put together from them.

%z = f32[4096]                      antithetic pairs: the lanes are those of %z, and each holds
%n = f32[4096] negate(%z)           two numbers of what has 8192
%a = f32[8192] concatenate(%z, %n)

%h = f32[4096] slice(%x), slice={[0:4096]}          so it is for halves,
%y = f32[8192] reshape(%b), %b: f32[2048,4]         and for what comes in fours
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, final

from fuselane.analysis.dimension_classes import DimensionClasses, Nodes
from fuselane.analysis.dimension_rules import find_classes
from fuselane.analysis.leaving import reshape_groups
from fuselane.analysis.while_loops import loop_of
from fuselane.hlo.computation import HloComputation
from fuselane.hlo.instruction import HloInstruction

MIN_LANES: Final = 16
"""Fewer lanes are not worth a dimension of their own."""

_MAX_TRIALS: Final = 3


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Cut:
    """A dimension that can be read as two.

    Attributes:
        classes: The classes of all values of a region.
        dimension_class: Which class it is; no value has two dimensions of it.
        outer, inner: The sizes of the two, the first one major.
    """

    classes: DimensionClasses
    dimension_class: int
    outer: int
    inner: int

    def place(self, nodes: Nodes) -> int | None:
        """Returns which of some dimensions is the one that is cut."""
        return self.classes.place(nodes, self.dimension_class)

    def place_in(self, value: HloInstruction) -> int | None:
        """Returns which dimension of an array is cut; for a tuple, of its first element."""
        elements = self.classes.elements.get(value)
        if elements is not None and value.opcode not in ("while", "conditional", "parameter"):
            return self.place(elements[0])
        return self.place(self.classes.nodes.get(value, ()))

    def place_in_operand(self, user: HloInstruction, index: int) -> int | None:
        """Returns which dimension of an operand is cut, in the eyes of its user."""
        return self.place(self.classes.operand_nodes(user, index))


def find_cuts(region: HloComputation, num_lanes: int) -> list[Cut]:
    """Returns how the largest class that a region's loop carries may be cut, the best way first.

    None unless that promises more lanes than a number.
    """
    loop = loop_of(region)
    smallest = max(num_lanes, MIN_LANES - 1)
    if all(size <= smallest for shape in loop.shape.tuple_shapes for size in shape.dimensions):
        return []
    classes = find_classes(region)
    candidates = classes.carried_classes(loop)
    mixed = [c for c in candidates if c in classes.mixing and classes.marking(c)]
    for lane_class in sorted(mixed, key=lambda c: candidates[c], reverse=True):
        size, _ = candidates[lane_class]
        pairs = [
            (lane_class, size // inner, inner)
            for inner in _inner_sizes(classes, lane_class, size)
            if 1 < inner < size and max(inner, size // inner) > smallest
        ]
        if not pairs and size > smallest:
            pairs = list(_merged(classes, lane_class))
        if pairs:
            return [
                Cut(classes=classes, dimension_class=cut, outer=outer, inner=inner)
                for cut, outer, inner in itertools.islice(dict.fromkeys(pairs), _MAX_TRIALS)
            ]
    return []


def _inner_sizes(classes: DimensionClasses, lane_class: int, size: int) -> Iterator[int]:
    """Yields the sizes of the parts that instructions make of a class, or make it from."""
    grain, steps = size, list[int]()
    for instruction in classes.marking(lane_class) or ():
        place = _place(classes, instruction.operands[0], lane_class)
        made = _place(classes, instruction, lane_class)
        if instruction.opcode == "concatenate" and made == instruction.dimensions[0]:
            sizes = (operand.shape.dimensions[made] for operand in instruction.operands)
            grain = math.gcd(grain, *sizes)
        elif instruction.opcode == "slice" and place is not None:
            stride = instruction.slice_strides[place]
            if stride == 1:
                ends = instruction.slice_starts[place], instruction.slice_limits[place]
                grain = math.gcd(grain, *ends)
            elif size % stride == 0:
                steps.append(stride)
        elif instruction.opcode == "reshape":
            other = instruction if made is None else instruction.operands[0]
            steps.extend(_sizes_behind(other.shape.dimensions, size))
    if grain < size:
        yield grain
    yield from sorted(steps)


def _merged(classes: DimensionClasses, lane_class: int) -> Iterator[tuple[int, int, int]]:
    """Yields the classes that a class is merged into with others, with the sizes to cut it into."""
    for instruction in classes.marking(lane_class) or ():
        if instruction.opcode != "reshape":
            continue
        ends = [(instruction.operands[0], instruction), (instruction, instruction.operands[0])]
        for apart, whole in ends:
            place = _place(classes, apart, lane_class)
            sizes, whole_sizes = apart.shape.dimensions, whole.shape.dimensions
            for some, others in reshape_groups(sizes, whole_sizes):
                if place in some and len(some) > 1 and len(others) == 1:
                    number = some.index(place)
                    first = number if number else 1
                    inner = math.prod(sizes[d] for d in some[first:])
                    merged = classes.find(classes.nodes[whole][others[0]])
                    yield merged, whole_sizes[others[0]] // inner, inner


def _place(classes: DimensionClasses, value: HloInstruction, lane_class: int) -> int | None:
    return classes.place(classes.nodes.get(value, ()), lane_class)


def _sizes_behind(sizes: Sequence[int], whole: int) -> Iterator[int]:
    """Yields how many elements lie behind each dimension of those that make up a larger one.

    Example: (50, 64, 3, 2), 384 yields 6 and 2.
    """
    for first in range(len(sizes)):
        for last in range(first + 1, len(sizes)):
            if math.prod(sizes[first : last + 1]) == whole:
                yield from (math.prod(sizes[d : last + 1]) for d in range(first + 1, last + 1))
                return
