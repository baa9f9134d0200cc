"""Guarded work that hardly any lane ever needs, piece by piece: a register's lanes at a time.

    %wrong = compare(%q, %q), direction=NE     is it NaN?
    %right = select(%wrong, %long, %q)         C's rules for quotients of complex infinities

A block has several registers of lanes at once so that they need not wait for each other, at the
price of as much more code. For what is never or seldom run that is in vain: LLVM took half of its
time for such code in Newton's fractal, with four registers. So it is in a loop over them, which
takes what it reads from memory, and leaves there what it makes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, TypeAlias

from llvmlite import ir

from fuselane.analysis.opcodes import ELEMENTWISE_OPCODES
from fuselane.codegen import indexing
from fuselane.codegen.arrays import Registers, widen
from fuselane.codegen.emitter import Emitter
from fuselane.codegen.indexing import Index, i64
from fuselane.codegen.loops import counted_loop
from fuselane.codegen.memory import load, store
from fuselane.codegen.schedule import Step
from fuselane.codegen.squares import Lines
from fuselane.codegen.types import memory_type
from fuselane.hlo.instruction import HloInstruction
from fuselane.lanes.program import Guard

EmitSteps: TypeAlias = Callable[[Emitter, Sequence[Step]], None]

_PIECE_BYTES: Final = 64
"""A register of AVX-512's, two of AVX2's."""


def emit_in_pieces(emitter: Emitter, guard: Guard, emit_steps: EmitSteps) -> list[ir.Value] | None:
    """Emits guarded work in a loop over pieces of the block's vectors.

    Args:
        emitter: Where the work is needed.
        guard: The work.
        emit_steps: Emits steps for a piece's lanes.
    Returns:
        The elements of all selects, one select after the other; None if nothing was emitted, as the
        work is no rare one, is not elementwise, or the block has a register's lanes anyway.
    """
    read = _find_read(emitter, guard)
    if read is None:
        return None
    place, builder, width = emitter.place, emitter.builder, emitter.place.block.width
    piece = _PIECE_BYTES // guard.question.operands[0].shape.element_type.byte_size
    if width <= piece or width % piece:
        return None
    kept = {value: _lines(emitter, value) for value in read}
    made = {select: _lines(emitter, select) for select in guard.selects}
    for value, lines in kept.items():
        _put(builder, lines, 0, _element(emitter, value))
    with counted_loop(builder, 0, width // piece, name="pieces") as number:
        start = indexing.multiply(builder, number, piece)
        offset = builder.add(place.block.offset, i64(start), flags=("nsw", "nuw"))
        block = replace(
            place.block, width=piece, offset=offset, mask=None, is_whole=None, active=None
        )
        inner = emitter.at(block)
        for value, lines in kept.items():
            inner.values[value] = Registers(
                shape=value.shape,
                lane=emitter.lane(value),
                elements=(_fetch(builder, lines, start, piece),),
            )
        emit_steps(inner, guard.parts)
        for select, lines in made.items():
            _put(builder, lines, start, _element(inner, select))
    return [_fetch(builder, lines, 0, width) for lines in made.values()]


def _is_rare(guard: Guard) -> bool:
    """Whether a block asks for numbers that are NaN."""
    question = guard.question
    return (
        guard.side == 1
        and question.opcode == "compare"
        and question.comparison_direction == "NE"
        and question.operands[0] is question.operands[1]
        and question.operands[0].shape.element_type.is_floating
    )


def _find_read(emitter: Emitter, guard: Guard) -> list[HloInstruction] | None:
    """Returns what guarded work reads of each lane; None if it can't be cut in pieces."""
    if not _is_rare(guard) or not all(_is_single(emitter, part) for part in guard.parts):
        return None
    operands = dict.fromkeys(operand for part in guard.parts for operand in part.operands)
    read = [o for o in operands if o not in guard.parts and emitter.lane(o) is not None]
    return read if all(emitter.array(value).size == 1 for value in read) else None


def _is_single(emitter: Emitter, part: HloInstruction) -> bool:
    """Whether an instruction makes one number of each lane from such."""
    is_plain = part.opcode in ELEMENTWISE_OPCODES or part.opcode in ("broadcast", "constant")
    return is_plain and len(part.shape.dimensions) == (emitter.lane(part) is not None)


def _element(emitter: Emitter, value: HloInstruction) -> ir.Value:
    """Returns the only element of each lane."""
    index = tuple(
        None if d == emitter.lane(value) else 0 for d in range(len(value.shape.dimensions))
    )
    return widen(emitter.place, emitter.array(value).get(emitter.place, index))


def _lines(emitter: Emitter, value: HloInstruction) -> Lines:
    """Returns memory for a number of each lane."""
    element, width = value.shape.element_type, emitter.place.block.width
    return Lines(emitter.place.allocate(memory_type(element), width), element, width)


def _put(builder: ir.IRBuilder, lines: Lines, start: Index, value: ir.Value) -> None:
    store(builder, value, lines.address(builder, 0, start), lines.element)


def _fetch(builder: ir.IRBuilder, lines: Lines, start: Index, width: int) -> ir.Value:
    return load(builder, lines.address(builder, 0, start), lines.element, width)
