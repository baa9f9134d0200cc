"""Small matrices, one per lane, as arrays of a region: what factorisations are written in.

The last two dimensions of an array are rows and columns of matrices, all others count matrices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from fuselane.hlo.dots import DotDimensions
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.shape import PrimitiveType
from fuselane.lanes.builder import ComputationBuilder, array_shape, combining_computation


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Matrices:
    """An array of matrices and what it takes to compute with it.

    Attributes:
        builder: Where instructions go.
        origin: The user's instruction they stand for.
        value: The array.
    """

    builder: ComputationBuilder
    origin: HloInstruction
    value: HloInstruction

    @property
    def batch(self) -> tuple[int, ...]:
        """Sizes of the dimensions that count matrices."""
        return self.value.shape.dimensions[:-2]

    @property
    def rows(self) -> int:
        """Rows of each matrix."""
        return self.value.shape.dimensions[-2]

    @property
    def columns(self) -> int:
        """Columns of each matrix."""
        return self.value.shape.dimensions[-1]

    def part(self, rows: slice, columns: slice) -> Matrices:
        """Returns a block of each matrix."""
        row, column = range(self.rows)[rows], range(self.columns)[columns]
        ranges = [(0, size, 1) for size in self.batch]
        ranges += [(row.start, row.stop, 1), (column.start, column.stop, 1)]
        return self._with(self.builder.slice(self.value, ranges, origin=self.origin))

    def element(self, row: int, column: int) -> Matrices:
        """Returns one element of each matrix, as matrices of one row and column."""
        return self.part(slice(row, row + 1), slice(column, column + 1))

    def transposed(self) -> Matrices:
        """Returns the matrices with rows and columns exchanged."""
        rank = len(self.batch)
        permutation = (*range(rank), rank + 1, rank)
        return self._with(self.builder.transpose(self.value, permutation, origin=self.origin))

    def stretched(self, rows: int, columns: int) -> Matrices:
        """Returns matrices of these sizes; single rows, columns and elements are repeated."""
        if (rows, columns) == (self.rows, self.columns):
            return self
        kept = [*range(len(self.batch))]
        kept += [len(self.batch)] if self.rows == rows else []
        kept += [len(self.batch) + 1] if self.columns == columns else []
        sizes = (*self.batch, rows, columns)
        old = self.value.shape.dimensions
        narrow = self.builder.reshape(self.value, tuple(old[d] for d in kept), origin=self.origin)
        return self._with(self.builder.broadcast(narrow, sizes, tuple(kept), origin=self.origin))

    def stacked(self, below: Sequence[Matrices]) -> Matrices:
        """Returns the matrices with others below them."""
        return self._concatenated(below, len(self.batch))

    def beside(self, others: Sequence[Matrices]) -> Matrices:
        """Returns the matrices with others to the right of them."""
        return self._concatenated(others, len(self.batch) + 1)

    def _concatenated(self, others: Sequence[Matrices], dimension: int) -> Matrices:
        values = [self.value, *(m.value for m in others)]
        return self._with(self.builder.concatenate(values, dimension, origin=self.origin))

    # Arithmetic; a row, column or element is repeated to fit.

    def __add__(self, other: Matrices) -> Matrices:
        return self.apply("add", other)

    def __sub__(self, other: Matrices) -> Matrices:
        return self.apply("subtract", other)

    def __mul__(self, other: Matrices) -> Matrices:
        return self.apply("multiply", other)

    def __truediv__(self, other: Matrices) -> Matrices:
        return self.apply("divide", other)

    def apply(self, opcode: str, *others: Matrices) -> Matrices:
        """Returns the result of an elementwise opcode."""
        return self._elementwise(opcode, others, self.value.shape.element_type)

    def compare(self, direction: str, other: Matrices) -> Matrices:
        """Returns the result of a comparison ("GT") as booleans."""
        values = self._fitted((other,))
        return self._with(self.builder.compare(direction, *values, origin=self.origin))

    def choose(self, yes: Matrices, no: Matrices) -> Matrices:
        """Returns elements of `yes` where these booleans hold, of `no` elsewhere."""
        return self._elementwise("select", (yes, no), yes.value.shape.element_type)

    def _elementwise(
        self, opcode: str, others: Sequence[Matrices], element: PrimitiveType
    ) -> Matrices:
        values = self._fitted(others)
        shape = array_shape(element, values[0].shape.dimensions)
        return self._with(self.builder.emit(opcode, shape, values, origin=self.origin))

    def _fitted(self, others: Sequence[Matrices]) -> list[HloInstruction]:
        """Returns these matrices and others, all of the largest ones' rows and columns."""
        operands = (self, *others)
        rows, columns = max(m.rows for m in operands), max(m.columns for m in operands)
        return [m.stretched(rows, columns).value for m in operands]

    def product(self, other: Matrices) -> Matrices:
        """Returns the products of these matrices and others."""
        count = len(self.batch)
        batch = tuple(range(count))
        numbers = DotDimensions.create(
            left_rank=count + 2,
            right_rank=count + 2,
            left_batch=batch,
            right_batch=batch,
            left_contracting=(count + 1,),
            right_contracting=(count,),
        )
        element = self.value.shape.element_type
        value = self.builder.dot(self.value, other.value, numbers, element, origin=self.origin)
        return self._with(value)

    def combined(self, opcode: str, start: float) -> Matrices:
        """Returns one row: each column's elements combined by a commutative opcode."""
        element = self.value.shape.element_type
        operands = (self.value, self.builder.scalar(start, element, self.origin))
        to_apply = combining_computation(opcode, element)
        rows = (len(self.batch),)
        value = self.builder.reduce(operands, rows, to_apply, origin=self.origin)
        return self._with(self.builder.reshape(value, (*self.batch, 1, self.columns)))

    def positions(self, dimension: int) -> Matrices:
        """Returns the number of each row (dimension 0), as a column, or of each column, as a
        row."""
        sizes = (self.rows, 1) if dimension == 0 else (1, self.columns)
        numbers = self.builder.iota(array_shape(PrimitiveType.S32, sizes), dimension)
        count = len(self.batch)
        return self._with(
            self.builder.broadcast(numbers, (*self.batch, *sizes), (count, count + 1))
        )

    def constant(self, value: float, element: PrimitiveType | None = None) -> Matrices:
        """Returns matrices of one element, all with this value."""
        element = element or self.value.shape.element_type
        scalar = self.builder.scalar(value, element, self.origin)
        return self._with(
            self.builder.broadcast(scalar, (*self.batch, 1, 1), (), origin=self.origin)
        )

    def reshaped(self, sizes: tuple[int, ...]) -> HloInstruction:
        """Returns the array as one of other sizes."""
        return self.builder.reshape(self.value, sizes, origin=self.origin)

    def _with(self, value: HloInstruction) -> Matrices:
        return Matrices(builder=self.builder, origin=self.origin, value=value)
