"""Products of matrices summed over the lanes: the gradients of weights that all lanes share.

    %p = f32[2048,64,32] multiply(broadcast(%x), broadcast(%y))    %x: f32[2048,64]
    %f = f32[2048,64,32] convert(%p)     a fold, only added on     %y: f32[2048,32]

    for each tile and step, behind its sweeps, which leave %x and %y in scratch memory
        for each 4 rows and 4 columns
            16 vectors := sums over the tile's lane blocks of x[row] * y[column]
            total[rows, columns] += what the entries of each vector make together

`total` is the tile's row of the result itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Final, final

from llvmlite import ir

from fuselane.codegen.arrays import Scratch
from fuselane.codegen.combining import combine, combine_vectors, slice_vector
from fuselane.codegen.indexing import Index, add, i64, multiply, residual_size
from fuselane.codegen.loops import counted_loop, emit_counted_loop
from fuselane.codegen.memory import element_pointer, load, store
from fuselane.codegen.types import constant
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.shape import PrimitiveType, Shape
from fuselane.lanes.program import ElementKind, LaneProgram

_MIN_PRODUCTS: Final = 8
"""Smaller ones are added up lane block by lane block, like all folds."""

_SIDE: Final = 4
"""Rows and columns of a panel, if registers can hold its sums and as many vectors more."""


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Product:
    """A fold of products that is only added to an element of the loop.

    Attributes:
        element: The element's index.
        fold: The fold.
        following: What becomes superfluous: the additions, the element's own value.
        left, right: The factors, `[lanes, ...]`: rows and columns.
    """

    element: int
    fold: HloInstruction
    following: tuple[HloInstruction, ...]
    left: HloInstruction
    right: HloInstruction

    @property
    def num_rows(self) -> int:
        """How many values of the left factor a lane has."""
        return self.left.shape.num_elements // self.left.shape.dimensions[0]


def factor_bytes(program: LaneProgram) -> int:
    """Returns the size of what one lane leaves in scratch memory for products."""
    products = find_products(program)
    factors = {factor for product in products for factor in (product.left, product.right)}
    return sum(f.shape.byte_size // f.shape.dimensions[0] for f in factors)


def find_products(program: LaneProgram) -> list[Product]:
    """Returns the folds of products that can be added up in the result itself."""
    found: list[Product] = []
    for element in program.loop.elements:
        if element.kind is ElementKind.STATE and element.combiner == "add":
            found.extend(_products_of(element.index, program))
    return found


def _products_of(element: int, program: LaneProgram) -> Sequence[Product]:
    """Returns the products of which an element is the sum; none if it is the sum of anything
    else, or serves anything else."""
    body = program.loop.instruction.body
    own = [
        user
        for user in body.parameters[0].users
        if user.opcode == "get-tuple-element" and user.tuple_index == element
    ]
    path = _additions(own[0]) if len(own) == 1 else []
    roots = [i for i, root in enumerate(body.root.operands) if path and root is path[-1]]
    if roots != [element]:
        return ()
    following = [own[0], *path]
    products = []
    for term in (operand for step in path for operand in step.operands):
        if term in (own[0], *path):
            continue
        fold = term
        while fold.opcode == "reshape" and len(fold.users) == 1:
            following.append(fold)
            fold = fold.operands[0]
        factors = _match_factors(fold) if fold in program.folds else None
        if factors is None:
            return ()
        products.append((fold, *factors))
    return [
        Product(element=element, fold=f, following=tuple(following), left=left, right=right)
        for f, left, right in products
    ]


def _additions(value: HloInstruction) -> list[HloInstruction]:
    """Returns the chain of additions that starts with a value, each the last one's only user."""
    path = []
    while len(value.users) == 1 and value.users[0].opcode == "add":
        (value,) = value.users
        path.append(value)
    return path


def _match_factors(fold: HloInstruction) -> tuple[HloInstruction, HloInstruction] | None:
    """Returns the rows' and the columns' factor of a fold of products, or None."""
    value = fold.operands[0]
    if len(fold.users) != 1 or value.opcode != "multiply" or len(value.users) != 1:
        return None
    if any(operand.opcode != "broadcast" for operand in value.operands):
        return None
    rank = value.shape.rank
    for left, right in (value.operands, value.operands[::-1]):
        split = left.operands[0].shape.rank
        is_left = left.dimensions == tuple(range(split))
        is_right = right.dimensions == (0, *range(split, rank))
        sizes = [residual_size(factor.operands[0].shape.dimensions, 0) for factor in (left, right)]
        if is_left and is_right and min(sizes) > 1 and math.prod(sizes) >= _MIN_PRODUCTS:
            return left.operands[0], right.operands[0]
    return None


