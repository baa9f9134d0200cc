"""The largest or smallest of many floats, where the sign of a zero is made up for in the end.

    r = maximum(maximum(a, b), c)          r = max(max(a, b), c)          of zeros, any
                                    ->     s = and(and(a, b), c)          as integers
                                           r = r == 0 ? sign of s : r

To XLA -0 is less than +0, to processors of Intel's and AMD's the two are equal, so that LLVM takes
two or three instructions for the order of zeros in each maximum of two; ARM's take one for all.
What a largest element that is zero was chosen from are zeros and negative numbers: it is -0 if all
their signs are set. In a loop each maximum waits for the one before, unless LLVM makes vectors of
it; it is one instruction there, which forgets about NaNs, and whether there was one is carried
beside it.

Numerics: bitwise-equal to the operations one after the other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, final

from llvmlite import ir

from fuselane.codegen.arrays import choose, widen
from fuselane.codegen.emitter import Emitter
from fuselane.codegen.types import constant, integer_constant, is_vector, like
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.shape import PrimitiveType

_SIGNS: Final = {"maximum": "and_", "minimum": "or_"}
"""How the sign of a zero follows from those of all that it was chosen from."""

_BITS: Final = {PrimitiveType.F32: 32, PrimitiveType.F64: 64}
_MIN_ELEMENTS: Final = 3


@final
@dataclass(frozen=True, slots=True)
class Extreme:
    """What a reduction carries instead of the largest or smallest element so far: that, of zeros
    any, and what tells the sign.

    Attributes:
        emitter: Emits in the place where it is reduced.
        operation: `maximum` or `minimum` of two elements.
        bits: Of an element.
        is_loop: Whether each element waits for the one before, or LLVM makes vectors of a loop.
    """

    emitter: Emitter
    operation: HloInstruction
    bits: int
    is_loop: bool

    @staticmethod
    def of(
        emitter: Emitter, reduce: HloInstruction, count: int, *, is_loop: bool
    ) -> Extreme | None:
        """Returns what a reduction of so many elements is to carry; None if just its value."""
        if not emitter.program.has_lanes and not is_loop:
            return None
        root = reduce.to_apply.root
        is_plain = root.opcode in _SIGNS and all(o.opcode == "parameter" for o in root.operands)
        bits = _BITS.get(root.shape.element_type) if is_plain else None
        if bits is None or count < _MIN_ELEMENTS or not emitter.place.block.has_equal_zeros:
            return None
        return Extreme(emitter, root, bits, is_loop)

    def begin(self, value: ir.Value) -> list[ir.Value]:
        """Returns what is carried for one element."""
        carried = [value, self._as_integer(value)]
        if self.is_loop:
            is_nan = self.emitter.builder.fcmp_unordered("uno", value, value)
            carried.append(self.emitter.builder.sext(is_nan, carried[1].type))
        return carried

    def join(self, left: Sequence[ir.Value], right: Sequence[ir.Value]) -> list[ir.Value]:
        """Returns what is carried for all elements of two parts."""
        if self.is_loop:
            return self._join_loosely(left, right)
        pair = [left[0], right[0]]
        value = self.emitter.apply(self.operation, pair)
        if isinstance(value, ir.CallInstr) and all(value is not part for part in pair):
            value.fastmath.add("nsz")
        signs = [left[1], right[1]]
        if any(map(is_vector, signs)):
            signs = [widen(self.emitter.place, part) for part in signs]
        combine = getattr(self.emitter.builder, _SIGNS[self.operation.opcode])
        return [value, combine(*signs)]

    def _join_loosely(self, left: Sequence[ir.Value], right: Sequence[ir.Value]) -> list[ir.Value]:
        """As `join`, of what LLVM knows as a maximum; where there is a NaN, it may be anything."""
        builder = self.emitter.builder
        if any(map(is_vector, (*left, *right))):
            left, right = ([widen(self.emitter.place, v) for v in side] for side in (left, right))
        flags = ("nnan", "nsz")
        order = ">" if self.operation.opcode == "maximum" else "<"
        is_left = builder.fcmp_ordered(order, left[0], right[0], flags=flags)
        value = builder.select(is_left, left[0], right[0], flags=flags)
        signs = getattr(builder, _SIGNS[self.operation.opcode])(left[1], right[1])
        return [value, signs, builder.or_(left[2], right[2])]

    def end(self, carried: Sequence[ir.Value]) -> ir.Value:
        """Returns the largest or smallest element, given what is carried for all.

        Zeros are told by their bits: a denormal may count as zero where floats are compared.
        """
        value, signs, *is_nan = carried
        builder, bits = self.emitter.builder, self._as_integer(value)
        size = integer_constant(bits.type, 1)
        is_zero = builder.icmp_signed("==", builder.shl(bits, size), integer_constant(bits.type, 0))
        if is_vector(signs) and not is_vector(value):
            value = widen(self.emitter.place, value)
        sign = builder.and_(signs, integer_constant(signs.type, -1 << (self.bits - 1)))
        result = builder.select(is_zero, builder.bitcast(sign, value.type), value)
        if is_nan:
            nan = constant(self.operation.shape.element_type, math.nan)
            has_nan = builder.icmp_signed("!=", is_nan[0], integer_constant(is_nan[0].type, 0))
            return choose(self.emitter.place, has_nan, nan, result)
        return result

    def _as_integer(self, value: ir.Value) -> ir.Value:
        return self.emitter.builder.bitcast(value, like(value, ir.IntType(self.bits)))
