"""The rule for each opcode of a lane program but `while`, which `codegen.control` emits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from llvmlite import ir

from fuselane.analysis.opcodes import ELEMENTWISE_OPCODES
from fuselane.codegen import gathers, movement, slices
from fuselane.codegen.arrays import Array
from fuselane.codegen.code_size import is_long
from fuselane.codegen.dots import emit_dot
from fuselane.codegen.emitter import Elemental, Emitter
from fuselane.codegen.indexing import Element
from fuselane.codegen.literals import Literal
from fuselane.codegen.liveness import find_home
from fuselane.codegen.reduction import emit_reduce
from fuselane.codegen.scatters import emit_scatter
from fuselane.codegen.sorting import emit_sort
from fuselane.codegen.window_reduction import emit_reduce_window
from fuselane.errors import CodegenError
from fuselane.hlo.instruction import HloInstruction

_MOVEMENT: Final[Mapping[str, Callable[[Emitter, HloInstruction], Elemental]]] = {
    "broadcast": movement.broadcast,
    "reshape": movement.reshape,
    "transpose": movement.transpose,
    "slice": movement.slice,
    "reverse": movement.reverse,
    "concatenate": movement.concatenate,
    "pad": movement.pad,
    "iota": movement.iota,
    "dynamic-slice": slices.dynamic_slice,
    "dynamic-update-slice": slices.put_together,
    "gather": gathers.gather,
}


def emit_instruction(emitter: Emitter, instruction: HloInstruction) -> None:
    """Emits one instruction; its operands have been emitted.

    Raises:
        CodegenError: if there is no rule for its opcode.
    """
    opcode = instruction.opcode
    if opcode == "tuple":
        emitter.values[instruction] = [emitter.array(operand) for operand in instruction.operands]
    elif opcode == "get-tuple-element":
        elements = emitter.tuple_elements(instruction.operands[0])
        emitter.values[instruction] = elements[instruction.tuple_index]
    elif opcode == "constant":
        emitter.values[instruction] = _constant(emitter, instruction)
    elif opcode == "reduce":
        emit_reduce(emitter, instruction)
    elif opcode == "reduce-window":
        emit_reduce_window(emitter, instruction)
    elif opcode == "dot":
        emit_dot(emitter, instruction)
    elif opcode == "sort":
        emit_sort(emitter, instruction)
    elif opcode == "scatter":
        emit_scatter(emitter, instruction)
    elif opcode == "dynamic-update-slice" and not emitter.is_made_anew(instruction):
        emitter.values[instruction] = slices.dynamic_update_slice(emitter, instruction)
    elif opcode == "dynamic-slice" and slices.takes_rows(emitter, instruction):
        emitter.values[instruction] = slices.take_rows(emitter, instruction)
    else:
        emitter.store_parts(instruction)
        with emitter.stored_for_loops(instruction):
            emitter.define(
                instruction,
                elemental_of(emitter, instruction),
                find_home(emitter, instruction),
                is_long=is_long(emitter, instruction),
            )


def elemental_of(emitter: Emitter, instruction: HloInstruction) -> Elemental:
    """Returns how each element of an instruction that moves data or is elementwise is made.

    Raises:
        CodegenError: if there is no such rule for its opcode.
    """
    opcode = instruction.opcode
    if opcode in ELEMENTWISE_OPCODES:
        return _elementwise(emitter, instruction)
    if opcode in _MOVEMENT:
        return _MOVEMENT[opcode](emitter, instruction)
    raise CodegenError(f"There is no rule to emit {opcode} ({instruction.name}).")


def _constant(emitter: Emitter, instruction: HloInstruction) -> Array:
    """Constants with lanes are read like an input; others are part of the code where they can."""
    lane = emitter.lane(instruction)
    literal = Literal(shape=instruction.shape, lane=lane, values=instruction.literal)
    return literal if lane is None else literal.in_memory(emitter.place)


def _elementwise(emitter: Emitter, instruction: HloInstruction) -> Elemental:
    """`%z = f32[8,3] add(%x, %y)`: `z[lane, j] = x[lane, j] + y[lane, j]`.

    Operands of rank 0, which select and clamp may have, are read at their only index; one that
    occurs twice is read once.
    """
    arrays = {operand: emitter.array(operand) for operand in instruction.operands}
    rank = len(instruction.shape.dimensions)

    def element(index: Element) -> ir.Value:
        read = {o: read_operand(emitter, array, index, rank) for o, array in arrays.items()}
        return emitter.apply(instruction, [read[operand] for operand in instruction.operands])

    return element


def read_operand(emitter: Emitter, operand: Array, index: Element, rank: int) -> ir.Value:
    """Returns what an element of an elementwise instruction of some rank needs of an operand."""
    return operand.get(emitter.place, index if len(operand.shape.dimensions) == rank else ())
