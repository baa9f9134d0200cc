"""The arrays of a lane program as the emitter holds them: where each element comes from.

An element is an LLVM value: a vector with one entry per lane of the block, or a scalar where all
lanes share it. An array with a lane dimension may hold shared scalars too; who needs a vector asks
for `lanes`.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import final

from llvmlite import ir

from fuselane.codegen import indexing
from fuselane.codegen.indexing import Element, Index
from fuselane.codegen.memory import (
    Addresses,
    LaneBlock,
    element_pointer,
    gather,
    in_cases,
    lane_index,
    load,
    load_lanes,
    scatter,
    store,
    store_lanes,
)
from fuselane.codegen.runs import are_squares, load_runs, store_runs
from fuselane.codegen.types import integer_constant, is_vector, memory_type, splat
from fuselane.hlo.shape import PrimitiveType, Shape

_MAX_RUN = 16
_MAX_RUN_OF_SQUARES = 32
_MAX_RUN_TIMES_WIDTH = 1024  # of words, or what they hold of less
_WORD_BITS = 32
_MAX_BRANCHES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where code is being emitted: the builder, the lane block, and the function's own arrays."""

    builder: ir.IRBuilder
    block: LaneBlock
    allocate: Callable[[ir.Type, int], ir.Value]


@dataclass(frozen=True, slots=True, kw_only=True)
class Array(ABC):
    """An array of the lane program.

    shape: Of the whole array, lanes included.
    lane: The dimension along which the lanes lie, or None when all lanes share the array.
    """

    shape: Shape
    lane: int | None

    @property
    def dimensions(self) -> tuple[int, ...]:
        """What one lane holds."""
        return indexing.residual_dimensions(self.shape.dimensions, self.lane)

    @property
    def size(self) -> int:
        """How many elements one lane holds."""
        return indexing.residual_size(self.shape.dimensions, self.lane)

    @abstractmethod
    def get(self, place: Place, index: Element) -> ir.Value:
        """Returns the element at an index of the whole array (`LANE` at the lane dimension)."""

    def lanes(self, place: Place, index: Element) -> ir.Value:
        """Returns the element as a vector where the array has lanes, else as a scalar."""
        value = self.get(place, index)
        return value if self.lane is None else widen(place, value)

    def flat(self, place: Place, position: Index) -> Element:
        """Returns the index of a row-major position in what one lane holds."""
        inner = indexing.unflatten(place.builder, position, self.dimensions)
        return indexing.with_lane(inner, self.lane)


def widen(place: Place, value: ir.Value) -> ir.Value:
    """Returns the value as a vector: a scalar is repeated for every lane of the block."""
    if isinstance(value.type, ir.VectorType) or place.block.width == 1:
        return value
    return splat(place.builder, value, place.block.width)


def scatter_lanes(
    place: Place, value: ir.Value, addresses: Addresses, element: PrimitiveType
) -> None:
    """Stores an element of every lane that exists, each to its own address."""
    where = place.block.mask
    nowhere = place.allocate(memory_type(element), 1) if where is not None else addresses.base
    scatter(place.builder, widen(place, value), addresses, element, where, nowhere)


def choose(
    place: Place, condition: bool | ir.Value, value: ir.Value, otherwise: ir.Value
) -> ir.Value:
    """Returns one of two elements by a condition, lane by lane where one of the three has lanes."""
    if isinstance(condition, bool):
        return value if condition else otherwise
    if any(is_vector(part) for part in (condition, value, otherwise)):
        value, otherwise = widen(place, value), widen(place, otherwise)
    return place.builder.select(condition, value, otherwise)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Registers(Array):
    """Every element is an LLVM value of its own, in row-major order."""

    elements: tuple[ir.Value, ...]

    def get(self, place: Place, index: Element) -> ir.Value:
        """See `Array.get`. An index known only at run time is a tree of selects."""
        position = 0
        for coordinate, size in zip(index, self.shape.dimensions, strict=True):
            if isinstance(coordinate, int):
                position = position * size + coordinate
            elif coordinate is not None:
                inner = indexing.without_lane(index)
                known = indexing.flatten(place.builder, inner, self.dimensions)
                return pick(place, self.elements, known)
        return self.elements[position]


