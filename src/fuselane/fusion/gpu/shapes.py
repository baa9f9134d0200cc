"""Reductions and transposes as XLA:GPU's emitters see them.

Source: xla/service/gpu/reduction_utils.cc and ir_emission_utils.cc.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby, pairwise
from typing import Final, final

from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.shape import Shape

WARP: Final = 32
_MAX_ROW: Final = 1024 * 16
_MAX_BATCH: Final = 8
_MAX_COLUMN: Final = 32 * 128


@final
@dataclass(frozen=True, slots=True)
class ReductionForm:
    """A reduction with neighbouring dimensions merged.

    Attributes:
        is_row: The minor dimension is reduced: [major, kept, minor] -> [kept]. If not, the middle
            one is: [major, reduced, minor] -> [major, minor].
        sizes: The three dimensions.
    """

    is_row: bool
    sizes: tuple[int, int, int]

    @property
    def is_race_free(self) -> bool:
        """Whether one block computes each result alone."""
        if self.is_row:
            return self.sizes[2] <= _MAX_ROW and self.sizes[0] <= _MAX_BATCH
        return self.sizes[1] <= _MAX_COLUMN

    @property
    def is_unnested(self) -> bool:
        """Whether the reduction emitter takes it; if not, each result is a loop of one thread."""
        if self.is_row:
            return self.sizes[2] >= WARP or WARP % self.sizes[2] == 0
        reduced, minor = self.sizes[1], self.sizes[2]
        return not (
            reduced < WARP
            or (reduced < 2 * WARP and minor < WARP)
            or (reduced < 4 * WARP and minor < 8)
            or (reduced < 8 * WARP and minor < 3)
        )


def reduction_form(reduce: HloInstruction) -> ReductionForm | None:
    """Returns the form of a reduce whose kept or reduced dimensions are neighbours in memory."""
    shape = reduce.operands[0].shape
    return _reduction_form(shape.dimensions, shape.minor_to_major, reduce.dimensions)


@lru_cache(maxsize=1 << 12)
def _reduction_form(
    sizes: tuple[int, ...], minor_to_major: tuple[int, ...], dimensions: tuple[int, ...]
) -> ReductionForm | None:
    reduced = set(dimensions)
    major_to_minor = [d for d in reversed(minor_to_major) if sizes[d] != 1]
    groups = [
        (is_reduced, math.prod(sizes[d] for d in dimensions))
        for is_reduced, dimensions in groupby(major_to_minor, key=reduced.__contains__)
    ]
    match groups:
        case []:
            return ReductionForm(is_row=True, sizes=(1, 1, 1))
        case [(True, n)]:
            return ReductionForm(is_row=True, sizes=(1, 1, n))
        case [(False, kept), (True, n)]:
            return ReductionForm(is_row=True, sizes=(1, kept, n))
        case [(True, batch), (False, kept), (True, n)]:
            return ReductionForm(is_row=True, sizes=(batch, kept, n))
        case [(True, n), (False, minor)]:
            return ReductionForm(is_row=False, sizes=(1, n, minor))
        case [(False, major), (True, n), (False, minor)]:
            return ReductionForm(is_row=False, sizes=(major, n, minor))
        case _:
            return None


def unnested_form(instruction: HloInstruction) -> ReductionForm | None:
    """Returns the form of a reduce that the reduction emitter takes, else None."""
    if instruction.opcode != "reduce":
        return None
    form = reduction_form(instruction)
    return form if form is not None and form.is_unnested else None


@final
@dataclass(frozen=True, slots=True)
class TransposeForm:
    """A transpose with neighbouring dimensions merged: sizes of its operand and the permutation."""

    sizes: tuple[int, ...]
    permutation: tuple[int, ...]


def merged_transpose(shape: Shape, permutation: tuple[int, ...]) -> TransposeForm:
    """Merges dimensions of a row-major shape that stay neighbours, and drops those of size one."""
    kept = [d for d in permutation if shape.dimensions[d] != 1]
    runs: list[list[int]] = []
    in_order = sorted(kept)
    following = dict(pairwise(in_order))
    for d in kept:
        if runs and following.get(runs[-1][-1]) == d:
            runs[-1].append(d)
        else:
            runs.append([d])
    order = sorted(range(len(runs)), key=lambda r: runs[r][0])
    sizes = tuple(math.prod(shape.dimensions[d] for d in runs[r]) for r in order)
    rank_of = {r: position for position, r in enumerate(order)}
    return TransposeForm(sizes, tuple(rank_of[r] for r in range(len(runs))))


def tiled_transpose(instruction: HloInstruction) -> TransposeForm | None:
    """Returns the form of a transpose that goes through shared memory tile by tile, else None."""
    if instruction.opcode != "transpose" or not instruction.operands[0].shape.is_row_major:
        return None
    form = merged_transpose(instruction.operands[0].shape, instruction.dimensions)
    sizes, permutation = form.sizes, form.permutation
    rank, bits = len(sizes), instruction.shape.element_type.bits
    if rank < 2 or permutation == tuple(range(rank)) or bits == 4:
        return None
    if permutation[-1] == rank - 1:
        if rank < 3:
            return None
        narrow = min(sizes[rank - 2], sizes[permutation[-2]])
        row_bits = bits * sizes[-1]
        return form if row_bits <= 64 and row_bits * narrow >= 128 else None
    a, b = sizes[-1], sizes[permutation[-1]]
    is_large = min(a, b) >= 16 or (min(a, b) >= 8 and a * b >= 64 * 128)
    return form if is_large else None


def is_bitcast_transpose(transpose: HloInstruction) -> bool:
    """Whether a transpose leaves all elements where they are in memory."""
    operand, result = transpose.operands[0].shape, transpose.shape
    order = [transpose.dimensions[d] for d in reversed(result.minor_to_major)]
    before = [d for d in reversed(operand.minor_to_major) if operand.dimensions[d] != 1]
    return [d for d in order if operand.dimensions[d] != 1] == before
