"""The rule for dot: sums of products, blocked over outputs so that the sums stay in registers.

    %d = f32[8,64] dot(%x, %w), x f32[8,32] with 8 lanes, w f32[32,64] the same for all lanes

        for j0 in 0, 6, 12, ..                          outputs, a block at a time
            s0..s5 = 0                                  vectors of lanes
            for k in 0..32
                s0 += x[lane, k] * w[k, j0]             x loaded once for all six, w broadcast
                ..
            d[lane, j0] = s0; ..

A dot per lane (both operands have lanes, along a batch dimension) is the same with two vectors to
multiply. Small ones are unrolled altogether. What all lanes share goes by `codegen.wide_dots`.

Where there are several alike, as the powers of a matrix or the stages of an equation of matrices
have them, they are calls of one function.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, final

from llvmlite import ir

from fuselane.codegen import indexing
from fuselane.codegen.arrays import Array, Memory, Registers, Scratch, new_scratch, widen
from fuselane.codegen.bounds import Region
from fuselane.codegen.builder import KernelBuilder
from fuselane.codegen.dot_shape import Block, DotShape, Run, split
from fuselane.codegen.dot_sums import emit_sums
from fuselane.codegen.elemental import emit_elemental
from fuselane.codegen.emitter import Emitter
from fuselane.codegen.function import KernelFunction, own_function
from fuselane.codegen.indexing import Element, Index, residual_size
from fuselane.codegen.literals import Literal
from fuselane.codegen.panels import Panels
from fuselane.codegen.types import call_intrinsic, constant
from fuselane.codegen.wide_dots import choose_side, dense_array, emit_wide_dot
from fuselane.hlo.computation import HloComputation
from fuselane.hlo.dots import DotDimensions
from fuselane.hlo.instruction import HloInstruction
from fuselane.lanes.program import LaneProgram

_MAX_UNROLLED_PRODUCTS: Final = 256
_MAX_UNROLLED_WEIGHTS: Final = 64
"""Products that are emitted one by one, in a dot per lane and in one with shared weights. The
latter load a weight for each product if lanes' elements fill the registers."""

_PRODUCTS_IN_LOOP: Final = 32
_MAX_PARTIAL_SUMS: Final = 4
_MIN_LONG_SUM: Final = 16

_MIN_CALLS: Final = 4
"""Dots alike of which one function is made. With 80 products of real matrices of 4x4 (optimal
control of a quantum system) the code is a third, LLVM takes 0.3 of its time, the kernel 0.7 to
0.9."""


def is_looped_dot(
    dot: HloInstruction, program: LaneProgram, max_outputs: int | None = None
) -> bool:
    """Whether a dot has too many products per lane to emit each on its own, or more outputs than a
    plan keeps in registers, if there is one."""
    shape = DotShape.of(dot, program)
    if max_outputs is not None and shape.num_outputs > max_outputs:
        return True
    has_weights = None in (shape.left_lane, shape.right_lane)
    limit = _MAX_UNROLLED_WEIGHTS if has_weights else _MAX_UNROLLED_PRODUCTS
    return shape.num_products > limit


def count_result_bytes(program: LaneProgram, max_registers: int) -> int:
    """Returns the scratch memory that a lane's results of dots take, each of which has its own.

    Args:
        program: With the dots.
        max_registers: Results of no more elements may be kept in registers, and do not count.
    """
    num_bytes = 0
    for dot in find_dots(program.loop.instruction.body):
        lane, shape = program.lane_dimensions.get(dot), dot.shape
        size = residual_size(shape.dimensions, lane)
        if lane is not None and size > max_registers:
            num_bytes += size * shape.element_type.byte_size
    return num_bytes


def find_dots(computation: HloComputation) -> Iterator[HloInstruction]:
    """Yields the dots of a computation and of loops in it."""
    for instruction in computation.instructions:
        if instruction.opcode == "dot":
            yield instruction
        elif instruction.opcode == "while":
            yield from find_dots(instruction.body)


