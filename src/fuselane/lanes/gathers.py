"""Gathers and scatters in normal form: row-major, with batching dimensions of their own.

XLA:CPU makes index vectors of everything: one component is an iota along the lanes, and all batch
dimensions are merged into one. Where a component is known to be such an iota, the operand's
dimension runs along with the indices' own:

    %c = s32[6,2] concatenate(reshape(iota s32[3,2,1], dimension 0), reshape(%i))   %i: s32[3,2,1]
    %g = f32[6,1,1] gather(%x, %c), offset_dims={1,2}, start_index_map={0,1}        %x: f32[3,9]
->  %g = f32[3,2] gather(%x, reshape(%i)), start_index_map={1}, collapsed_slice_dims={1},
         operand_batching_dims={0}, start_indices_batching_dims={0}

Windows of size one are collapsed; one index vector for all makes a dynamic-slice of a gather.

Numerics: bitwise-equal. Source: XLA's gather and scatter semantics; the other direction of XLA
hlo/transforms/expanders/gather_simplifier.h.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from fuselane.hlo.computation import HloComputation
from fuselane.hlo.indexed import Indexed, get_indices, indexed
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.shape import Shape
from fuselane.lanes.builder import Attributes, ComputationBuilder, array_shape
from fuselane.lanes.known import known_elements
from fuselane.lanes.layout import memory_order, physical_shape, relayout


def lower_gather(
    builder: ComputationBuilder, instruction: HloInstruction, operands: Sequence[HloInstruction]
) -> HloInstruction:
    """Lowers a gather in the order of its operand."""
    form = _Form(builder, instruction, operands[1])
    operand = form.operand(operands[0])
    sizes = form.gathered_sizes()
    if form.batch_sizes:
        value = builder.emit(
            "gather",
            array_shape(operand.shape.element_type, sizes),
            (operand, form.vectors()),
            form.gather_attributes(),
            origin=instruction,
        )
    else:
        value = builder.reshape(form.dynamic_slice(operand), sizes)
    return form.restore(value)


def lower_scatter(
    builder: ComputationBuilder,
    instruction: HloInstruction,
    operands: Sequence[HloInstruction],
    to_apply: HloComputation,
) -> HloInstruction | tuple[HloInstruction, ...]:
    """Lowers a scatter into one array, or into several at once, in the order of the first."""
    count = len(operands) // 2
    form = _Form(builder, instruction, operands[count])
    arrays = [
        form.operand(relayout(builder, operand, memory_order(original.shape), form.order))
        for operand, original in zip(operands[:count], instruction.operands, strict=False)
    ]
    updates = [
        form.update(operand, original)
        for operand, original in zip(
            operands[count + 1 :], instruction.operands[count + 1 :], strict=True
        )
    ]
    shapes = [array.shape for array in arrays]
    value = builder.emit(
        "scatter",
        shapes[0] if count == 1 else Shape.tuple_of(shapes),
        (*arrays, form.vectors(), *updates),
        form.scatter_attributes(),
        origin=instruction,
        called=(to_apply,),
    )
    if not instruction.shape.is_tuple:
        return _result(builder, form, value, instruction.shape)
    return tuple(
        _result(builder, form, part, shape)
        for part, shape in zip(builder.elements(value), instruction.shape.tuple_shapes, strict=True)
    )


def _result(
    builder: ComputationBuilder, form: _Form, value: HloInstruction, shape: Shape
) -> HloInstruction:
    sizes = tuple(shape.dimensions[d] for d in form.order)
    return relayout(builder, builder.reshape(value, sizes), form.order, memory_order(shape))


@final
@dataclass(slots=True)
class _Component:
    """One component of the index vectors.

    Attributes:
        dimension: The operand's dimension whose start it is.
        value: Its values, one for each index vector.
    """

    dimension: int
    value: HloInstruction


class _Form:
    """A gather or scatter on its way to normal form.

    Attributes:
        order: The operand's logical dimensions as they lie in memory; `sizes`, `window_sizes` and
            all numbers of the operand's dimensions below are in that order.
        batch_sizes: Dimensions of the indices, index vectors left out.
        components: Those that stay in the index vectors.
        batching: Operand dimension -> dimension of `batch_sizes`.
        merged_position: Dimension of the user's gathered values or updates that `batch_sizes` take
            the place of; None where each of them has its own.
        extra: 1 if the operand gets a leading dimension of size one, so that there is something to
            index.
    """

    def __init__(
        self, builder: ComputationBuilder, instruction: HloInstruction, indices: HloInstruction
    ) -> None:
        self.builder = builder
        self.instruction = instruction
        self.original: Indexed = indexed(instruction)
        self.order = memory_order(instruction.operands[0].shape)
        self.sizes = tuple(self.original.sizes[d] for d in self.order)
        self.window_sizes = tuple(self.original.window_sizes[d] for d in self.order)
        vectors = self._last_dimension_vectors(indices)
        self.batch_sizes = vectors.shape.dimensions[:-1]
        self.components = [
            _Component(self.order.index(d), component_of(builder, vectors, c))
            for c, d in enumerate(self.original.starts)
        ]
        self.batching = {
            self.order.index(d): b - (b > self.original.vector_dimension)
            for d, b in self.original.batching.items()
        }
        if instruction.opcode == "gather":
            self._drop_whole()
        self.merged_position = self._split_batch()
        self._find_batching()
        self.extra = int(not self.components)

    def _last_dimension_vectors(self, indices: HloInstruction) -> HloInstruction:
        """Returns the indices in logical order, their index vectors in the last dimension."""
        shape = get_indices(self.instruction).shape
        dimension = self.original.vector_dimension
        target = tuple(d for d in range(shape.rank) if d != dimension)
        if dimension == shape.rank:
            logical = relayout(self.builder, indices, memory_order(shape), target)
            return self.builder.reshape(logical, (*shape.dimensions, 1))
        return relayout(self.builder, indices, memory_order(shape), (*target, dimension))

    def _drop_whole(self) -> None:
        """Drops components that a window as large as the array holds at zero."""
        self.components = [
            c for c in self.components if self.window_sizes[c.dimension] < self.sizes[c.dimension]
        ]

    def _split_batch(self) -> int | None:
        """Takes a batch dimension apart that was merged from several; returns its position."""
        large = [b for b, size in enumerate(self.batch_sizes) if size != 1]
        if len(large) > 1 or self.batching or not self.batch_sizes:
            return None
        sizes = tuple(self.batch_sizes[b] for b in large)
        before = (_sizes_before_reshape(component.value) for component in self.components)
        self.batch_sizes = next((found for found in before if len(found) > 1), sizes)
        for component in self.components:
            component.value = self.builder.reshape(component.value, self.batch_sizes)
        return self.original.batch_positions[large[0] if large else 0]

    def _find_batching(self) -> None:
        """Moves components that are an iota along a batch dimension to `batching`."""
        for component in list(self.components):
            if self.window_sizes[component.dimension] != 1:
                continue
            along = self._iota_dimension(component)
            if along is not None:
                self.batching[component.dimension] = along
                self.components.remove(component)

    def _iota_dimension(self, component: _Component) -> int | None:
        size = self.sizes[component.dimension]
        free = [d for d, s in enumerate(self.batch_sizes) if s == size > 1]
        known = known_elements(component.value) if free else None
        if known is None or not known.mask.all():
            return None
        for dimension in free:
            others = tuple(d for d in range(len(self.batch_sizes)) if d != dimension)
            expected = np.expand_dims(np.arange(size), others)
            if dimension not in self.batching.values() and np.all(known.values == expected):
                return dimension
        return None

    # Operands.

    def operand(self, value: HloInstruction) -> HloInstruction:
        """Returns an indexed array, in `order`, with what was added to its dimensions."""
        return self.builder.reshape(value, (1, *self.sizes)) if self.extra else value

    def vectors(self) -> HloInstruction:
        """Returns the index vectors that stay, in the last dimension."""
        builder, sizes = self.builder, (*self.batch_sizes, 1)
        if self.extra:
            element_type = get_indices(self.instruction).shape.element_type
            return builder.fill(0, array_shape(element_type, sizes), self.instruction)
        columns = [builder.reshape(component.value, sizes) for component in self.components]
        return builder.concatenate(columns, len(self.batch_sizes), origin=self.instruction)

    def update(self, value: HloInstruction, original: HloInstruction) -> HloInstruction:
        """Returns updates with the indices' dimensions first, then those of the window."""
        target = [*self.original.batch_positions]
        target += [self._window_position(d) for d in range(len(self.order)) if self._is_window(d)]
        ordered = relayout(self.builder, value, memory_order(original.shape), tuple(target))
        return self.builder.reshape(ordered, self.gathered_sizes())

    def dynamic_slice(self, operand: HloInstruction) -> HloInstruction:
        """Returns the only window a gather without batch dimensions takes."""
        builder, element_type = self.builder, self.components[0].value.shape.element_type
        starts = [builder.scalar(0, element_type, self.instruction)] * len(self.sizes)
        for component in self.components:
            starts[component.dimension] = builder.reshape(component.value, ())
        if self.window_sizes == self.sizes:
            return operand
        return builder.dynamic_slice(operand, starts, self.window_sizes, origin=self.instruction)

    # Dimension numbers.

    def _is_window(self, dimension: int) -> bool:
        """Whether the user's window keeps a dimension, be it of size one."""
        return self.order[dimension] in self.original.window

    def _window_position(self, dimension: int) -> int:
        """Returns which dimension of the user's gathered values or updates a window's is."""
        number = self.original.window.index(self.order[dimension])
        return self.original.window_positions[number]

    def _kept(self) -> list[int]:
        """Returns the operand's dimensions that the window keeps in normal form."""
        return [d for d, size in enumerate(self.window_sizes) if size > 1]

    def gathered_sizes(self) -> tuple[int, ...]:
        """Returns the dimensions of gathered values and updates in normal form."""
        return (*self.batch_sizes, *(self.window_sizes[d] for d in self._kept()))

    def restore(self, value: HloInstruction) -> HloInstruction:
        """Returns gathered values with the dimensions that the user's gather gives them."""
        rank = len(self.batch_sizes)
        batch = self.original.batch_positions
        places: dict[int, tuple[int, ...]] = {
            self._window_position(d): (rank + number,) for number, d in enumerate(self._kept())
        }
        if self.merged_position is not None:
            places[self.merged_position] = tuple(range(rank))
        else:
            places.update({position: (number,) for number, position in enumerate(batch)})
        permutation = [
            place for d in memory_order(self.instruction.shape) for place in places.get(d, ())
        ]
        ordered = self.builder.transpose(value, tuple(permutation))
        sizes = physical_shape(self.instruction.shape).dimensions
        return self.builder.reshape(ordered, sizes, origin=self.instruction)

    def gather_attributes(self) -> Attributes:
        """Returns the dimension numbers of the gather in normal form."""
        rank = len(self.batch_sizes)
        numbers = (
            ("offset_dims", tuple(range(rank, rank + len(self._kept())))),
            ("collapsed_slice_dims", self._collapsed()),
            ("start_index_map", self._starts()),
            ("index_vector_dim", rank),
            ("operand_batching_dims", self._batching()[0]),
            ("start_indices_batching_dims", self._batching()[1]),
        )
        sizes = (1,) * self.extra + self.window_sizes
        return (("gather_dimension_numbers", numbers), ("gather_slice_sizes", sizes))

    def scatter_attributes(self) -> Attributes:
        """Returns the dimension numbers of the scatter in normal form."""
        rank = len(self.batch_sizes)
        numbers = (
            ("update_window_dims", tuple(range(rank, rank + len(self._kept())))),
            ("inserted_window_dims", self._collapsed()),
            ("scatter_dims_to_operand_dims", self._starts()),
            ("index_vector_dim", rank),
            ("input_batching_dims", self._batching()[0]),
            ("scatter_indices_batching_dims", self._batching()[1]),
        )
        return (("scatter_dimension_numbers", numbers),)

    def _collapsed(self) -> tuple[int, ...]:
        ones = (d for d, size in enumerate(self.window_sizes) if size == 1)
        extra = (0,) * self.extra
        return (*extra, *(d + self.extra for d in ones if d not in self.batching))

    def _starts(self) -> tuple[int, ...]:
        return (0,) if self.extra else tuple(c.dimension for c in self.components)

    def _batching(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        pairs = sorted(self.batching.items())
        return tuple(d + self.extra for d, _ in pairs), tuple(b for _, b in pairs)


def component_of(
    builder: ComputationBuilder, vectors: HloInstruction, number: int
) -> HloInstruction:
    """Returns one component of index vectors that lie in the last dimension, without it."""
    sizes = vectors.shape.dimensions
    if vectors.opcode == "reshape" and vectors.operands[0].shape.dimensions[-1:] == sizes[-1:]:
        return builder.reshape(component_of(builder, vectors.operands[0], number), sizes[:-1])
    if sizes[-1] == 1:
        return builder.reshape(vectors, sizes[:-1])
    last = len(sizes) - 1
    if vectors.opcode == "concatenate" and vectors.dimensions == (last,):
        for part in vectors.operands:
            count = part.shape.dimensions[last]
            if number < count:
                return component_of(builder, part, number)
            number -= count
    ranges = (*((0, size, 1) for size in sizes[:-1]), (number, number + 1, 1))
    return builder.reshape(builder.slice(vectors, ranges), sizes[:-1])


def _sizes_before_reshape(value: HloInstruction) -> tuple[int, ...]:
    """Returns the dimensions, but those of size one, that a reshape makes a value of."""
    if value.opcode != "reshape":
        return ()
    sizes = value.operands[0].shape.dimensions
    assert math.prod(sizes) == value.shape.num_elements, "a reshape keeps the number of elements"
    return tuple(size for size in sizes if size != 1)
