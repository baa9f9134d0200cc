"""Conditionals: of several computations the one that all lanes take runs, and no other.

A branch's small results meet in phis; each large one is copied to an array of the kernel's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import final

from llvmlite import ir

from fuselane.codegen.arrays import Array, Discarded, Registers, Scratch, new_scratch, widen
from fuselane.codegen.emitter import Emitter
from fuselane.codegen.loops import emit_switch
from fuselane.hlo.computation import HloComputation
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.shape import PrimitiveType, Shape

EmitBranch = Callable[[Emitter, HloComputation], None]
"""Emits the steps of a branch, whose parameter has its value, but not its root tuple."""


def emit_conditional(
    emitter: Emitter, instruction: HloInstruction, emit: EmitBranch, *, shared_only: bool = False
) -> list[Array]:
    """Emits a `conditional` and returns its results.

    Args:
        emitter: Where.
        instruction: A conditional in normal form.
        emit: How to emit a branch.
        shared_only: Whether only what all lanes share is emitted, in front of all lane blocks; the
            other results are then missing.
    """
    branches = instruction.called_computations
    slots = [
        _Slot.of(emitter, operand, shared_only=shared_only) for operand in branches[0].root.operands
    ]

    def side(branch: HloComputation, argument: HloInstruction) -> Callable[[], list[ir.Value]]:
        def run() -> list[ir.Value]:
            inner = emitter.at(emitter.place.block)
            inner.values[branch.parameters[0]] = _pass(emitter, argument, shared_only=shared_only)
            emit(inner, branch)
            pairs = zip(slots, branch.root.operands, strict=True)
            return [value for slot, root in pairs for value in slot.put(inner, root)]

        return run

    choice = emitter.array(instruction.operands[0]).get(emitter.place, ())
    is_predicate = instruction.operands[0].shape.element_type is PrimitiveType.PRED
    cases = [1] if is_predicate else range(len(branches) - 1)
    sides = [side(b, a) for b, a in zip(branches, instruction.operands[1:], strict=True)]
    merged = iter(emit_switch(emitter.builder, choice, cases, sides))
    return [slot.take(merged) for slot in slots]


def _pass(emitter: Emitter, argument: HloInstruction, *, shared_only: bool) -> list[Array]:
    """Returns the elements of an argument, without those of lanes that the emitter does not have:
    a branch of what all lanes share may be given some, but reads none."""

    def is_missing(operand: HloInstruction) -> bool:
        is_lanes_own = emitter.lane(operand) is not None
        return is_lanes_own and (shared_only or operand not in emitter.values)

    return [
        Discarded(shape=operand.shape, lane=emitter.lane(operand))
        if is_missing(operand)
        else emitter.array(operand)
        for operand in argument.operands
    ]


@final
@dataclass(frozen=True, slots=True)
class _Slot:
    """A result: a value for each element, memory, or, where it isn't wanted, nothing."""

    shape: Shape
    lane: int | None
    memory: Scratch | None
    is_wanted: bool

    @classmethod
    def of(cls, emitter: Emitter, root: HloInstruction, *, shared_only: bool) -> _Slot:
        lane = emitter.lane(root)
        is_wanted = not shared_only or lane is None
        empty = cls(root.shape, lane, None, is_wanted)
        if not is_wanted or empty._size() <= emitter.max_unrolled:
            return empty
        return cls(root.shape, lane, new_scratch(emitter.place, root.shape, lane), is_wanted)

    def _size(self) -> int:
        return Discarded(shape=self.shape, lane=self.lane).size

    def put(self, emitter: Emitter, root: HloInstruction) -> Sequence[ir.Value]:
        """Takes what a branch gives: copies it, or returns its elements."""
        if not self.is_wanted:
            return ()
        array, place = emitter.array(root), emitter.place
        if self.memory is not None:
            emitter.copy(array, self.memory)
            return ()
        values = [array.get(place, array.flat(place, at)) for at in range(self._size())]
        return values if self.lane is None else [widen(place, value) for value in values]

    def take(self, merged: Iterator[ir.Value]) -> Array:
        """Returns the result behind the branches."""
        if not self.is_wanted:
            return Discarded(shape=self.shape, lane=self.lane)
        if self.memory is not None:
            return self.memory
        elements = tuple(next(merged) for _ in range(self._size()))
        return Registers(shape=self.shape, lane=self.lane, elements=elements)
