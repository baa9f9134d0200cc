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

from fuselane.codegen.arrays import Scratch, new_scratch
from fuselane.codegen.emitter import Emitter
from fuselane.hlo.instruction import HloInstruction

_SHARED: Final = frozenset({"parameter", "constant", "tuple"})
_ALIASES: Final = frozenset({"tuple", "while", "get-tuple-element"})


def overwritable(
    emitter: Emitter, value: HloInstruction, writer: HloInstruction, lane: int | None
) -> Scratch:
    """Returns scratch memory that holds a value and may be changed: its own, or else a copy.

    Args:
        emitter: What emits `writer`.
        value: One of its operands.
        writer: What makes a new array of it; must have read all else it needs.
        lane: Lane dimension of that array.
    """
    array = emitter.array(value)
    if isinstance(array, Scratch) and may_overwrite(emitter, value, writer):
        return array
    scratch = new_scratch(emitter.place, array.shape, lane)
    emitter.copy(array, scratch)
    return scratch


def may_overwrite(emitter: Emitter, value: HloInstruction, writer: HloInstruction) -> bool:
    """Returns whether the emitter may change a value's array where it lies.

    Args:
        emitter: What emits `writer`.
        value: One of its operands.
        writer: What makes a new array of it, and reads all else it needs beforehand.
    """
    array = emitter.array(value)
    if not isinstance(array, Scratch) or array.lane is None or not _is_own(emitter, value):
        return False
    if writer.operands.count(value) != 1 or writer.computation is None:
        return False
    order = emitter.order(writer.computation)
    return _last_read(emitter, value, order, writer) <= order[writer]


def _is_own(emitter: Emitter, value: HloInstruction) -> bool:
    """Whether an array in scratch is no other instruction's too."""
    if value.opcode != "get-tuple-element":
        return value.opcode not in _SHARED
    return value.tuple_index in emitter.carried.get(value.operands[0], ())


def _last_read(
    emitter: Emitter,
    value: HloInstruction,
    order: dict[HloInstruction, int],
    writer: HloInstruction,
) -> float:
    latest = -1.0
    stack, seen = [value], {value}
    while stack:
        for user in stack.pop().users:
            if user not in order or user.is_root:
                return math.inf
            latest = max(latest, order[user])
            is_alias = user.opcode in _ALIASES or emitter.stays_view(user)
            if user is not writer and user not in seen and is_alias:
                seen.add(user)
                stack.append(user)
    return latest
