"""Copying weights that never change to panels, once per tile and in front of its loop."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from llvmlite import ir

from fuselane.codegen.arrays import Array, Literal, View
from fuselane.codegen.dot_shape import DotShape, split
from fuselane.codegen.dots import is_looped_dot
from fuselane.codegen.elemental import emit_elemental
from fuselane.codegen.emitter import Emitter
from fuselane.codegen.indexing import Index, add
from fuselane.codegen.instructions import elemental_of
from fuselane.codegen.loops import counted_loop
from fuselane.codegen.panels import Panels
from fuselane.codegen.types import memory_type
from fuselane.hlo.computation import HloComputation
from fuselane.hlo.instruction import HloInstruction
from fuselane.lanes.program import ElementKind, LaneProgram

_MIN_TRIPS: Final = 16
_MAX_BYTES: Final = 1 << 19
_MOVED: Final = frozenset({"convert", "reshape", "slice", "transpose"})

_Path = list[HloInstruction]
"""How a value comes from outside a loop: the value outside, then what is made of it."""


def pack_weights(emitter: Emitter, initial: Sequence[Array]) -> None:
    """Emits the copies of a program's weights; dots find them in `emitter.panels`.

    Args:
        emitter: In front of the loop.
        initial: The loop's arrays at entry.
    """
    program = emitter.program
    trips = program.loop.trip_count
    if trips is not None and trips < _MIN_TRIPS:
        return
    num_bytes = 0
    for dot in _dots(program.loop.instruction.body):
        for number, operand in enumerate(dot.operands):
            path = _path_from_outside(operand, program)
            if path is None or not _has_panels(dot, number, program):
                continue
            shape = DotShape.of(dot, program)
            num_bytes += operand.shape.num_elements * shape.sum_type.byte_size
            if num_bytes <= _MAX_BYTES:
                array = _array_of(emitter, path, initial)
                emitter.panels[dot] = _pack(emitter, shape, array, is_left=number == 0)


def _dots(computation: HloComputation) -> Iterator[HloInstruction]:
    for instruction in computation.instructions:
        if instruction.opcode == "dot":
            yield instruction
        elif instruction.opcode == "while":
            yield from _dots(instruction.body)


def _has_panels(dot: HloInstruction, number: int, program: LaneProgram) -> bool:
    """Whether an operand is read by looped dots and shared by all lanes, unlike the other one."""
    lanes = [program.lane_dimensions.get(operand) for operand in dot.operands]
    return lanes[number] is None and lanes[1 - number] is not None and is_looped_dot(dot, program)


def _path_from_outside(value: HloInstruction, program: LaneProgram) -> _Path | None:
    """Returns how a value comes from an invariant of the outermost loop, or None."""
    path = [value]
    while True:
        value = path[-1]
        if value.opcode in _MOVED:
            path.append(value.operands[0])
            continue
        if value.opcode == "constant":
            return path[::-1]
        if value.opcode != "get-tuple-element" or value.operands[0].opcode != "parameter":
            return None
        loop = next((w for w in program.loops if value.operands[0] is w.body.parameters[0]), None)
        if loop is None:
            return None
        if program.loops[loop].elements[value.tuple_index].kind is not ElementKind.INVARIANT:
            return None
        if loop is program.loop.instruction:
            return path[::-1]
        path.append(loop.operands[0].operands[value.tuple_index])


def _array_of(emitter: Emitter, path: _Path, initial: Sequence[Array]) -> Array:
    """Returns a value as an array to be read in front of the loop."""
    inner = emitter.at(emitter.place.block)
    source = path[0]
    array: Array
    if source.opcode == "constant":
        array = Literal(shape=source.shape, lane=None, values=source.literal)
    else:
        array = initial[source.tuple_index]
    for value in path:
        if value.opcode in _MOVED:
            rule = elemental_of(inner, value)
            array = View(shape=value.shape, lane=None, element=rule)
        inner.values[value] = array
    return array


def _pack(emitter: Emitter, shape: DotShape, array: Array, *, is_left: bool) -> Panels:
    place, builder = emitter.place, emitter.builder
    group = shape.left if is_left else shape.right
    block = shape.choose_block(emitter.vectors_in_registers)
    count = shape.batch.size * group.size * shape.contracting.size
    pointer = place.allocate(memory_type(shape.sum_type), count)
    panels = Panels(pointer=pointer, shape=shape, outputs=group.size)

    def copy(b: Index, start: Index, n: int, size: int, k: Index) -> None:
        index_of = shape.left_index if is_left else shape.right_index
        value = array.get(place, index_of(builder, b, add(builder, start, n), k))
        converted = _convert(builder, value, array, shape)
        panels.put(place, b, start, n, size, k, converted)

    with counted_loop(builder, 0, shape.batch.size, name="pack") as b:
        for run in split(group.size, block.left if is_left else block.right):
            with (
                run.loop(builder) as start,
                counted_loop(builder, 0, shape.contracting.size, name="pack") as k,
            ):
                for n in range(run.size):
                    copy(b, start, n, run.size, k)
    return panels


def _convert(builder: ir.IRBuilder, value: ir.Value, array: Array, shape: DotShape) -> ir.Value:
    element = array.shape.element_type
    if element is shape.sum_type:
        return value
    return emit_elemental(builder, "convert", [value], [element], shape.sum_type)
