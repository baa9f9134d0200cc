"""Work on constants, done while the kernel is built.

What loops unrolled by the emitter compute on counters and rotation tables folds here, so that
nothing of it reaches LLVM. Floats are left alone, as their results are XLA's business, but for what
a maximum or minimum starts from.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from llvmlite import ir

from fuselane.codegen.types import constant, constant_value, is_vector
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.shape import PrimitiveType

_BINARY: Final[Mapping[str, Callable[[int, int], int]]] = {
    "add": lambda x, y: x + y,
    "subtract": lambda x, y: x - y,
    "multiply": lambda x, y: x * y,
    "and": lambda x, y: x & y,
    "or": lambda x, y: x | y,
    "xor": lambda x, y: x ^ y,
    "minimum": min,
    "maximum": max,
}
_NEUTRAL: Final = {"maximum": -math.inf, "minimum": math.inf}
_COMPARE: Final[Mapping[str, Callable[[float, float], bool]]] = {
    "EQ": lambda x, y: x == y,
    "NE": lambda x, y: x != y,
    "LT": lambda x, y: x < y,
    "LE": lambda x, y: x <= y,
    "GT": lambda x, y: x > y,
    "GE": lambda x, y: x >= y,
}


def integer_value(value: ir.Value, element: PrimitiveType) -> int | None:
    """Returns the number an integer or boolean constant stands for, None if it is no constant."""
    if element.is_floating or is_vector(value):
        return None
    pattern = constant_value(value)
    if not isinstance(pattern, int):
        return None
    if element.is_signed and pattern >> (element.bits - 1):
        return pattern - (1 << element.bits)
    return pattern


def fold(instruction: HloInstruction, values: Sequence[ir.Value]) -> ir.Value | None:
    """Returns the result of an elementwise instruction on integer constants, or that of a maximum
    or minimum of floats with an infinity that leaves the other one as it is; else None.

    Numerics: exact, wrapping to the type's width as XLA does.
    """
    if instruction.opcode in _NEUTRAL:
        for value, other in (values, values[::-1]):
            if constant_value(value) == _NEUTRAL[instruction.opcode]:
                return other
    result = instruction.shape.element_type
    if result.is_floating or not all(isinstance(value, ir.Constant) for value in values):
        return None
    numbers = []
    for operand, value in zip(instruction.operands, values, strict=True):
        number = integer_value(value, operand.shape.element_type)
        if number is None:
            return None
        numbers.append(number)
    folded = evaluate(instruction, numbers)
    return None if folded is None else constant(result, _wrap(folded, result))


def evaluate(instruction: HloInstruction, numbers: Sequence[Any]) -> Any:
    """Returns what an elementwise instruction makes of numbers, not wrapped to its type; None if
    that is not known here. Floats are only chosen among and compared, not in a total order."""
    opcode = instruction.opcode
    if opcode in _BINARY:
        return _BINARY[opcode](*numbers)
    if opcode == "compare":
        return int(_COMPARE[instruction.comparison_direction](*numbers))
    if opcode == "select":
        return numbers[1] if numbers[0] else numbers[2]
    if opcode == "convert":
        return int(numbers[0] != 0) if _is_boolean(instruction) else numbers[0]
    return None


def _is_boolean(instruction: HloInstruction) -> bool:
    return instruction.shape.element_type is PrimitiveType.PRED


def _wrap(number: int, element: PrimitiveType) -> int:
    if element is PrimitiveType.PRED:
        return int(number != 0)
    pattern = number & ((1 << element.bits) - 1)
    if element.is_signed and pattern >> (element.bits - 1):
        return pattern - (1 << element.bits)
    return pattern
