"""Conversions kept away from arrays of which a part is read, replaced or chosen.

XLA:CPU works on bf16 by converting to f32 and back, whole arrays too:

    convert(dynamic-update-slice(convert(%x), %y, %i))   %x: bf16[50,8], the result too
->  dynamic-update-slice(%x, convert(%y), %i)
    convert(select(%p, %y, convert(%x)))                 ->  select(%p, convert(%y), %x)
    dynamic-slice(convert(%x), %i)                       ->  convert(dynamic-slice(%x, %i))

Opcodes that only move values, or choose among them, can be applied before or after a conversion;
and converting to a type that holds all values of another, and back, changes nothing.

Numerics: bitwise-equal, but for the bits of NaNs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, final

from fuselane.hlo.computation import HloComputation
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.shape import PrimitiveType
from fuselane.lanes.builder import ComputationBuilder, array_shape

_MANTISSA_BITS: Final = {
    PrimitiveType.F16: 11,
    PrimitiveType.BF16: 8,
    PrimitiveType.F32: 24,
    PrimitiveType.F64: 53,
}
_MOVED_OPERANDS: Final[Mapping[str, Callable[[int], range]]] = {
    "broadcast": lambda _: range(1),
    "concatenate": range,
    "dynamic-slice": lambda _: range(1),
    "dynamic-update-slice": lambda _: range(2),
    "gather": lambda _: range(1),
    "pad": lambda _: range(2),
    "reshape": lambda _: range(1),
    "reverse": lambda _: range(1),
    "scatter": lambda count: range(0, count, 2),
    "select": lambda _: range(1, 3),
    "slice": lambda _: range(1),
    "transpose": lambda _: range(1),
}
"""Opcodes that move values -> given the number of operands, those they move."""

_READING_OPCODES: Final = frozenset({"dynamic-slice", "gather", "slice"})


def read_unconverted(builder: ComputationBuilder, value: HloInstruction) -> HloInstruction:
    """Returns parts read from converted arrays as converted parts; anything else as it is."""
    if value.opcode not in _READING_OPCODES:
        return value
    source = _find_conversion(builder, value, None)
    if source is None:
        return value
    unconverted = _Unconverted(builder, source.operands[0].shape.element_type, is_exact=True)
    part = unconverted.get(value)
    return value if part is None else builder.convert(part, value.shape.element_type, origin=value)


def convert_back(
    builder: ComputationBuilder, value: HloInstruction, element_type: PrimitiveType
) -> HloInstruction | None:
    """Returns a value converted to an element type, made from arrays of that type.

    Returns None if it is made from none, so that it has to be converted itself.
    """
    if _find_conversion(builder, value, element_type) is None:
        return None
    return _Unconverted(builder, element_type, is_exact=False).get(value)


@final
class _Unconverted:
    """Values as they are, or would be, in another element type.

    Attributes:
        is_exact: Whether converting a value back has to give what it was.
    """

    def __init__(
        self, builder: ComputationBuilder, element_type: PrimitiveType, *, is_exact: bool
    ) -> None:
        self.builder = builder
        self.element_type = element_type
        self.is_exact = is_exact
        self._known: dict[HloInstruction, HloInstruction | None] = {}

    def get(self, value: HloInstruction) -> HloInstruction | None:
        """Returns the value in the other type, or None if that would not be exact."""
        if value not in self._known:
            self._known[value] = self._make(value)
        return self._known[value]

    def _make(self, value: HloInstruction) -> HloInstruction | None:
        if _is_conversion(value, self.element_type):
            return value.operands[0]
        if not _is_moving(value):
            if self.is_exact:
                return None
            return self.builder.convert(value, self.element_type, origin=value)
        moved = _MOVED_OPERANDS[value.opcode](len(value.operands))
        operands = list(value.operands)
        for position in moved:
            operand = self.get(operands[position])
            if operand is None:
                return None
            operands[position] = operand
        called = tuple(self._second_of_two(c) for c in value.called_computations)
        return self.builder.emit_like(value, self.element_type, operands, called=called)

    def _second_of_two(self, original: HloComputation) -> HloComputation:
        """Returns what a scatter applies that replaces values."""
        builder = ComputationBuilder(original.name)
        shape = array_shape(self.element_type, ())
        values = [builder.parameter(i, shape, p) for i, p in enumerate(original.parameters)]
        return builder.finish(values[1])


def _find_conversion(
    builder: ComputationBuilder, value: HloInstruction, element_type: PrimitiveType | None
) -> HloInstruction | None:
    """Returns a conversion of an array, from a type if one is given, that a value is moved from."""
    known = builder.unconverted.setdefault(element_type, set())
    seen: set[HloInstruction] = set()
    stack = [value]
    while stack:
        top = stack.pop()
        if top in seen or top in known:
            continue
        seen.add(top)
        if top.opcode == "convert":
            source = top.operands[0].shape.element_type
            if _is_conversion(top, source if element_type is None else element_type):
                return top
        elif _is_moving(top):
            moved = _MOVED_OPERANDS[top.opcode](len(top.operands))
            stack.extend(top.operands[position] for position in moved)
    known |= seen
    return None


def _is_conversion(value: HloInstruction, source: PrimitiveType) -> bool:
    """Whether a value is converted from a type to one that holds all its values."""
    if value.opcode != "convert" or value.operands[0].shape.element_type is not source:
        return False
    return _holds_all_of(value.shape.element_type, source)


def _holds_all_of(wide: PrimitiveType, narrow: PrimitiveType) -> bool:
    if narrow.is_floating:
        if wide is PrimitiveType.F16:
            return False
        return wide.is_floating and _MANTISSA_BITS[wide] > _MANTISSA_BITS[narrow]
    num_bits = 1 if narrow is PrimitiveType.PRED else narrow.bits
    if wide.is_floating:
        return num_bits <= _MANTISSA_BITS[wide]
    if narrow is PrimitiveType.PRED or narrow.is_unsigned:
        return wide.is_integral and wide.bits > num_bits
    return wide.is_signed and wide.bits > num_bits


def _is_moving(value: HloInstruction) -> bool:
    """Whether a value consists of values of its operands."""
    if value.opcode != "scatter":
        return value.opcode in _MOVED_OPERANDS
    if not value.shape.is_array:
        return False
    root = value.to_apply.root
    return root.opcode == "parameter" and root.parameter_number == 1
