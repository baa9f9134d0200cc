"""Constants of every element type, against XLA's parser."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fuselane.errors import VerificationError
from fuselane.hlo import (
    HloComputation,
    HloInstruction,
    HloModule,
    PrimitiveType,
    Shape,
    literal_to_numpy,
    numpy_to_literal,
)
from tests.hlo import xla

_NOT_IN_XLA = {
    PrimitiveType.S1,
    PrimitiveType.U1,
    PrimitiveType.F6E3M2FN,
    PrimitiveType.F6E2M3FN,
}
_TYPES = [t for t in PrimitiveType if t.bits and t not in _NOT_IN_XLA]


def _constant(text: str) -> HloInstruction:
    return xla.module_of(f"HloModule m\nENTRY e {{ ROOT c = {text} }}").entry.root


def _samples(element_type: PrimitiveType) -> tuple[str, list[Any]]:
    if element_type is PrimitiveType.PRED:
        return "{true, false}", [True, False]
    if element_type.is_complex:
        return "{(1, -2), (0.5, 3)}", [1 - 2j, 0.5 + 3j]
    if element_type.is_unsigned:
        return "{1, 0}", [1, 0]
    if element_type is PrimitiveType.F8E8M0FNU:
        return "{1, 2}", [1, 2]
    return "{1, -1}", [1, -1]


@pytest.mark.parametrize("element_type", _TYPES)
def test_every_type(element_type: PrimitiveType) -> None:
    text, values = _samples(element_type)
    constant = _constant(f"{element_type.lower}[2] constant({text})")
    assert constant.literal.dtype == element_type.dtype
    assert constant.literal.tolist() == np.array(values, element_type.dtype).tolist()
    assert numpy_to_literal(constant.literal, constant.shape) == constant.proto.literal


@pytest.mark.parametrize("element_type", [PrimitiveType.S32, PrimitiveType.S64, PrimitiveType.U64])
def test_extreme_integers(element_type: PrimitiveType) -> None:
    info = np.iinfo(element_type.dtype)
    array = np.array([info.min, info.max, 0], element_type.dtype)
    literal = numpy_to_literal(array, Shape.array(element_type, (3,)))
    np.testing.assert_array_equal(literal_to_numpy(literal), array)


def test_bit_patterns_of_floats_survive() -> None:
    bits = np.array([0x7FC00001, 0xFF812345, 0x80000000, 0x00000001, 0x7F800000], np.uint32)
    literal = numpy_to_literal(bits.view(np.float32), Shape.array(PrimitiveType.F32, (5,)))
    np.testing.assert_array_equal(literal_to_numpy(literal).view(np.uint32), bits)


def test_elements_are_in_order_of_layout() -> None:
    constant = _constant("s32[2,3]{0,1} constant({{1,2,3},{4,5,6}})")
    assert constant.literal.tolist() == [[1, 2, 3], [4, 5, 6]]
    assert list(constant.proto.literal.s32s) == [1, 4, 2, 5, 3, 6]
    assert numpy_to_literal(constant.literal, constant.shape) == constant.proto.literal


def test_layouts_of_rank_three() -> None:
    array = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    shape = Shape(PrimitiveType.F32, (2, 3, 4), (), (1, 2, 0))
    np.testing.assert_array_equal(literal_to_numpy(numpy_to_literal(array, shape)), array)


def test_scalar_and_empty() -> None:
    assert _constant("f32[] constant(2.5)").literal[()] == np.float32(2.5)
    assert _constant("f32[0,3] constant({})").literal.shape == (0, 3)
    scalar = numpy_to_literal(np.float32(1), Shape.array(PrimitiveType.F32, ()))
    assert literal_to_numpy(scalar).shape == ()


def test_result_is_read_only_and_cached() -> None:
    constant = _constant("s8[2] constant({1, 2})")
    assert constant.literal is constant.literal
    with pytest.raises(ValueError, match="read-only"):
        constant.literal[0] = 3


def test_written_constants_are_read_by_xla() -> None:
    array = np.array([1.5, -0.0, np.inf], np.float32)
    computation = HloComputation.create("e")
    shape = Shape.array(PrimitiveType.F32, (3,))
    computation.root = computation.add(HloInstruction.create("constant", shape, literal=array))
    text = xla.to_text(HloModule.create("m", computation).to_bytes())
    assert "constant({1.5, -0, inf})" in text


def test_misfits_are_refused() -> None:
    shape = Shape.array(PrimitiveType.F32, (3,))
    with pytest.raises(VerificationError, match="f32"):
        numpy_to_literal(np.zeros(3), shape)
    with pytest.raises(VerificationError, match=r"\[2\]"):
        numpy_to_literal(np.zeros(2, np.float32), shape)
    short = numpy_to_literal(np.zeros(3, np.float32), shape)
    short.shape.dimensions[0] = 4
    with pytest.raises(VerificationError, match="holds 3"):
        literal_to_numpy(short)


def test_tuples_are_refused() -> None:
    with pytest.raises(VerificationError, match="tuple"):
        _ = _constant("(s32[], f32[]) constant((1, 2))").literal
