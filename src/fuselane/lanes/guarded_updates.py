"""Selects between an array and the same array after updates: the updates are selected instead.

vmap makes `where(p, x.at[i].set(v), x)` of a conditional update. Choosing the whole array again
costs much more than the update:

    %s = f32[8,99] scatter(%x, %i, %v)                %j = s32[8,1] select(broadcast(%p), %i, -1)
    %y = f32[8,99] select(broadcast(%p), %s, %x)  ->  %y = f32[8,99] scatter(%x, %j, %v)

since a scatter leaves out what lies outside. Of a dynamic-update-slice the update is selected, or
else what is there:

    %u = f32[9,8] dynamic-update-slice(%x, %v, %i, 0)
    %y = f32[9,8] select(broadcast(%p), %u, %x)
->  %w = f32[1,8] select(broadcast(%p), %v, dynamic-slice(%x, %i, 0))
    %y = f32[9,8] dynamic-update-slice(%x, %w, %i, 0)

Numerics: bitwise-equal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final

from fuselane.analysis.opcodes import UPDATING_OPCODES
from fuselane.hlo.indexed import get_indices, indexed
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.shape import PrimitiveType
from fuselane.lanes.builder import Attributes, ComputationBuilder

_MAX_UPDATES: Final = 16
_MIN_GAIN: Final = 4
"""How many times larger an array must be than the slices of it that are updated."""


def select_updates(
    builder: ComputationBuilder,
    predicate: HloInstruction,
    on_true: HloInstruction,
    on_false: HloInstruction,
) -> HloInstruction | None:
    """Returns a select as conditional updates of one of its operands; None if it is something else.

    Args:
        builder: Where.
        predicate: Of the operands' sizes.
        on_true: Taken where the predicate holds.
        on_false: Taken elsewhere.
    """
    if predicate.opcode != "broadcast":
        return None
    choice = _Choice(builder, predicate.operands[0], predicate.dimensions)
    taken = choice.update(on_true, on_false, _MAX_UPDATES)
    if taken is not None:
        return taken
    if not _leads_to(on_false, on_true):
        return None
    inverse = builder.emit("not", choice.predicate.shape, (choice.predicate,))
    return _Choice(builder, inverse, predicate.dimensions).update(on_false, on_true, _MAX_UPDATES)


def _leads_to(changed: HloInstruction, original: HloInstruction) -> bool:
    return changed.opcode in UPDATING_OPCODES and (
        changed.operands[0] is original or _leads_to(changed.operands[0], original)
    )


@final
@dataclass(frozen=True, slots=True)
class _Choice:
    """A predicate and which of an array's dimensions it goes along with."""

    builder: ComputationBuilder
    predicate: HloInstruction
    dimensions: tuple[int, ...]

    def update(
        self, changed: HloInstruction, original: HloInstruction, most: int
    ) -> HloInstruction | None:
        """Returns `original` with the updates that make `changed`, where the predicate holds."""
        if changed.opcode not in UPDATING_OPCODES or not most:
            return None
        if not changed.shape.is_array:
            return None
        operand: HloInstruction | None = original
        if changed.operands[0] is not original:
            operand = self.update(changed.operands[0], original, most - 1)
        if operand is None:
            return None
        if changed.opcode == "scatter":
            return self._scatter(changed, operand)
        return self._update_slice(changed, operand)

    def _scatter(self, scatter: HloInstruction, operand: HloInstruction) -> HloInstruction | None:
        where, indices = indexed(scatter), get_indices(scatter)
        if any(dimension not in where.batching for dimension in self.dimensions):
            return None
        along = tuple(where.batching[dimension] for dimension in self.dimensions)
        outside = _outside(
            indices.shape.element_type,
            min(where.sizes[d] - where.window_sizes[d] for d in where.starts),
        )
        if along != tuple(sorted(along)) or outside is None:
            return None
        otherwise = self.builder.fill(outside, indices.shape, indices)
        chosen = self._select(indices, otherwise, along)
        return self.builder.emit(
            "scatter",
            scatter.shape,
            (operand, chosen, *scatter.operands[2:]),
            _attributes(scatter),
            origin=scatter,
            called=tuple(scatter.called_computations),
        )

    def _update_slice(
        self, update_slice: HloInstruction, operand: HloInstruction
    ) -> HloInstruction | None:
        update, starts = update_slice.operands[1], update_slice.operands[2:]
        sizes, array_sizes = update.shape.dimensions, update_slice.shape.dimensions
        if any(sizes[d] != array_sizes[d] for d in self.dimensions):
            return None
        if update.shape.num_elements * _MIN_GAIN > update_slice.shape.num_elements:
            return None
        old = self.builder.dynamic_slice(operand, starts, sizes, origin=update_slice)
        chosen = self._select(update, old, self.dimensions)
        return self.builder.dynamic_update_slice(operand, chosen, starts, origin=update_slice)

    def _select(
        self, value: HloInstruction, otherwise: HloInstruction, along: tuple[int, ...]
    ) -> HloInstruction:
        predicate = self.builder.broadcast(self.predicate, value.shape.dimensions, along)
        return self.builder.emit("select", value.shape, (predicate, value, otherwise))


def _outside(element: PrimitiveType, limit: int) -> int | None:
    """Returns an index of a type that is no start of a window; None if there is none."""
    if element.is_signed:
        return -1
    largest = (1 << element.bits) - 1
    return largest if largest > limit else None


def _attributes(scatter: HloInstruction) -> Attributes:
    numbers = scatter.proto.scatter_dimension_numbers
    fields = (
        ("update_window_dims", tuple(numbers.update_window_dims)),
        ("inserted_window_dims", tuple(numbers.inserted_window_dims)),
        ("scatter_dims_to_operand_dims", tuple(numbers.scatter_dims_to_operand_dims)),
        ("index_vector_dim", numbers.index_vector_dim),
        ("input_batching_dims", tuple(numbers.input_batching_dims)),
        ("scatter_indices_batching_dims", tuple(numbers.scatter_indices_batching_dims)),
    )
    return (("scatter_dimension_numbers", fields),)