def pick(place: Place, elements: Sequence[ir.Value], position: Index) -> ir.Value:
    """Returns the element at a position within bounds, halving their number by each of its bits."""
    if isinstance(position, int):
        return elements[position]
    builder, bit = place.builder, 1
    remaining = list(elements)
    while len(remaining) > 1:
        mask = indexing.like(builder, bit, position.type)
        is_odd = builder.icmp_unsigned(
            "!=", builder.and_(position, mask), integer_constant(position.type, 0)
        )
        pairs = zip(remaining[::2], remaining[1::2], strict=False)
        rest = remaining[-1:] if len(remaining) % 2 else []
        remaining = [choose(place, is_odd, odd, even) for even, odd in pairs] + rest
        bit *= 2
    return remaining[0]


@final
class Written(enum.Enum):
    """When a kernel writes to memory that it also reads."""

    NEVER = "never"
    AFTER_READS = "after reads"
    """A tile's state: its memory gets the final values when all initial ones have been read."""
    ANY_TIME = "any time"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Memory(Array):
    """An array in memory, of any layout: an input, an output, or a large constant.

    pointer: Its first element.
    strides: Elements from one index to the next, for every dimension of the whole array, which is
        dense: what lies between two lanes belongs to the first of them.
    written: When the kernel writes it.
    is_staged: Whether its runs pass through a GPU's shared memory where all threads of a warp come
        by; its indices are the same for all lanes.
    loaded: Runs loaded so far, by basic block and address; see `run`.
    """

    pointer: ir.Value
    strides: tuple[int, ...]
    written: Written
    is_staged: bool = False
    loaded: dict[object, list[ir.Value]] = field(default_factory=dict)

    @property
    def num_bytes(self) -> int:
        """What it takes."""
        return self.shape.byte_size

    @property
    def _is_invariant(self) -> bool:
        return self.written is Written.NEVER

    def run(self, block: LaneBlock) -> int:
        """Returns how many neighbouring elements a lane holds between its neighbour lanes'.

        Such runs are moved whole, by contiguous loads and stores and shuffles. What is too long for
        that, or strided, is a run of 1: LLVM's time to compile shuffles grows with their square, if
        the run is not made of squares, which a loop moves. It makes branches of the mask of a load
        of narrow elements, one for each.
        """
        if self.lane is None:
            return 1
        stride = self.strides[self.lane]
        if self.is_staged:
            return stride
        bits = self.shape.element_type.bits
        is_masked = block.mask is not None and bits < _WORD_BITS
        most = _MAX_BRANCHES if is_masked else _MAX_RUN_TIMES_WIDTH * max(1, _WORD_BITS // bits)
        is_short = stride <= _MAX_RUN and stride * block.width <= most
        if is_short or (
            stride <= _MAX_RUN_OF_SQUARES and not is_masked and self._has_squares(block)
        ):
            return stride
        return 1

    def _has_squares(self, block: LaneBlock) -> bool:
        return are_squares(self.strides[self.lane or 0], block, self.shape.element_type)

    def place_in_run(self, index: Element) -> int | None:
        """Returns which element of its run an index is, None if that isn't known."""
        stride = self.strides[self.lane or 0]
        place = 0
        for coordinate, step in zip(index, self.strides, strict=True):
            if step < stride:
                if not isinstance(coordinate, int):
                    return None
                place += coordinate * step
        return place

    def get(self, place: Place, index: Element) -> ir.Value:
        """See `Array.get`: a load."""
        builder, element = place.builder, self.shape.element_type
        if any(map(indexing.varies, index)):
            return gather(builder, self._addresses(place, index), element, place.block)
        if self.lane is None:
            return load(builder, self.address(place, index), element)
        if self.written is not Written.ANY_TIME and self.run(place.block) > 1:
            number = self.place_in_run(index)
            if number is not None:
                return self._load_run(place, index)[number]
        stride = self.strides[self.lane]
        pointer = self.address(place, index)
        return load_lanes(
            builder, pointer, element, stride, place.block, invariant=self._is_invariant
        )

    def put_run(self, place: Place, index: Element, values: Sequence[ir.Value]) -> None:
        """Stores a whole run of every lane; `index` is that of its first element."""
        pointer = self.address(place, index)
        wide = [widen(place, value) for value in values]
        builder, element, warp = place.builder, self.shape.element_type, place.block.warp
        if self.is_staged and warp is not None:
            warp.store_row(builder, wide, pointer, element)
        else:
            in_cases(
                builder,
                place.block,
                lambda block: store_runs(builder, wide, pointer, element, block, place.allocate),
            )

    def _load_run(self, place: Place, index: Element) -> list[ir.Value]:
        stride = self.strides[self.lane or 0]
        first = tuple(
            0 if coordinate is not None and step < stride else coordinate
            for coordinate, step in zip(index, self.strides, strict=True)
        )
        known = tuple(at if isinstance(at, int) else id(at) for at in first)
        key = (id(indexing.known_values(place.builder.block)), id(place.block.offset), known)
        found = self.loaded.get(key)
        if found is None:
            found = self.loaded[key] = self._load(place, self.address(place, first), stride)
        return found

    def _load(self, place: Place, pointer: ir.Value, length: int) -> list[ir.Value]:
        builder, element, warp = place.builder, self.shape.element_type, place.block.warp
        if self.is_staged and warp is not None:
            return warp.load_row(builder, pointer, element, length)
        is_invariant = self._is_invariant
        return in_cases(
            builder,
            place.block,
            lambda block: load_runs(
                builder, pointer, element, length, block, place.allocate, invariant=is_invariant
            ),
        )

    def put(self, place: Place, index: Element, value: ir.Value) -> None:
        """Stores an element; one that all lanes share is stored by the first block alone."""
        builder, element = place.builder, self.shape.element_type
        if any(map(indexing.varies, index)):
            scatter_lanes(place, value, self._addresses(place, index), element)
            return
        if self.lane is None:
            is_certain = place.block.is_surely_first
            with nullcontext() if is_certain else builder.if_then(place.block.is_first):
                store(builder, value, self.address(place, index), element)
            return
        stride = self.strides[self.lane]
        pointer = self.address(place, index)
        store_lanes(builder, widen(place, value), pointer, element, stride, place.block)

    def _addresses(self, place: Place, index: Element) -> Addresses:
        """Returns where the element of each lane is, lanes that don't exist at the first one's."""
        builder = place.builder
        shared = tuple(0 if indexing.varies(at) else at for at in index)
        offsets: Index = 0
        for coordinate, stride in zip(index, self.strides, strict=True):
            at = lane_index(place.block.width) if coordinate is None else coordinate
            if not indexing.varies(at):
                continue
            if self.shape.num_elements > indexing.MAX_I32:
                at = indexing.widened(builder, at)
            offsets = indexing.add(builder, offsets, indexing.multiply(builder, at, stride))
        return Addresses(base=self.address(place, shared), offsets=offsets)

    def _terms(self, place: Place, index: Element) -> list[tuple[Index, int]]:
        """Returns the positions and strides whose products add up to an index's offset.

        Dimensions that lie one behind the other are taken as one, what is known comes last.
        """
        known = 0
        terms: list[tuple[Index, int]] = []
        last: int | None = None
        for axis, (coordinate, stride) in enumerate(zip(index, self.strides, strict=True)):
            size = self.shape.dimensions[axis]
            if isinstance(coordinate, int):
                known += coordinate * stride
                continue
            if coordinate is None:
                terms.append((place.block.offset, stride))
                continue
            if last == axis - 1 and terms[-1][1] == stride * size:
                terms[-1] = (indexing.join(place.builder, terms[-1][0], coordinate, size), stride)
            else:
                terms.append((coordinate, stride))
            last = axis
        return [*terms, (known, 1)]

    def address(self, place: Place, index: Element) -> ir.Value:
        """Returns where an element is, that of the block's first lane."""
        builder = place.builder
        offset: Index = 0
        for at, stride in self._terms(place, index):
            offset = indexing.add(builder, offset, indexing.multiply(builder, at, stride))
        return element_pointer(builder, self.pointer, indexing.i64(offset), self.shape.element_type)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Scratch(Array):
    """An array of the kernel's own, in row-major order with the lanes of a tile innermost.

    pointer: Its first element.
    pitch: Lanes from one element to the next: the width of a block, or of a whole tile.
    start: `i64`, the block's first lane within the tile, or None for 0.
    """

    pointer: ir.Value
    pitch: int
    start: ir.Value | None = None

    @property
    def num_bytes(self) -> int:
        """What it takes."""
        return self.size * self.pitch * self.shape.element_type.byte_size

    def get(self, place: Place, index: Element) -> ir.Value:
        """See `Array.get`: a load."""
        if any(map(indexing.varies, index)):
            return gather(
                place.builder, self._addresses(place, index), self.shape.element_type, place.block
            )
        width = 1 if self.lane is None else place.block.width
        return load(place.builder, self.address(place, index), self.shape.element_type, width)

    def put(self, place: Place, index: Element, value: ir.Value) -> None:
        """Stores an element."""
        if any(map(indexing.varies, index)):
            addresses = self._addresses(place, index)
            scatter_lanes(place, value, addresses, self.shape.element_type)
            return
        whole = value if self.lane is None else widen(place, value)
        store(place.builder, whole, self.address(place, index), self.shape.element_type)

    def _addresses(self, place: Place, index: Element) -> Addresses:
        """Returns where the element of each lane is."""
        builder = place.builder
        position = indexing.flatten(builder, indexing.without_lane(index), self.dimensions)
        offsets = indexing.multiply(builder, position, self.pitch)
        if self.lane is not None:
            offsets = indexing.add(builder, offsets, lane_index(place.block.width))
        start = indexing.i64(0 if self.start is None else self.start)
        base = element_pointer(builder, self.pointer, start, self.shape.element_type)
        return Addresses(base=base, offsets=offsets)

    def address(self, place: Place, index: Element) -> ir.Value:
        """Returns where an element is, that of the block's first lane."""
        builder = place.builder
        position = indexing.flatten(builder, indexing.without_lane(index), self.dimensions)
        offset = indexing.multiply(builder, position, self.pitch)
        if self.start is not None:
            offset = indexing.add(builder, offset, self.start)
        return element_pointer(builder, self.pointer, indexing.i64(offset), self.shape.element_type)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class View(Array):
    """An array computed anew at every access: data movement, and work with a single reader.

    element: Computes the element at an index.
    cuts: Where a loop over all elements is cut; see `codegen.cuts`.
    """

    element: Callable[[Element], ir.Value]
    cuts: dict[int, set[int]] = field(default_factory=dict)

    def get(self, place: Place, index: Element) -> ir.Value:
        """See `Array.get`."""
        return self.element(index)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Partial(Array):
    """A tile's row of an output of which only the combination over all lanes is wanted.

    pointer: The row: what one lane holds, in row-major order.
    combine: Makes one scalar of a vector of lanes, or of the lanes of several threads.
    is_writer: Whether this thread writes the row, `i1`; None where it always does.
    """

    pointer: ir.Value
    combine: Callable[[ir.IRBuilder, ir.Value], ir.Value]
    is_writer: ir.Value | None = None

    def get(self, place: Place, index: Element) -> ir.Value:
        """Never read; see `lanes.partials`."""
        raise AssertionError("a partial result is never read")

    def put(self, place: Place, index: Element, value: ir.Value) -> None:
        """Stores what the lanes of a vector make together."""
        builder, element = place.builder, self.shape.element_type
        inner = indexing.without_lane(index)
        offset = indexing.i64(indexing.flatten(builder, inner, self.dimensions))
        pointer = element_pointer(builder, self.pointer, offset, element)
        total = self.combine(builder, widen(place, value))
        with nullcontext() if self.is_writer is None else builder.if_then(self.is_writer):
            store(builder, total, pointer, element)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Discarded(Array):
    """An output nobody reads: what is stored to it is dropped."""

    def get(self, place: Place, index: Element) -> ir.Value:
        """Never read; see `lanes.form`."""
        raise AssertionError("a discarded array is never read")

    def put(self, place: Place, index: Element, value: ir.Value) -> None:
        """Stores nothing."""


Stored = Memory | Scratch | Partial | Discarded


def new_scratch(place: Place, shape: Shape, lane: int | None) -> Scratch:
    """Returns an uninitialised array of the kernel's own for one lane block."""
    pitch = 1 if lane is None else place.block.width
    count = indexing.residual_size(shape.dimensions, lane) * pitch
    pointer = place.allocate(memory_type(shape.element_type), count)
    return Scratch(shape=shape, lane=lane, pointer=pointer, pitch=pitch)


def row_major_strides(dimensions: Sequence[int]) -> tuple[int, ...]:
    """Returns the strides, in elements, of a row-major array."""
    strides = [1]
    for size in reversed(dimensions[1:]):
        strides.append(strides[-1] * size)
    return tuple(reversed(strides)) if dimensions else ()
