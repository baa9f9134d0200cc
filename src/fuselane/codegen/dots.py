"""The rule for dot: sums of products, blocked over outputs so that the sums stay in registers.

    %d = f32[8,64] dot(%x, %w), x f32[8,32] with 8 lanes, w f32[32,64] the same for all lanes

        for j0 in 0, 6, 12, ..                          outputs, a block at a time
            s0..s5 = 0                                  vectors of lanes
            for k in 0..32
                s0 += x[lane, k] * w[k, j0]             x loaded once for all six, w broadcast
                ..
            d[lane, j0] = s0; ..

A dot per lane (both operands have lanes, along a batch dimension) is the same with two vectors to
multiply. Small ones are unrolled altogether.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final, final

from llvmlite import ir

from fuselane.analysis.cost import instruction_cost
from fuselane.codegen import indexing
from fuselane.codegen.arrays import Array, Literal, Memory, Registers, Scratch, new_scratch, widen
from fuselane.codegen.elemental import emit_elemental
from fuselane.codegen.emitter import Emitter
from fuselane.codegen.indexing import LANE, Element, Index
from fuselane.codegen.loops import counted_loop, emit_counted_loop
from fuselane.codegen.types import call_intrinsic, constant
from fuselane.hlo.dots import DotDimensions
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.shape import PrimitiveType
from fuselane.lanes.program import LaneProgram

_MAX_UNROLLED_PRODUCTS: Final = 256
_PRODUCTS_IN_LOOP: Final = 32
_MAX_PARTIAL_SUMS: Final = 4
_MIN_LONG_SUM: Final = 16
_WIDE_SUMS: Final = {
    PrimitiveType.F16: PrimitiveType.F32,
    PrimitiveType.BF16: PrimitiveType.F32,
}


def is_looped_dot(dot: HloInstruction, program: LaneProgram) -> bool:
    """Whether a dot has too many products per lane to emit each on its own."""
    lane = program.lane_dimensions.get
    return instruction_cost(dot, lane, lambda loop: None) > _MAX_UNROLLED_PRODUCTS


def emit_dot(emitter: Emitter, instruction: HloInstruction) -> None:
    """Emits a dot; its result is in registers if it is small, else in scratch.

    Numerics: sums start from zero and go by increasing index, long ones perhaps in up to four
        interleaved parts; multiplications and additions are fused where the machine can. Sums of
        F16 and BF16 are kept in F32 and rounded once; integers wrap.
    """
    dot = _Dot.of(emitter, instruction)
    if dot.num_products <= _MAX_UNROLLED_PRODUCTS and dot.num_outputs <= emitter.max_unrolled:
        emitter.values[instruction] = dot.with_operands(_materialized).unrolled()
        return
    block = dot.choose_block()
    loop = dot.with_operands(_addressable)
    if dot.num_outputs <= block.left * block.right:
        emitter.values[instruction] = loop.in_registers()
        return
    result = new_scratch(emitter.place, instruction.shape, emitter.lane(instruction))
    loop.fill(result, block)
    emitter.values[instruction] = result


def _materialized(emitter: Emitter, array: Array) -> Array:
    """Returns an operand whose elements are computed once, however often they are read."""
    return array if isinstance(array, Literal) else emitter.materialize(array)


def _addressable(emitter: Emitter, array: Array) -> Array:
    """Returns an operand that costs a load at any index known only at run time."""
    if isinstance(array, Scratch):
        return array
    if isinstance(array, Literal):
        return array.in_memory(emitter.place)
    if isinstance(array, Memory) and (array.lane is None or array.strides[array.lane] == 1):
        return array
    if array.lane is None and not isinstance(array, Registers):
        return array
    scratch = new_scratch(emitter.place, array.shape, array.lane)
    emitter.copy(array, scratch)
    return scratch


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class _Group:
    """Dimensions that are walked through as one, such as all that are summed over.

    Attributes:
        sizes: Of the dimensions, 1 for that of the lanes.
        lane: Which of them the lanes lie along, or None.
    """

    sizes: tuple[int, ...]
    lane: int | None

    @staticmethod
    def of(array: Array, dimensions: Sequence[int]) -> _Group:
        """Returns a group of an array's dimensions."""
        lane = None if array.lane not in dimensions else dimensions.index(array.lane)
        sizes = (1 if d == array.lane else array.shape.dimensions[d] for d in dimensions)
        return _Group(sizes=tuple(sizes), lane=lane)

    @property
    def size(self) -> int:
        """How many positions there are."""
        return math.prod(self.sizes)

    def at(self, builder: ir.IRBuilder, position: Index, *, lane: bool = True) -> Element:
        """Returns the index of a position; with `LANE` along the lanes if the array has them."""
        index: list[Index | None] = [*indexing.unflatten(builder, position, self.sizes)]
        if lane and self.lane is not None:
            index[self.lane] = LANE
        return tuple(index)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class _Block:
    """How many left by right outputs are summed up at a time."""

    left: int
    right: int


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class _Dot:
    """A dot of two arrays: `result[b, i, j] = sum over k of left[b, i, k] * right[b, j, k]`.

    Each of the four letters stands for a group of dimensions.
    """

    emitter: Emitter
    instruction: HloInstruction
    numbers: DotDimensions
    left: Array
    right: Array
    batch: _Group
    left_free: _Group
    right_free: _Group
    contracting: _Group
    sum_type: PrimitiveType

    @staticmethod
    def of(emitter: Emitter, instruction: HloInstruction) -> _Dot:
        """Returns a dot instruction whose operands have been emitted."""
        numbers = DotDimensions.of(instruction)
        left, right = (emitter.array(operand) for operand in instruction.operands)
        element = instruction.shape.element_type
        return _Dot(
            emitter=emitter,
            instruction=instruction,
            numbers=numbers,
            left=left,
            right=right,
            batch=_Group.of(left, numbers.left_batch),
            left_free=_Group.of(left, numbers.left_free),
            right_free=_Group.of(right, numbers.right_free),
            contracting=_Group.of(left, numbers.left_contracting),
            sum_type=_WIDE_SUMS.get(element, element),
        )

    @property
    def num_outputs(self) -> int:
        """Elements of the result per lane."""
        return self.batch.size * self.left_free.size * self.right_free.size

    @property
    def num_products(self) -> int:
        """Multiplications per lane."""
        return self.num_outputs * self.contracting.size

    def with_operands(self, prepare: Callable[[Emitter, Array], Array]) -> _Dot:
        """Returns the dot of the same operands, kept elsewhere."""
        left = prepare(self.emitter, self.left)
        is_square = self.instruction.operands[0] is self.instruction.operands[1]
        right = left if is_square else prepare(self.emitter, self.right)
        return replace(self, left=left, right=right)

    # Ways to emit it.

    def unrolled(self) -> Registers:
        """Emits every multiplication on its own."""
        sums = [
            self._sum_of_block((b, i, j), _Block(left=1, right=1), is_looped=False)
            for b in range(self.batch.size)
            for i in range(self.left_free.size)
            for j in range(self.right_free.size)
        ]
        return self._registers([value for values in sums for value in values])

    def in_registers(self) -> Registers:
        """Emits a dot of one block of outputs per batch index; sums go by loops."""
        block = _Block(left=self.left_free.size, right=self.right_free.size)
        sums = [
            self._sum_of_block((b, 0, 0), block, is_looped=True) for b in range(self.batch.size)
        ]
        return self._registers([value for values in sums for value in values])

    def fill(self, result: Scratch, block: _Block) -> None:
        """Emits loops over the blocks of the result."""
        place = self.emitter.place
        builder = place.builder
        batches = _Run(start=0, size=1, count=self.batch.size)
        for left in _split(self.left_free.size, block.left):
            for right in _split(self.right_free.size, block.right):
                tile = _Block(left=left.size, right=right.size)
                with batches.loop(builder) as b, left.loop(builder) as i, right.loop(builder) as j:
                    sums = iter(self._sum_of_block((b, i, j), tile, is_looped=True))
                    for di in range(tile.left):
                        for dj in range(tile.right):
                            at = self._result_index(
                                b, indexing.add(builder, i, di), indexing.add(builder, j, dj)
                            )
                            result.put(place, at, next(sums))

    def choose_block(self) -> _Block:
        """Returns the block that loads least per product and whose sums fit the registers."""
        registers = self.emitter.vectors_in_registers
        left_is_vector, right_is_vector = self.left.lane is not None, self.right.lane is not None
        best: tuple[float, _Block] | None = None
        for left in range(1, min(self.left_free.size, registers) + 1):
            for right in range(1, min(self.right_free.size, registers) + 1):
                vectors = left * left_is_vector + right * right_is_vector
                kept = min(left, right) if left_is_vector and right_is_vector else vectors
                if left * right + kept + 1 > registers and left * right > 1:
                    continue
                loads = (left + right) / (left * right)
                if best is None or loads < best[0]:
                    best = (loads, _Block(left=left, right=right))
        assert best is not None
        return best[1]

    # One block.

    def _sum_of_block(
        self, start: tuple[Index, Index, Index], block: _Block, *, is_looped: bool
    ) -> list[ir.Value]:
        """Emits the sums of a block of outputs, row by row, that starts at (b, i, j)."""
        builder = self.emitter.builder
        total = self.contracting.size
        outputs = block.left * block.right
        step = max(1, _PRODUCTS_IN_LOOP // outputs) if is_looped else total
        parts = 1
        if total >= _MIN_LONG_SUM and is_looped:
            parts = max(
                1, min(_MAX_PARTIAL_SUMS, self.emitter.vectors_in_registers // outputs // 2, step)
            )

        def advance(position: Index, count: int, sums: Sequence[ir.Value]) -> list[ir.Value]:
            following = list(sums)
            for offset in range(count):
                k = indexing.add(builder, position, offset)
                part = offset % parts * outputs
                following[part : part + outputs] = self._add_products(
                    start, block, k, following[part : part + outputs]
                )
            return following

        sums = [self._zero()] * (outputs * parts)
        if total <= 2 * step:
            sums = advance(0, total, sums)
        else:
            rounds, rest = divmod(total, step)
            sums = emit_counted_loop(
                builder,
                rounds,
                sums,
                lambda t, values: advance(indexing.multiply(builder, t, step), step, values),
                name="dot",
            )
            sums = advance(rounds * step, rest, sums)
        return [self._finish(sums[number::outputs]) for number in range(outputs)]

    def _add_products(
        self,
        start: tuple[Index, Index, Index],
        block: _Block,
        k: Index,
        sums: Sequence[ir.Value],
    ) -> list[ir.Value]:
        b, i, j = start
        builder = self.emitter.builder
        lefts = [self._left_element(b, indexing.add(builder, i, n), k) for n in range(block.left)]
        rights = [
            self._right_element(b, indexing.add(builder, j, n), k) for n in range(block.right)
        ]
        pairs = [(left, right) for left in lefts for right in rights]
        return [
            self._multiply_add(left, right, total)
            for (left, right), total in zip(pairs, sums, strict=True)
        ]

    # Elements.

    def _left_element(self, b: Index, i: Index, k: Index) -> ir.Value:
        numbers = self.numbers
        return self._element(
            self.left,
            (numbers.left_batch, self.batch, b),
            (numbers.left_free, self.left_free, i),
            (numbers.left_contracting, self.contracting, k),
        )

    def _right_element(self, b: Index, j: Index, k: Index) -> ir.Value:
        numbers = self.numbers
        return self._element(
            self.right,
            (numbers.right_batch, self.batch, b),
            (numbers.right_free, self.right_free, j),
            (numbers.right_contracting, self.contracting, k),
        )

    def _element(self, array: Array, *parts: tuple[tuple[int, ...], _Group, Index]) -> ir.Value:
        place = self.emitter.place
        index: dict[int, Index | None] = {}
        for dimensions, group, position in parts:
            index.update(zip(dimensions, group.at(place.builder, position), strict=True))
        value = array.get(place, tuple(index[d] for d in range(len(index))))
        element = array.shape.element_type
        if element is self.sum_type:
            return value
        return emit_elemental(place.builder, "convert", [value], [element], self.sum_type)

    def _result_index(self, b: Index, i: Index, j: Index) -> Element:
        builder = self.emitter.builder
        return (
            *self.batch.at(builder, b),
            *self.left_free.at(builder, i),
            *self.right_free.at(builder, j),
        )

    # Arithmetic.

    def _zero(self) -> ir.Value:
        width = 0 if self._result_lane is None else self.emitter.place.block.width
        return constant(self.sum_type, 0, width)

    def _multiply_add(self, left: ir.Value, right: ir.Value, total: ir.Value) -> ir.Value:
        place, builder = self.emitter.place, self.emitter.builder
        if self._result_lane is not None:
            left, right = widen(place, left), widen(place, right)
        if self.sum_type.is_floating:
            return call_intrinsic(builder, "llvm.fmuladd", [left, right, total])
        return builder.add(builder.mul(left, right), total)

    def _finish(self, parts: Sequence[ir.Value]) -> ir.Value:
        """Returns the sum of partial sums in the result's type."""
        builder, result = self.emitter.builder, self.instruction.shape.element_type
        total = parts[0]
        for part in parts[1:]:
            total = emit_elemental(
                builder, "add", [total, part], [self.sum_type] * 2, self.sum_type
            )
        if result is self.sum_type:
            return total
        return emit_elemental(builder, "convert", [total], [self.sum_type], result)

    @property
    def _result_lane(self) -> int | None:
        return self.emitter.lane(self.instruction)

    def _registers(self, elements: Sequence[ir.Value]) -> Registers:
        return Registers(
            shape=self.instruction.shape, lane=self._result_lane, elements=tuple(elements)
        )


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """Blocks of one size, one behind the other."""

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


def _split(total: int, largest: int) -> list[_Run]:
    """Returns blocks of at most two sizes, as equal as can be, that cover an axis."""
    count = math.ceil(total / largest)
    small, num_large = divmod(total, count)
    runs = [_Run(start=0, size=small + 1, count=num_large)] if num_large else []
    start = num_large * (small + 1)
    return [*runs, _Run(start=start, size=small, count=count - num_large)]