def emit_dot(emitter: Emitter, instruction: HloInstruction) -> None:
    """Emits a dot; its result is in registers if it is small, else in scratch.

    Numerics: sums start from zero and go by increasing index, long ones perhaps in up to four
        interleaved parts, those of what all lanes share in more; multiplications and additions are
        fused where the machine can. Sums of F16 and BF16 are kept in F32 and rounded once; integers
        wrap.
    """
    dot = _Dot.of(emitter, instruction)
    shape = dot.shape
    if not is_looped_dot(instruction, emitter.program, emitter.max_unrolled):
        prepare = _as_it_is if shape.num_outputs == 1 else _materialized
        emitter.values[instruction] = dot.with_operands(prepare).unrolled()
        return
    side = choose_side(instruction, shape) if emitter.shared_bits else None
    if side is not None:
        dense = dot.with_operands(dense_array)
        operands = dense.left, dense.right
        emitter.values[instruction] = emit_wide_dot(emitter, instruction, operands, side)
        return
    looped = dot.with_operands(_addressable)
    block = shape.choose_block(emitter.vectors_in_registers)
    is_called = looped.may_be_called
    if not is_called and shape.num_outputs <= block.outputs:
        emitter.values[instruction] = looped.in_registers(block)
        return
    result = new_scratch(emitter.place, instruction.shape, emitter.lane(instruction))
    emit_to = looped.call if is_called else looped.fill
    emit_to(result, block)
    emitter.values[instruction] = result


def _count_alike(body: HloComputation) -> Mapping[HloInstruction, int]:
    """Returns how many dots of a loop's body are the same but for their operands, for each."""
    kinds = {
        dot: (dot.shape, *(o.shape for o in dot.operands), DotDimensions.of(dot))
        for dot in find_dots(body)
    }
    counts = Counter(kinds.values())
    return {dot: counts[kind] for dot, kind in kinds.items()}


