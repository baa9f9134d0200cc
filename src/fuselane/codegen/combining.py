"""Combining lanes: vectors with vectors, and the entries of one vector with each other."""

from __future__ import annotations

from llvmlite import ir

from fuselane.codegen.elemental import emit_elemental
from fuselane.codegen.types import constant, is_vector, width_of
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


def _part(builder: ir.IRBuilder, value: ir.Value, start: int, size: int) -> ir.Value:
    if size == 1:
        return builder.extract_element(value, ir.Constant(_I32, start))
    places = ir.Constant(ir.VectorType(_I32, size), list(range(start, start + size)))
    return builder.shuffle_vector(value, value, places)


def without_missing(
    builder: ir.IRBuilder,
    combiner: str,
    value: ir.Value,
    mask: ir.Value | None,
    element: PrimitiveType,
) -> ir.Value:
    """Returns a vector with the combiner's identity for the lanes that don't exist."""
    if mask is None:
        return value
    nothing = constant(element, identity(combiner, element), width_of(value))
    return builder.select(mask, value, nothing)
