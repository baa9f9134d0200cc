"""What XLA:CPU computes for complex numbers, written out for pairs of real arrays.

Transcendental functions reach a loop already taken apart by XLA; what is left are the opcodes of
`COMPLEX_RULES`. Each follows XLA's own code for its fused computations, operation by operation and
with its special cases, so that results differ by the error of real functions and by contraction of
products and sums only.

Source: the LLVM IR that XLA:CPU emits for each opcode (MLIR's complex-to-standard).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, final

import numpy as np

from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.shape import PrimitiveType
from fuselane.lanes.builder import Attributes, ComputationBuilder, array_shape

_BITS: Final = {PrimitiveType.F32: PrimitiveType.U32, PrimitiveType.F64: PrimitiveType.U64}

_COSINE_SERIES: Final = (
    4.7377507964246204691685e-14,
    -1.1470284843425359765671e-11,
    2.0876754287081521758361e-9,
    -2.7557319214999787979814e-7,
    2.4801587301570552304991e-5,
    -1.3888888888888872993737e-3,
    4.1666666666666666609054e-2,
)
"""(cos(x) - 1 + x**2 / 2) / x**4 in powers of x**2, highest first, for |x| <= pi / 4."""
_LARGE_SQUARE: Final = 0.61685
"""(pi / 4)**2."""


@final
@dataclass(frozen=True, slots=True)
class Real:
    """A real or boolean array that is computed with.

    Attributes:
        builder: Where results are emitted.
        origin: The user's instruction they stand for.
        value: The array.
    """

    builder: ComputationBuilder
    origin: HloInstruction
    value: HloInstruction

    @property
    def element_type(self) -> PrimitiveType:
        """Of its elements."""
        return self.value.shape.element_type

    def __add__(self, other: Real | float) -> Real:
        return self._apply("add", other)

    def __sub__(self, other: Real | float) -> Real:
        return self._apply("subtract", other)

    def __mul__(self, other: Real | float) -> Real:
        return self._apply("multiply", other)

    def __truediv__(self, other: Real | float) -> Real:
        return self._apply("divide", other)

    def __neg__(self) -> Real:
        return self._apply("negate")

    def __lt__(self, other: Real | float) -> Real:
        return self.compare("LT", other)

    def __gt__(self, other: Real | float) -> Real:
        return self.compare("GT", other)

    def __and__(self, other: Real) -> Real:
        return self._apply("and", other)

    def __or__(self, other: Real) -> Real:
        return self._apply("or", other)

    def __invert__(self) -> Real:
        return self._apply("not")

    def apply(self, opcode: str, *others: Real) -> Real:
        """Returns the result, of the same type, of an elementwise opcode."""
        return self._apply(opcode, *others)

    def equals(self, other: Real | float) -> Real:
        """Returns where two arrays are equal; NaN equals nothing, zeros of both signs are equal."""
        return self.compare("EQ", other)

    def compare(self, direction: str, other: Real | float) -> Real:
        """Returns where a comparison holds."""
        attributes = (("comparison_direction", direction), ("comparison_type", ""))
        operands = (self.value, self._as_real(other).value)
        return self._emit("compare", PrimitiveType.PRED, operands, attributes)

    def is_nan(self) -> Real:
        """Returns where an array is NaN."""
        return self.compare("NE", self)

    def is_finite(self) -> Real:
        """Returns where an array is neither infinite nor NaN."""
        return self._emit("is-finite", PrimitiveType.PRED, (self.value,))

    def choose(self, then: Real | float, otherwise: Real | float) -> Real:
        """Returns one value where this array is true and another where it is false.

        One of the two must be an array.
        """
        known = then if isinstance(then, Real) else otherwise
        assert isinstance(known, Real), "a choice between two numbers has no type"
        operands = (self.value, known._as_real(then).value, known._as_real(otherwise).value)
        return self._emit("select", known.element_type, operands)

    def with_sign_of(self, other: Real) -> Real:
        """Returns this array, which is nowhere negative, with another's sign bits."""
        element = self.element_type
        integer = _BITS[element]
        mask = np.array(1 << (element.bits - 1), integer.dtype)
        sign = other._bits(integer)
        sign = sign.apply("and", sign._fill(mask))
        return self._bits(integer).apply("or", sign)._bits(element)

    def convert(self, element_type: PrimitiveType) -> Real:
        """Returns the array converted to another element type."""
        if self.element_type is element_type:
            return self
        return self._emit("convert", element_type, (self.value,))

    def fill(self, number: float) -> Real:
        """Returns an array of this one's shape and type that holds one number."""
        return self._fill(np.array(number, self.element_type.dtype))

    def _bits(self, element_type: PrimitiveType) -> Real:
        return self._emit("bitcast-convert", element_type, (self.value,))

    def _fill(self, number: np.ndarray[Any, Any]) -> Real:
        return self._new(self.builder.fill(number, self.value.shape, self.origin))

    def _apply(self, opcode: str, *others: Real | float) -> Real:
        operands = (self.value, *(self._as_real(other).value for other in others))
        return self._emit(opcode, self.element_type, operands)

    def _emit(
        self,
        opcode: str,
        element_type: PrimitiveType,
        operands: Sequence[HloInstruction],
        attributes: Attributes = (),
    ) -> Real:
        shape = array_shape(element_type, self.value.shape.dimensions)
        return self._new(
            self.builder.elementwise(opcode, shape, operands, attributes, origin=self.origin)
        )

    def _as_real(self, other: Real | float) -> Real:
        return other if isinstance(other, Real) else self.fill(other)

    def _new(self, value: HloInstruction) -> Real:
        return Real(self.builder, self.origin, value)


