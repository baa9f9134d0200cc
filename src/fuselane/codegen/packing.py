"""Copying weights that never change to panels, once per call of a kernel."""

from __future__ import annotations

from typing import Final

from llvmlite import ir

from fuselane.analysis.cost import UNKNOWN_TRIP_COUNT
from fuselane.codegen.arrays import Array, View
from fuselane.codegen.dot_shape import DotShape, Run, split
from fuselane.codegen.dots import find_dots, is_looped_dot
from fuselane.codegen.elemental import emit_elemental
from fuselane.codegen.emitter import Emitter
from fuselane.codegen.indexing import Index, add
from fuselane.codegen.instructions import elemental_of
from fuselane.codegen.literals import Literal
from fuselane.codegen.loops import counted_loop
from fuselane.codegen.panels import Panels
from fuselane.codegen.plan import Plan
from fuselane.codegen.types import memory_type
from fuselane.hlo.instruction import HloInstruction
from fuselane.lanes.program import ElementKind, LaneProgram

_MIN_USES: Final = 256
MAX_PACKED_BYTES: Final = 1 << 19
"""Weights of all dots together that are copied; more would be no good in a thread's caches."""
_MOVED: Final = frozenset({"convert", "reshape", "slice", "transpose"})

_Path = list[HloInstruction]
"""How a value comes from outside a loop: the value outside, then what is made of it."""


def pack_weights(emitter: Emitter, plan: Plan) -> dict[HloInstruction, Panels]:
    """Emits the copies of a program's weights; returns the panels of each dot that has some.

    Dots alike that read the same weights, as in the stages of a Runge-Kutta step, have one copy.

    Args:
        emitter: In front of all tiles.
        plan: How often the copies will be used.
    """
    program = emitter.program
    trips = program.loop.trip_count or UNKNOWN_TRIP_COUNT
    panels: dict[HloInstruction, Panels] = {}
    if trips * plan.num_tiles * plan.tile_vectors < _MIN_USES:
        return panels
    known: dict[tuple[HloInstruction, int, DotShape], Panels] = {}
    num_bytes = 0
    for dot in find_dots(program.loop.instruction.body):
        for number, operand in enumerate(dot.operands):
            path = _path_from_outside(operand, program)
            if path is None or not _has_panels(dot, number, program, plan.max_unrolled):
                continue
            shape = DotShape.of(dot, program)
            key = operand, number, shape
            if key not in known:
                num_bytes += operand.shape.num_elements * shape.sum_type.byte_size
                if num_bytes > MAX_PACKED_BYTES:
                    continue
                array = _array_of(emitter, path)
                known[key] = _pack(emitter, shape, array, is_left=number == 0)
            panels[dot] = known[key]
    return panels


def count_weight_bytes(program: LaneProgram) -> int:
    """Returns the bytes of all weights that looped dots of a program read and its lanes share."""
    weights = {
        operand
        for dot in find_dots(program.loop.instruction.body)
        for number, operand in enumerate(dot.operands)
        if _has_panels(dot, number, program)
    }
    return sum(operand.shape.byte_size for operand in weights)


def _has_panels(
    dot: HloInstruction, number: int, program: LaneProgram, max_outputs: int | None = None
) -> bool:
    """Whether an operand is read by looped dots and shared by all lanes, unlike the other one."""
    lanes = [program.lane_dimensions.get(operand) for operand in dot.operands]
    is_shared = lanes[number] is None and lanes[1 - number] is not None
    return is_shared and is_looped_dot(dot, program, max_outputs)


def _path_from_outside(value: HloInstruction, program: LaneProgram) -> _Path | None:
    """Returns how a value comes from one outside of all loops; None if it can change."""
    path = [value]
    while True:
        value = path[-1]
        if value.opcode in _MOVED:
            path.append(value.operands[0])
            continue
        if value.opcode == "constant" or value in program.inputs:
            return path[::-1]
        if value.opcode != "get-tuple-element" or value.operands[0].opcode != "parameter":
            return None
        loop = next((w for w in program.loops if value.operands[0] is w.body.parameters[0]), None)
        if loop is None:
            return None
        if program.loops[loop].elements[value.tuple_index].kind is not ElementKind.INVARIANT:
            return None
        path.append(loop.operands[0].operands[value.tuple_index])


def _array_of(emitter: Emitter, path: _Path) -> Array:
    """Returns a value as an array that can be read outside of all loops."""
    inner = emitter.at(emitter.place.block)
    source, *rest = path
    array: Array
    if source.opcode == "constant":
        array = Literal(shape=source.shape, lane=None, values=source.literal)
        inner.values[source] = array
    else:
        array = inner.array(source)
    for value in rest:
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

    def copy(b: Index, start: Index, n: Index, size: int, k: Index) -> None:
        index_of = shape.left_index if is_left else shape.right_index
        value = array.get(place, index_of(builder, b, add(builder, start, n), k))
        converted = _convert(builder, value, array, shape)
        panels.put(place, b, start, n, size, k, converted)

    with Run(start=0, size=1, count=shape.batch.size).loop(builder) as b:
        for run in split(group.size, block.left if is_left else block.right):
            with (
                run.loop(builder) as start,
                counted_loop(builder, 0, shape.contracting.size, name="pack") as k,
                counted_loop(builder, 0, run.size, name="pack") as n,
            ):
                copy(b, start, n, run.size, k)
    return panels


def _convert(builder: ir.IRBuilder, value: ir.Value, array: Array, shape: DotShape) -> ir.Value:
    element = array.shape.element_type
    if element is shape.sum_type:
        return value
    return emit_elemental(builder, "convert", [value], [element], shape.sum_type)
