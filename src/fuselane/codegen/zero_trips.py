"""Kernels that are called for no step at all, and leave their arrays alone.

    if (c(initial) || some state lies elsewhere than its result)  run the tiles
    else  results that all lanes share = initial

A loop inside one that stays with XLA is often over before it begins. Its state is in the memory of
its results then, and to bring it in and out is all that a call would do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final

from llvmlite import ir

from fuselane.analysis.opcodes import ELEMENTWISE_OPCODES
from fuselane.codegen.arrays import Memory
from fuselane.codegen.control import emit_condition, emit_steps
from fuselane.codegen.frame import Frame
from fuselane.codegen.indexing import i64
from fuselane.hlo.instruction import HloInstruction
from fuselane.lanes.program import ElementKind, LaneProgram

_CHEAP_OPCODES: Final = ELEMENTWISE_OPCODES | {
    "broadcast",
    "constant",
    "dynamic-slice",
    "get-tuple-element",
    "parameter",
    "reshape",
    "slice",
}


@contextmanager
def unless_over(frame: Frame) -> Iterator[None]:
    """What is emitted under it runs only if the loop takes a step, or if state has to move.

    Nothing is asked where the trip count is known, where lanes or long computations decide, and
    where the loop does not begin with the kernel's inputs as they are.
    """
    if not _is_asked(frame.program):
        yield
        return
    builder = frame.builder
    runs, copies = _emit_question(frame)
    begin, over, done = map(builder.append_basic_block, ("begin", "over", "done"))
    builder.cbranch(runs, begin, over)
    builder.position_at_end(over)
    for copy in copies:
        copy()
    builder.branch(done)
    builder.position_at_end(begin)
    yield
    builder.branch(done)
    builder.position_at_end(done)


def _emit_question(frame: Frame) -> tuple[ir.Value, list[Callable[[], None]]]:
    """Returns whether the tiles have to run, and what emits the results to be made if not."""
    builder, program = frame.builder, frame.program
    emitter = frame.emitter(frame.block(i64(0), ir.Constant(ir.IntType(1), 1)))
    emit_steps(emitter, (i for i in program.region.instructions if i.opcode == "constant"))
    outputs = frame.results(i64(0))
    initial = frame.initial(emitter, outputs)
    runs = emit_condition(emitter, program.loop, initial)
    copies: list[Callable[[], None]] = []
    for output, target in zip(program.outputs, outputs, strict=True):
        element, source = program.loop.elements[output.tuple_index], initial[output.tuple_index]
        if element.kind is ElementKind.STREAM:
            continue  # its memory is the output's
        is_own = element.lane_dimension is not None or not program.has_lanes
        if is_own and isinstance(source, Memory):
            moves = builder.icmp_unsigned("!=", source.pointer, target.pointer)
            runs = builder.or_(runs, moves)
        else:
            copies.append(partial(emitter.copy, source, target))
    return runs, copies


def _is_asked(program: LaneProgram) -> bool:
    loop, condition = program.loop, program.loop.instruction.condition
    if loop.trip_count is not None or loop.lane_condition is not None:
        return False
    if any(element.combiner for element in loop.elements):
        return False
    initial = loop.instruction.operands[0].operands
    read = [user.tuple_index for user in condition.parameters[0].users]
    needed = {initial[index] for index in (*read, *(o.tuple_index for o in program.outputs))}
    return all(
        i.opcode in _CHEAP_OPCODES and _is_shared(i, program) for i in condition.instructions
    ) and all(
        i.opcode == "parameter" or (i.opcode == "constant" and _is_shared(i, program))
        for i in needed
    )


def _is_shared(instruction: HloInstruction, program: LaneProgram) -> bool:
    return program.lane_dimensions.get(instruction) is None
