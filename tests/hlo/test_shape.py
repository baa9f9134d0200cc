"""Element types and shapes."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuselane.errors import VerificationError
from fuselane.hlo import PrimitiveType, Shape
from fuselane.hlo.proto import ShapeProto
from tests.hlo import xla


def test_element_types() -> None:
    assert int(PrimitiveType.F32) == 11
    assert PrimitiveType.PRED.bits == 8
    assert PrimitiveType.S4.byte_size == 1
    assert PrimitiveType.F32.lower == "f32"
    assert PrimitiveType.U64.is_integral and PrimitiveType.U64.is_unsigned
    assert not PrimitiveType.PRED.is_integral
    assert PrimitiveType.BF16.is_floating and PrimitiveType.BF16.dtype == ml_dtypes.bfloat16
    assert PrimitiveType.C128.is_complex and PrimitiveType.C128.dtype == np.complex128
    assert not PrimitiveType.TUPLE.is_floating


def test_numpy_widths_agree() -> None:
    for element_type in PrimitiveType:
        if element_type.bits and element_type not in (PrimitiveType.S1, PrimitiveType.U1):
            assert element_type.dtype.itemsize == element_type.byte_size


def test_no_numpy_type_is_an_error() -> None:
    with pytest.raises(VerificationError, match="token"):
        PrimitiveType.TOKEN.dtype  # noqa: B018


def test_array() -> None:
    shape = Shape.array(PrimitiveType.F32, (4, 2048))
    assert str(shape) == "f32[4,2048]{1,0}"
    assert (shape.rank, shape.num_elements, shape.byte_size) == (2, 8192, 32768)
    assert shape.is_array and not shape.is_tuple and shape.is_plain and shape.is_row_major


def test_scalar() -> None:
    shape = Shape.array(PrimitiveType.PRED, ())
    assert str(shape) == "pred[]"
    assert (shape.rank, shape.num_elements, shape.strides) == (0, 1, ())


def test_tuple() -> None:
    scalar = Shape.array(PrimitiveType.S64, [])
    shape = Shape.tuple_of([scalar, Shape.tuple_of([]), Shape.array(PrimitiveType.U8, [0, 3])])
    assert str(shape) == "(s64[], (), u8[0,3]{1,0})"
    assert shape.is_tuple and not shape.is_array and shape.byte_size == 8


@given(st.lists(st.integers(1, 4), max_size=4).flatmap(lambda d: st.permutations(range(len(d)))))
def test_strides_are_those_of_numpy(minor_to_major: list[int]) -> None:
    sizes = tuple(range(2, 2 + len(minor_to_major)))
    shape = Shape(PrimitiveType.F32, sizes, (), tuple(minor_to_major))
    major_to_minor = minor_to_major[::-1]
    array = np.zeros([sizes[d] for d in major_to_minor], np.float32)
    logical = array.transpose(np.argsort(major_to_minor)) if sizes else array
    assert logical.shape == sizes
    assert shape.strides == tuple(stride // 4 for stride in logical.strides)
    assert shape.is_row_major == (major_to_minor == sorted(major_to_minor))


def _shape_of(text: str) -> Shape:
    root = xla.module_of(f"HloModule m\nENTRY e {{ ROOT x = {text} parameter(0) }}").entry.root
    return root.shape


@pytest.mark.parametrize(
    "text",
    [
        "f32[]",
        "f32[4,5]{0,1}",
        "bf16[3]{0}",
        "token[]",
        "(s32[], (pred[2]{0}, f8e5m2[1]{0}))",
        "()",
    ],
)
def test_text_is_that_of_xla(text: str) -> None:
    assert str(_shape_of(text)) == text
    assert _shape_of(text).is_plain


def test_layout_is_row_major_when_absent() -> None:
    proto = ShapeProto(element_type=PrimitiveType.F32, dimensions=[2, 3])
    assert Shape.from_proto(proto) == Shape.array(PrimitiveType.F32, (2, 3))


def test_equal_messages_give_the_same_object() -> None:
    assert _shape_of("(s32[], f32[7]{0})") is _shape_of("(s32[], f32[7]{0})")


@pytest.mark.parametrize(
    "text", ["f32[<=8]{0}", "bf16[8,128]{1,0:T(8,128)}", "s4[2]{0:E(4)}", "f32[4]{0:S(1)}"]
)
def test_details_are_kept(text: str) -> None:
    shape = _shape_of(text)
    assert not shape.is_plain
    assert not Shape.tuple_of([shape]).is_plain
    assert Shape.from_proto(shape.to_proto()) is shape
    assert shape != Shape.array(shape.element_type, shape.dimensions)
    assert shape.is_compatible(Shape.array(shape.element_type, shape.dimensions))


def test_compatible() -> None:
    row = Shape.array(PrimitiveType.F32, (2, 3))
    column = Shape(PrimitiveType.F32, (2, 3), (), (0, 1))
    assert row != column and row.is_compatible(column)
    assert Shape.tuple_of([row, row]).is_compatible(Shape.tuple_of([row, column]))
    assert not Shape.tuple_of([row]).is_compatible(Shape.tuple_of([row, row]))
    assert not row.is_compatible(Shape.array(PrimitiveType.S32, (2, 3)))


def test_bad_messages_are_refused() -> None:
    with pytest.raises(VerificationError, match="999"):
        Shape.from_proto(ShapeProto(element_type=999))
    bad = ShapeProto(element_type=11, dimensions=[2, 3])
    bad.layout.minor_to_major.append(0)
    with pytest.raises(VerificationError, match="layout"):
        Shape.from_proto(bad)
