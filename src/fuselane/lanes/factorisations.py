"""LAPACK's calls on small matrices, written out as elementwise work on their rows and columns; of
larger ones, as loops over these (`fuselane.lanes.column_loops`).

    (%l, %info) = custom-call(%a), custom_call_target="lapack_spotrf_ffi"     %a: f32[8,3,3]
->  for k in 0, 1, 2:  l[k, k] = sqrt(s[0, 0]);  l[k+1:, k] = s[1:, 0] / l[k, k]
                       s = s[1:, 1:] - l[k+1:, k] * transpose(l[k+1:, k])

Cholesky, LU with partial pivoting and triangular solves are what JAX's `cholesky`, `solve`, `inv`,
`det`, `cho_solve` and the like consist of on CPUs; for `qr` see `fuselane.lanes.reflections`. What
LAPACK leaves alone (the other triangle) stays as it was.

Does not handle: matrices that are not small; other calls (eigenvalues, SVD).
Numerics: the same operations in another order. `info` is that of LAPACK: the number of the first
pivot that is not positive (Cholesky) or zero (LU), else 0. What follows such a pivot in a Cholesky
factor is left open; JAX replaces it by NaN.
Source: LAPACK Users' Guide, third edition; potf2, getf2, trsm.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.shape import PrimitiveType
from fuselane.lanes import column_loops, reflections
from fuselane.lanes.builder import ComputationBuilder
from fuselane.lanes.layout import memory_order, relayout
from fuselane.lanes.matrices import Matrices

_MAX_ROWS: Final = MappingProxyType({"potrf": 32, "trsm": 32, "getrf": 16})
"""From about so many on LAPACK is faster; QR is only written out."""

_MAX_WRITTEN_OUT: Final = 12
_MAX_PIVOTED: Final = 8
"""Of LU and QR, whose code is longer."""

_ATTRIBUTE: Final = re.compile(r"(\w+) = (\d+) : ui8")
_S32: Final = PrimitiveType.S32

_Attributes = Mapping[str, str]
_Lowering = Callable[[Sequence[Matrices], _Attributes], tuple[HloInstruction, ...]]


def is_small_factorisation(instruction: HloInstruction) -> bool:
    """Whether a custom call is one of LAPACK's that `lower_factorisation` writes out."""
    target = instruction.custom_call_target
    if target not in _LOWERINGS:
        return False
    limit = _MAX_ROWS.get(target[len("lapack_s") : -len("_ffi")], _MAX_PIVOTED)
    shape = instruction.operands[0].shape  # what a triangular solve is for may have many columns
    return shape.rank >= 2 and max(shape.dimensions[-2:]) <= limit


def lower_factorisation(
    builder: ComputationBuilder, instruction: HloInstruction, operands: Sequence[HloInstruction]
) -> HloInstruction | tuple[HloInstruction, ...]:
    """Lowers a call for which `is_small_factorisation` holds."""
    rank = instruction.operands[0].shape.rank
    matrices = []
    for original, value in zip(instruction.operands, operands, strict=True):
        order = tuple(range(original.shape.rank))
        array = relayout(builder, value, memory_order(original.shape), order)
        if original.shape.rank < rank:  # a vector for each matrix
            array = builder.reshape(array, (*original.shape.dimensions, 1))
        matrices.append(Matrices(builder=builder, origin=instruction, value=array))
    lower = _LOWERINGS[instruction.custom_call_target]
    results = lower(matrices, _attributes(instruction))
    shapes = instruction.shape.tuple_shapes or (instruction.shape,)
    relaid = tuple(
        relayout(builder, result, tuple(range(shape.rank)), memory_order(shape))
        for result, shape in zip(results, shapes, strict=True)
    )
    return relaid if instruction.shape.is_tuple else relaid[0]


def _attributes(instruction: HloInstruction) -> _Attributes:
    text = instruction.proto.backend_config.decode()
    return {name: chr(int(value)) for name, value in _ATTRIBUTE.findall(text)}


def _cholesky(operands: Sequence[Matrices], attributes: _Attributes) -> tuple[HloInstruction, ...]:
    """Returns the factor in the lower (or upper) triangle, and info."""
    is_upper = attributes["uplo"] == "U"
    matrix = operands[0].transposed() if is_upper else operands[0]
    size = matrix.rows
    if size > _MAX_WRITTEN_OUT:
        factor, info = column_loops.cholesky(matrix)
        return (factor.transposed() if is_upper else factor).value, info.reshaped(info.batch)
    remaining = matrix
    info = matrix.constant(0, _S32)
    columns = []
    for k in range(size):
        pivot = remaining.element(0, 0)
        fails = pivot.compare("GT", pivot.constant(0)).choose(
            info.constant(0, _S32), info.constant(k + 1, _S32)
        )
        info = info.compare("EQ", info.constant(0)).choose(fails, info)
        root = pivot.apply("sqrt")
        column = [matrix.part(slice(0, k), slice(k, k + 1))] if k else []
        column.append(root)
        if k + 1 < size:
            below = remaining.part(slice(1, None), slice(0, 1)) / root
            column.append(below)
            remaining = remaining.part(slice(1, None), slice(1, None)) - below * below.transposed()
        columns.append(column[0].stacked(column[1:]))
    factor = columns[0].beside(columns[1:])
    if is_upper:
        factor = factor.transposed()
    return factor.value, info.reshaped(info.batch)


