"""Whether an array in scratch memory may be overwritten: nothing reads its value any more.

    %x = f32[8,99] add(..)
    %r = f32[8] reduce(%x)                  reads x before
    %y = f32[8,99] scatter(%x, ..)          may change x where it lies
    ROOT tuple(%y, %r)

What stays a view reads its operand whenever it is read itself, so a view's readers count as the
array's.
What is emitted when is `Emitter.order`: what all lanes share comes in front of the sweep over lanes
that needs it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Final

from fuselane.analysis.opcodes import ELEMENTWISE_OPCODES, UPDATING_OPCODES
from fuselane.codegen.arrays import Scratch, new_scratch
from fuselane.codegen.emitter import Emitter
from fuselane.codegen.in_place import copies_in_place, reads_in_place
from fuselane.codegen.indexing import residual_size
from fuselane.codegen.schedule import needs_lanes
from fuselane.hlo.computation import HloComputation
from fuselane.hlo.instruction import HloInstruction

_SHARED: Final = frozenset({"parameter", "constant", "tuple"})
_ELSEWHERE: Final = frozenset(
    {"conditional", "constant", "dot", "get-tuple-element", "reduce", "reduce-window", "sort"}
)
"""Opcodes of what is in registers, or in memory of its own."""


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
    home = _carried_home(emitter, writer, writer)
    scratch = home or new_scratch(emitter.place, array.shape, lane)
    emitter.copy(array, scratch)
    return scratch


def find_home(
    emitter: Emitter, instruction: HloInstruction, first: HloInstruction | None = None
) -> Scratch | None:
    """Returns the scratch memory in which belongs what is made element by element, or None.

    That is where its guard wants it, or where its loop carries it, if what is there is not needed
    any more. None where its own scratch, registers or nothing at all will do.

    Args:
        emitter: What emits the instruction.
        instruction: Any.
        first: Where what is emitted together with it, element by element, starts; by default there
            is nothing else.
    """
    is_one_by_one = instruction.opcode in ELEMENTWISE_OPCODES or emitter.is_made_anew(instruction)
    if instruction in emitter.homes or not is_one_by_one:
        return emitter.homes.get(instruction)
    size = residual_size(instruction.shape.dimensions, emitter.lane(instruction))
    if size <= emitter.max_unrolled:
        return None
    return _carried_home(emitter, instruction, first or instruction)


def find_shared_home(
    emitter: Emitter, select: HloInstruction, kept: int, first: HloInstruction
) -> Scratch:
    """Returns scratch memory for a guard's result, which one of its operands is copied to before.

    The select then has to read that operand from there: what it was made of may be gone.

    Args:
        emitter: What emits the guard.
        select: Has the result.
        kept: Number of the operand it is where the guard's work is not needed.
        first: The first instruction of the guard.
    """
    array = emitter.array(select.operands[kept])
    if isinstance(array, Scratch) and _is_free(emitter, select.operands[kept], select):
        return array
    home = _carried_home(emitter, select, first, kept)
    return home or new_scratch(emitter.place, select.shape, emitter.lane(select))


def _is_free(emitter: Emitter, value: HloInstruction, writer: HloInstruction) -> bool:
    """Whether an array belongs to one instruction alone and only `writer` still reads it."""
    if not _is_own(emitter, value):
        return False
    if writer.operands.count(value) != 1 or writer.computation is None:
        return False
    order = emitter.order(writer.computation)
    return _last_read(emitter, value, order, writer) < order[writer]


def _is_own(emitter: Emitter, value: HloInstruction) -> bool:
    """Whether an array in scratch is no other instruction's too."""
    if value.opcode != "get-tuple-element":
        return value.opcode not in _SHARED
    of, index = value.operands[0], value.tuple_index
    return index in emitter.carried.get(of, ()) or index in emitter.owned.get(of, ())


def _carried_home(
    emitter: Emitter, instruction: HloInstruction, first: HloInstruction, kept: int | None = None
) -> Scratch | None:
    """Returns where a loop carries a result, or what is made of it in place; or other memory of the
    loop's. None if something reads what is there from `first` on.

    Other memory goes to results that what lanes share is not among. What a guard's result has been
    promised is nobody else's. The operand that is copied there before, if one is, has the number
    `kept`.
    """
    computation = instruction.computation
    assert computation is not None, "what is emitted is in a computation"
    index = _carried_index(emitter, instruction)
    if index is None:
        return None
    parameter = computation.parameters[0]
    home = emitter.tuple_elements(parameter)[index]
    if not isinstance(home, Scratch):
        return None
    order, writer = emitter.order(computation), _writer_in_place(instruction)
    others = [b for b in emitter.buffers.get(parameter, ()) if fits(b, home)]
    promised = {id(promise.pointer) for promise in emitter.homes.values()}
    for buffer in (home, *others):
        if id(buffer.pointer) in promised:
            continue
        occupants = [
            other
            for other, value in emitter.values.items()
            if other in order
            and other is not parameter
            and any(
                isinstance(array, Scratch) and array.pointer is buffer.pointer
                for array in (value if isinstance(value, list) else [value])
            )
        ]
        elements = emitter.tuple_elements(parameter)
        occupants += [
            user
            for user in parameter.users
            if isinstance(array := elements[user.tuple_index], Scratch)
            and array.pointer is buffer.pointer
        ]
        if all(_last_read(emitter, o, order, writer, kept) < order[first] for o in occupants):
            return buffer
    return None


