"""QR by Householder's reflections, written out as LAPACK's geqr2 and org2r have it.

Each reflection I - t v v' brings one column to zero below the diagonal; v begins with 1, and what
follows is kept where the zeros would be.

    for k in 0, 1, ..:   x = a[k:, k]
        b = -copysign(norm(x), x[0]);   t = (b - x[0]) / b;   v = [1, x[1:] / (x[0] - b)]
        a[k:, k+1:] -= t v (v' a[k:, k+1:]);   a[k:, k] = [b, v[1:]]

Where all of x[1:] is zero there is nothing to reflect, and t is 0.

Numerics: the same operations in another order. Columns are divided by their largest element for the
sake of their norm, so nothing overflows or vanishes.
Source: LAPACK Users' Guide, third edition; larfg, geqr2, org2r.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping, Sequence

from fuselane.hlo.instruction import HloInstruction
from fuselane.lanes.matrices import Matrices


def factorise(
    operands: Sequence[Matrices], _: Mapping[str, str]
) -> tuple[HloInstruction, HloInstruction]:
    """Returns the upper factor, with what the reflections consist of below it, and their t."""
    (matrix,) = operands
    count = min(matrix.rows, matrix.columns)
    rest, done, factors = matrix, list[Matrices](), list[Matrices]()
    for k in range(count):
        column = rest.part(slice(None), slice(0, 1))
        diagonal, tail, factor = _reflection(column.part(slice(k, None), slice(None)))
        above = [column.part(slice(0, k), slice(None))] if k else []
        pieces = [*above, diagonal, *([] if tail is None else [tail])]
        done.append(pieces[0].stacked(pieces[1:]))
        factors.append(factor)
        if k + 1 < matrix.columns:
            rest = _reflected(rest.part(slice(None), slice(1, None)), k, tail, factor)
    if matrix.columns > count:
        done.append(rest)
    result = done[0].beside(done[1:])
    return result.value, factors[0].stacked(factors[1:]).reshaped((*matrix.batch, count))


def multiply(operands: Sequence[Matrices], _: Mapping[str, str]) -> tuple[HloInstruction]:
    """Returns the first columns of the product of reflections, from what `factorise` returns."""
    matrix, factors = operands
    count, rows = factors.rows, matrix.rows
    columns = [_unit_column(matrix, number) for number in range(count, matrix.columns)]
    result = columns[0].beside(columns[1:]) if columns else None
    for k in reversed(range(count)):
        factor = factors.element(k, 0)
        tail = matrix.part(slice(k + 1, None), slice(k, k + 1)) if k + 1 < rows else None
        pieces = [_zero(matrix, k)] if k else []
        pieces.append(factor.constant(1) - factor)
        if tail is not None:
            pieces.append((factor * tail).apply("negate"))
        column = pieces[0].stacked(pieces[1:])
        if result is not None:
            result = column.beside([_reflected(result, k, tail, factor)])
        else:
            result = column
    assert result is not None, "matrices have columns"
    return (result.value,)


def _reflection(column: Matrices) -> tuple[Matrices, Matrices | None, Matrices]:
    """Returns what the first element of a column becomes, what v has behind its 1, and t."""
    first = column.element(0, 0)
    zero, one = first.constant(0), first.constant(1)
    if column.rows == 1:
        return first, None, zero
    tail = column.part(slice(1, None), slice(None))
    sizes = [m.apply("abs") for m in _rows(tail)]
    largest = functools.reduce(lambda a, b: a.apply("maximum", b), sizes)
    is_done = largest.compare("EQ", zero)
    scale = is_done.choose(one, largest.apply("maximum", first.apply("abs")))
    scaled = column / scale
    squares = functools.reduce(operator.add, _rows(scaled * scaled))
    norm = scale * squares.apply("sqrt")
    is_negative = first.compare("LT", zero)
    diagonal = is_done.choose(first, is_negative.choose(norm, norm.apply("negate")))
    divisor = is_done.choose(one, diagonal)
    factor = is_done.choose(zero, (diagonal - first) / divisor)
    return diagonal, tail / is_done.choose(one, first - diagonal), factor


def _reflected(matrix: Matrices, k: int, tail: Matrices | None, factor: Matrices) -> Matrices:
    """Returns a matrix whose rows from k on are reflected."""
    if tail is None:
        return matrix
    top = matrix.part(slice(k, k + 1), slice(None))
    others = matrix.part(slice(k + 1, None), slice(None))
    share = factor * functools.reduce(operator.add, [top, *_rows(tail * others)])
    pieces = [matrix.part(slice(0, k), slice(None))] if k else []
    pieces += [top - share, others - tail * share]
    return pieces[0].stacked(pieces[1:])


def _rows(matrix: Matrices) -> list[Matrices]:
    return [matrix.part(slice(k, k + 1), slice(None)) for k in range(matrix.rows)]


def _zero(like: Matrices, rows: int) -> Matrices:
    return like.constant(0).stretched(rows, 1)


def _unit_column(like: Matrices, number: int) -> Matrices:
    pieces = [like.constant(float(k == number)) for k in range(like.rows)]
    return pieces[0].stacked(pieces[1:])
