"""Dots of what all lanes share, or of programs without lanes: vectors along one of their sides.

    %c = f32[30,20] dot(%a, %b), a f32[30,50], b f32[50,20]        rows of b lie along the result's

        for i in 0, 4, ..; for j in 0, 8, 12                       the last vector overlaps
            s0..s3 = 0
            for k in 0..50:   s0 += splat(a[i, k]) * b[k, j..j+8]; s1 += splat(a[i+1, k]) * ..
            c[i, j..j+8] = s0; ..

    %c = f32[30,20] dot(%a, %b), a f32[30,50], b f32[20,50]        both lie along the sums

        for i in 0, 3, ..; for j in 0, 4, ..
            for k in 0, 8, ..:  s0 += a[i, k..k+8] * b[j, k..k+8]; ..
            c[i, j] = the sum of s0's elements; ..

Numerics: a sum along which vectors lie is one of as many parts as these have elements, or up to
four times as many; others go by increasing index, long ones in up to four interleaved parts.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final, final

from llvmlite import ir

from fuselane.codegen import indexing
from fuselane.codegen.arrays import Array, Memory, Scratch, new_scratch, row_major_strides
from fuselane.codegen.combining import combine_vectors, slice_vector
from fuselane.codegen.dot_shape import DotShape, Group, Run, split
from fuselane.codegen.dot_sums import emit_sums
from fuselane.codegen.emitter import Emitter
from fuselane.codegen.indexing import Element, Index
from fuselane.codegen.literals import Literal
from fuselane.codegen.memory import load, store
from fuselane.codegen.types import call_intrinsic, constant, splat
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.shape import WIDE_FLOATS

_MIN_SIDE: Final = 4
"""Elements of a side that are worth vectors along it."""

_VECTORS: Final = 16
"""Registers that sums, and what is multiplied, are kept in."""

_IN_FLIGHT: Final = 8
"""Sums that are worked on at a time, so that none waits for the one before."""

_MAX_PARTS: Final = 4


@final
class Along(enum.Enum):
    """What the vectors of a dot lie along."""

    LEFT = "the left operand's own dimensions"
    RIGHT = "the right operand's own dimensions"
    SUM = "what is summed over"


def choose_side(dot: HloInstruction, shape: DotShape) -> Along | None:
    """Returns along what the vectors of a dot that all lanes share lie, None if nothing will do.

    Args:
        dot: The instruction.
        shape: Its shape.
    """
    operands = [operand.shape for operand in dot.operands]
    is_shared = shape.left_lane is None and shape.right_lane is None
    types = {s.element_type for s in (*operands, dot.shape)}
    if not is_shared or len(types) != 1 or not types <= WIDE_FLOATS:
        return None
    left, right = (s.dimensions for s in operands)
    numbers = shape.numbers
    sides = {}
    if _are_last(numbers.right_free, right):
        sides[Along.RIGHT] = shape.right.size
    if _are_last(numbers.left_free, left) and shape.right.size == 1:
        sides[Along.LEFT] = shape.left.size
    if _are_last(numbers.left_contracting, left) and _are_last(numbers.right_contracting, right):
        sides[Along.SUM] = shape.contracting.size
    whole = {side: size for side, size in sides.items() if size >= _MIN_SIDE}
    outputs = [side for side in whole if side is not Along.SUM]
    if outputs and (whole[outputs[0]] >= 2 * _MIN_SIDE or Along.SUM not in whole):
        return outputs[0]
    return max(whole, key=lambda side: whole[side], default=None)


def _are_last(dimensions: Sequence[int], sizes: Sequence[int]) -> bool:
    """Whether dimensions of an array of these sizes are the innermost ones, in order; those of
    size 1 may lie anywhere."""
    long = [d for d, size in enumerate(sizes) if size > 1]
    own = [d for d in dimensions if sizes[d] > 1]
    return own == long[len(long) - len(own) :]


def count_wide_work(shape: DotShape, side: Along, width: int) -> tuple[float, float]:
    """Returns how many multiplications of vectors a dot takes, and how many of them wait one for
    the other.

    Args:
        shape: Of a dot that all lanes share.
        side: What `choose_side` says.
        width: Elements of a vector at most.
    """
    left, right, total = shape.left.size, shape.right.size, shape.contracting.size
    if side is Along.SUM:
        width = _fitting(width, total)
        vectors, outputs = math.ceil(total / width), left * right
        waiting = vectors / _num_parts(min(outputs, _IN_FLIGHT), vectors) + math.log2(width)
        return shape.batch.size * outputs * (vectors + 1), waiting
    rows, columns = (left, right) if side is Along.RIGHT else (right, left)
    vectors = rows * math.ceil(columns / _fitting(width, columns))
    waiting = total / _num_parts(min(vectors, _IN_FLIGHT), total)
    return shape.batch.size * vectors * total, waiting


def dense_array(emitter: Emitter, array: Array) -> Memory | Scratch:
    """Returns an array that all lanes share in memory, in row-major order: itself or a copy."""
    if isinstance(array, Literal):
        return array.in_memory(emitter.place)
    if isinstance(array, Scratch):
        return array
    strides = row_major_strides(array.shape.dimensions)
    if isinstance(array, Memory) and array.strides == strides:
        return array
    scratch = new_scratch(emitter.place, array.shape, None)
    emitter.copy(array, scratch)
    return scratch


def emit_wide_dot(
    emitter: Emitter, dot: HloInstruction, operands: tuple[Array, Array], side: Along
) -> Scratch:
    """Emits a dot with vectors along one of its sides, and returns its result.

    Args:
        emitter: Where.
        dot: The instruction.
        operands: Its operands, both dense.
        side: What `choose_side` says.
    """
    result = new_scratch(emitter.place, dot.shape, None)
    width = emitter.shared_bits // dot.shape.element_type.bits
    wide = _WideDot(emitter, DotShape.of(dot, emitter.program), *operands, result, width)
    match side:
        case Along.SUM:
            wide.sum_in_vectors()
        case Along.RIGHT:
            wide.fill_rows(wide.shape.left, wide.shape.right, is_right=True)
        case Along.LEFT:
            wide.fill_rows(wide.shape.right, wide.shape.left, is_right=False)
    return result


@final
@dataclass(frozen=True, slots=True)
class _WideDot:
    """A dot, where its operands and its result are, and the width of vectors at most."""

    emitter: Emitter
    shape: DotShape
    left: Array
    right: Array
    result: Scratch
    width: int

    # Vectors along the result.

    def fill_rows(self, rows: Group, columns: Group, *, is_right: bool) -> None:
        """Emits loops over blocks of the result, of some rows and of some vectors in each.

        Args:
            rows: What is taken an element at a time.
            columns: What the vectors lie along.
            is_right: Whether that is the right operand's side.
        """
        width = _fitting(self.width, columns.size)
        num_vectors = -(-columns.size // width)
        most = min(num_vectors, 3 if rows.size > 1 else _IN_FLIGHT)
        height = min(rows.size, (_VECTORS - 1) // most - 1) if rows.size > 1 else 1
        whole, rest = divmod(columns.size, most * width)
        blocks = [(Run(start=0, size=most * width, count=whole), [n * width for n in range(most)])]
        if rest:
            start = whole * most * width
            offsets = [*range(0, rest - width + 1, width)]
            if rest % width:
                offsets.append(rest - width)
            blocks.append((Run(start=start, size=rest, count=1), offsets))
        for row in split(rows.size, height):
            for column, offsets in blocks:
                if column.count:
                    self._fill_block(row, column, offsets, width, is_right=is_right)

    def _fill_block(
        self, row: Run, column: Run, offsets: Sequence[int], width: int, *, is_right: bool
    ) -> None:
        builder, total = self.emitter.builder, self.shape.contracting.size
        batches = Run(start=0, size=1, count=self.shape.batch.size)
        with ExitStack() as loops:
            b, i, j = (loops.enter_context(run.loop(builder)) for run in (batches, row, column))
            at_rows = [indexing.add(builder, i, n) for n in range(row.size)]
            at_columns = [indexing.add(builder, j, offset) for offset in offsets]

            def advance(k: Index, sums: Sequence[ir.Value]) -> list[ir.Value]:
                vectors = [self._vector(b, c, k, width, is_right=is_right) for c in at_columns]
                scalars = [self._element(b, r, k, is_right=not is_right) for r in at_rows]
                pairs = [(splat(builder, s, width), v) for s in scalars for v in vectors]
                return self._multiply_add(pairs, sums)

            zeros = [self._zero(width)] * (row.size * len(offsets))
            parts = _num_parts(len(zeros), total)
            step = max(parts, _IN_FLIGHT // len(zeros))
            sums = emit_sums(builder, zeros, total, advance, step=step, parts=parts)
            for number, value in enumerate(map(self._add_up, sums)):
                r, c = divmod(number, len(offsets))
                where = (b, at_rows[r], at_columns[c])
                self._store(value, where if is_right else (b, where[2], where[1]))

    # Vectors along the sums.

    def sum_in_vectors(self) -> None:
        """Emits loops over blocks of the result, each element of which is the sum of a vector."""
        left, right = self.shape.left.size, self.shape.right.size
        columns = min(right, 3 if left > 1 else _IN_FLIGHT)
        rows = min(left, max((_VECTORS - 1) // columns - 1, 1) if columns > 1 else _IN_FLIGHT)
        for row in split(left, rows):
            for column in split(right, columns):
                self._sum_block(row, column)

    def _sum_block(self, row: Run, column: Run) -> None:
        builder, total = self.emitter.builder, self.shape.contracting.size
        batches = Run(start=0, size=1, count=self.shape.batch.size)
        width = _fitting(self.width, total)
        with ExitStack() as loops:
            b, i, j = (loops.enter_context(run.loop(builder)) for run in (batches, row, column))
            at_rows = [indexing.add(builder, i, n) for n in range(row.size)]
            at_columns = [indexing.add(builder, j, n) for n in range(column.size)]

            def advance(
                k: Index, sums: Sequence[ir.Value], where: ir.Value | None = None
            ) -> list[ir.Value]:
                lefts = [self._vector(b, r, k, width, is_right=False) for r in at_rows]
                rights = [self._vector(b, c, k, width, is_right=True) for c in at_columns]
                if where is not None:
                    zero = self._zero(width)
                    lefts = [builder.select(where, value, zero) for value in lefts]
                    rights = [builder.select(where, value, zero) for value in rights]
                return self._multiply_add([(x, y) for x in lefts for y in rights], sums)

            zeros = [self._zero(width)] * (row.size * column.size)
            num_vectors = total // width
            parts = _num_parts(len(zeros), num_vectors)
            step = max(parts, _IN_FLIGHT // len(zeros))
            sums = emit_sums(
                builder, zeros, num_vectors, advance, step=step, parts=parts, stride=width
            )
            vectors = [self._add_up(values) for values in sums]
            if total % width:
                vectors = advance(total - width, vectors, _last(width, total % width))
            totals = combine_vectors(builder, "add", vectors, self.result.shape.element_type)
            for number in range(len(vectors)):
                r, c = divmod(number, column.size)
                total = slice_vector(builder, totals, number, 1)
                self._store(total, (b, at_rows[r], at_columns[c]))

    # Elements.

    def _element(self, b: Index, at: Index, k: Index, *, is_right: bool) -> ir.Value:
        array, index = self._operand(b, at, k, is_right=is_right)
        return array.get(self.emitter.place, index)

    def _vector(self, b: Index, at: Index, k: Index, width: int, *, is_right: bool) -> ir.Value:
        """Loads neighbours: of what all that is counted by the last index, from there on."""
        array, index = self._operand(b, at, k, is_right=is_right)
        assert isinstance(array, Memory | Scratch), "operands are dense"
        pointer = array.address(self.emitter.place, index)
        return load(self.emitter.builder, pointer, array.shape.element_type, width)

    def _operand(self, b: Index, at: Index, k: Index, *, is_right: bool) -> tuple[Array, Element]:
        builder = self.emitter.builder
        if is_right:
            return self.right, self.shape.right_index(builder, b, at, k)
        return self.left, self.shape.left_index(builder, b, at, k)

    def _store(self, value: ir.Value, at: tuple[Index, Index, Index]) -> None:
        builder = self.emitter.builder
        index = self.shape.result_index(builder, *at)
        pointer = self.result.address(self.emitter.place, index)
        store(builder, value, pointer, self.result.shape.element_type)

    # Arithmetic.

    def _zero(self, width: int) -> ir.Constant:
        return constant(self.result.shape.element_type, 0, width)

    def _multiply_add(
        self, pairs: Sequence[tuple[ir.Value, ir.Value]], sums: Sequence[ir.Value]
    ) -> list[ir.Value]:
        return [
            call_intrinsic(self.emitter.builder, "llvm.fmuladd", [x, y, total])
            for (x, y), total in zip(pairs, sums, strict=True)
        ]

    def _add_up(self, parts: Sequence[ir.Value]) -> ir.Value:
        total = parts[0]
        for part in parts[1:]:
            total = self.emitter.builder.fadd(total, part)
        return total


def _num_parts(count: int, total: int) -> int:
    """Returns in how many parts to sum: few long sums would wait for each addition."""
    return max(1, min(_MAX_PARTS, _IN_FLIGHT // count, total // 2))


def _fitting(width: int, size: int) -> int:
    """Returns the largest power of two that is no wider than a vector nor longer than a side."""
    return min(width, 1 << (size.bit_length() - 1))


def _last(width: int, count: int) -> ir.Constant:
    """Returns a mask of a vector's last elements."""
    bit = ir.IntType(1)
    return ir.Constant(
        ir.VectorType(bit, width), [ir.Constant(bit, n >= width - count) for n in range(width)]
    )