def _carried_index(emitter: Emitter, instruction: HloInstruction) -> int | None:
    """Returns which element a loop carries a result as, changed in place or not; None if none."""
    computation = instruction.computation
    if computation is None or len(computation.parameters) != 1:
        return None
    carried = emitter.carried.get(computation.parameters[0], ())
    while carried:
        places = [k for k, o in enumerate(computation.root.operands) if o is instruction]
        if places:
            return places[0] if len(places) == 1 and places[0] in carried else None
        writer = next((u for u in instruction.users if u.opcode in UPDATING_OPCODES), None)
        is_changed = writer is not None and writer.operands[0] is instruction
        if writer is None or not is_changed or not _is_free(emitter, instruction, writer):
            return None
        instruction = writer
    return None


def needs_spare(
    emitter: Emitter, body: HloComputation, index: int, candidates: Sequence[int]
) -> bool:
    """Returns whether the next value of what a loop carries needs memory that nothing is in.

    Args:
        emitter: What emits the loop, in front of it.
        body: The loop's body.
        index: Number of an element with scratch memory of the loop's.
        candidates: Those of its size.
    """
    value = body.root.operands[index]
    if emitter.is_made_anew(value):
        return True
    while value.opcode in UPDATING_OPCODES and _is_free(emitter, value.operands[0], value):
        value = value.operands[0]
    if value.opcode in _ELSEWHERE:
        return False
    order, (parameter,) = emitter.order(body), body.parameters
    if value.opcode not in ELEMENTWISE_OPCODES | UPDATING_OPCODES:
        return True
    writer = _writer_in_place(value)
    return not any(
        all(
            _last_read(emitter, user, order, writer) < order[value]
            for user in parameter.users
            if user.tuple_index == candidate
        )
        for candidate in candidates
    )


def _writer_in_place(instruction: HloInstruction) -> HloInstruction | None:
    """Returns an instruction that writes each element once, None for one that copies an array first
    and then changes some."""
    return None if instruction.opcode in UPDATING_OPCODES else instruction


def is_handed_over(
    emitter: Emitter, value: HloInstruction, taker: HloInstruction, arguments: Collection[object]
) -> bool:
    """Whether an array in scratch memory may be changed there by the loop or the branches that get
    it: it belongs to one instruction alone, and nothing else reads it from there on.

    Args:
        emitter: What emits `taker`, in front of it.
        value: The array.
        taker: A `while` or `conditional` that is given it.
        arguments: The tuples in which it is given it.
    """
    computation = taker.computation
    if computation is None or not _is_own(emitter, value):
        return False
    if emitter.lane(value) is None and needs_lanes(taker, emitter.program):
        return False  # what all lanes share of it is emitted twice: alone, and in each block
    order = emitter.order(computation)
    stack, seen = [value], {value}
    while stack:
        top = stack.pop()
        for user in top.users:
            if user in arguments:
                is_given = top is value and user.operands.count(value) == 1
                if not is_given or user.users != [taker]:
                    return False
            elif user.is_root or order.get(user, math.inf) >= order.get(taker, -1):
                return False
            elif user not in seen and emitter.is_view(user):
                seen.add(user)
                stack.append(user)
    return True


def fits(array: Scratch, other: Scratch) -> bool:
    """Returns whether one array could lie where another does."""
    return (array.shape.element_type, array.shape.dimensions, array.lane, array.pitch) == (
        other.shape.element_type,
        other.shape.dimensions,
        other.lane,
        other.pitch,
    )


def _last_read(
    emitter: Emitter,
    value: HloInstruction,
    order: dict[HloInstruction, int],
    writer: HloInstruction | None,
    kept: int | None = None,
) -> float:
    """Returns when an array is read last, not counting what a writer reads where it writes; or, if
    an operand of it is copied there before, what that reads."""
    if writer is None:
        is_in_place = False
    elif kept is None:
        is_in_place = reads_in_place(writer, value, emitter.is_view)
    else:
        is_in_place = copies_in_place(writer, kept, value, emitter.is_view)
    latest = -1.0
    stack, seen = [value], {value}
    while stack:
        top = stack.pop()
        for user in top.users:
            if user is writer and is_in_place:
                continue
            if user not in order or user.is_root:
                return math.inf
            latest = max(latest, order[user])
            if user not in seen and emitter.is_view(user):
                seen.add(user)
                stack.append(user)
    return latest
