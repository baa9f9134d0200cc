"""Where the largest or smallest of many elements is, found in two loops of which vectors are made.

    m, i = reduce(x, iota), to_apply=%argmax           m = maximum of all x[k]
                                               ->      i = minimum of all (x[k] == m ? k : none)

JAX's `argmax` keeps an element and its index, of equal ones those that come first, and of NaNs the
first. So each element waits for what was chosen before, for three comparisons and two selections.

Numerics: exact.
"""

from __future__ import annotations

import itertools
import math
import operator
from typing import Any, Final

from llvmlite import ir

from fuselane.codegen.combining import combine
from fuselane.codegen.folding import evaluate
from fuselane.hlo.combiners import is_identity
from fuselane.hlo.computation import HloComputation
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.shape import PrimitiveType

_CHOOSING: Final = frozenset({"and", "compare", "or", "select", "xor"})

_ELEMENTS: Final = (1.0, 2.0, math.nan)
_INDICES: Final = ((0, 1), (0, 9), (5, 9))
"""Comparisons of two of these have each outcome they can have; so have those of an element with an
index, which no arg-maximum makes."""


def find_extreme(reduce: HloInstruction) -> str | None:
    """Returns `maximum` or `minimum` if a reduction finds the index of such an element and nobody
    asks for the element itself, else None."""
    if len(reduce.operands) != 4 or len(reduce.dimensions) != 1:
        return None
    elements, indices, start, first = reduce.operands
    is_known = _is_simple(elements.shape.element_type) and indices.shape.element_type.is_integral
    if not (is_known and _counts(indices, *reduce.dimensions) and is_identity(first, "add")):
        return None
    if any(user.opcode != "get-tuple-element" or not user.tuple_index for user in reduce.users):
        return None
    for extreme in ("maximum", "minimum"):
        if is_identity(start, extreme) and _chooses(reduce.to_apply, extreme):
            return extreme
    return None


def farther(
    builder: ir.IRBuilder, extreme: str, element: PrimitiveType, left: ir.Value, right: ir.Value
) -> ir.Value:
    """Returns the larger or smaller of two elements, a NaN if there is one, of zeros any."""
    value = combine(builder, extreme, left, right, element)
    if element.is_floating and isinstance(value, ir.CallInstr):
        value.fastmath.add("nsz")
    return value


def place_of(
    builder: ir.IRBuilder, found: ir.Value, value: ir.Value, index: ir.Value, none: ir.Constant
) -> ir.Value:
    """Returns an element's index if it is the one that was found, or also a NaN; else `none`."""
    if isinstance(value.type, ir.IntType):
        is_found = builder.icmp_signed("==", value, found)
    else:
        is_equal = builder.fcmp_ordered("==", value, found)
        is_found = builder.or_(is_equal, builder.fcmp_unordered("uno", value, value))
    return builder.select(is_found, index, none)


def _is_simple(element: PrimitiveType) -> bool:
    return element.is_integral or element in (PrimitiveType.F32, PrimitiveType.F64)


def _counts(value: HloInstruction, axis: int) -> bool:
    """Whether each element of a value is its own index along a dimension."""
    if value.opcode == "broadcast" and axis in value.dimensions:
        return _counts(value.operands[0], value.dimensions.index(axis))
    return value.opcode == "iota" and value.dimensions == (axis,)


def _chooses(computation: HloComputation, extreme: str) -> bool:
    """Whether a computation of two elements and their indices, the lower one first, returns the
    index of the larger or smaller one, of equal ones the first, and of the first NaN.

    What only compares and selects has few outcomes.
    """
    element = computation.parameters[0].shape.element_type
    elements = _ELEMENTS if element.is_floating else _ELEMENTS[:2]
    is_better = operator.ge if extreme == "maximum" else operator.le
    for left, right, (low, high) in itertools.product(elements, elements, _INDICES):
        is_first = math.isnan(left) or (not math.isnan(right) and is_better(left, right))
        if _choose(computation, (left, low, right, high)) != (low if is_first else high):
            return False
    return True


def _choose(computation: HloComputation, arguments: tuple[float, int, float, int]) -> object:
    """Returns the second result of a computation; None if it does anything but choose."""
    values: dict[HloInstruction, Any] = dict(zip(computation.parameters, arguments, strict=True))
    for member in computation.post_order():
        if member.opcode in ("parameter", "tuple"):
            continue
        if member.opcode not in _CHOOSING or _tells_zeros_apart(member):
            return None
        values[member] = evaluate(member, [values[operand] for operand in member.operands])
    root = computation.root
    return values[root.operands[1]] if root.opcode == "tuple" else None


def _tells_zeros_apart(member: HloInstruction) -> bool:
    """Whether a member compares floats in a total order, in which NaNs have places, too."""
    is_total = member.opcode == "compare" and member.comparison_type == "TOTALORDER"
    return is_total and member.operands[0].shape.element_type.is_floating
