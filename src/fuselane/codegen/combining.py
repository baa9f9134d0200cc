"""Combining lanes: vectors with vectors, and the entries of one vector with each other."""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from fuselane.codegen.arrays import Array, Place, View, widen
from fuselane.codegen.elemental import emit_elemental
from fuselane.codegen.indexing import Element
from fuselane.codegen.types import constant, is_vector, join, join_scalars, shuffle, width_of
from fuselane.hlo.combiners import identity
from fuselane.hlo.shape import PrimitiveType

_I32 = ir.IntType(32)


def combine(
    builder: ir.IRBuilder, combiner: str, left: ir.Value, right: ir.Value, element: PrimitiveType
) -> ir.Value:
    """Returns what an opcode of `fuselane.hlo.combiners` makes of two values."""
    return emit_elemental(builder, combiner, [left, right], [element, element], element)


def combine_entries(
    builder: ir.IRBuilder, combiner: str, value: ir.Value, element: PrimitiveType
) -> ir.Value:
    """Returns what the entries of a vector make together: halves with halves, as a tree."""
    width = width_of(value)
    while width and width % 2 == 0:
        width //= 2
        low, high = (_part(builder, value, start, width) for start in (0, width))
        value = combine(builder, combiner, low, high, element)
    if not is_vector(value):
        return value
    first, *others = (_part(builder, value, place, 1) for place in range(width))
    for other in others:
        first = combine(builder, combiner, first, other, element)
    return first


def combine_vectors(
    builder: ir.IRBuilder, combiner: str, values: Sequence[ir.Value], element: PrimitiveType
) -> ir.Value:
    """Returns a vector with, for each of some vectors, what its entries make together.

    Neighbours are combined in pairs, two vectors at a time: 16 vectors of 16 entries take 15
    operations instead of 64, and a few more shuffles than these.
    """
    width = width_of(values[0])
    if width & (width - 1):
        return _join(builder, [combine_entries(builder, combiner, v, element) for v in values])
    vectors = list(values)
    while len(vectors) & (len(vectors) - 1):
        vectors.append(vectors[-1])
    entries = width
    while entries > 1:
        entries //= 2
        if len(vectors) == 1:
            vectors.append(vectors[0])
        vectors = [
            _combine_neighbours(builder, combiner, low, high, element)
            for low, high in zip(vectors[::2], vectors[1::2], strict=True)
        ]
    return _join(builder, vectors)


def _combine_neighbours(
    builder: ir.IRBuilder, combiner: str, low: ir.Value, high: ir.Value, element: PrimitiveType
) -> ir.Value:
    """Returns `low[0] + low[1], low[2] + low[3], .., high[0] + high[1], ..`."""
    width = width_of(low)
    even, odd = (shuffle(builder, low, high, range(first, 2 * width, 2)) for first in (0, 1))
    return combine(builder, combiner, even, odd, element)


def slice_vector(builder: ir.IRBuilder, vector: ir.Value, start: int, size: int) -> ir.Value:
    """Returns some neighbouring entries of a vector: a scalar if it is one."""
    if not is_vector(vector):
        return vector
    return _part(builder, vector, start, size)


def _join(builder: ir.IRBuilder, values: Sequence[ir.Value]) -> ir.Value:
    """Returns the entries of some vectors of one size, or some scalars, as one vector."""
    return join(builder, values) if is_vector(values[0]) else join_scalars(builder, values)


def _part(builder: ir.IRBuilder, value: ir.Value, start: int, size: int) -> ir.Value:
    if size == 1:
        return builder.extract_element(value, ir.Constant(_I32, start))
    return shuffle(builder, value, value, range(start, start + size))


def without_missing(place: Place, array: Array, combiner: str) -> Array:
    """Returns an array with the combiner's identity in lanes that don't exist."""
    element = array.shape.element_type
    nothing = constant(element, identity(combiner, element), place.block.width)

    def present(index: Element) -> ir.Value:
        value = widen(place, array.get(place, index))
        mask = place.block.mask
        return value if mask is None else place.builder.select(mask, value, nothing)

    return View(shape=array.shape, lane=array.lane, element=present)
