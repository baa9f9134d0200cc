"""The instructions of a lane program to LLVM IR, one small rule per opcode.

Few elements per lane are unrolled, each in a register of its own; many are kept in the kernel's own
arrays and worked on in loops. The rules are the same for both: each says, for one element of the
result, which elements of the operands it needs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import final

from llvmlite import ir

from fuselane.analysis.opcodes import ELEMENTWISE_OPCODES
from fuselane.codegen import folding, indexing
from fuselane.codegen.arrays import (
    Array,
    Discarded,
    Literal,
    Memory,
    Place,
    Registers,
    Scratch,
    View,
    new_scratch,
    widen,
)
from fuselane.codegen.elemental import emit_elemental
from fuselane.codegen.indexing import LANE, Element, Index
from fuselane.codegen.loops import emit_counted_loop, emit_for_each
from fuselane.codegen.memory import LaneBlock, lane_numbers
from fuselane.codegen.schedule import Schedule, make_schedule
from fuselane.codegen.types import constant, is_vector, splat
from fuselane.errors import CodegenError
from fuselane.hlo.computation import HloComputation
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.shape import PrimitiveType
from fuselane.lanes.program import LaneProgram

Binding = Array | list[Array]
Elemental = Callable[[Element], ir.Value]

_CHEAP_TO_REPEAT = frozenset(
    {"broadcast", "reshape", "transpose", "slice", "reverse", "pad", "concatenate", "iota"}
)
_READ_ONCE = ELEMENTWISE_OPCODES | {"reduce", "reshape", "transpose", "reverse", "slice"}


@final
@dataclass(slots=True, kw_only=True)
class Emitter:
    """Emits instructions one after another at a place, remembering what each one's value is.

    program: What is being emitted.
    place: Where: builder, lane block, own arrays.
    max_unrolled: The most elements per lane that are kept in registers.
    values: What each instruction emitted so far stands for; lists are tuples.
    schedules: The orders of emission worked out so far.
    """

    program: LaneProgram
    place: Place
    max_unrolled: int
    values: dict[HloInstruction, Binding] = field(default_factory=dict)
    schedules: dict[HloComputation, Schedule] = field(default_factory=dict)

    @property
    def builder(self) -> ir.IRBuilder:
        """The builder in use."""
        return self.place.builder

    def at(self, block: LaneBlock) -> Emitter:
        """Returns an emitter for another lane block; it sees these values but adds none to them."""
        return Emitter(
            program=self.program,
            place=replace(self.place, block=block),
            max_unrolled=self.max_unrolled,
            values=dict(self.values),
            schedules=self.schedules,
        )

    def schedule(self, computation: HloComputation) -> Schedule:
        """Returns the order in which to emit a computation."""
        found = self.schedules.get(computation)
        if found is None:
            found = self.schedules[computation] = make_schedule(computation, self.program)
        return found

    def lane(self, instruction: HloInstruction) -> int | None:
        """Returns the lane dimension of an instruction's value, None if all lanes share it."""
        return self.program.lane_dimensions.get(instruction)

    def array(self, instruction: HloInstruction) -> Array:
        """Returns the array an emitted instruction stands for."""
        value = self.values[instruction]
        if isinstance(value, list):
            raise CodegenError(f"{instruction.name} is a tuple where an array is needed.")
        return value

    def tuple_elements(self, instruction: HloInstruction) -> list[Array]:
        """Returns the elements of an emitted tuple-shaped instruction."""
        value = self.values[instruction]
        return value if isinstance(value, list) else [value]

    def emit(self, instruction: HloInstruction) -> None:
        """Emits one instruction other than a `while`; its operands have been emitted."""
        opcode = instruction.opcode
        if opcode == "tuple":
            self.values[instruction] = [self.array(operand) for operand in instruction.operands]
        elif opcode == "get-tuple-element":
            elements = self.tuple_elements(instruction.operands[0])
            self.values[instruction] = elements[instruction.tuple_index]
        elif opcode == "constant":
            self.values[instruction] = self._constant(instruction)
        elif opcode == "reduce":
            self._emit_reduce(instruction)
        elif opcode == "dynamic-update-slice":
            self.values[instruction] = self._dynamic_update_slice(instruction)
        elif opcode in ELEMENTWISE_OPCODES:
            self._define(instruction, self._elementwise(instruction))
        elif opcode in _MOVEMENT:
            self._define(instruction, _MOVEMENT[opcode](self, instruction))
        else:
            raise CodegenError(f"There is no rule to emit {opcode} ({instruction.name}).")

    def materialize(self, array: Array, *, own: bool = False) -> Array:
        """Returns the array with every element computed: in registers if few, else in scratch.

        Args:
            array: Any array.
            own: Whether scratch must be this call's own, not one that others may write.
        """
        if isinstance(array, Registers):
            return array
        if array.size <= self.max_unrolled:
            elements = tuple(
                array.get(self.place, array.flat(self.place, position))
                for position in range(array.size)
            )
            return Registers(shape=array.shape, lane=array.lane, elements=elements)
        if isinstance(array, Scratch) and not own:
            return array
        scratch = new_scratch(self.place, array.shape, array.lane)
        self.copy(array, scratch)
        return scratch

    def copy(self, source: Array, target: Memory | Scratch | Discarded) -> None:
        """Stores every element of one array to another of the same shape."""
        self._store_window(target, source, (0,) * len(target.shape.dimensions))

    def _define(self, instruction: HloInstruction, element: Elemental) -> None:
        """Decides where an instruction's elements live: registers, nowhere (a view) or scratch."""
        view = View(shape=instruction.shape, lane=self.lane(instruction), element=element)
        in_front = instruction.computation is self.program.region
        if self._stays_view(instruction) and (in_front or view.size > self.max_unrolled):
            self.values[instruction] = view
        else:
            self.values[instruction] = self.materialize(view)

    def _stays_view(self, instruction: HloInstruction) -> bool:
        if instruction.opcode == "dynamic-slice":
            return instruction.operands[0] not in self.program.mutable
        if instruction.opcode in _CHEAP_TO_REPEAT:
            return not any(o in self.program.mutable for o in instruction.operands)
        readers = instruction.users
        return (
            len(readers) == 1
            and readers[0].opcode in _READ_ONCE
            and readers[0].operands.count(instruction) == 1
        )

    def _constant(self, instruction: HloInstruction) -> Array:
        lane = self.lane(instruction)
        literal = Literal(shape=instruction.shape, lane=lane, values=instruction.literal)
        return literal if lane is None else literal.in_memory(self.place)

    def _elementwise(self, instruction: HloInstruction) -> Elemental:
        operands = [self.array(operand) for operand in instruction.operands]
        rank = len(instruction.shape.dimensions)

        def element(index: Element) -> ir.Value:
            values = [
                operand.get(self.place, index if len(operand.shape.dimensions) == rank else ())
                for operand in operands
            ]
            return self.apply(instruction, values)

        return element

    def apply(self, instruction: HloInstruction, values: Sequence[ir.Value]) -> ir.Value:
        """Emits one element of an elementwise instruction; scalars are widened to meet vectors."""
        folded = folding.fold(instruction, values)
        if folded is not None:
            return folded
        if any(is_vector(value) for value in values):
            values = [widen(self.place, value) for value in values]
        return emit_elemental(
            self.builder,
            instruction.opcode,
            values,
            [operand.shape.element_type for operand in instruction.operands],
            instruction.shape.element_type,
            direction=_direction(instruction),
            total_order=instruction.comparison_type == "TOTALORDER",
            mantissa_bits=instruction.mantissa_bits,
            exponent_bits=instruction.exponent_bits,
        )

    def _emit_reduce(self, instruction: HloInstruction) -> None:
        count = len(instruction.operands) // 2
        arrays = [self.array(operand) for operand in instruction.operands[:count]]
        starts = [
            self.array(operand).get(self.place, ()) for operand in instruction.operands[count:]
        ]
        lane = self.program.lane_dimensions.get(instruction)
        shapes = instruction.shape.tuple_shapes or (instruction.shape,)
        if instruction.shape.is_tuple:
            lane = self._reduced_lane(instruction, arrays[0])

        def accumulate(index: Element) -> list[ir.Value]:
            return self._accumulate(instruction, arrays, starts, index)

        if count == 1:
            self._define(instruction, lambda index: accumulate(index)[0])
            return
        results = [new_scratch(self.place, shape, lane) for shape in shapes]
        registers: list[list[ir.Value]] = [[] for _ in shapes]
        small = results[0].size <= self.max_unrolled

        def visit(index: tuple[Index, ...]) -> None:
            at = indexing.with_lane(index, lane)
            for number, value in enumerate(accumulate(at)):
                if small:
                    registers[number].append(value)
                else:
                    results[number].put(self.place, at, value)

        emit_for_each(self.builder, results[0].dimensions, visit, max_unrolled=self.max_unrolled)
        self.values[instruction] = [
            Registers(shape=shape, lane=lane, elements=tuple(elements)) if small else scratch
            for shape, elements, scratch in zip(shapes, registers, results, strict=True)
        ]

    def _reduced_lane(self, instruction: HloInstruction, operand: Array) -> int | None:
        if operand.lane is None:
            return None
        return operand.lane - sum(axis < operand.lane for axis in instruction.dimensions)

    def _accumulate(
        self,
        instruction: HloInstruction,
        arrays: Sequence[Array],
        starts: Sequence[ir.Value],
        index: Element,
    ) -> list[ir.Value]:
        reduced = instruction.dimensions
        dimensions = arrays[0].shape.dimensions
        sizes = [dimensions[axis] for axis in reduced]

        def step(position: Index, carried: Sequence[ir.Value]) -> list[ir.Value]:
            inner = indexing.unflatten(self.builder, position, sizes)
            at = _interleave(index, reduced, inner, len(dimensions))
            values = [array.get(self.place, at) for array in arrays]
            return self.call(instruction.to_apply, [*carried, *values])

        total = math.prod(sizes)
        carried = list(starts)
        if total <= self.max_unrolled:
            for position in range(total):
                carried = step(position, carried)
            return carried
        if any(array.lane is not None for array in arrays):
            carried = [widen(self.place, value) for value in carried]
        return emit_counted_loop(
            self.builder,
            total,
            carried,
            lambda position, values: [
                widen(self.place, value) if is_vector(values[0]) else value
                for value in step(position, values)
            ],
            name="reduce",
        )

    def call(self, computation: HloComputation, arguments: Sequence[ir.Value]) -> list[ir.Value]:
        """Emits a computation of scalar elementwise instructions (a reduction's) in place."""
        values: dict[HloInstruction, ir.Value] = dict(
            zip(computation.parameters, arguments, strict=True)
        )
        for instruction in computation.post_order():
            if instruction.opcode == "constant":
                element = instruction.shape.element_type
                values[instruction] = constant(element, instruction.literal[()])
            elif instruction.opcode not in ("parameter", "tuple"):
                operands = [values[operand] for operand in instruction.operands]
                values[instruction] = self.apply(instruction, operands)
        root = computation.root
        results = root.operands if root.opcode == "tuple" else [root]
        return [values[result] for result in results]

    def starts(self, instruction: HloInstruction, first: int, window: Sequence[int]) -> list[Index]:
        """Returns the clamped start indices of a dynamic slice of size `window`.

        Args:
            instruction: A dynamic-slice or dynamic-update-slice.
            first: Operand number of the first start index.
            window: Size of the slice in every dimension.
        """
        sizes = instruction.operands[0].shape.dimensions
        starts: list[Index] = []
        for axis, (size, taken) in enumerate(zip(sizes, window, strict=True)):
            operand = instruction.operands[first + axis]
            if size == taken:
                starts.append(0)
                continue
            value = self.array(operand).get(self.place, ())
            wide = _to_index(self.builder, value, operand.shape.element_type)
            starts.append(indexing.clamp(self.builder, wide, 0, size - taken))
        return starts

    def addressable(self, array: Array, starts: Sequence[Index]) -> Array:
        """Returns the array in memory if it would be read from registers at run-time indices."""
        known = all(isinstance(start, int) for start in starts)
        if known or not isinstance(array, Registers) or array.size <= 8:
            return array
        scratch = new_scratch(self.place, array.shape, array.lane)
        self.copy(array, scratch)
        return scratch

    def _dynamic_update_slice(self, instruction: HloInstruction) -> Array:
        target = self.array(instruction.operands[0])
        update = self.array(instruction.operands[1])
        starts = self.starts(instruction, 2, update.shape.dimensions)
        if instruction in self.program.mutable:
            if not isinstance(target, Memory | Scratch | Discarded):
                raise CodegenError(f"{instruction.name} updates an array that is not in memory.")
            self._store_window(target, update, starts)
            return target
        if target.size <= self.max_unrolled:
            return self._select_window(instruction, target, update, starts)
        scratch = new_scratch(self.place, instruction.shape, self.lane(instruction))
        self.copy(target, scratch)
        self._store_window(scratch, update, starts)
        return scratch

    def _store_window(
        self, target: Memory | Scratch | Discarded, update: Array, starts: Sequence[Index]
    ) -> None:
        """Stores an array into a window of another, whole runs of neighbours at once if it can."""
        if isinstance(target, Discarded):
            return
        small = update.size <= self.max_unrolled
        if small and isinstance(target, Memory) and self._store_by_runs(target, update, starts):
            return

        def move(index: tuple[Index, ...]) -> None:
            at = indexing.with_lane(index, update.lane)
            value = update.get(self.place, at)
            target.put(
                self.place, self._shift(indexing.with_lane(index, target.lane), starts), value
            )

        emit_for_each(self.builder, update.dimensions, move, max_unrolled=self.max_unrolled)

    def _store_by_runs(self, target: Memory, update: Array, starts: Sequence[Index]) -> bool:
        run = target.run
        if run == 1 or update.size % run:
            return False
        positions = [update.flat(self.place, number) for number in range(update.size)]
        shifted = [self._shift(at, starts) for at in positions]
        if [target.place_in_run(at) for at in shifted] != list(range(run)) * (update.size // run):
            return False
        values = [update.get(self.place, at) for at in positions]
        for first in range(0, update.size, run):
            target.put_run(self.place, shifted[first], values[first : first + run])
        return True

    def _shift(self, index: Element, starts: Sequence[Index]) -> Element:
        return tuple(
            LANE if at is None else indexing.add(self.builder, at, start)
            for at, start in zip(index, starts, strict=True)
        )

    def _select_window(
        self, instruction: HloInstruction, target: Array, update: Array, starts: Sequence[Index]
    ) -> Array:
        update = self.addressable(update, starts)
        window = update.shape.dimensions

        def element(index: Element) -> ir.Value:
            inside, at = self._window_position(index, starts, window)
            if inside is False:
                return target.get(self.place, index)
            new = update.get(self.place, at)
            if inside is True:
                return new
            old = target.get(self.place, index)
            if is_vector(old) or is_vector(new):
                old, new = widen(self.place, old), widen(self.place, new)
            return self.builder.select(inside, new, old)

        view = View(shape=instruction.shape, lane=self.lane(instruction), element=element)
        return self.materialize(view)

    def _window_position(
        self, index: Element, starts: Sequence[Index], window: Sequence[int]
    ) -> tuple[bool | ir.Value, Element]:
        builder = self.builder
        inside: bool | ir.Value = True
        position: list[Index | None] = []
        for at, start, size in zip(index, starts, window, strict=True):
            if at is None:
                position.append(LANE)
                continue
            offset = indexing.subtract(builder, at, start)
            if size == 1:
                inside = indexing.both(builder, inside, indexing.equal(builder, offset, 0))
            else:
                low = indexing.less(builder, -1, offset)
                high = indexing.less(builder, offset, size)
                inside = indexing.both(builder, inside, indexing.both(builder, low, high))
            position.append(indexing.clamp(builder, offset, 0, size - 1))
        return inside, tuple(position)


def _interleave(
    index: Element, reduced: Sequence[int], inner: Sequence[Index], rank: int
) -> Element:
    kept = iter(index)
    at = dict(zip(reduced, inner, strict=True))
    return tuple(at[axis] if axis in at else next(kept) for axis in range(rank))


def _direction(instruction: HloInstruction) -> str:
    if instruction.opcode != "compare":
        return ""
    return instruction.comparison_direction


def _to_index(builder: ir.IRBuilder, value: ir.Value, element: PrimitiveType) -> Index:
    known = folding.integer_value(value, element)
    if known is not None:
        return known
    if value.type.width == 64:
        return value
    extend = builder.sext if element.is_signed else builder.zext
    return extend(value, indexing.I64)


def _broadcast(emitter: Emitter, instruction: HloInstruction) -> Elemental:
    operand = emitter.array(instruction.operands[0])
    axes = instruction.dimensions
    return lambda index: operand.get(emitter.place, tuple(index[axis] for axis in axes))


def _reshape(emitter: Emitter, instruction: HloInstruction) -> Elemental:
    operand = emitter.array(instruction.operands[0])
    result = (instruction.shape.dimensions, emitter.lane(instruction))
    source = (operand.shape.dimensions, operand.lane)

    def element(index: Element) -> ir.Value:
        at = indexing.reshape(emitter.builder, index, result, source)
        return operand.get(emitter.place, at)

    return element


def _transpose(emitter: Emitter, instruction: HloInstruction) -> Elemental:
    operand = emitter.array(instruction.operands[0])
    permutation = instruction.dimensions

    def element(index: Element) -> ir.Value:
        at = dict(zip(permutation, index, strict=True))
        return operand.get(emitter.place, tuple(at[axis] for axis in range(len(index))))

    return element


def _slice(emitter: Emitter, instruction: HloInstruction) -> Elemental:
    operand = emitter.array(instruction.operands[0])
    starts, strides = instruction.slice_starts, instruction.slice_strides

    def at(axis: int, coordinate: Index | None) -> Index | None:
        if coordinate is None:
            return LANE
        scaled = indexing.multiply(emitter.builder, coordinate, strides[axis])
        return indexing.add(emitter.builder, scaled, starts[axis])

    return lambda index: operand.get(emitter.place, tuple(at(*item) for item in enumerate(index)))


def _reverse(emitter: Emitter, instruction: HloInstruction) -> Elemental:
    operand = emitter.array(instruction.operands[0])
    sizes, reversed_axes = operand.shape.dimensions, instruction.dimensions

    def at(axis: int, coordinate: Index | None) -> Index | None:
        if coordinate is None or axis not in reversed_axes:
            return coordinate
        return indexing.subtract(emitter.builder, sizes[axis] - 1, coordinate)

    return lambda index: operand.get(emitter.place, tuple(at(*item) for item in enumerate(index)))


def _concatenate(emitter: Emitter, instruction: HloInstruction) -> Elemental:
    arrays = [emitter.array(operand) for operand in instruction.operands]
    (axis,) = instruction.dimensions
    sizes = [array.shape.dimensions[axis] for array in arrays]
    builder, place = emitter.builder, emitter.place

    def element(index: Element) -> ir.Value:
        result: ir.Value | None = None
        start = 0
        for array, size in zip(arrays, sizes, strict=True):
            offset = indexing.subtract(builder, index[axis], start)
            start += size
            is_here = indexing.less(builder, offset, size)
            if is_here is False or size == 0:
                continue
            at = indexing.clamp(builder, offset, 0, size - 1)
            value = array.get(place, (*index[:axis], at, *index[axis + 1 :]))
            if is_here is True:
                return value
            result = value if result is None else _choose(place, is_here, result, value, offset)
        assert result is not None
        return result

    return element


def _choose(
    place: Place, is_here: bool | ir.Value, earlier: ir.Value, value: ir.Value, offset: Index
) -> ir.Value:
    if is_vector(earlier) or is_vector(value):
        earlier, value = widen(place, earlier), widen(place, value)
    reached = place.builder.icmp_signed(">=", offset, indexing.i64(0))
    return place.builder.select(reached, value, earlier)


def _pad(emitter: Emitter, instruction: HloInstruction) -> Elemental:
    operand = emitter.array(instruction.operands[0])
    filler = emitter.array(instruction.operands[1])
    builder, place = emitter.builder, emitter.place

    def element(index: Element) -> ir.Value:
        inside: bool | ir.Value = True
        position: list[Index | None] = []
        sizes = operand.shape.dimensions
        for at, size, (low, _, interior) in zip(index, sizes, instruction.padding, strict=True):
            if at is None:
                position.append(LANE)
                continue
            offset = indexing.subtract(builder, at, low)
            lower = indexing.less(builder, -1, offset)
            quotient, rest = _divide_signed(builder, offset, interior + 1)
            upper = indexing.less(builder, quotient, size)
            whole = indexing.equal(builder, rest, 0)
            for condition in (lower, upper, whole):
                inside = indexing.both(builder, inside, condition)
            position.append(indexing.clamp(builder, quotient, 0, max(size - 1, 0)))
        outside = filler.get(place, ())
        if inside is False or 0 in sizes:
            return outside
        value = operand.get(place, tuple(position))
        if inside is True:
            return value
        if is_vector(value):
            outside = widen(place, outside)
        return builder.select(inside, value, outside)

    return element


def _divide_signed(builder: ir.IRBuilder, value: Index, divisor: int) -> tuple[Index, Index]:
    if isinstance(value, int) or divisor == 1:
        return indexing.divide(builder, value, divisor)
    return (
        builder.sdiv(value, indexing.i64(divisor)),
        builder.srem(value, indexing.i64(divisor)),
    )


def _iota(emitter: Emitter, instruction: HloInstruction) -> Elemental:
    (axis,) = instruction.dimensions
    element_type = instruction.shape.element_type
    builder = emitter.builder

    def element(index: Element) -> ir.Value:
        at = index[axis]
        if at is None:
            return _lane_index(emitter.place, element_type)
        if isinstance(at, int):
            return constant(element_type, at)
        return _convert_index(builder, at, element_type)

    return element


def _lane_index(place: Place, element_type: PrimitiveType) -> ir.Value:
    width = place.block.width
    first = splat(place.builder, place.block.offset, width)
    lanes = place.builder.add(first, lane_numbers(width))
    return _convert_index(place.builder, lanes, element_type)


def _convert_index(builder: ir.IRBuilder, value: ir.Value, element_type: PrimitiveType) -> ir.Value:
    return emit_elemental(builder, "convert", [value], [PrimitiveType.S64], element_type)


def _dynamic_slice(emitter: Emitter, instruction: HloInstruction) -> Elemental:
    window = instruction.dynamic_slice_sizes
    starts = emitter.starts(instruction, 1, window)
    operand = emitter.addressable(emitter.array(instruction.operands[0]), starts)

    def element(index: Element) -> ir.Value:
        at = tuple(
            LANE if coordinate is None else indexing.add(emitter.builder, start, coordinate)
            for coordinate, start in zip(index, starts, strict=True)
        )
        return operand.get(emitter.place, at)

    return element


_MOVEMENT: Mapping[str, Callable[[Emitter, HloInstruction], Elemental]] = {
    "broadcast": _broadcast,
    "reshape": _reshape,
    "transpose": _transpose,
    "slice": _slice,
    "reverse": _reverse,
    "concatenate": _concatenate,
    "pad": _pad,
    "iota": _iota,
    "dynamic-slice": _dynamic_slice,
}
