"""The dimension numbers of a dot."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import final

from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.proto import DotDimensionNumbers, Message


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class DotDimensions:
    """Which dimensions of its operands a dot pairs, sums over and keeps.

    The result's dimensions are the batch dimensions, then the free ones of the left operand, then
    those of the right one.

    Attributes:
        left_batch, right_batch: Dimensions taken together, pair by pair, and kept.
        left_contracting, right_contracting: Dimensions taken together and summed over.
        left_free, right_free: All others, in order.
    """

    left_batch: tuple[int, ...]
    right_batch: tuple[int, ...]
    left_contracting: tuple[int, ...]
    right_contracting: tuple[int, ...]
    left_free: tuple[int, ...]
    right_free: tuple[int, ...]

    @staticmethod
    def of(dot: HloInstruction) -> DotDimensions:
        """Returns the dimension numbers of a dot instruction."""
        left, right = dot.operands
        numbers = dot.origin.dot_dimension_numbers.SerializeToString()
        return _read(numbers, left.shape.rank, right.shape.rank)

    @staticmethod
    def create(
        *,
        left_rank: int,
        right_rank: int,
        left_batch: tuple[int, ...],
        right_batch: tuple[int, ...],
        left_contracting: tuple[int, ...],
        right_contracting: tuple[int, ...],
    ) -> DotDimensions:
        """Returns the dimension numbers of operands of these ranks."""
        left, right = {*left_batch, *left_contracting}, {*right_batch, *right_contracting}
        return DotDimensions(
            left_batch=left_batch,
            right_batch=right_batch,
            left_contracting=left_contracting,
            right_contracting=right_contracting,
            left_free=tuple(d for d in range(left_rank) if d not in left),
            right_free=tuple(d for d in range(right_rank) if d not in right),
        )

    def to_proto(self) -> Message:
        """Returns the message that an instruction holds."""
        return DotDimensionNumbers(
            lhs_batch_dimensions=self.left_batch,
            rhs_batch_dimensions=self.right_batch,
            lhs_contracting_dimensions=self.left_contracting,
            rhs_contracting_dimensions=self.right_contracting,
        )

    def result_sizes(self, left: Sequence[int], right: Sequence[int]) -> tuple[int, ...]:
        """Returns the result's sizes for operands of these sizes."""
        kept = (*self.left_batch, *self.left_free)
        return (*(left[d] for d in kept), *(right[d] for d in self.right_free))

    def contracted_size(self, dot: HloInstruction) -> int:
        """Returns how many products each element of the result is the sum of."""
        sizes = dot.operands[0].shape.dimensions
        return math.prod(sizes[d] for d in self.left_contracting)


@lru_cache(maxsize=1024)  # estimates ask again and again
def _read(numbers: bytes, left_rank: int, right_rank: int) -> DotDimensions:
    """Returns the dimension numbers of a serialized DotDimensionNumbers."""
    message = DotDimensionNumbers.FromString(numbers)
    return DotDimensions.create(
        left_rank=left_rank,
        right_rank=right_rank,
        left_batch=tuple(message.lhs_batch_dimensions),
        right_batch=tuple(message.rhs_batch_dimensions),
        left_contracting=tuple(message.lhs_contracting_dimensions),
        right_contracting=tuple(message.rhs_contracting_dimensions),
    )
