"""A computation for many positions at once, with its loops: `jax.vmap`, so to speak, of HLO.

    %d = f32[] dynamic-slice(%t, %i)          %i of all positions being s32[50]:
    %w = while(%d), %p = pred[] ..        ->  %d = f32[50] gather(%t, %i)
                                              %w = while(%d), as long as reduce(%p), an `or`, says;
                                                   the body selects by %p: f32[50] new or old

What is the same for all positions keeps its shape.

Does not handle: conditionals and scatters that differ between positions, library calls.
Numerics: bitwise-equal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, final

from fuselane.analysis.refusal import refuse
from fuselane.analysis.while_loops import get_known_trip_count, is_invariant
from fuselane.decisions import Reason
from fuselane.errors import UnsupportedError
from fuselane.hlo.computation import HloComputation
from fuselane.hlo.dots import DotDimensions
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.shape import Shape
from fuselane.lanes.batching import can_batch, emit_batched, lift
from fuselane.lanes.builder import ComputationBuilder, array_shape

Known = Callable[[HloInstruction], HloInstruction | None]
"""Returns what an instruction becomes where that is known otherwise, or None."""

_Results = HloInstruction | tuple[HloInstruction, ...]

_SCALAR_BEHIND_FIRST: Final = frozenset({"pad", "reduce"})


@final
class Spreading:
    """Makes instructions of one computation work on `size` positions."""

    def __init__(self, builder: ComputationBuilder, size: int) -> None:
        self.builder = builder
        self.size = size
        self._values: dict[HloInstruction, HloInstruction] = {}
        self._parts: dict[HloInstruction, tuple[HloInstruction, ...]] = {}

    def run(
        self,
        computation: HloComputation,
        elements: Sequence[HloInstruction],
        known: Known | None = None,
    ) -> list[HloInstruction]:
        """Emits all of a body or condition; returns its root, or the root tuple's elements.

        Args:
            computation: Its parameter is a tuple.
            elements: What the parameter's elements became; those that differ between positions have
                one more dimension in front.
            known: What is not to be emitted but known.
        Raises:
            UnsupportedError: if it holds what cannot be done for many positions at once.
        """
        for instruction in computation.instructions:
            found = None if known is None else known(instruction)
            if found is not None:
                self._values[instruction] = found
            elif instruction.opcode == "parameter":
                self._parts[instruction] = tuple(elements)
            elif instruction.opcode == "get-tuple-element":
                parts = self._parts[instruction.operands[0]]
                self._values[instruction] = parts[instruction.tuple_index]
            elif instruction.opcode == "tuple":
                self._parts[instruction] = tuple(self.get(o) for o in instruction.operands)
            else:
                results = self._emit(instruction)
                if isinstance(results, tuple):
                    self._parts[instruction] = results
                else:
                    self._values[instruction] = results
        root = computation.root
        return list(self._parts[root]) if root.opcode == "tuple" else [self.get(root)]

    def get(self, value: HloInstruction) -> HloInstruction:
        """Returns what an array has become."""
        return self._values[value]

    def differs(self, value: HloInstruction) -> bool:
        """Whether an array has become one with a position in front."""
        return self.get(value).shape.rank > value.shape.rank

    def lifted(self, value: HloInstruction, original: Shape) -> HloInstruction:
        """Returns a value with a position in front, whether it differs or not."""
        if value.shape.rank > original.rank:
            return value
        return lift(self.builder, value, original.dimensions, self.size)

    # One instruction.

    def _emit(self, instruction: HloInstruction) -> _Results:
        if instruction.opcode == "while":
            return self._emit_loop(instruction)
        if instruction.opcode == "conditional":
            raise _refuse(instruction)
        if not any(map(self.differs, instruction.operands)):
            return self._copy(instruction)
        emit = _EMITTERS.get(instruction.opcode)
        if emit is not None:
            return emit(self, instruction)
        if not can_batch(instruction):
            raise _refuse(instruction)
        if instruction.opcode in _SCALAR_BEHIND_FIRST and any(
            map(self.differs, instruction.operands[1:])
        ):
            raise _refuse(instruction)
        operands = [self.get(operand) for operand in instruction.operands]
        return emit_batched(self.builder, instruction, operands, self.size)

    def _copy(self, instruction: HloInstruction) -> _Results:
        operands = [self.get(operand) for operand in instruction.operands]
        copy = self.builder.computation.add(instruction.clone(operands))
        return tuple(self.builder.elements(copy)) if copy.shape.is_tuple else copy

    def _all_lifted(self, instruction: HloInstruction) -> list[HloInstruction]:
        return [self.lifted(self.get(o), o.shape) for o in instruction.operands]

    def _emit_dot(self, dot: HloInstruction) -> HloInstruction:
        numbers, rank = DotDimensions.of(dot), dot.shape.rank
        left, right = (self.get(operand) for operand in dot.operands)
        ours, theirs = map(self.differs, dot.operands)
        both = ours and theirs
        if not both and numbers.left_batch:
            left, right = self._all_lifted(dot)
            ours = theirs = both = True
        front = (0,) if both else ()
        moved = DotDimensions.create(
            left_rank=left.shape.rank,
            right_rank=right.shape.rank,
            left_batch=(*front, *(d + ours for d in numbers.left_batch)),
            right_batch=(*front, *(d + theirs for d in numbers.right_batch)),
            left_contracting=tuple(d + ours for d in numbers.left_contracting),
            right_contracting=tuple(d + theirs for d in numbers.right_contracting),
        )
        value = self.builder.dot(left, right, moved, dot.shape.element_type, origin=dot)
        if ours:
            return value
        place = len(numbers.left_free)
        return self.builder.transpose(value, (place, *(d for d in range(rank + 1) if d != place)))

    def _emit_sort(self, sort: HloInstruction) -> _Results:
        arrays = self._all_lifted(sort)
        return self._emit_several(sort, arrays, [array.shape for array in arrays])

    def _emit_reduce(self, reduce: HloInstruction) -> _Results:
        count = len(reduce.operands) // 2
        if any(map(self.differs, reduce.operands[count:])):
            raise _refuse(reduce)
        values = [*self._all_lifted(reduce)[:count], *map(self.get, reduce.operands[count:])]
        shapes = reduce.shape.tuple_shapes if reduce.shape.is_tuple else (reduce.shape,)
        sizes = (self.size, *shapes[0].dimensions)
        return self._emit_several(
            reduce, values, [array_shape(shape.element_type, sizes) for shape in shapes]
        )

    def _emit_several(
        self, instruction: HloInstruction, values: Sequence[HloInstruction], shapes: list[Shape]
    ) -> _Results:
        is_tuple = instruction.shape.is_tuple
        value = self.builder.emit(
            instruction.opcode,
            Shape.tuple_of(shapes) if is_tuple else shapes[0],
            values,
            (("dimensions", tuple(d + 1 for d in instruction.dimensions)),),
            origin=instruction,
            called=tuple(instruction.called_computations),
        )
        return tuple(self.builder.elements(value)) if is_tuple else value

    # Parts of arrays.

    def _emit_dynamic_slice(self, instruction: HloInstruction) -> HloInstruction:
        source = instruction.operands[0]
        return self.take(instruction, self.get(source), source.shape.dimensions)

    def take(
        self, instruction: HloInstruction, value: HloInstruction, sizes: tuple[int, ...]
    ) -> HloInstruction:
        """Emits a dynamic-slice of an array of `sizes`, or of one for each position."""
        starts, window = instruction.operands[1:], instruction.dynamic_slice_sizes
        element, result = instruction.shape.element_type, (self.size, *instruction.shape.dimensions)
        moving = [d for d, size in enumerate(sizes) if window[d] != size]
        if not moving:
            return value
        if not any(self.differs(starts[d]) for d in moving):
            if value.shape.rank == len(sizes):
                value = lift(self.builder, value, sizes, self.size)
            zero = self._zero(self.get(starts[0]))
            places = [zero, *(self.get(s) if d in moving else zero for d, s in enumerate(starts))]
            return self.builder.dynamic_slice(
                value, places, (self.size, *window), origin=instruction
            )
        columns = [
            self.builder.reshape(self.lifted(self.get(starts[d]), starts[d].shape), (self.size, 1))
            for d in moving
        ]
        vectors = self.builder.concatenate(columns, 1, origin=instruction)
        front = int(value.shape.rank > len(sizes))
        collapsed = [d for d in moving if window[d] == 1]
        kept = [window[d] for d in range(len(sizes)) if d not in collapsed]
        numbers = (
            ("offset_dims", tuple(range(1, 1 + len(kept)))),
            ("collapsed_slice_dims", tuple(d + front for d in collapsed)),
            ("start_index_map", tuple(d + front for d in moving)),
            ("operand_batching_dims", (0,) * front),
            ("start_indices_batching_dims", (0,) * front),
            ("index_vector_dim", 1),
        )
        value = self.builder.emit(
            "gather",
            array_shape(element, (self.size, *kept)),
            (value, vectors),
            (
                ("gather_dimension_numbers", numbers),
                ("gather_slice_sizes", ((1,) * front) + tuple(window)),
            ),
            origin=instruction,
        )
        return self.builder.reshape(value, result, origin=instruction)

    def _emit_dynamic_update_slice(self, instruction: HloInstruction) -> HloInstruction:
        starts = instruction.operands[2:]
        if any(map(self.differs, starts)):
            raise _refuse(instruction)
        array, update = (self.lifted(self.get(o), o.shape) for o in instruction.operands[:2])
        places = [self._zero(self.get(starts[0])), *map(self.get, starts)]
        return self.builder.dynamic_update_slice(array, update, places, origin=instruction)

    def _emit_gather(self, gather: HloInstruction) -> HloInstruction:
        source, indices = gather.operands
        numbers, front = gather.proto.gather_dimension_numbers, int(self.differs(source))
        vectors = self.lifted(self.get(indices), indices.shape)
        moved = (
            ("offset_dims", tuple(d + 1 for d in numbers.offset_dims)),
            ("collapsed_slice_dims", tuple(d + front for d in numbers.collapsed_slice_dims)),
            ("start_index_map", tuple(d + front for d in numbers.start_index_map)),
            (
                "operand_batching_dims",
                ((0,) * front) + tuple(d + front for d in numbers.operand_batching_dims),
            ),
            (
                "start_indices_batching_dims",
                ((0,) * front) + tuple(d + 1 for d in numbers.start_indices_batching_dims),
            ),
            ("index_vector_dim", numbers.index_vector_dim + 1),
        )
        sizes = ((1,) * front) + tuple(gather.proto.gather_slice_sizes)
        return self.builder.emit(
            "gather",
            array_shape(gather.shape.element_type, (self.size, *gather.shape.dimensions)),
            (self.get(source), vectors),
            (("gather_dimension_numbers", moved), ("gather_slice_sizes", sizes)),
            origin=gather,
        )

    def _zero(self, like: HloInstruction) -> HloInstruction:
        return self.builder.scalar(0, like.shape.element_type, like)

    # Loops.

    def _emit_loop(self, loop: HloInstruction) -> _Results:
        initial = list(self._parts[loop.operands[0]])
        shapes = loop.shape.tuple_shapes
        differ = [value.shape.rank > s.rank for value, s in zip(initial, shapes, strict=True)]
        ends_apart = _settle(loop, differ)
        initial = [
            self.lifted(value, shape) if d else value
            for value, shape, d in zip(initial, shapes, differ, strict=True)
        ]
        body = self._inside(loop.body, initial)
        old = body.elements()
        following = body.run(loop.body, old)
        following = [
            body.lifted(value, shape) if d else value
            for value, shape, d in zip(following, shapes, differ, strict=True)
        ]
        condition = self._inside(loop.condition, initial)
        (goes_on,) = condition.run(loop.condition, condition.elements())
        if ends_apart:
            (going_on,) = body.run(loop.condition, old)
            following = [
                body.select(going_on, new, before) if d else new
                for new, before, d in zip(following, old, differ, strict=True)
            ]
            goes_on = condition.any_of(goes_on)
        config: tuple[tuple[str, bytes], ...] = ()
        if get_known_trip_count(loop) is not None:
            config = (("backend_config", loop.backend_config),)
        argument = self.builder.make_tuple(initial)
        value = self.builder.emit(
            "while",
            argument.shape,
            (argument,),
            config,
            origin=loop,
            called=(
                body.builder.finish(body.builder.make_tuple(following)),
                condition.builder.finish(goes_on),
            ),
        )
        return tuple(self.builder.elements(value))

    def _inside(self, computation: HloComputation, initial: Sequence[HloInstruction]) -> Spreading:
        inside = Spreading(ComputationBuilder(computation.name), self.size)
        shape = Shape.tuple_of([value.shape for value in initial])
        inside.builder.parameter(0, shape, None)
        return inside

    def elements(self) -> list[HloInstruction]:
        """Returns the elements of the parameter of a body or condition."""
        (parameter,) = self.builder.computation.parameters
        return self.builder.elements(parameter)

    def select(
        self, going_on: HloInstruction, new: HloInstruction, old: HloInstruction
    ) -> HloInstruction:
        """Returns the new value where a position goes on, and the old one elsewhere."""
        chosen = self.builder.broadcast(going_on, new.shape.dimensions, (0,))
        return self.builder.emit("select", new.shape, (chosen, new, old))

    def any_of(self, values: HloInstruction) -> HloInstruction:
        """Returns whether any position has a truth value."""
        return self.builder.fold("or", values, (0,), values)


def _settle(loop: HloInstruction, differ: list[bool]) -> bool:
    """Finds which elements of a loop differ between positions, given which do at first.

    Returns whether the positions end at different times; then all differ that ever change.
    """
    while True:
        before = list(differ)
        following = _taint(loop.body, differ)
        differ[:] = [a or b for a, b in zip(differ, following, strict=True)]
        (ends_apart,) = _taint(loop.condition, differ)
        if ends_apart:
            differ[:] = [d or not is_invariant(loop, i) for i, d in enumerate(differ)]
        if before == differ:
            return ends_apart


def _taint(computation: HloComputation, elements: Sequence[bool]) -> list[bool]:
    """Returns which elements of the root, or whether the root, depends on some of the parameter."""
    arrays: dict[HloInstruction, bool] = {}
    tuples: dict[HloInstruction, list[bool]] = {}
    for instruction in computation.instructions:
        match instruction.opcode:
            case "parameter":
                tuples[instruction] = list(elements)
            case "get-tuple-element":
                arrays[instruction] = tuples[instruction.operands[0]][instruction.tuple_index]
            case "tuple":
                tuples[instruction] = [arrays[operand] for operand in instruction.operands]
            case "while":
                inside = list(tuples[instruction.operands[0]])
                _settle(instruction, inside)
                tuples[instruction] = inside
            case "conditional":
                raise _refuse(instruction)
            case _:
                depends = any(arrays[operand] for operand in instruction.operands)
                arrays[instruction] = depends
                if instruction.shape.is_tuple:
                    tuples[instruction] = [depends] * len(instruction.shape.tuple_shapes)
    root = computation.root
    return tuples[root] if root.shape.is_tuple else [arrays[root]]


def _refuse(instruction: HloInstruction) -> UnsupportedError:
    detail = f"`{instruction.name}` differs between iterations"
    return refuse(Reason.UNSUPPORTED_STRUCTURE, instruction, detail=detail)


_EMITTERS: Final[Mapping[str, Callable[[Spreading, HloInstruction], _Results]]] = {
    "dot": Spreading._emit_dot,
    "dynamic-slice": Spreading._emit_dynamic_slice,
    "dynamic-update-slice": Spreading._emit_dynamic_update_slice,
    "gather": Spreading._emit_gather,
    "reduce": Spreading._emit_reduce,
    "sort": Spreading._emit_sort,
}