@final
@dataclass(frozen=True, slots=True)
class Pair:
    """A complex array: its real and its imaginary part, of one shape."""

    real: Real
    imag: Real


def add(left: Pair, right: Pair) -> Pair:
    """Returns the sum."""
    return Pair(left.real + right.real, left.imag + right.imag)


def subtract(left: Pair, right: Pair) -> Pair:
    """Returns the difference."""
    return Pair(left.real - right.real, left.imag - right.imag)


def multiply(left: Pair, right: Pair) -> Pair:
    """Returns the product, without C's care for infinities."""
    real = left.real * right.real - left.imag * right.imag
    return Pair(real, left.imag * right.real + left.real * right.imag)


def negate(value: Pair) -> Pair:
    """Returns the value with both signs flipped."""
    return Pair(-value.real, -value.imag)


def divide(left: Pair, right: Pair) -> Pair:
    """Returns the quotient by Smith's method, repaired where both parts of it are NaN.

    Source: Robert L. Smith, Algorithm 116: Complex division, 1962; C99, annex G.5.1.
    """
    is_swapped = right.real.apply("abs") < right.imag.apply("abs")
    large = is_swapped.choose(right.imag, right.real)
    small = is_swapped.choose(right.real, right.imag)
    x = is_swapped.choose(left.real, left.imag)
    y = is_swapped.choose(left.imag, left.real)
    ratio = small / large
    denominator = large + small * ratio
    real = (x * ratio + y) / denominator
    # One product, so that it is contracted with the sum as XLA does it.
    imag = (y * is_swapped.choose(ratio, -ratio) + is_swapped.choose(-x, x)) / denominator
    is_lost = real.is_nan() & imag.is_nan()
    repaired = _divide_specially(left, right, Pair(real, imag))
    return Pair(is_lost.choose(repaired.real, real), is_lost.choose(repaired.imag, imag))


def _divide_specially(left: Pair, right: Pair, quotient: Pair) -> Pair:
    """Returns the quotient of infinities and by zero and infinities, else what was computed."""
    a, b, c, d = left.real, left.imag, right.real, right.imag
    is_zero = c.equals(0.0) & d.equals(0.0)
    is_by_zero = is_zero & (~a.is_nan() | ~b.is_nan())
    infinity = c.fill(np.inf).with_sign_of(c)
    finite_left = _is_finite(a) & _is_finite(b)
    finite_right = _is_finite(c) & _is_finite(d)
    is_infinite = (_is_infinite(a) | _is_infinite(b)) & finite_right
    is_by_infinity = finite_left & (_is_infinite(c) | _is_infinite(d))
    i, j = _direction(a), _direction(b)
    k, m = _direction(c), _direction(d)
    real = is_by_infinity.choose((a * k + b * m) * 0.0, quotient.real)
    imag = is_by_infinity.choose((b * k - a * m) * 0.0, quotient.imag)
    real = is_infinite.choose((i * c + j * d) * np.inf, real)
    imag = is_infinite.choose((j * c - i * d) * np.inf, imag)
    return Pair(is_by_zero.choose(infinity * a, real), is_by_zero.choose(infinity * b, imag))


def _is_infinite(value: Real) -> Real:
    return value.apply("abs").equals(np.inf)


def _is_finite(value: Real) -> Real:
    return value.is_finite()


def _direction(value: Real) -> Real:
    """Returns 1 for infinities and 0 for all else, with the sign of the value."""
    magnitude = _is_infinite(value).choose(value.fill(1.0), 0.0)
    return magnitude.with_sign_of(value)


def magnitude(value: Pair) -> Real:
    """Returns the absolute value, without overflow in between."""
    large, ratio = _scale(value)
    return large * (ratio * ratio + 1.0).apply("sqrt")


def _scale(value: Pair) -> tuple[Real, Real]:
    """Returns the larger magnitude of the two parts, and the other one divided by it.

    Where both are equal, be they zero or infinite, the ratio is 1; with a NaN one of the two is.
    """
    a, b = value.real.apply("abs"), value.imag.apply("abs")
    is_less = a < b
    large, small = is_less.choose(b, a), is_less.choose(a, b)
    return large, a.equals(b).choose(1.0, small / large)


def sign(value: Pair) -> Pair:
    """Returns the value divided by its magnitude; zeros as they are."""
    size = magnitude(value)
    is_zero = value.real.equals(0.0) & value.imag.equals(0.0)
    return Pair(
        is_zero.choose(value.real, value.real / size),
        is_zero.choose(value.imag, value.imag / size),
    )


