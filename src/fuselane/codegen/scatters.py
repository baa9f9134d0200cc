"""The rule for scatter: elements of an array changed at indices that may differ from lane to lane.

XLA's rules: updates come in the order of their indices, so several may hit one element; an update
whose window is not wholly inside the array changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, final

from llvmlite import ir

from fuselane.codegen import indexing
from fuselane.codegen.arrays import (
    Array,
    Discarded,
    Memory,
    Registers,
    Scratch,
    choose,
)
from fuselane.codegen.cuts import per_dimension
from fuselane.codegen.emitter import Emitter
from fuselane.codegen.gathers import components_of, place_in
from fuselane.codegen.indexing import Element, Index
from fuselane.codegen.liveness import overwritable
from fuselane.codegen.loops import emit_for_each
from fuselane.codegen.reduction import apply_computation
from fuselane.codegen.slices import bounded_index
from fuselane.codegen.types import is_vector
from fuselane.errors import CodegenError
from fuselane.hlo.indexed import get_indices, indexed
from fuselane.hlo.instruction import HloInstruction

_MAX_SELECTS: Final = 256
"""Selects emitted for one scatter into registers; beyond that it goes through memory."""


def emit_scatter(emitter: Emitter, instruction: HloInstruction) -> None:
    """Emits a scatter into one array or several; several give a tuple.

    %s = f32[8,9] scatter(%x, %i, %u), batching dimension 0, to_apply=%add

    Of few elements each one is a select: `s[lane, k] = k == i[lane] ? x[lane, k] + u[lane] :
    x[lane, k]`. Many are copied to scratch, unless they are updated in place, and changed there.

    Raises:
        CodegenError: if the program says in place and the array is not in memory.
    """
    results = _Scatter(emitter, instruction).emit()
    emitter.values[instruction] = results if instruction.shape.is_tuple else results[0]


class _Hit(NamedTuple):
    """What one element of the updates changes.

    element: The element it changes, held within bounds.
    is_inside: Whether it changes it.
    """

    element: Element
    is_inside: bool | ir.Value


@final
class _Scatter:
    """One scatter on its way."""

    def __init__(self, emitter: Emitter, instruction: HloInstruction) -> None:
        count = len(instruction.operands) // 2
        self.emitter = emitter
        self.instruction = instruction
        self.where = indexed(instruction)
        self.indices = get_indices(instruction)
        self.targets = [emitter.array(operand) for operand in instruction.operands[:count]]
        self.updates = [emitter.array(operand) for operand in instruction.operands[count + 1 :]]

    def emit(self) -> list[Array]:
        """Emits it and returns its results."""
        if self.instruction in self.emitter.program.mutable:
            self._change_in_memory(self.targets)
            return self.targets
        size, count = self.targets[0].size, self.updates[0].size
        if size <= self.emitter.max_unrolled and size * count <= _MAX_SELECTS:
            return self._in_registers()
        lane = self.emitter.lane(self.instruction.operands[0])
        targets = [
            overwritable(self.emitter, operand, self.instruction, lane)
            for operand in self.instruction.operands[: len(self.targets)]
        ]
        self._change_in_memory(targets)
        return list(targets)

    # In registers.

    def _in_registers(self) -> list[Array]:
        results = [self.emitter.materialize(target) for target in self.targets]
        update = self.updates[0]
        for number in range(update.size):
            at = update.flat(self.emitter.place, number)
            results = self._select(results, self._hit(at), at)
        return results

    def _select(self, arrays: Sequence[Array], hit: _Hit, at: Element) -> list[Array]:
        """Returns arrays of registers as they are after one element of the updates."""
        builder, place = self.emitter.builder, self.emitter.place
        first = arrays[0]
        inner = indexing.without_lane(hit.element)
        position = indexing.flatten(builder, inner, first.dimensions)
        elements = [
            [array.get(place, array.flat(place, k)) for k in range(array.size)] for array in arrays
        ]
        for number in self._reached(inner, first):
            is_here = indexing.equal(builder, position, number)
            is_hit = indexing.both(builder, is_here, hit.is_inside)
            if is_hit is False:
                continue
            old = [row[number] for row in elements]
            for row, value in zip(elements, self._combine(old, at), strict=True):
                row[number] = choose(place, is_hit, value, row[number])
        return [
            Registers(shape=array.shape, lane=array.lane, elements=tuple(row))
            for array, row in zip(arrays, elements, strict=True)
        ]

    def _reached(self, index: Sequence[Index], array: Array) -> list[int]:
        """Returns the positions that an index may be, as far as it is known."""
        return [
            number
            for number in range(array.size)
            if all(
                not isinstance(at, int) or at == here
                for at, here in zip(
                    index,
                    indexing.unflatten(self.emitter.builder, number, array.dimensions),
                    strict=True,
                )
            )
        ]

    # In memory.

    def _change_in_memory(self, targets: Sequence[Array]) -> None:
        place, update = self.emitter.place, self.updates[0]
        if any(isinstance(target, Discarded) for target in targets):
            return
        memory = [_stored(target) for target in targets]

        def change(index: tuple[Index, ...]) -> None:
            at = indexing.with_lane(index, update.lane)
            hit = self._hit(at)
            if hit.is_inside is False:
                return
            if isinstance(hit.is_inside, bool) or is_vector(hit.is_inside):
                write(hit, at)
                return
            # Guessed by the processor, and cheaper than to write back what is there.
            with place.builder.if_then(hit.is_inside, likely=True):
                write(hit._replace(is_inside=True), at)

        def write(hit: _Hit, at: Element) -> None:
            old = [target.get(place, hit.element) for target in memory]
            for target, new, before in zip(memory, self._combine(old, at), old, strict=True):
                target.put(place, hit.element, choose(place, hit.is_inside, new, before))

        emit_for_each(
            place.builder,
            update.dimensions,
            change,
            max_unrolled=self.emitter.max_unrolled,
            cuts=per_dimension(update) if len(self.updates) == 1 else (),
        )

    # Both.

    def _hit(self, at: Element) -> _Hit:
        """Returns what the element of the updates at an index changes."""
        where, emitter = self.where, self.emitter
        batch = [at[position] for position in where.batch_positions]
        window = [at[position] for position in where.window_positions]
        is_inside: bool | ir.Value = True
        starts: dict[int, Index] = {}
        for dimension, value, limit in components_of(emitter, self.indices, where, batch):
            element = self.indices.shape.element_type
            starts[dimension], fits = bounded_index(emitter, value, element, limit)
            is_inside = indexing.both(emitter.builder, is_inside, fits)
        return _Hit(place_in(emitter, where, batch, starts, window), is_inside)

    def _combine(self, old: Sequence[ir.Value], at: Element) -> list[ir.Value]:
        new = [update.get(self.emitter.place, at) for update in self.updates]
        return apply_computation(self.emitter, self.instruction.to_apply, [*old, *new])


def _stored(array: Array) -> Memory | Scratch:
    if not isinstance(array, Memory | Scratch):
        raise CodegenError("A scatter in place changes an array that is not in memory.")
    return array
