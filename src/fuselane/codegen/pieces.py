"""Piecewise work in two versions: of several polynomials usually all lanes of a vector need one."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final

from llvmlite import ir

from fuselane.codegen.arrays import new_scratch, widen
from fuselane.codegen.emitter import Emitter
from fuselane.codegen.indexing import Element, residual_size
from fuselane.codegen.instructions import read_operand
from fuselane.codegen.liveness import find_home
from fuselane.codegen.loops import emit_switch
from fuselane.codegen.types import any_lane, call_intrinsic
from fuselane.hlo.instruction import HloInstruction
from fuselane.lanes.program import Piecewise

_USUAL_TO_UNUSUAL: Final = (20, 1)
"""How often either version is believed to run."""

Values = Mapping[HloInstruction, ir.Value]


def emit_pieces(emitter: Emitter, pieces: Piecewise) -> None:
    """Emits a cluster of instructions, element by element: a vote, a branch and two versions."""
    last = pieces.instructions[-1]
    inside = set(pieces.instructions)
    outside = {o: None for i in pieces.instructions for o in i.operands if o not in inside}

    rank = len(last.shape.dimensions)
    # What comes in front of the loop may be worked out where it is read, by some threads alone.
    in_front = last.computation is emitter.program.region

    def element(index: Element) -> ir.Value:
        place, builder = emitter.place, emitter.builder
        known = {o: read_operand(emitter, emitter.array(o), index, rank) for o in outside}
        predicate = widen(place, known[pieces.predicate])
        unusual = predicate if pieces.side == 2 else builder.not_(predicate)
        voted = any_lane(builder, unusual, place.block.active)
        if place.block.warp is not None and not in_front:
            # Of threads that part, some would wait for the usual version and then the others for
            # the other one, which gives the same.
            voted = place.block.warp.any_thread(builder, voted)
        versions = [
            partial(_emit_all, emitter, pieces, known),
            partial(_emit_usual, emitter, pieces, known),
        ]
        (value,) = emit_switch(builder, voted, [1], versions, weights=_USUAL_TO_UNUSUAL)
        return value

    home = find_home(emitter, last, pieces.instructions[0])
    lane = emitter.lane(last)
    if home is None and residual_size(last.shape.dimensions, lane) > emitter.max_unrolled:
        home = new_scratch(emitter.place, last.shape, lane)
    emitter.define(last, element, home, outside)


def _emit_all(emitter: Emitter, pieces: Piecewise, known: Values) -> list[ir.Value]:
    values = dict(known)
    for instruction in pieces.instructions:
        operands = [values[operand] for operand in instruction.operands]
        values[instruction] = emitter.apply(instruction, operands)
    return [widen(emitter.place, values[pieces.instructions[-1]])]


def _emit_usual(emitter: Emitter, pieces: Piecewise, known: Values) -> list[ir.Value]:
    """Emits the version in which each select is one of its operands."""
    values = dict(known)

    def read(value: HloInstruction) -> ir.Value:
        if value not in pieces.selects:
            return values[value]
        taken = value.operands[pieces.side]
        if taken.opcode in ("multiply", "negate") and taken.shape.element_type.is_floating:
            # No sum takes in a product that a select stands in front of.
            return call_intrinsic(emitter.builder, "llvm.arithmetic.fence", [read(taken)])
        return read(taken)

    for instruction in pieces.usual:
        operands = [read(operand) for operand in instruction.operands]
        values[instruction] = emitter.apply(instruction, operands)
    return [widen(emitter.place, read(pieces.instructions[-1]))]