def _triangular_solve(
    operands: Sequence[Matrices], attributes: _Attributes
) -> tuple[HloInstruction, ...]:
    """Returns the solution x of a x = b, or of x a = b where `side` is "R"."""
    matrix, right = operands
    is_lower = attributes["uplo"] == "L"
    if attributes["trans_x"] != "N":
        matrix, is_lower = matrix.transposed(), not is_lower
    if attributes["side"] == "R":
        matrix, is_lower, right = matrix.transposed(), not is_lower, right.transposed()
    has_unit_diagonal = attributes["diag"] == "U"
    if matrix.rows > _MAX_WRITTEN_OUT:
        solution = column_loops.substitute(
            matrix, right, is_lower=is_lower, has_unit_diagonal=has_unit_diagonal
        )
    else:
        rows = _substitute(matrix, right, is_lower, has_unit_diagonal)
        solution = rows[0].stacked(rows[1:])
    if attributes["side"] == "R":
        solution = solution.transposed()
    return (solution.value,)


def _substitute(
    matrix: Matrices, right: Matrices, is_lower: bool, has_unit_diagonal: bool
) -> list[Matrices]:
    """Returns the rows of the solution of a triangular system, by forward or back substitution."""
    size = matrix.rows
    rows: dict[int, Matrices] = {}
    for k in range(size) if is_lower else reversed(range(size)):
        others = slice(k + 1, None) if is_lower else slice(0, k)
        position, rest = (0, slice(1, None)) if is_lower else (right.rows - 1, slice(0, -1))
        row = right.part(slice(position, position + 1), slice(None))
        rows[k] = row if has_unit_diagonal else row / matrix.element(k, k)
        if right.rows > 1:
            column = matrix.part(others, slice(k, k + 1))
            right = right.part(rest, slice(None)) - column * rows[k]
    return [rows[k] for k in range(size)]


def _lu(operands: Sequence[Matrices], _: _Attributes) -> tuple[HloInstruction, ...]:
    """Returns both factors in one matrix, the rows exchanged (from 1), and info."""
    (matrix,) = operands
    if max(matrix.rows, matrix.columns) > _MAX_PIVOTED:
        factors, exchanged, info = column_loops.exchange_and_eliminate(matrix)
        order = (*matrix.batch, exchanged.rows)
        return factors.value, exchanged.reshaped(order), info.reshaped(info.batch)
    remaining = matrix
    info = matrix.constant(0, _S32)
    done: list[Matrices] = []
    pivots: list[Matrices] = []
    for k in range(min(matrix.rows, matrix.columns)):
        first, rest, position = _exchange_rows(remaining, k)
        pivots.append(position + position.constant(k + 1))
        done.append(first)
        pivot = first.element(0, k)
        is_zero = pivot.compare("EQ", pivot.constant(0))
        fails = is_zero.choose(info.constant(k + 1), info.constant(0))
        info = info.compare("EQ", info.constant(0)).choose(fails, info)
        if rest is None:
            break
        column = rest.part(slice(None), slice(k, k + 1))
        factors = is_zero.choose(column, column / pivot)
        parts = [rest.part(slice(None), slice(0, k))] if k else []
        parts.append(factors)
        if k + 1 < matrix.columns:
            behind = slice(k + 1, None)
            parts.append(rest.part(slice(None), behind) - factors * first.part(slice(None), behind))
        remaining = parts[0].beside(parts[1:])
    else:
        done.append(remaining)
    result = done[0].stacked(done[1:])
    exchanged = pivots[0].stacked(pivots[1:])
    return (
        result.value,
        exchanged.reshaped((*matrix.batch, len(pivots))),
        info.reshaped(info.batch),
    )


def _exchange_rows(rows: Matrices, column: int) -> tuple[Matrices, Matrices | None, Matrices]:
    """Brings the row whose element in a column is the largest to the top.

    Returns:
        That row, the others with the top one in its place, and its position (s32).
    """
    top = best = rows.part(slice(0, 1), slice(None))
    position = rows.constant(0, _S32)
    largest = top.element(0, column).apply("abs")
    for number in range(1, rows.rows):
        row = rows.part(slice(number, number + 1), slice(None))
        magnitude = row.element(0, column).apply("abs")
        is_larger = magnitude.compare("GT", largest)
        largest = is_larger.choose(magnitude, largest)
        best = is_larger.choose(row, best)
        position = is_larger.choose(position.constant(number), position)
    if rows.rows == 1:
        return best, None, position
    others = []
    for number in range(1, rows.rows):
        is_here = position.compare("EQ", position.constant(number))
        others.append(is_here.choose(top, rows.part(slice(number, number + 1), slice(None))))
    return best, others[0].stacked(others[1:]), position


_LOWERINGS: Final[Mapping[str, _Lowering]] = {
    "lapack_spotrf_ffi": _cholesky,
    "lapack_dpotrf_ffi": _cholesky,
    "lapack_strsm_ffi": _triangular_solve,
    "lapack_dtrsm_ffi": _triangular_solve,
    "lapack_sgetrf_ffi": _lu,
    "lapack_dgetrf_ffi": _lu,
    "lapack_sgeqrf_ffi": reflections.factorise,
    "lapack_dgeqrf_ffi": reflections.factorise,
    "lapack_sorgqr_ffi": reflections.multiply,
    "lapack_dorgqr_ffi": reflections.multiply,
}
