"""Whether an array in scratch memory may be overwritten: nothing reads its value any more.

    %x = f32[8,99] add(..)
    %r = f32[8] reduce(%x)                  reads x before
    %y = f32[8,99] scatter(%x, ..)          may change x where it lies
    ROOT tuple(%y, %r)

What stays a view reads its operand whenever it is read itself, so a view's readers count as the
array's.
"""

from __future__ import annotations

import math
from typing import Final

from fuselane.analysis.opcodes import ELEMENTWISE_OPCODES
from fuselane.codegen.arrays import Scratch, new_scratch
from fuselane.codegen.emitter import Emitter
from fuselane.codegen.indexing import residual_size
from fuselane.codegen.sweeps import MOVEMENT
from fuselane.hlo.instruction import HloInstruction

_SHARED: Final = frozenset({"parameter", "constant", "tuple"})
_ALIASES: Final = MOVEMENT | {"tuple", "while", "conditional", "get-tuple-element"}


def overwritable(
    emitter: Emitter, value: HloInstruction, writer: HloInstruction, lane: int | None
) -> Scratch:
    """Returns scratch memory that holds a value and may be changed: its own, or else a copy.

    Args:
        emitter: What emits `writer`.
        value: One of its operands.
        writer: What makes a new array of it, and reads an element before it changes it.
        lane: Lane dimension of that array.
    """
    array = emitter.array(value)
    if isinstance(array, Scratch) and _is_free(emitter, value, writer):
        return array
    scratch = new_scratch(emitter.place, array.shape, lane)
    emitter.copy(array, scratch)
    return scratch


def find_home(
    emitter: Emitter, instruction: HloInstruction, first: HloInstruction | None = None
) -> Scratch | None:
    """Returns the scratch memory in which an elementwise instruction's result belongs, or None.

    That is where its guard wants it, or where its loop carries it, if what is there is not needed
    any more. None where its own scratch, registers or nothing at all will do.

    Args:
        emitter: What emits the instruction.
        instruction: Any.
        first: Where what is emitted together with it, element by element, starts; by default there
            is nothing else.
    """
    if instruction in emitter.homes or instruction.opcode not in ELEMENTWISE_OPCODES:
        return emitter.homes.get(instruction)
    lane = emitter.lane(instruction)
    if lane is None or residual_size(instruction.shape.dimensions, lane) <= emitter.max_unrolled:
        return None
    return _carried_home(emitter, instruction, first or instruction)


def find_shared_home(
    emitter: Emitter, select: HloInstruction, kept: int, first: HloInstruction
) -> Scratch:
    """Returns scratch memory for a guard's result, which one of its operands is copied to before.

    Args:
        emitter: What emits the guard.
        select: Has the result.
        kept: Number of the operand it is where the guard's work is not needed.
        first: The first instruction of the guard.
    """
    array = emitter.array(select.operands[kept])
    if isinstance(array, Scratch) and _is_free(emitter, select.operands[kept], select):
        return array
    home = _carried_home(emitter, select, first)
    return home or new_scratch(emitter.place, select.shape, emitter.lane(select))


def _is_free(emitter: Emitter, value: HloInstruction, writer: HloInstruction) -> bool:
    """Whether an array belongs to one instruction alone and only `writer` still reads it."""
    if emitter.lane(value) is None or not _is_own(emitter, value):
        return False
    if writer.operands.count(value) != 1 or writer.computation is None:
        return False
    order = emitter.order(writer.computation)
    return _last_read(emitter, value, order, writer) < order[writer]


def _is_own(emitter: Emitter, value: HloInstruction) -> bool:
    """Whether an array in scratch is no other instruction's too."""
    if value.opcode != "get-tuple-element":
        return value.opcode not in _SHARED
    return value.tuple_index in emitter.carried.get(value.operands[0], ())


def _carried_home(
    emitter: Emitter, instruction: HloInstruction, first: HloInstruction
) -> Scratch | None:
    """Returns where a loop carries a result, if nothing reads what is there from `first` on."""
    computation = instruction.computation
    assert computation is not None, "what is emitted is in a computation"
    places = [k for k, o in enumerate(computation.root.operands) if o is instruction]
    if len(places) != 1 or len(computation.parameters) != 1:
        return None
    parameter = computation.parameters[0]
    if places[0] not in emitter.carried.get(parameter, ()):
        return None
    home = emitter.tuple_elements(parameter)[places[0]]
    if not isinstance(home, Scratch):
        return None
    order = emitter.order(computation)
    occupants = [
        other
        for other, array in emitter.values.items()
        if other in order and isinstance(array, Scratch) and array.pointer is home.pointer
    ]
    occupants += [user for user in parameter.users if user.tuple_index == places[0]]
    free = all(_last_read(emitter, o, order, instruction) < order[first] for o in occupants)
    return home if free else None


def _last_read(
    emitter: Emitter,
    value: HloInstruction,
    order: dict[HloInstruction, int],
    writer: HloInstruction,
) -> float:
    """Returns when an array is read last, not counting what `writer` itself reads of it."""
    latest = -1.0
    stack, seen = [value], {value}
    while stack:
        top = stack.pop()
        for user in top.users:
            if user is writer and top is value:
                continue
            if user not in order or user.is_root:
                return math.inf
            latest = max(latest, order[user])
            if user not in seen and _is_alias(emitter, user):
                seen.add(user)
                stack.append(user)
    return latest


def _is_alias(emitter: Emitter, instruction: HloInstruction) -> bool:
    """Whether reading an instruction's value may be reading its operands."""
    if instruction.opcode in _ALIASES:
        return True
    size = residual_size(instruction.shape.dimensions, emitter.lane(instruction))
    return size > emitter.max_unrolled and emitter.stays_view(instruction)