def exponential_minus_one(value: Pair) -> Pair:
    """Returns e**x - 1."""
    a, b = value.real, value.imag
    grown, fallen = a.apply("exponential-minus-one"), _cosine_minus_one(b)
    imag = b.equals(0.0).choose(0.0, (grown + 1.0) * b.apply("sine"))
    return Pair(grown * (fallen + 1.0) + fallen, imag)


def _cosine_minus_one(angle: Real) -> Real:
    """Returns cos(x) - 1 without cancellation for small angles.

    Source: Stephen L. Moshier, Cephes: cosm1.
    """
    square = angle * angle
    series = angle.fill(_COSINE_SERIES[0])
    for coefficient in _COSINE_SERIES[1:]:
        series = series * square + coefficient
    small = square * square * series + square * -0.5
    is_large = square.compare("GE", _LARGE_SQUARE)
    return is_large.choose(angle.apply("cosine") - 1.0, small)


def rsqrt(value: Pair) -> Pair:
    """Returns the reciprocal of the square root, by magnitude and angle."""
    a, b = value.real.apply("abs"), value.imag.apply("abs")
    large, ratio = _scale(value)
    size = large.apply("rsqrt") * (ratio * ratio + 1.0).apply("rsqrt").apply("sqrt")
    angle = value.imag.apply("atan2", value.real) * -0.5
    real, imag = size * angle.apply("cosine"), size * angle.apply("sine")
    zero = a.fill(0.0)
    is_infinite = (b.equals(np.inf) & value.real.is_nan()) | a.equals(np.inf)
    real = is_infinite.choose(zero.with_sign_of(value.real), real)
    imag = is_infinite.choose(-zero.with_sign_of(value.imag), imag)
    is_zero = value.real.equals(0.0) & value.imag.equals(0.0)
    return Pair(is_zero.choose(np.inf, real), is_zero.choose(np.nan, imag))


def power(base: Pair, exponent: Pair) -> Pair:
    """Returns base**exponent, by magnitude and angle."""
    a, b, c, d = base.real, base.imag, exponent.real, exponent.imag
    size = magnitude(base)
    angle = b.apply("atan2", a)
    grown = size.apply("power", c) * (-d * angle).apply("exponential")
    turned = c * angle + d * size.apply("log")
    real, imag = grown * turned.apply("cosine"), grown * turned.apply("sine")
    is_real, is_real_base = d.equals(0.0), b.equals(0.0)
    is_one = c.equals(0.0).choose(c.fill(1.0), 0.0)
    is_zero_base = size.equals(0.0) & is_real & c.compare("GE", 0.0)
    real, imag = is_zero_base.choose(is_one, real), is_zero_base.choose(0.0, imag)
    is_constant = (c.equals(0.0) & is_real) | (a.equals(1.0) & is_real_base)
    real, imag = is_constant.choose(1.0, real), is_constant.choose(0.0, imag)
    is_infinite = a.equals(np.inf) & is_real_base & is_real
    grows, shrinks = is_infinite & (c > 0.0), is_infinite & (c < 0.0)
    real = shrinks.choose(0.0, grows.choose(np.inf, real))
    return Pair(real, (grows | shrinks).choose(0.0, imag))


def tanh(value: Pair) -> Pair:
    """Returns the hyperbolic tangent."""
    a, b = value.real, value.imag
    twice = a + a
    rising, falling = (x.apply("exponential-minus-one") for x in (twice, -twice))
    cosine = b.apply("cosine")
    numerator = cosine * b.apply("sine") * 4.0
    total = rising + falling
    denominator = total + cosine * cosine * 4.0
    real = (rising - falling) / denominator
    real = total.equals(np.inf).choose(a.fill(1.0).with_sign_of(a), real)
    is_infinite, is_lost = _is_infinite(a), numerator.is_nan()
    real = (is_lost & ~is_infinite).choose(np.nan, real)
    is_zero = b.equals(0.0) | (is_lost & is_infinite)
    return Pair(real, is_zero.choose(0.0, numerator / denominator))


def tan(value: Pair) -> Pair:
    """Returns the tangent, which is tanh with the plane turned by a quarter."""
    turned = tanh(Pair(-value.imag, value.real))
    return Pair(turned.imag, -turned.real)


COMPLEX_RULES: Final[Mapping[str, Callable[..., Pair]]] = {
    "add": add,
    "divide": divide,
    "exponential-minus-one": exponential_minus_one,
    "multiply": multiply,
    "negate": negate,
    "power": power,
    "rsqrt": rsqrt,
    "sign": sign,
    "subtract": subtract,
    "tan": tan,
    "tanh": tanh,
}
"""Elementwise opcodes from complex numbers to complex numbers."""


def compare(direction: str, operands: Sequence[Pair]) -> Real:
    """Returns where two complex arrays are equal, or where they are not."""
    left, right = operands
    real, imag = left.real.compare(direction, right.real), left.imag.compare(direction, right.imag)
    return real & imag if direction == "EQ" else real | imag
