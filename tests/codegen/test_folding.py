"""Integer work on constants is done while the kernel is built, with XLA's wrapping."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pytest
from llvmlite import ir

from fuselane.codegen.folding import fold, integer_value
from fuselane.codegen.types import constant, splat_constant
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.shape import PrimitiveType, Shape

INTEGERS: Final = [
    PrimitiveType.S8,
    PrimitiveType.U8,
    PrimitiveType.S16,
    PrimitiveType.U32,
    PrimitiveType.S32,
    PrimitiveType.S64,
    PrimitiveType.U64,
]
BINARY: Final[dict[str, Any]] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "minimum": np.minimum,
    "maximum": np.maximum,
}
COMPARE: Final[dict[str, Any]] = {
    "EQ": np.equal,
    "NE": np.not_equal,
    "LT": np.less,
    "LE": np.less_equal,
    "GT": np.greater,
    "GE": np.greater_equal,
}

integers = pytest.mark.parametrize("element", INTEGERS, ids=lambda element: element.lower)


def instruction_of(
    opcode: str,
    result: PrimitiveType,
    operands: Sequence[PrimitiveType],
    **attributes: Any,
) -> HloInstruction:
    parameters = [
        HloInstruction.create("parameter", Shape.array(element, ()), parameter_number=number)
        for number, element in enumerate(operands)
    ]
    return HloInstruction.create(opcode, Shape.array(result, ()), parameters, **attributes)


def telling(element: PrimitiveType) -> list[Any]:
    """Returns numbers at which signs and wrapping show."""
    if element is PrimitiveType.PRED:
        return [False, True]
    limits = np.iinfo(element.dtype)
    numbers = [0, 1, 3, limits.max, limits.min, limits.max - 2]
    return [element.dtype.type(number) for number in numbers]


def folded(instruction: HloInstruction, *values: Any) -> int | None:
    """Returns the number an instruction folds to, None if it doesn't."""
    elements = [operand.shape.element_type for operand in instruction.operands]
    constants = [constant(e, value) for e, value in zip(elements, values, strict=True)]
    result = fold(instruction, constants)
    return None if result is None else integer_value(result, instruction.shape.element_type)


@integers
@pytest.mark.parametrize("opcode", BINARY)
def test_arithmetic(element: PrimitiveType, opcode: str) -> None:
    instruction = instruction_of(opcode, element, [element, element])
    for left, right in itertools.product(telling(element), repeat=2):
        with np.errstate(over="ignore"):
            expected = int(BINARY[opcode](left, right))
        assert folded(instruction, left, right) == expected, (left, right)


@pytest.mark.parametrize("opcode", ["add", "and", "or", "xor", "minimum", "maximum", "multiply"])
def test_booleans(opcode: str) -> None:
    """XLA adds them by `or`: true and true is true."""
    pred = PrimitiveType.PRED
    instruction = instruction_of(opcode, pred, [pred, pred])
    for left, right in itertools.product([False, True], repeat=2):
        expected = bool(BINARY[opcode](left, right))
        assert folded(instruction, left, right) == expected, (left, right)


@integers
@pytest.mark.parametrize("direction", COMPARE)
def test_comparisons(element: PrimitiveType, direction: str) -> None:
    instruction = instruction_of(
        "compare", PrimitiveType.PRED, [element, element], comparison_direction=direction
    )
    for left, right in itertools.product(telling(element), repeat=2):
        assert folded(instruction, left, right) == COMPARE[direction](left, right), (left, right)


@integers
@pytest.mark.parametrize("source", [*INTEGERS, PrimitiveType.PRED], ids=lambda e: e.lower)
def test_conversions(element: PrimitiveType, source: PrimitiveType) -> None:
    instruction = instruction_of("convert", element, [source])
    to_boolean = instruction_of("convert", PrimitiveType.PRED, [source])
    for value in telling(source):
        expected = int(np.asarray(value).astype(element.dtype))
        assert folded(instruction, value) == expected, value
        assert folded(to_boolean, value) == int(value != 0), value


@integers
def test_selections(element: PrimitiveType) -> None:
    instruction = instruction_of("select", element, [PrimitiveType.PRED, element, element])
    low, *_, high = telling(element)
    assert folded(instruction, True, high, low) == high
    assert folded(instruction, False, high, low) == low


def test_what_is_left_alone() -> None:
    """Floats, vectors, what is no constant, and opcodes whose rules are elsewhere."""
    s32, f32 = PrimitiveType.S32, PrimitiveType.F32
    add = instruction_of("add", s32, [s32, s32])
    one = constant(s32, 1)
    function = ir.Function(
        ir.Module(), ir.FunctionType(ir.VoidType(), [ir.IntType(32)]), "function"
    )
    assert fold(add, [one, one]) is not None
    assert fold(add, [one, function.args[0]]) is None
    assert fold(add, [splat_constant(one, 4), one]) is None
    assert fold(instruction_of("add", f32, [f32, f32]), [constant(f32, 1)] * 2) is None
    assert fold(instruction_of("convert", s32, [f32]), [constant(f32, 1)]) is None
    assert fold(instruction_of("convert", f32, [s32]), [one]) is None
    equal = instruction_of("compare", PrimitiveType.PRED, [f32, f32], comparison_direction="EQ")
    assert fold(equal, [constant(f32, 1)] * 2) is None
    assert fold(instruction_of("divide", s32, [s32, s32]), [one, one]) is None


@integers
def test_numbers_of_constants(element: PrimitiveType) -> None:
    for value in telling(element):
        assert integer_value(constant(element, value), element) == int(value)
    assert integer_value(splat_constant(constant(element, 1), 4), element) is None


@pytest.mark.parametrize("element", [PrimitiveType.F16, PrimitiveType.F32, PrimitiveType.F64])
@pytest.mark.parametrize("width", [0, 8])
@pytest.mark.parametrize(("opcode", "neutral"), [("maximum", -np.inf), ("minimum", np.inf)])
def test_what_a_maximum_starts_from(
    opcode: str, neutral: float, width: int, element: PrimitiveType
) -> None:
    instruction = instruction_of(opcode, element, [element, element])
    start, other = constant(element, neutral, width), constant(element, 0.5, width)
    assert fold(instruction, [start, other]) is other
    assert fold(instruction, [other, start]) is other
    assert fold(instruction, [other, constant(element, -neutral, width)]) is None
    assert fold(instruction_of("add", element, [element, element]), [start, other]) is None
