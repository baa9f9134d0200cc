"""What a dot looks like to one lane, and how its outputs are cut into blocks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, final

from llvmlite import ir

from fuselane.codegen import indexing
from fuselane.codegen.indexing import LANE, Element, Index
from fuselane.codegen.loops import counted_loop
from fuselane.hlo.dots import DotDimensions
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.shape import PrimitiveType
from fuselane.lanes.program import LaneProgram

_WIDE_SUMS: Final = {
    PrimitiveType.F16: PrimitiveType.F32,
    PrimitiveType.BF16: PrimitiveType.F32,
}

_EQUAL_SHARE: Final = 0.8
"""How large blocks of one size have to be, of the largest that registers hold: a vector of lanes is
loaded once for each, and so 2% more often in all."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Dimensions that are walked through as one, such as all that are summed over.

    Attributes:
        sizes: Of the dimensions, 1 for that of the lanes.
        lane: Which of them the lanes lie along, or None.
    """

    sizes: tuple[int, ...]
    lane: int | None

    @staticmethod
    def of(sizes: Sequence[int], lane: int | None, dimensions: Sequence[int]) -> Group:
        """Returns a group of an array's dimensions."""
        return Group(
            sizes=tuple(1 if d == lane else sizes[d] for d in dimensions),
            lane=None if lane is None or lane not in dimensions else dimensions.index(lane),
        )

    @property
    def size(self) -> int:
        """How many positions there are."""
        return math.prod(self.sizes)

    def at(self, builder: ir.IRBuilder, position: Index) -> Element:
        """Returns the index of a position, with `LANE` along the lanes."""
        index: list[Index | None] = [*indexing.unflatten(builder, position, self.sizes)]
        if self.lane is not None:
            index[self.lane] = LANE
        return tuple(index)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """How many left by right outputs are summed up at a time."""

    left: int
    right: int

    @property
    def outputs(self) -> int:
        """How many sums there are."""
        return self.left * self.right


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Blocks of one size along one side, one behind the other."""

    start: int
    size: int
    count: int

    @contextmanager
    def loop(self, builder: ir.IRBuilder) -> Iterator[Index]:
        """Emits a loop over the blocks, giving the first index of each; a single one needs none."""
        if self.count == 1:
            yield self.start
            return
        with counted_loop(builder, 0, self.count, name="blocks") as number:
            yield indexing.add(builder, indexing.multiply(builder, number, self.size), self.start)


def split(total: int, largest: int) -> list[Run]:
    """Returns blocks of at most two sizes, as equal as can be, that cover a side; of one size, and
    so half the code, if hardly smaller ones do."""
    fewest = math.ceil(total / largest)
    most = int(total / (_EQUAL_SHARE * largest))
    counts = (count for count in range(fewest, most + 1) if total % count == 0)
    count = next(counts, fewest)
    small, num_large = divmod(total, count)
    runs = [Run(start=0, size=small + 1, count=num_large)] if num_large else []
    start = num_large * (small + 1)
    return [*runs, Run(start=start, size=small, count=count - num_large)]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class DotShape:
    """A dot per lane: `result[b, i, j] = sum over k of left[b, i, k] * right[b, j, k]`.

    Each of the four letters stands for a group of dimensions.

    Attributes:
        numbers: The dimension numbers.
        left_lane, right_lane: Lane dimensions of the operands, None for shared ones.
        sum_type: Type of the sums.
    """

    numbers: DotDimensions
    left_lane: int | None
    right_lane: int | None
    batch: Group
    left: Group
    right: Group
    contracting: Group
    sum_type: PrimitiveType

    @staticmethod
    def of(dot: HloInstruction, program: LaneProgram) -> DotShape:
        """Returns the shape of a dot instruction."""
        numbers = DotDimensions.of(dot)
        left, right = (operand.shape.dimensions for operand in dot.operands)
        lanes = [program.lane_dimensions.get(operand) for operand in dot.operands]
        element = dot.shape.element_type
        return DotShape(
            numbers=numbers,
            left_lane=lanes[0],
            right_lane=lanes[1],
            batch=Group.of(left, lanes[0], numbers.left_batch),
            left=Group.of(left, lanes[0], numbers.left_free),
            right=Group.of(right, lanes[1], numbers.right_free),
            contracting=Group.of(left, lanes[0], numbers.left_contracting),
            sum_type=_WIDE_SUMS.get(element, element),
        )

    @property
    def num_outputs(self) -> int:
        """Elements of the result per lane."""
        return self.batch.size * self.left.size * self.right.size

    @property
    def num_products(self) -> int:
        """Multiplications per lane."""
        return self.num_outputs * self.contracting.size

    def choose_block(self, registers: int) -> Block:
        """Returns the block that loads least per product and whose sums fit the registers.

        Args:
            registers: How many vectors of lanes there is room for.
        """
        has_left, has_right = self.left_lane is not None, self.right_lane is not None
        best = Block(left=1, right=1)
        for left in range(1, min(self.left.size, registers) + 1):
            for right in range(1, min(self.right.size, registers) + 1):
                vectors = left * has_left + right * has_right
                kept = min(left, right) if has_left and has_right else vectors
                block = Block(left=left, right=right)
                fits = block.outputs + kept + 1 <= registers
                if fits and _loads_per_product(block) < _loads_per_product(best):
                    best = block
        return best

    def left_index(self, builder: ir.IRBuilder, b: Index, i: Index, k: Index) -> Element:
        """Returns an element of the left operand."""
        numbers = self.numbers
        dimensions = (*numbers.left_batch, *numbers.left_free, *numbers.left_contracting)
        groups = (self.batch, b), (self.left, i), (self.contracting, k)
        return _merge(builder, dimensions, groups)

    def right_index(self, builder: ir.IRBuilder, b: Index, j: Index, k: Index) -> Element:
        """Returns an element of the right operand."""
        numbers = self.numbers
        dimensions = (*numbers.right_batch, *numbers.right_free, *numbers.right_contracting)
        groups = (self.batch, b), (self.right, j), (self.contracting, k)
        return _merge(builder, dimensions, groups)

    def result_index(self, builder: ir.IRBuilder, b: Index, i: Index, j: Index) -> Element:
        """Returns an element of the result."""
        return (
            *self.batch.at(builder, b),
            *self.left.at(builder, i),
            *self.right.at(builder, j),
        )


def _loads_per_product(block: Block) -> float:
    return (block.left + block.right) / block.outputs


def _merge(
    builder: ir.IRBuilder, dimensions: Sequence[int], groups: Sequence[tuple[Group, Index]]
) -> Element:
    coordinates = [at for group, position in groups for at in group.at(builder, position)]
    index = dict(zip(dimensions, coordinates, strict=True))
    return tuple(index[d] for d in range(len(index)))
