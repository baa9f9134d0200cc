"""Conditionals: of several computations the one that all lanes take runs, and no other.

A branch's small results meet in phis; each large one is copied to an array of the kernel's own.
That is where an operand of the conditional was, if a branch passes it on or updates it, and nobody
else reads it: then there is nothing to copy.

    %rows' = conditional(%p, (%rows), (%rows))      true: update %rows, false: pass it on
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import final

from llvmlite import ir

from fuselane.analysis.opcodes import UPDATING_OPCODES
from fuselane.codegen.arrays import Array, Discarded, Registers, Scratch, new_scratch, widen
from fuselane.codegen.carry import rewrite
from fuselane.codegen.emitter import Emitter
from fuselane.codegen.liveness import is_handed_over
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
    branches, arguments = instruction.called_computations, instruction.operands[1:]
    handed = {} if shared_only else _find_handed_over(emitter, instruction)
    slots = [
        _Slot.of(emitter, operand, handed.get(index), shared_only=shared_only)
        for index, operand in enumerate(branches[0].root.operands)
    ]
    emitter.owned[instruction] = frozenset(k for k, slot in enumerate(slots) if slot.memory)
    for branch, argument in zip(branches, arguments, strict=True):
        theirs = [k for k, o in enumerate(argument.operands) if o in handed.values()]
        emitter.owned[branch.parameters[0]] = frozenset(theirs)

    def side(branch: HloComputation, argument: HloInstruction) -> Callable[[], list[ir.Value]]:
        def run() -> list[ir.Value]:
            inner = emitter.at(emitter.place.block)
            inner.values[branch.parameters[0]] = _pass(emitter, argument, shared_only=shared_only)
            emit(inner, branch)
            pairs = list(zip(slots, branch.root.operands, strict=True))
            values = [value for slot, root in pairs for value in slot.put(inner, root)]
            rewrite(
                inner, [(s.memory, inner.array(r)) for s, r in pairs if s.memory and s.is_handed]
            )
            return values

        return run

    choice = emitter.array(instruction.operands[0]).get(emitter.place, ())
    is_predicate = instruction.operands[0].shape.element_type is PrimitiveType.PRED
    cases = [1] if is_predicate else range(len(branches) - 1)
    sides = [side(b, a) for b, a in zip(branches, arguments, strict=True)]
    merged = iter(emit_switch(emitter.builder, choice, cases, sides))
    return [slot.take(merged) for slot in slots]


def _find_handed_over(emitter: Emitter, conditional: HloInstruction) -> dict[int, HloInstruction]:
    """Returns which operand of its arguments has the memory that a result will be in, for results
    that are not in a place of their own."""
    arguments = conditional.operands[1:]
    handed: dict[int, HloInstruction] = {}
    for index in range(len(conditional.shape.tuple_shapes)):
        value = _origin(conditional, index)
        if value is None or value in handed.values() or value not in emitter.values:
            continue
        if isinstance(emitter.values[value], Scratch) and is_handed_over(
            emitter, value, conditional, arguments
        ):
            handed[index] = value
    return handed


def _origin(conditional: HloInstruction, index: int) -> HloInstruction | None:
    """Returns what a result of a conditional is that a branch passes on, or updates; the first
    that is found."""
    branches = conditional.called_computations
    for branch, argument in zip(branches, conditional.operands[1:], strict=True):
        value: HloInstruction | None = branch.root.operands[index]
        while value is not None:
            source = value.operands[0] if value.operands else None
            if value.opcode in UPDATING_OPCODES:
                value = source
            elif value.opcode != "get-tuple-element" or source is None:
                break
            elif source is branch.parameters[0]:
                if argument.opcode == "tuple":
                    return argument.operands[value.tuple_index]
                break
            elif source.opcode == "conditional":
                value = _origin(source, value.tuple_index)
            elif source.opcode == "while" and source.operands[0].opcode == "tuple":
                value = source.operands[0].operands[value.tuple_index]
            else:
                break
    return None


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
    """A result: a value for each element, memory, or, where it isn't wanted, nothing.

    Attributes:
        shape: Of the result.
        lane: Its lane dimension.
        memory: Where it will be.
        is_wanted: Whether anybody asks for it.
        is_handed: Whether something else was there, which branches may read.
    """

    shape: Shape
    lane: int | None
    memory: Scratch | None
    is_wanted: bool
    is_handed: bool

    @classmethod
    def of(
        cls,
        emitter: Emitter,
        root: HloInstruction,
        handed: HloInstruction | None,
        *,
        shared_only: bool,
    ) -> _Slot:
        lane = emitter.lane(root)
        is_wanted = not shared_only or lane is None
        empty = cls(root.shape, lane, None, is_wanted, is_handed=False)
        if not is_wanted or empty._size() <= emitter.max_unrolled:
            return empty
        there = None if handed is None else emitter.array(handed)
        if isinstance(there, Scratch) and there.shape == root.shape and there.lane == lane:
            return replace(empty, memory=there, is_handed=True)
        return replace(empty, memory=new_scratch(emitter.place, root.shape, lane))

    def _size(self) -> int:
        return Discarded(shape=self.shape, lane=self.lane).size

    def put(self, emitter: Emitter, root: HloInstruction) -> Sequence[ir.Value]:
        """Takes what a branch gives, unless it is to be where something else was: copies it, or
        returns its elements."""
        if not self.is_wanted:
            return ()
        array, place = emitter.array(root), emitter.place
        if self.memory is not None:
            if not self.is_handed:
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