def _choose_step(total: int, outputs: int) -> int:
    """Returns how many of the products of one output an iteration adds up: enough to pay for it,
    and so that little is left behind the loop."""
    most = max(1, _PRODUCTS_IN_LOOP // outputs)
    return min(range(most, most // 2, -1), key=lambda step: step + total % step)


def _as_it_is(_: Emitter, array: Array) -> Array:
    """Returns an operand each of whose elements is read once."""
    return array


def _materialized(emitter: Emitter, array: Array) -> Array:
    """Returns an operand whose elements are computed once, however often they are read.

    Many that all lanes share are read where they lie: what is copied would be read from memory too.
    """
    is_shared = isinstance(array, Memory) and array.lane is None
    if isinstance(array, Literal) or (is_shared and array.size > emitter.max_unrolled):
        return array
    return emitter.materialize(array)


def _addressable(emitter: Emitter, array: Array) -> Array:
    """Returns an operand that costs a load at any index known only at run time."""
    if isinstance(array, Scratch):
        return array
    if isinstance(array, Literal):
        return array.in_memory(emitter.place)
    if isinstance(array, Memory) and (array.lane is None or array.strides[array.lane] == 1):
        return array
    if array.lane is None and not isinstance(array, Registers):
        return array
    scratch = new_scratch(emitter.place, array.shape, array.lane)
    emitter.copy(array, scratch)
    return scratch


_Addressed = Memory | Panels | Scratch


def _is_address(operand: Array | Panels) -> bool:
    """Whether an operand is where its address says, and not where a lane is besides."""
    if isinstance(operand, Memory):
        return operand.lane is None
    return isinstance(operand, Panels) or (isinstance(operand, Scratch) and operand.start is None)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class _Dot:
    """A dot whose operands have been emitted.

    Attributes:
        panels: The shared operand's elements in the order in which they are needed, if some were
            made; then it is not read itself.
    """

    emitter: Emitter
    instruction: HloInstruction
    shape: DotShape
    left: Array
    right: Array
    panels: Panels | None

    @staticmethod
    def of(emitter: Emitter, instruction: HloInstruction) -> _Dot:
        """Returns a dot instruction with its operands."""
        left, right = (emitter.array(operand) for operand in instruction.operands)
        return _Dot(
            emitter=emitter,
            instruction=instruction,
            shape=DotShape.of(instruction, emitter.program),
            left=left,
            right=right,
            panels=emitter.panels.get(instruction),
        )

    def with_operands(self, prepare: Callable[[Emitter, Array], Array]) -> _Dot:
        """Returns the dot of the same operands, kept elsewhere."""
        has_panels = self.panels is not None
        left, right = self.left, self.right
        one, other = self.instruction.operands
        if not (has_panels and left.lane is None):
            left = self._prepared(prepare, one, left)
        if one is other:
            right = left
        elif not (has_panels and right.lane is None):
            right = self._prepared(prepare, other, right)
        return replace(self, left=left, right=right)

    def _prepared(
        self,
        prepare: Callable[[Emitter, Array], Array],
        operand: HloInstruction,
        array: Array,
    ) -> Array:
        """Returns an operand kept elsewhere; a copy of it in memory that another dot has made.

        An array that was made here, unlike a loop's own, has been made anew wherever the code is
        emitted again, so a copy of the same one was made on the way to here.
        """
        emitter = self.emitter
        known = emitter.copies.get(operand)
        if known is not None and known[0] is array:
            return known[1]
        prepared = prepare(emitter, array)
        is_own = operand.opcode not in ("parameter", "get-tuple-element")
        if is_own and isinstance(prepared, Scratch) and prepared is not array:
            emitter.copies[operand] = array, prepared
        return prepared

    # Ways to emit it.

    def unrolled(self) -> Registers:
        """Emits every multiplication on its own."""
        shape, one = self.shape, Block(left=1, right=1)
        step, beside = shape.contracting.size, shape.num_outputs
        sums = [
            self._sum_of_block((b, i, j), one, step=step, beside=beside)
            for b in range(shape.batch.size)
            for i in range(shape.left.size)
            for j in range(shape.right.size)
        ]
        return self._registers([value for values in sums for value in values])

    def in_registers(self, block: Block) -> Registers:
        """Emits a dot that is one block; its sums go by a loop."""
        whole = Block(left=self.shape.left.size, right=self.shape.right.size)
        step = _choose_step(self.shape.contracting.size, block.outputs)
        sums = [
            self._sum_of_block((b, 0, 0), whole, step=step) for b in range(self.shape.batch.size)
        ]
        return self._registers([value for values in sums for value in values])

    def fill(self, result: Scratch, block: Block) -> None:
        """Emits loops over the blocks of the result."""
        shape, builder = self.shape, self.emitter.builder
        batches = Run(start=0, size=1, count=shape.batch.size)
        step = _choose_step(shape.contracting.size, block.outputs)
        for left in split(shape.left.size, block.left):
            for right in split(shape.right.size, block.right):
                part = Block(left=left.size, right=right.size)
                with batches.loop(builder) as b, left.loop(builder) as i, right.loop(builder) as j:
                    sums = self._sum_of_block((b, i, j), part, step=step)
                    self._store(result, (b, i, j), part, sums)

    @property
    def may_be_called(self) -> bool:
        """Whether there are enough alike, and their operands are addresses and nothing else."""
        emitter, body = self.emitter, self.emitter.program.loop.instruction.body
        if not emitter.has_vectors or self._result_lane is None:
            return False
        if body.fact(_count_alike).get(self.instruction, 0) < _MIN_CALLS:
            return False
        return all(map(_is_address, self._read))

    @property
    def _read(self) -> tuple[Array | Panels, Array | Panels]:
        """What the operands' elements are read from."""
        left, right = (
            self.panels if self.panels and operand.lane is None else operand
            for operand in (self.left, self.right)
        )
        return left, right

    def call(self, result: Scratch, block: Block) -> None:
        """Emits a call of the function of all dots alike, which is made for the first of them."""
        arrays = [result, *(a for a in self._read if isinstance(a, _Addressed))]
        builder, width = self.emitter.builder, self.emitter.place.block.width
        kind = (self.shape, block, width, *(replace(a, pointer=None) for a in arrays))
        name = f"fuselane.dot.{hashlib.sha256(repr(kind).encode()).hexdigest()[:16]}"
        function = builder.module.globals.get(name)
        if function is None:
            function = own_function(builder.module, name, [a.pointer.type for a in arrays])
            self._define(function, arrays, block)
        builder.call(function, [array.pointer for array in arrays])

    def _define(self, function: KernelFunction, arrays: Sequence[_Addressed], block: Block) -> None:
        """Emits the body of a function that gets the addresses of a result and two operands."""
        place = self.emitter.place
        for argument, array in zip(function.args, arrays, strict=True):
            function.regions[argument] = Region(name="an array of a dot", num_bytes=array.num_bytes)
        builder = KernelBuilder(function.append_basic_block("entry"))
        place = replace(place, builder=builder, block=place.block.elsewhere)
        result, left, right = (
            replace(array, pointer=argument)
            for argument, array in zip(function.args, arrays, strict=True)
        )
        assert isinstance(result, Scratch)
        inner = replace(
            self,
            emitter=replace(self.emitter, place=place),
            left=self.left if isinstance(left, Panels) else left,
            right=self.right if isinstance(right, Panels) else right,
            panels=next((a for a in (left, right) if isinstance(a, Panels)), None),
        )
        inner.fill(result, block)
        builder.ret_void()

    def _store(
        self,
        result: Scratch,
        start: tuple[Index, Index, Index],
        block: Block,
        sums: Sequence[ir.Value],
    ) -> None:
        builder = self.emitter.builder
        b, i, j = start
        for number, value in enumerate(sums):
            row, column = divmod(number, block.right)
            at = self.shape.result_index(
                builder, b, indexing.add(builder, i, row), indexing.add(builder, j, column)
            )
            result.put(self.emitter.place, at, value)

    # One block.

    def _sum_of_block(
        self, start: tuple[Index, Index, Index], block: Block, *, step: int, beside: int = 1
    ) -> list[ir.Value]:
        """Emits the sums of a block of outputs, row by row.

        Args:
            start: Its first output, as (b, i, j).
            block: Its size.
            step: Products of one output in one iteration of the loop.
            beside: Blocks that are emitted without a loop around any of them.
        """
        sums = emit_sums(
            self.emitter.builder,
            [self._zero()] * block.outputs,
            self.shape.contracting.size,
            lambda k, sums: self._add_products(start, block, k, sums),
            step=step,
            parts=self._partial_sums(block.outputs * beside, step),
        )
        return [self._finish(parts) for parts in sums]

    def _partial_sums(self, outputs: int, step: int) -> int:
        """Returns in how many parts to sum: few long sums would wait for each addition.

        Args:
            outputs: Sums that do not wait for each other.
            step: Products of each in one go.
        """
        if self.shape.contracting.size < _MIN_LONG_SUM:
            return 1
        spare = self.emitter.vectors_in_registers // outputs // 2
        return max(1, min(_MAX_PARTIAL_SUMS, spare, step))

    def _add_products(
        self,
        start: tuple[Index, Index, Index],
        block: Block,
        k: Index,
        sums: Sequence[ir.Value],
    ) -> list[ir.Value]:
        b, i, j = start
        builder, shape = self.emitter.builder, self.shape
        lefts = [
            self._panel_element(b, i, n, block.left, k)
            if self.panels and self.left.lane is None
            else self._element(
                self.left, shape.left_index(builder, b, indexing.add(builder, i, n), k)
            )
            for n in range(block.left)
        ]
        rights = [
            self._panel_element(b, j, n, block.right, k)
            if self.panels and self.right.lane is None
            else self._element(
                self.right, shape.right_index(builder, b, indexing.add(builder, j, n), k)
            )
            for n in range(block.right)
        ]
        pairs = [(left, right) for left in lefts for right in rights]
        return [
            self._multiply_add(left, right, total)
            for (left, right), total in zip(pairs, sums, strict=True)
        ]

    def _panel_element(self, b: Index, start: Index, n: int, size: int, k: Index) -> ir.Value:
        assert self.panels is not None
        return self.panels.get(self.emitter.place, b, start, n, size, k)

    def _element(self, array: Array, index: Element) -> ir.Value:
        place, sum_type = self.emitter.place, self.shape.sum_type
        value, element = array.get(place, index), array.shape.element_type
        if element is sum_type:
            return value
        return emit_elemental(place.builder, "convert", [value], [element], sum_type)

    # Arithmetic.

    def _zero(self) -> ir.Value:
        width = 0 if self._result_lane is None else self.emitter.place.block.width
        return constant(self.shape.sum_type, 0, width)

    def _multiply_add(self, left: ir.Value, right: ir.Value, total: ir.Value) -> ir.Value:
        place, builder = self.emitter.place, self.emitter.builder
        if self._result_lane is not None:
            left, right = widen(place, left), widen(place, right)
        if self.shape.sum_type.is_floating:
            return call_intrinsic(builder, "llvm.fmuladd", [left, right, total])
        return builder.add(builder.mul(left, right), total)

    def _finish(self, parts: Sequence[ir.Value]) -> ir.Value:
        """Returns the sum of partial sums in the result's type."""
        builder, sum_type = self.emitter.builder, self.shape.sum_type
        result = self.instruction.shape.element_type
        total = parts[0]
        for part in parts[1:]:
            total = emit_elemental(builder, "add", [total, part], [sum_type] * 2, sum_type)
        if result is sum_type:
            return total
        return emit_elemental(builder, "convert", [total], [sum_type], result)

    @property
    def _result_lane(self) -> int | None:
        return self.emitter.lane(self.instruction)

    def _registers(self, elements: Sequence[ir.Value]) -> Registers:
        return Registers(
            shape=self.instruction.shape, lane=self._result_lane, elements=tuple(elements)
        )
