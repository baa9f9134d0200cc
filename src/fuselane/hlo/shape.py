"""Element types and shapes of HLO values."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Self, final

import ml_dtypes
import numpy as np

from fuselane.errors import VerificationError
from fuselane.hlo.proto import Message, ShapeProto

_Kind = Literal["predicate", "signed", "unsigned", "float", "complex", "other"]


@final
class PrimitiveType(enum.IntEnum):
    """XLA's element types, with XLA's numbers.

    Attributes:
        lower: The name in HLO text, such as "f32" or "pred".
        bits: Width of one value; 8 for PRED, 0 for types that hold no numbers.
        byte_size: Bytes one element takes in an array that is not packed; at least 1 where `bits`
            is not 0.
        is_integral: Signed or unsigned integers; not PRED.
    """

    lower: str
    bits: int
    byte_size: int
    is_signed: bool
    is_unsigned: bool
    is_integral: bool
    is_floating: bool
    is_complex: bool
    _numpy: Any

    def __new__(cls, value: int, lower: str, bits: int, kind: _Kind, numpy: Any = None) -> Self:
        self = int.__new__(cls, value)
        self._value_ = value
        self.lower = lower
        self.bits = bits
        self.byte_size = (bits + 7) // 8
        self.is_signed = kind == "signed"
        self.is_unsigned = kind == "unsigned"
        self.is_integral = self.is_signed or self.is_unsigned
        self.is_floating = kind == "float"
        self.is_complex = kind == "complex"
        self._numpy = None if numpy is None else np.dtype(numpy)
        return self

    INVALID = 0, "invalid", 0, "other"
    PRED = 1, "pred", 8, "predicate", np.bool_
    S8 = 2, "s8", 8, "signed", np.int8
    S16 = 3, "s16", 16, "signed", np.int16
    S32 = 4, "s32", 32, "signed", np.int32
    S64 = 5, "s64", 64, "signed", np.int64
    U8 = 6, "u8", 8, "unsigned", np.uint8
    U16 = 7, "u16", 16, "unsigned", np.uint16
    U32 = 8, "u32", 32, "unsigned", np.uint32
    U64 = 9, "u64", 64, "unsigned", np.uint64
    F16 = 10, "f16", 16, "float", np.float16
    F32 = 11, "f32", 32, "float", np.float32
    F64 = 12, "f64", 64, "float", np.float64
    TUPLE = 13, "tuple", 0, "other"
    OPAQUE_TYPE = 14, "opaque", 0, "other"
    C64 = 15, "c64", 64, "complex", np.complex64
    BF16 = 16, "bf16", 16, "float", ml_dtypes.bfloat16
    TOKEN = 17, "token", 0, "other"
    C128 = 18, "c128", 128, "complex", np.complex128
    F8E5M2 = 19, "f8e5m2", 8, "float", ml_dtypes.float8_e5m2
    F8E4M3FN = 20, "f8e4m3fn", 8, "float", ml_dtypes.float8_e4m3fn
    S4 = 21, "s4", 4, "signed", ml_dtypes.int4
    U4 = 22, "u4", 4, "unsigned", ml_dtypes.uint4
    F8E4M3B11FNUZ = 23, "f8e4m3b11fnuz", 8, "float", ml_dtypes.float8_e4m3b11fnuz
    F8E5M2FNUZ = 24, "f8e5m2fnuz", 8, "float", ml_dtypes.float8_e5m2fnuz
    F8E4M3FNUZ = 25, "f8e4m3fnuz", 8, "float", ml_dtypes.float8_e4m3fnuz
    S2 = 26, "s2", 2, "signed", ml_dtypes.int2
    U2 = 27, "u2", 2, "unsigned", ml_dtypes.uint2
    F8E4M3 = 28, "f8e4m3", 8, "float", ml_dtypes.float8_e4m3
    F8E3M4 = 29, "f8e3m4", 8, "float", ml_dtypes.float8_e3m4
    S1 = 30, "s1", 1, "signed"
    U1 = 31, "u1", 1, "unsigned"
    F4E2M1FN = 32, "f4e2m1fn", 4, "float", ml_dtypes.float4_e2m1fn
    F8E8M0FNU = 33, "f8e8m0fnu", 8, "float", ml_dtypes.float8_e8m0fnu
    BUFFER = 34, "b", 0, "other"
    F6E3M2FN = 35, "f6e3m2fn", 6, "float", ml_dtypes.float6_e3m2fn
    F6E2M3FN = 36, "f6e2m3fn", 6, "float", ml_dtypes.float6_e2m3fn

    __hash__ = int.__hash__

    @property
    def dtype(self) -> np.dtype[Any]:
        """The numpy type (ml_dtypes' for the small ones). Raises VerificationError where there is
        none."""
        if self._numpy is None:
            raise VerificationError(f"Element type {self.lower} has no numpy counterpart.")
        result: np.dtype[Any] = self._numpy
        return result


WIDE_FLOATS: Final = frozenset({PrimitiveType.F32, PrimitiveType.F64})
"""Floats whose sums may be kept in their own type, in any order."""

_MAX_INTERNED: Final = 4096
_MAX_BYTES: Final = 2**63 - 1
_ELEMENT_TYPES: Final = {int(element_type): element_type for element_type in PrimitiveType}
_interned: dict[bytes, Shape] = {}


@final
@dataclass(frozen=True, slots=True)
class Shape:
    """The type of an HLO value: an array, a tuple, a token or something opaque.

    Attributes:
        element_type: TUPLE for tuples.
        dimensions: Sizes, major to minor in logical order; upper bounds where dynamic.
        tuple_shapes: Elements of a tuple.
        minor_to_major: Layout of an array: dimension numbers, fastest-varying first.
        details: For an array with more to it than the above (tiles, packed elements, memory space,
            dynamic dimensions), its whole serialized ShapeProto; else empty.
        num_elements: Number of elements of an array; 1 for a scalar.
        byte_size: Bytes of an array's elements, not packed; for a tuple the sum over its elements,
            without its table.
        num_leaves: Arrays, tokens and the like it is made of; 1 for what is no tuple.
        is_tuple: Whether values are tuples.
        is_array: Whether values are arrays of numbers, scalars included.
        leaves: What a tuple is made of, in order; nothing for what is none.
        true_rank: Number of dimensions that are not of size one.
    """

    element_type: PrimitiveType
    dimensions: tuple[int, ...] = ()
    tuple_shapes: tuple[Shape, ...] = ()
    minor_to_major: tuple[int, ...] = ()
    details: bytes = b""
    num_elements: int = field(init=False, repr=False, compare=False)
    byte_size: int = field(init=False, repr=False, compare=False)
    num_leaves: int = field(init=False, repr=False, compare=False)
    is_tuple: bool = field(init=False, repr=False, compare=False)
    is_array: bool = field(init=False, repr=False, compare=False)
    leaves: tuple[Shape, ...] = field(init=False, repr=False, compare=False)
    true_rank: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        size = sum([shape.byte_size for shape in self.tuple_shapes])
        num_elements = math.prod(self.dimensions)
        object.__setattr__(self, "is_tuple", self.element_type is PrimitiveType.TUPLE)
        object.__setattr__(self, "is_array", self.element_type.bits != 0)
        object.__setattr__(self, "num_elements", num_elements)
        object.__setattr__(self, "byte_size", size or num_elements * self.element_type.byte_size)
        leaves = [
            leaf
            for element in self.tuple_shapes
            for leaf in (element.leaves if element.is_tuple else (element,))
        ]
        object.__setattr__(self, "leaves", tuple(leaves))
        object.__setattr__(self, "num_leaves", len(leaves) if self.is_tuple else 1)
        object.__setattr__(self, "true_rank", len(self.dimensions) - self.dimensions.count(1))

    @classmethod
    def array(cls, element_type: PrimitiveType, dimensions: tuple[int, ...] | list[int]) -> Shape:
        """Returns a row-major array shape."""
        sizes = tuple(dimensions)
        return cls(element_type, sizes, (), tuple(range(len(sizes) - 1, -1, -1)))

    @classmethod
    def tuple_of(cls, shapes: tuple[Shape, ...] | list[Shape]) -> Shape:
        """Returns the shape of a tuple with these elements."""
        return cls(PrimitiveType.TUPLE, (), tuple(shapes))

    @classmethod
    def from_proto(cls, proto: Message) -> Shape:
        """Returns the shape a ShapeProto describes; equal messages give the same object.

        Raises:
            VerificationError: if the element type is not one this version knows.
        """
        key: bytes = proto.SerializeToString()
        shape = _interned.get(key)
        if shape is None:
            shape = _parse(proto)
            if len(_interned) >= _MAX_INTERNED:
                _interned.clear()
            _interned[key] = shape
        return shape

    def to_proto(self) -> Message:
        """Returns a new ShapeProto."""
        if self.details:
            return ShapeProto.FromString(self.details)
        proto = ShapeProto(element_type=self.element_type)
        if self.is_tuple:
            proto.tuple_shapes.extend(shape.to_proto() for shape in self.tuple_shapes)
        elif self.is_array:
            proto.dimensions.extend(self.dimensions)
            proto.is_dynamic_dimension.extend((False,) * len(self.dimensions))
            proto.layout.tail_padding_alignment_in_elements = 1
            proto.layout.minor_to_major.extend(self.minor_to_major)
        return proto

    @property
    def is_plain(self) -> bool:
        """Whether dimensions and minor_to_major say all: no tiles, packing, memory space or dynamic
        sizes."""
        return not self.details and all(shape.is_plain for shape in self.tuple_shapes)

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.dimensions)

    @property
    def strides(self) -> tuple[int, ...]:
        """Distance, in elements, between neighbours along each dimension, as laid out in memory."""
        strides = [0] * len(self.dimensions)
        stride = 1
        for dimension in self.minor_to_major:
            strides[dimension] = stride
            stride *= self.dimensions[dimension]
        return tuple(strides)

    @property
    def is_row_major(self) -> bool:
        """Whether the last dimension varies fastest, and so on."""
        return self.minor_to_major == tuple(range(len(self.dimensions) - 1, -1, -1))

    def is_compatible(self, other: Shape) -> bool:
        """Whether values hold the same elements: as equality, but layouts and other details may
        differ."""
        return (
            self.element_type is other.element_type
            and self.dimensions == other.dimensions
            and len(self.tuple_shapes) == len(other.tuple_shapes)
            and all(
                mine.is_compatible(its)
                for mine, its in zip(self.tuple_shapes, other.tuple_shapes, strict=True)
            )
        )

    def __str__(self) -> str:
        if self.is_tuple:
            return f"({', '.join(map(str, self.tuple_shapes))})"
        sizes = ",".join(map(str, self.dimensions))
        layout = ",".join(map(str, self.minor_to_major))
        return f"{self.element_type.lower}[{sizes}]" + (f"{{{layout}}}" if layout else "")


def _parse(proto: Message) -> Shape:
    try:
        element_type = _ELEMENT_TYPES[proto.element_type]
    except KeyError:
        raise VerificationError(
            f"XLA's element type {proto.element_type} is not known to fuselane."
        ) from None
    if element_type is PrimitiveType.TUPLE:
        return Shape.tuple_of([Shape.from_proto(element) for element in proto.tuple_shapes])
    shape = Shape.array(element_type, proto.dimensions)
    _check_sizes(shape)
    if proto.HasField("layout"):
        layout = tuple(proto.layout.minor_to_major)
        if sorted(layout) != list(range(len(shape.dimensions))):
            raise VerificationError(f"Shape {shape} has a layout of dimensions {layout}.")
        shape = Shape(element_type, shape.dimensions, (), layout)
    plain = shape.to_proto()
    if _has_details(proto, plain):
        return Shape(
            element_type, shape.dimensions, (), shape.minor_to_major, proto.SerializeToString()
        )
    return shape


def _check_sizes(shape: Shape) -> None:
    """Raises VerificationError for sizes that no array has; all offsets into others fit 63 bits."""
    size = max(shape.element_type.byte_size, 1)
    for dimension in shape.dimensions:
        if dimension < 0:
            raise VerificationError(f"Shape {shape} has a dimension of negative size.")
        size *= max(dimension, 1)
        if size > _MAX_BYTES:
            raise VerificationError(f"Shape {shape} takes more than {_MAX_BYTES} bytes.")


def _has_details(proto: Message, plain: Message) -> bool:
    """Whether `proto` says more than `plain`, which was made from its dimensions and layout
    alone."""
    bare = ShapeProto()
    bare.CopyFrom(proto)
    if plain.HasField("layout"):
        bare.layout.minor_to_major[:] = plain.layout.minor_to_major
        bare.layout.tail_padding_alignment_in_elements |= 1
    if not any(proto.is_dynamic_dimension):
        bare.is_dynamic_dimension[:] = plain.is_dynamic_dimension
    details: bool = bare.SerializeToString(deterministic=True) != plain.SerializeToString(
        deterministic=True
    )
    return details
