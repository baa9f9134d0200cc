"""Rows that a GPU's threads load some steps ahead, so that memory answers while they compute.

    next = xs[i(0)]                    in front of the loop
    for t in range(1000):
        x, next = next, xs[i(t + 1)]   at the beginning of each step, wherever x is needed in it
        ...

A multiprocessor with few warps has nothing else to do while one of them waits, and a compiler that
finds a load behind a branch leaves it there. Which rows there are to be is known a step ahead where
indices are made of what all lanes share. Rows beyond the last step's are loaded as well: XLA holds
indices of slices within bounds, so there are some.

Short steps are over before memory answers. Several of them are one iteration then, which reads for
all steps of the next one; as many as divide the loop's, so that none are left over.

Loaded values are in registers for an iteration longer: estimates decide (`codegen.thread_plan`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeGuard, final

from llvmlite import ir

from fuselane.analysis.opcodes import ELEMENTWISE_OPCODES
from fuselane.codegen.arrays import Array, Registers, View
from fuselane.codegen.emitter import Emitter, in_registers
from fuselane.codegen.indexing import residual_size
from fuselane.codegen.instructions import elemental_of, emit_instruction
from fuselane.codegen.memory import frozen
from fuselane.codegen.schedule import Step, make_schedule, steps_for
from fuselane.hlo.instruction import HloInstruction
from fuselane.lanes.program import ElementKind, LaneProgram

MAX_ELEMENTS: Final = 64
"""Of a lane that are loaded ahead at most, a quarter of the registers a thread can have."""

_MAX_INDICES: Final = 16
"""That are worked out at once, in loops that are unrolled."""

_OF_INDICES: Final = ELEMENTWISE_OPCODES | {"constant", "dynamic-slice", "reshape", "slice"}


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ReadAhead:
    """The reads of a program's loop that can be a step ahead.

    reads: Slices of invariants, in the order of emission.
    indices: Steps of the body that make their indices of the loop's elements.
    changes: Steps that make the next step's elements of this one's, of those that indices need.
    changing: Numbers of those elements.
    steps: How many steps are one iteration, at whose beginning those of the next one are read.
    """

    reads: tuple[HloInstruction, ...] = ()
    indices: tuple[HloInstruction, ...] = ()
    changes: tuple[HloInstruction, ...] = ()
    changing: tuple[int, ...] = ()
    steps: int = 1

    def count_elements(self, program: LaneProgram) -> int:
        """Returns how many elements of a lane are loaded for an iteration."""
        return self.steps * sum(_size(read, program) for read in self.reads)

    def first(self, emitter: Emitter, initial: Sequence[Array]) -> list[list[ir.Value]]:
        """Emits the loads for the steps of the first iteration, in front of the loop, and returns
        what is loaded for each.

        Of a value that is loaded in front of a loop and at its end LLVM makes one load at its
        beginning, which all this is to avoid, unless it sees no load in front.

        Args:
            emitter: Where.
            initial: The loop's elements there.
        """
        rows = self._load_steps(emitter, initial)
        return [[frozen(emitter.builder, value) for value in row] for row in rows]

    def following(self, emitter: Emitter, current: Sequence[Array]) -> list[list[ir.Value]]:
        """Emits the loads for the steps of the next iteration, at the beginning of one.

        Args:
            emitter: Where.
            current: The loop's elements there.
        """
        for _ in range(self.steps):
            current = self._next(emitter, current)
        return self._load_steps(emitter, current)

    def take(self, emitter: Emitter, values: Sequence[ir.Value]) -> None:
        """Has a step's reads stand for values that were loaded before it."""
        remaining = iter(values)
        for read in self.reads:
            lane = emitter.lane(read)
            size = _size(read, emitter.program)
            elements = tuple(next(remaining) for _ in range(size))
            emitter.values[read] = Registers(shape=read.shape, lane=lane, elements=elements)

    def _load_steps(self, emitter: Emitter, arrays: Sequence[Array]) -> list[list[ir.Value]]:
        """Emits what the steps of an iteration read that starts from given elements."""
        rows = [self._load(emitter, arrays)]
        while len(rows) < self.steps:
            arrays = self._next(emitter, arrays)
            rows.append(self._load(emitter, arrays))
        return rows

    def _load(self, emitter: Emitter, arrays: Sequence[Array]) -> list[ir.Value]:
        """Emits what a step that starts from given elements reads."""
        if not self.reads:
            return []
        body = emitter.program.loop.instruction.body
        emitter.values[body.parameters[0]] = list(arrays)
        for step in self.indices:
            _emit(emitter, step)
        return [value for read in self.reads for value in _made(emitter, read).elements]

    def _next(self, emitter: Emitter, arrays: Sequence[Array]) -> list[Array]:
        """Emits what a step makes of given elements, of those that indices need."""
        if not self.changing:
            return list(arrays)
        body = emitter.program.loop.instruction.body
        emitter.values[body.parameters[0]] = list(arrays)
        for step in self.changes:
            _emit(emitter, step)
        following = list(arrays)
        for index in self.changing:
            new = emitter.array(body.root.operands[index])
            following[index] = emitter.materialize(new)
        return following


