"""LAPACK's calls on matrices too large to be written out: loops over their columns or rows.

    for k in 0, 1, ..:   x = a[:, k] - l transpose(l[k, :])           Cholesky, column by column
        r = sqrt(x[k]);  l[k, k] = r;  l[k+1:, k] = x[k+1:] / r

    for k in 0, 1, ..:   x[k, :] = (b[k, :] - a[k, :k] x[:k, :]) / a[k, k]     triangular solve

    for k in 0, 1, ..:   exchange rows k and argmax(abs(a[k:, k]))     LU with partial pivoting
        a[k+1:, k] /= a[k, k];  a[k+1:, k+1:] -= a[k+1:, k] a[k, k+1:]

All lanes have the same `k`. What a step does not need is zero or left out by selects, so each step
works on whole rows or columns: three times the operations that are needed, in short code.

Numerics: as those that are written out, see `fuselane.lanes.factorisations`.
Source: LAPACK Users' Guide, third edition; potf2 (its left-looking form), trsm, getf2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, final

import numpy as np

from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.shape import PrimitiveType
from fuselane.lanes.builder import ComputationBuilder
from fuselane.lanes.matrices import Matrices

_S32: Final = PrimitiveType.S32


@final
@dataclass(frozen=True, slots=True)
class Counter:
    """The number of a row and column, the same for all matrices.

    Attributes:
        value: s32[].
    """

    value: HloInstruction

    def number(self, like: Matrices) -> Matrices:
        """Returns it as matrices of one element."""
        sizes = (*like.batch, 1, 1)
        return replace(like, value=like.builder.broadcast(self.value, sizes, ()))

    def rows(self, direction: str, of: Matrices) -> Matrices:
        """Returns a column of booleans: how ("LT") each row's number compares with this one."""
        return of.positions(0).compare(direction, self.number(of))

    def columns(self, direction: str, of: Matrices) -> Matrices:
        """Returns a row of booleans: how each column's number compares with this one."""
        return of.positions(1).compare(direction, self.number(of))

    def row(self, of: Matrices) -> Matrices:
        """Returns the row with this number."""
        return self._read(of, (1, of.columns), is_row=True)

    def column(self, of: Matrices) -> Matrices:
        """Returns the column with this number."""
        return self._read(of, (of.rows, 1), is_row=False)

    def with_row(self, matrix: Matrices, row: Matrices) -> Matrices:
        """Returns the matrix with another row in the place with this number."""
        return self._write(matrix, row, is_row=True)

    def with_column(self, matrix: Matrices, column: Matrices) -> Matrices:
        """Returns the matrix with another column in the place with this number."""
        return self._write(matrix, column, is_row=False)

    def _read(self, of: Matrices, sizes: tuple[int, int], *, is_row: bool) -> Matrices:
        starts = self._starts(of, is_row)
        return replace(of, value=of.builder.dynamic_slice(of.value, starts, (*of.batch, *sizes)))

    def _write(self, matrix: Matrices, part: Matrices, *, is_row: bool) -> Matrices:
        starts = self._starts(matrix, is_row)
        value = matrix.builder.dynamic_update_slice(matrix.value, part.value, starts)
        return replace(matrix, value=value)

    def _starts(self, of: Matrices, is_row: bool) -> list[HloInstruction]:
        zero = _scalar(of, 0)
        place = [self.value, zero] if is_row else [zero, self.value]
        return [zero] * len(of.batch) + place


_Step = Callable[[Counter, Sequence[Matrices]], Sequence[Matrices]]
"""What new state a step makes of its number, the state, and what does not change."""


def repeat(
    step: _Step,
    count: int,
    state: Sequence[Matrices],
    fixed: Sequence[Matrices] = (),
    *,
    behind: Counter | None = None,
    is_reverse: bool = False,
) -> list[Matrices]:
    """Returns the state after a loop.

    Args:
        step: What is done for each number.
        count: How many numbers there are.
        state: What the loop begins with.
        fixed: What a step reads besides.
        behind: Where to begin: behind that number, instead of at zero.
        is_reverse: Whether the numbers go down to zero, instead of up.
    """
    outside = state[0].builder
    carried = [*state, *fixed]
    first = _scalar(state[0], 0)
    if behind is not None:
        first = outside.emit("add", first.shape, (behind.value, _scalar(state[0], 1)))
    start = outside.make_tuple([first, *(m.value for m in carried)])
    body, condition = (ComputationBuilder(name) for name in ("columns", "columns.condition"))
    parameter = body.parameter(0, start.shape, None)
    done = body.element(parameter, 0)
    inside = [
        replace(m, builder=body, value=body.element(parameter, number))
        for number, m in enumerate(carried, 1)
    ]
    last = _scalar(inside[0], count - 1)
    value = body.emit("subtract", done.shape, (last, done)) if is_reverse else done
    after = [m.value for m in step(Counter(value), inside)]
    after += [m.value for m in inside[len(after) :]]
    following = body.emit("add", done.shape, (done, _scalar(inside[0], 1)))
    goes_on = condition.compare(
        "LT",
        condition.element(condition.parameter(0, start.shape, None), 0),
        _scalar(replace(state[0], builder=condition), count),
    )
    loop = outside.emit(
        "while",
        start.shape,
        (start,),
        origin=state[0].origin,
        called=(body.finish(body.make_tuple([following, *after])), condition.finish(goes_on)),
    )
    return [replace(m, value=outside.element(loop, n)) for n, m in enumerate(state, 1)]


