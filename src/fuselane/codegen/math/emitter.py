"""Floating-point arithmetic on scalars or vectors of one format, as the math routines write it.

Nothing here carries fast-math flags: LLVM may not reorder or fuse what the error analysis relies
on, and a fused multiply-add is fused on every machine.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import lru_cache
from typing import final

from llvmlite import ir

from fuselane.codegen.types import TextConstant, any_lane, like, scalar_type, vector_of, width_of


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class FloatFormat:
    """An IEEE binary format.

    Attributes:
        bits: Width of the whole number.
        mantissa_bits: Stored bits of the significand.
        bias: Exponent field of 1.0.
        suffix: LLVM's name of the format in intrinsics.
    """

    bits: int
    mantissa_bits: int
    bias: int
    suffix: str

    @property
    def one_bits(self) -> int:
        """The bit pattern of 1.0."""
        return self.bias << self.mantissa_bits

    @property
    def infinity_bits(self) -> int:
        """The bit pattern of +inf."""
        return (2 * self.bias + 1) << self.mantissa_bits

    @property
    def smallest_normal_bits(self) -> int:
        """The bit pattern of the smallest positive number that is not denormal."""
        return 1 << self.mantissa_bits

    @property
    def sign_bit(self) -> int:
        """The bit pattern of -0.0."""
        return 1 << (self.bits - 1)

    @property
    def rounder(self) -> float:
        """1.5 * 2**mantissa_bits: added to a number, it leaves it rounded to an integer there."""
        return 1.5 * 2.0**self.mantissa_bits


FLOAT = FloatFormat(bits=32, mantissa_bits=23, bias=127, suffix="f32")
DOUBLE = FloatFormat(bits=64, mantissa_bits=52, bias=1023, suffix="f64")

_FORMATS = {"float": FLOAT, "double": DOUBLE}


@lru_cache(maxsize=4096)
def _float_constant(spelling: str, width: int, bits: int) -> ir.Constant:
    scalar_text = f"0x{bits:016X}"
    scalar = ir.FloatType() if spelling == "float" else ir.DoubleType()
    if not width:
        return TextConstant(scalar, scalar_text, None)
    return TextConstant(vector_of(scalar, width), f"splat ({spelling} {scalar_text})", None)


@lru_cache(maxsize=4096)
def _integer_constant(bits: int, width: int, value: int) -> ir.Constant:
    scalar = ir.IntType(bits)
    if not width:
        return ir.Constant(scalar, value)
    return TextConstant(vector_of(scalar, width), f"splat (i{bits} {value})", None)


@final
class FloatEmitter:
    """Emits operations on values of one floating-point type, scalar or vector, at a builder.

    Attributes:
        builder: Where instructions go.
        type: `float`, `double` or a vector of them.
        integer_type: The integers of the same width and count.
        format: What one number looks like.
    """

    def __init__(self, builder: ir.IRBuilder, type_: ir.Type) -> None:
        self.builder = builder
        self.type = type_
        self.width = width_of(type_)
        self._spelling = str(scalar_type(type_))
        self.format = _FORMATS[self._spelling]
        self.integer_type = like(type_, ir.IntType(self.format.bits))
        self.suffix = (f"v{self.width}" if self.width else "") + self.format.suffix

    @property
    def is_double(self) -> bool:
        """Says whether numbers have 64 bits."""
        return self.format is DOUBLE

    def at(self, type_: ir.Type) -> FloatEmitter:
        """Returns an emitter for another type at the same builder."""
        return FloatEmitter(self.builder, type_)

    # Constants

    def constant(self, value: float) -> ir.Constant:
        """Returns `value`, rounded to the format, in every lane."""
        if not self.is_double:
            value = struct.unpack("f", struct.pack("f", value))[0]
        bits = struct.unpack("<Q", struct.pack("<d", value))[0]
        return _float_constant(self._spelling, self.width, bits)

    def integer(self, value: int) -> ir.Constant:
        """Returns an integer, wrapped to the format's width, in every lane."""
        wrapped = value & ((1 << self.format.bits) - 1)
        return _integer_constant(self.format.bits, self.width, wrapped)

    @property
    def infinity(self) -> ir.Constant:
        """+inf in every lane."""
        return self.constant(float("inf"))

    @property
    def smallest_normal(self) -> ir.Constant:
        """The smallest positive number that is not denormal, in every lane."""
        return self.constant(2.0 ** (1 - self.format.bias))

    @property
    def nan(self) -> ir.Constant:
        """A quiet NaN in every lane."""
        return self.constant(float("nan"))

    # Arithmetic

    def add(self, a: ir.Value, b: ir.Value) -> ir.Value:
        """a + b."""
        return self.builder.fadd(a, b)

    def subtract(self, a: ir.Value, b: ir.Value) -> ir.Value:
        """a - b."""
        return self.builder.fsub(a, b)

    def multiply(self, a: ir.Value, b: ir.Value) -> ir.Value:
        """a * b."""
        return self.builder.fmul(a, b)

    def divide(self, a: ir.Value, b: ir.Value) -> ir.Value:
        """a / b."""
        return self.builder.fdiv(a, b)

    def negate(self, a: ir.Value) -> ir.Value:
        """-a."""
        return self.builder.fneg(a)

    def fma(self, a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
        """a * b + c, rounded once."""
        return self._call("llvm.fma", a, b, c)

    def absolute(self, a: ir.Value) -> ir.Value:
        """|a|."""
        return self._call("llvm.fabs", a)

    def sqrt(self, a: ir.Value) -> ir.Value:
        """The correctly rounded square root."""
        return self._call("llvm.sqrt", a)

    def truncate(self, a: ir.Value) -> ir.Value:
        """`a` without its fraction."""
        return self._call("llvm.trunc", a)

    def copy_sign(self, magnitude: ir.Value, sign: ir.Value) -> ir.Value:
        """`magnitude` with the sign of `sign`."""
        return self._call("llvm.copysign", magnitude, sign)

    def at_most(self, a: ir.Value, bound: float) -> ir.Value:
        """min(a, bound); NaN stays NaN."""
        limit = self.constant(bound)
        return self.select(self.compare(">", a, limit), limit, a)

    def at_least(self, a: ir.Value, bound: float) -> ir.Value:
        """max(a, bound); NaN stays NaN."""
        limit = self.constant(bound)
        return self.select(self.compare("<", a, limit), limit, a)

    # Comparisons and choices

    def compare(self, relation: str, a: ir.Value, b: ir.Value) -> ir.Value:
        """An ordered comparison: false where a lane of either side is NaN."""
        return self.builder.fcmp_ordered(relation, a, b)

    def select(self, condition: ir.Value, a: ir.Value, b: ir.Value) -> ir.Value:
        """`a` where the condition holds, else `b`."""
        return self.builder.select(condition, a, b)

    def outside(self, bits: ir.Value, first: int, last: int) -> ir.Value:
        """True where a bit pattern, as unsigned number, is not in [first, last)."""
        offset = self.builder.sub(bits, self.integer(first))
        return self.builder.icmp_unsigned(">=", offset, self.integer(last - first))

    def any(self, condition: ir.Value) -> ir.Value:
        """One `i1`: whether the condition holds in some lane."""
        return any_lane(self.builder, condition)

    # Bits

    def to_bits(self, a: ir.Value) -> ir.Value:
        """The bit pattern as an integer."""
        return self.builder.bitcast(a, self.integer_type)

    def from_bits(self, a: ir.Value) -> ir.Value:
        """The number with a bit pattern."""
        return self.builder.bitcast(a, self.type)

    def shift_left(self, a: ir.Value, count: int) -> ir.Value:
        """An integer shifted to the left."""
        return self.builder.shl(a, self.integer(count))

    def shift_right(self, a: ir.Value, count: int) -> ir.Value:
        """An integer shifted to the right, zeros coming in."""
        return self.builder.lshr(a, self.integer(count))

    def flip_sign(self, a: ir.Value, bits: ir.Value) -> ir.Value:
        """`a` negated where the top bit of `bits` is set."""
        sign = self.builder.and_(bits, self.integer(self.format.sign_bit))
        return self.from_bits(self.builder.xor(self.to_bits(a), sign))

    def _call(self, name: str, *operands: ir.Value) -> ir.Value:
        return self.builder.call(
            self._declared(f"{name}.{self.suffix}", self.type, *operands), operands
        )

    def _declared(self, name: str, result: ir.Type, *operands: ir.Value) -> ir.Function:
        module = self.builder.module
        function = module.globals.get(name)
        if function is None:
            signature = ir.FunctionType(result, [operand.type for operand in operands])
            function = ir.Function(module, signature, name)
        return function