NOTHING_AHEAD: Final = ReadAhead()


def find_reads_ahead(
    program: LaneProgram, max_unrolled: int, but: frozenset[int] = frozenset()
) -> ReadAhead:
    """Returns what a loop can read a step ahead: rows at indices that all lanes share.

    Not where lanes meet, or a condition ends the loop, nor what is read only where it is needed.

    Args:
        program: The program.
        max_unrolled: The most elements per lane kept in registers.
        but: Elements of the loop of which nothing is.
    """
    loop = program.loop
    if loop.trip_count is None or program.is_straight or program.meetings:
        return NOTHING_AHEAD
    body = loop.instruction.body
    steps = make_schedule(body, program).steps
    rows = [
        element.index
        for element in loop.elements
        if element.kind is ElementKind.INVARIANT
        and element.lane_dimension is not None
        and element.index not in but
    ]
    found = NOTHING_AHEAD
    for step in steps:
        if not isinstance(step, HloInstruction) or step.opcode != "dynamic-slice":
            continue
        array, size = step.operands[0], _size(step, program)
        if size > max_unrolled or not _is_element(array) or array.tuple_index not in rows:
            continue
        more = _with_read(found, step, program, steps)
        if more is not None and more.count_elements(program) <= MAX_ELEMENTS:
            found = more
    return found


def _with_read(
    found: ReadAhead, read: HloInstruction, program: LaneProgram, steps: Sequence[Step]
) -> ReadAhead | None:
    """Returns what is read ahead with one read more; None if its index is not made of a few numbers
    that all lanes share."""
    reads = (*found.reads, read)
    loop = program.loop
    indices = _numbers([operand for r in reads for operand in r.operands], program, steps)
    used = {step.tuple_index for step in indices or () if _is_element(step)}
    changing = [e.index for e in loop.elements if e.kind is ElementKind.STATE and e.index in used]
    root = loop.instruction.body.root
    changes = _numbers([root.operands[index] for index in changing], program, steps)
    if indices is None or changes is None:
        return None
    return ReadAhead(reads=reads, indices=indices, changes=changes, changing=tuple(changing))


def _numbers(
    values: Iterable[HloInstruction], program: LaneProgram, steps: Sequence[Step]
) -> tuple[HloInstruction, ...] | None:
    """Returns the steps that make some values of the loop's elements; None if one of them is more
    than a few numbers that all lanes share."""
    found: list[HloInstruction] = []
    for step in steps_for(values, steps):
        if not isinstance(step, HloInstruction):
            return None
        if step.opcode == "parameter":
            continue
        if not _is_element(step) and not _is_small(step, program):
            return None
        found.append(step)
    return tuple(found)


def _is_small(step: HloInstruction, program: LaneProgram) -> bool:
    """Whether a step makes a few numbers that all lanes share."""
    if program.lane_dimensions.get(step) is not None or not step.shape.is_array:
        return False
    is_few = step.shape.num_elements <= _MAX_INDICES
    return step.opcode == "iota" or (is_few and step.opcode in _OF_INDICES)


def _is_element(step: Step) -> TypeGuard[HloInstruction]:
    """Whether a step of a body takes one of the loop's elements."""
    return (
        isinstance(step, HloInstruction)
        and step.opcode == "get-tuple-element"
        and step.operands[0].opcode == "parameter"
    )


def _size(read: HloInstruction, program: LaneProgram) -> int:
    return residual_size(read.shape.dimensions, program.lane_dimensions.get(read))


def _emit(emitter: Emitter, step: HloInstruction) -> None:
    """Emits what makes a few numbers, in registers: memory that a step may use for its results is
    still in use where this is ahead of it."""
    if step.opcode in ("constant", "get-tuple-element"):
        emit_instruction(emitter, step)
    elif step.opcode == "iota":
        element = elemental_of(emitter, step)
        emitter.values[step] = View(shape=step.shape, lane=None, element=element)
    else:
        emitter.values[step] = _made(emitter, step)


def _made(emitter: Emitter, step: HloInstruction) -> Registers:
    """Emits all elements of an instruction."""
    return in_registers(step.shape, emitter.lane(step), elemental_of(emitter, step))