def _scalar(like: Matrices, value: int) -> HloInstruction:
    """Returns an s32[] of a builder."""
    return like.builder.scalar(value, _S32, like.origin)


def cholesky(matrix: Matrices) -> tuple[Matrices, Matrices]:
    """Returns the factor in the lower triangle, what was in the other one, and info."""

    def step(k: Counter, state: Sequence[Matrices]) -> list[Matrices]:
        factor, info, matrix = state
        column = k.column(matrix) - factor.product(k.row(factor).transposed())
        pivot = k.row(column)
        root = pivot.apply("sqrt")
        zero, one = pivot.constant(0), pivot.constant(1)
        below = k.rows("GT", factor).choose(column * (one / root), zero)
        column = k.rows("EQ", factor).choose(root, below)
        return [k.with_column(factor, column), _note(info, k, pivot.compare("GT", zero))]

    empty = matrix.constant(0).stretched(matrix.rows, matrix.columns)
    info = matrix.constant(0, _S32)
    factor, info = repeat(step, matrix.rows, [empty, info], [matrix])
    is_lower = matrix.positions(0).compare("GE", matrix.positions(1))
    return is_lower.choose(factor, matrix), info


def substitute(
    matrix: Matrices, right: Matrices, *, is_lower: bool, has_unit_diagonal: bool
) -> Matrices:
    """Returns the solution of a triangular system, by forward or back substitution."""

    def step(k: Counter, state: Sequence[Matrices]) -> list[Matrices]:
        solution, matrix, right = state
        row = k.row(matrix)
        is_solved = k.columns("LT" if is_lower else "GT", matrix)
        others = is_solved.choose(row, row.constant(0))
        value = k.row(right) - others.product(solution)
        if not has_unit_diagonal:
            value = value / k.column(row)
        return [k.with_row(solution, value)]

    empty = right.constant(0).stretched(right.rows, right.columns)
    (solution,) = repeat(step, right.rows, [empty], [matrix, right], is_reverse=not is_lower)
    return solution


def exchange_and_eliminate(matrix: Matrices) -> tuple[Matrices, Matrices, Matrices]:
    """Returns both factors of LU in one matrix, the rows exchanged (from 1), as a column, and
    info."""
    count = min(matrix.rows, matrix.columns)

    def step(k: Counter, state: Sequence[Matrices]) -> list[Matrices]:
        factors, exchanged, info = state
        column, top = k.column(factors), k.row(factors)
        position = _largest(column.apply("abs"), k)
        (best,) = repeat(_find_row, matrix.rows, [top], [position, factors], behind=k)
        pivot = k.column(best)
        is_regular = pivot.compare("NE", pivot.constant(0))
        is_best = factors.positions(0).compare("EQ", position)
        below = is_best.choose(k.column(top), column)
        below = is_regular.choose(below / pivot, below)
        is_here, is_behind = k.columns("EQ", factors), k.columns("GT", factors)
        fixed = [position, top, best, below, is_here, is_behind]
        (factors,) = repeat(_eliminate_row, matrix.rows, [factors], fixed, behind=k)
        exchanged = k.with_row(exchanged, position + position.constant(1))
        return [k.with_row(factors, best), exchanged, _note(info, k, is_regular)]

    none = matrix.constant(0, _S32)
    factors, exchanged, info = repeat(step, count, [matrix, none.stretched(count, 1), none])
    return factors, exchanged, info


def _find_row(i: Counter, state: Sequence[Matrices]) -> list[Matrices]:
    """Returns row `i`, if its number is a lane's position, or what is found already."""
    found, position, factors = state
    return [position.compare("EQ", i.number(position)).choose(i.row(factors), found)]


def _eliminate_row(i: Counter, state: Sequence[Matrices]) -> list[Matrices]:
    """Takes the pivot's row times what row `i` is divided by off it; if the pivot was in row `i`,
    that is the one it is exchanged for."""
    factors, position, top, best, below, is_here, is_behind = state
    row = position.compare("EQ", i.number(position)).choose(top, i.row(factors))
    factor = i.row(below)
    row = is_behind.choose(row - factor * best, is_here.choose(factor, row))
    return [i.with_row(factors, row)]


def _largest(magnitudes: Matrices, k: Counter) -> Matrices:
    """Returns the number of the largest of a column's elements from row `k` on: of equal ones the
    first; NaN is the largest in row `k` and the smallest in others."""
    is_number = magnitudes.compare("EQ", magnitudes)
    least = magnitudes.constant(-1)
    first = is_number.choose(magnitudes, magnitudes.constant(np.inf))
    others = k.rows("GT", magnitudes).choose(is_number.choose(magnitudes, least), least)
    candidates = k.rows("EQ", magnitudes).choose(first, others)
    is_largest = candidates.compare("EQ", candidates.combined("maximum", -1))
    numbers = candidates.positions(0)
    none = numbers.constant(candidates.rows)
    return is_largest.choose(numbers, none).combined("minimum", candidates.rows)


def _note(info: Matrices, k: Counter, is_regular: Matrices) -> Matrices:
    """Returns the number, from 1, of the first step that is not regular; 0 for none."""
    number = is_regular.choose(info.constant(0), k.number(info) + info.constant(1))
    return info.compare("EQ", info.constant(0)).choose(number, info)
