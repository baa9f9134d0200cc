"""What the lanes of a tile make together: sums, products, extremes.

for each tile                           shares: scratch, one vector for each
    for each step
        each fold := its combiner's identity
        for each sweep, for each block  .. ; each fold := combine(fold, this block's value)
        what follows from folds, once, on vectors
    combine the entries of each vector and write them to the tile's row of the result

As all tiles are put together in the same order each time, results don't depend on who ran which.
Lanes that don't exist take no part: a fold leaves the identity there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final, final

from llvmlite import ir

from fuselane.codegen.arrays import Array, Partial, Scratch, new_scratch
from fuselane.codegen.carry import rewrite
from fuselane.codegen.combining import combine, without_missing
from fuselane.codegen.control import emit_steps
from fuselane.codegen.emitter import Emitter
from fuselane.codegen.indexing import Index, residual_size, with_lane
from fuselane.codegen.loops import emit_for_each
from fuselane.codegen.plan import Plan
from fuselane.codegen.products import Product, clear_memory, emit_product, find_products
from fuselane.codegen.schedule import Step
from fuselane.codegen.types import constant, memory_type
from fuselane.decisions import Reason
from fuselane.errors import UnsupportedError
from fuselane.hlo.combiners import identity
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.shape import Shape
from fuselane.lanes.program import ElementKind, LaneProgram

MAX_PARTIAL_BYTES: Final = 64 * 2**20
"""Results of all tiles that may be left to be combined behind a kernel on a CPU."""


def check_partials(program: LaneProgram, num_rows: int, max_bytes: int) -> None:
    """Refuses a layout that leaves too much to be combined behind the kernel.

    Args:
        program: What the kernel computes.
        num_rows: Rows of what is left.
        max_bytes: How much that may be.

    Raises:
        UnsupportedError: UNSUPPORTED_STRUCTURE if they do.
    """
    rows = [e.shape for e in program.loop.elements if e.combiner]
    size = num_rows * sum(shape.byte_size // shape.dimensions[0] for shape in rows)
    if size > max_bytes:
        decision = Reason.UNSUPPORTED_STRUCTURE.decide(
            instruction=program.name,
            opcode="while",
            detail=f"its reductions over lanes would leave {size / 2**20:,.0f} MiB to be combined",
        )
        raise UnsupportedError(decision)


@final
class Folding:
    """The folds of a tile of several lane blocks, and what follows from them.

    Attributes:
        carried: The elements of the loop that it takes care of.
        separate: Instructions of the body that are not emitted for each lane block.
    """

    def __init__(self, emitter: Emitter, plan: Plan, outputs: Sequence[tuple[int, Array]]) -> None:
        """Prepares the folds of a tile.

        Args:
            emitter: The tile's, which knows what all lanes share.
            plan: The layout of the kernel.
            outputs: The elements of the loop that are wanted, and where.
        """
        self.program = emitter.program
        self.emitter = emitter
        self.plan = plan
        self.targets = {index: t for index, t in outputs if isinstance(t, Partial)}
        products = find_products(self.program)
        self.products = {product.fold.operands[0]: product for product in products}
        self.factors = self._allocate_factors(products)
        in_products = {product.element for product in products}
        self.carried = frozenset(
            e.index
            for e in self.program.loop.elements
            if e.kind is ElementKind.STATE and e.combiner
        )
        loop = self.program.loop
        self.state = {i: self._new(loop.elements[i].shape) for i in self.carried - in_products}
        added = {product.fold for product in products}
        self.folds = {f: self._new(f.shape) for f in self.program.folds if f not in added}
        superfluous = {step for product in products for step in product.following}
        self.late = self.program.late - superfluous
        self.separate = self.program.late | added

    def _new(self, shape: Shape) -> Scratch:
        return new_scratch(self.emitter.place, shape, 0)

    def _allocate_factors(self, products: Sequence[Product]) -> dict[HloInstruction, Scratch]:
        factors = dict.fromkeys(f for product in products for f in (product.left, product.right))
        allocate, pitch = self.emitter.place.allocate, self.plan.pitch
        result = {}
        for factor in factors:
            lane = self.emitter.lane(factor)
            size = residual_size(factor.shape.dimensions, lane)
            pointer = allocate(memory_type(factor.shape.element_type), size * pitch)
            result[factor] = Scratch(shape=factor.shape, lane=lane, pointer=pointer, pitch=pitch)
        return result

    def start(self) -> None:
        """Emits the beginning of a tile, when nothing is accumulated yet."""
        for index, scratch in self.state.items():
            self._clear(scratch, self.program.loop.elements[index].combiner)
        for index in {product.element for product in self.products.values()}:
            target = self.targets[index]
            clear_memory(self.emitter.builder, target.pointer, target.size, target.shape)

    def start_step(self) -> None:
        """Emits the beginning of a step, when nothing is folded yet."""
        for fold, scratch in self.folds.items():
            self._clear(scratch, self.program.folds[fold])

    def _clear(self, scratch: Scratch, combiner: str) -> None:
        element = scratch.shape.element_type
        nothing = constant(element, identity(combiner, element))
        place = self.emitter.place

        def clear(index: tuple[Index, ...]) -> None:
            scratch.put(place, with_lane(index, scratch.lane), nothing)

        limit = self.emitter.max_unrolled
        emit_for_each(place.builder, scratch.dimensions, clear, max_unrolled=limit)

    def emit_steps(self, steps: Iterable[Step], block: Emitter, start: ir.Value) -> None:
        """Emits steps for a lane block, folds as what it contributes to them.

        Args:
            steps: In order.
            block: The block's emitter.
            start: `i64`, the block's first lane in the tile.
        """
        for step in steps:
            if not isinstance(step, HloInstruction):
                emit_steps(block, [step])
            elif step in self.folds:
                self._add(block, step)
            elif step in self.products:
                self._keep_factors(block, self.products[step], start)
            else:
                emit_steps(block, [step])

    def _keep_factors(self, block: Emitter, product: Product, start: ir.Value) -> None:
        for factor in (product.left, product.right):
            value = without_missing(block.place, block.array(factor), "add")
            block.copy(value, replace(self.factors[factor], start=start))

    def _add(self, block: Emitter, fold: HloInstruction) -> None:
        scratch, combiner, place = self.folds[fold], self.program.folds[fold], block.place
        value = without_missing(place, block.array(fold.operands[0]), combiner)

        def add(index: tuple[Index, ...]) -> None:
            at = with_lane(index, scratch.lane)
            old, new = scratch.get(place, at), value.get(place, at)
            total = combine(place.builder, combiner, old, new, fold.shape.element_type)
            scratch.put(place, at, total)

        emit_for_each(place.builder, scratch.dimensions, add, max_unrolled=block.max_unrolled)

    def finish_step(self, arrays: Sequence[Array], num_blocks: ir.Value) -> None:
        """Emits what follows from the step's folds.

        Args:
            arrays: The loop's arrays at the beginning of the step.
            num_blocks: `i64`, lane blocks in the tile.
        """
        for product in self.products.values():
            emit_product(
                self.emitter.builder,
                self.factors[product.left],
                self.factors[product.right],
                self.targets[product.element].pointer,
                num_blocks,
                self.plan.width,
                self.plan.vectors_in_registers,
            )
        body = self.program.loop.instruction.body
        late = self._late_emitter()
        current = list(arrays)
        for index, scratch in self.state.items():
            current[index] = late.materialize(scratch)
        late.values[body.parameters[0]] = current
        for fold, scratch in self.folds.items():
            late.values[fold] = late.materialize(scratch)
        steps = late.schedule(body).per_lane(self.program)
        emit_steps(late, [step for step in steps if step in self.late])
        following = {i: late.array(body.root.operands[i]) for i in self.state}
        rewrite(late, [(scratch, following[index]) for index, scratch in self.state.items()])

    def finish(self) -> None:
        """Emits the end of a tile."""
        late = self._late_emitter()
        for index, scratch in self.state.items():
            if index in self.targets:
                late.copy(scratch, self.targets[index])

    def _late_emitter(self) -> Emitter:
        """Returns an emitter for vectors in which all lanes exist."""
        return self.emitter.at(replace(self.emitter.place.block, mask=None))