# Code.


def emit_product(
    builder: ir.IRBuilder,
    left: Scratch,
    right: Scratch,
    total: ir.Value,
    num_blocks: ir.Value,
    width: int,
    vectors_in_registers: int,
) -> None:
    """Adds the products of two factors, summed over the lanes of a tile, to an array in memory.

    Args:
        left, right: The factors, zero for lanes that don't exist.
        total: Address of the array, `[rows, columns]`.
        num_blocks: Blocks of lanes in the tile.
        width: Lanes in a block.
        vectors_in_registers: How many vectors of lanes the machine's registers can hold.
    """
    _Multiplication(builder, left, right, total, num_blocks, width).emit(vectors_in_registers)


def clear_memory(builder: ir.IRBuilder, pointer: ir.Value, count: int, shape: Shape) -> None:
    """Fills an array in memory with zeros."""
    element = shape.element_type
    with counted_loop(builder, 0, count, name="clear") as position:
        store(
            builder,
            constant(element, 0),
            element_pointer(builder, pointer, position, element),
            element,
        )


@final
@dataclass(frozen=True, slots=True)
class _Multiplication:
    builder: ir.IRBuilder
    left: Scratch
    right: Scratch
    total: ir.Value
    num_blocks: ir.Value
    width: int

    @property
    def _element(self) -> PrimitiveType:
        return self.left.shape.element_type

    def emit(self, vectors_in_registers: int) -> None:
        """Emits all panels: of as many rows and columns as registers allow, and what is left."""
        side = _SIDE if vectors_in_registers >= 2 * _SIDE * _SIDE else 2
        rows, columns = self.left.size, self.right.size
        for row, height in _panels(self.builder, rows, side):
            with row as first_row:
                for column, breadth in _panels(self.builder, columns, side):
                    with column as first_column:
                        self._emit_panel(first_row, height, first_column, breadth)

    def _emit_panel(self, row: Index, height: int, column: Index, breadth: int) -> None:
        builder, element = self.builder, self._element
        zero = constant(element, 0, self.width)

        def step(block: ir.Value, sums: list[ir.Value]) -> list[ir.Value]:
            start = multiply(builder, block, self.width)
            xs = [self._load(self.left, row, number, start) for number in range(height)]
            ys = [self._load(self.right, column, number, start) for number in range(breadth)]
            products = [self._apply("multiply", x, y) for x in xs for y in ys]
            return [self._apply("add", s, p) for s, p in zip(sums, products, strict=True)]

        sums = emit_counted_loop(
            builder, self.num_blocks, [zero] * (height * breadth), step, name="product"
        )
        totals = combine_vectors(builder, "add", sums, element)
        for number in range(height):
            part = slice_vector(builder, totals, number * breadth, breadth)
            position = multiply(builder, add(builder, row, number), self.right.size)
            offset = add(builder, position, column)
            pointer = element_pointer(builder, self.total, i64(offset), element)
            old = load(builder, pointer, element, breadth)
            store(builder, self._apply("add", old, part), pointer, element)

    def _load(self, factor: Scratch, first: Index, number: int, start: Index) -> ir.Value:
        builder = self.builder
        row = multiply(builder, add(builder, first, number), factor.pitch)
        offset = i64(add(builder, row, start))
        pointer = element_pointer(builder, factor.pointer, offset, self._element)
        return load(builder, pointer, self._element, self.width)

    def _apply(self, opcode: str, left: ir.Value, right: ir.Value) -> ir.Value:
        return combine(self.builder, opcode, left, right, self._element)


def _panels(
    builder: ir.IRBuilder, size: int, side: int
) -> Iterator[tuple[AbstractContextManager[Index], int]]:
    """Yields the loops, and the rest behind them, that cover a dimension by panels of a side."""
    whole = size // side
    if whole > 1:
        yield _strided_loop(builder, whole, side), side
    elif whole:
        yield nullcontext(0), side
    if size % side:
        yield nullcontext(whole * side), size % side


@contextmanager
def _strided_loop(builder: ir.IRBuilder, count: int, step: int) -> Iterator[Index]:
    with counted_loop(builder, 0, count, name="panel") as number:
        yield multiply(builder, number, step)
