"""Elementwise operations of random programs, by HLO opcode."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, final

import jax
import numpy as np
from jax import lax

from fuselane.fuzz.builder import Builder, Operation
from fuselane.fuzz.kinds import (
    COMPLEX,
    FLOATS,
    INTEGERS,
    Kind,
    Value,
    cast,
    chosen,
    fit,
    is_complex,
    is_floating,
    near,
    number,
    on_grid,
    resize,
    to_near,
    without_denormals,
    without_nan,
)
from fuselane.fuzz.program import Step

Function = Callable[..., jax.Array]

BOOL: Final = ("bool",)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What an elementwise operation does on the kinds of values.

    Attributes:
        arity: Operands.
        exact: On exact values of the types below; None if rounding would not be determined.
        near: On near values; None where it is not continuous.
        special: On special values, or None.
        dtypes: Types the exact form takes, floats among them if the special form takes them.
        ulp: By how many units in the last place compilers may disagree on special values.
        double_ulp: By how many where these are float64, if that is another number.
    """

    arity: int = 1
    exact: Function | None = None
    near: Function | None = None
    special: Function | None = None
    dtypes: tuple[str, ...] = ()
    ulp: int = 0
    double_ulp: int | None = None

    def ulp_of(self, dtype: str) -> int:
        """Returns by how many units in the last place compilers may disagree in a type."""
        return self.ulp if self.double_ulp is None or dtype != "float64" else self.double_ulp

    def accepts(self, value: Value) -> bool:
        """Whether a value can be the first operand."""
        if value.kind is Kind.SPECIAL:
            return self.special is not None
        if value.kind is Kind.NEAR:
            return self.near is not None
        if value.kind is Kind.DONE:
            return False
        return value.dtype in self.dtypes if self.exact else not is_complex(value.dtype)


def _exact(function: Function, dtypes: tuple[str, ...], arity: int = 1, **forms: Any) -> Rule:
    """An operation that rounds at most once, alike everywhere."""
    special = function if set(FLOATS) & set(dtypes) else None
    return Rule(arity=arity, exact=function, special=special, dtypes=dtypes, **forms)


def _approximate(
    function: Function,
    near_form: Function,
    ulp: int,
    arity: int = 1,
    *,
    double_ulp: int | None = None,
) -> Rule:
    """An elementary function, which every compiler approximates its own way."""

    def special(*operands: jax.Array) -> jax.Array:
        return function(*map(without_denormals, operands))

    return Rule(arity=arity, near=near_form, special=special, ulp=ulp, double_ulp=double_ulp)


def _one(x: jax.Array) -> Any:
    return number(1, str(x.dtype))


def _squared(x: jax.Array) -> jax.Array:
    return lax.mul(x, x)


def _from_one(x: jax.Array) -> jax.Array:
    """Returns 1 + x * x."""
    return lax.add(_one(x), _squared(x))


def _scaled(factor: float, x: jax.Array) -> jax.Array:
    return lax.mul(x, number(factor, str(x.dtype)))


def _modulo_bits(y: jax.Array) -> jax.Array:
    """Limits a shift to twice the width, which is defined in HLO."""
    return lax.bitwise_and(y, number(2 * 8 * y.dtype.itemsize - 1, str(y.dtype)))


def _clamp(low: jax.Array, x: jax.Array, high: jax.Array) -> jax.Array:
    """Limits values; JAX's rule for `vmap` fails on scalars of which only the upper bound has
    lanes."""
    return lax.squeeze(lax.clamp(*(lax.expand_dims(array, (0,)) for array in (low, x, high))), (0,))


_DOUBLE_ULP_OF_LOG_PLUS_ONE: Final = 160
"""XLA's is off by up to 129 between -0.5 and -0.3; elsewhere by two."""

_ULP_OF_POWER_OF_A_THIRD: Final = 20
_DOUBLE_ULP_OF_POWER_OF_A_THIRD: Final = 120
"""XLA's older emitters compute cube roots as `pow(x, 1/3)`; a third being rounded, they are off by
up to 15 ulp in `float32`, and 118 in `float64`, at the smallest and largest numbers."""

NUMBERS: Final = (*INTEGERS, *FLOATS)
ANY: Final = (*BOOL, *NUMBERS)

RULES: Final[Mapping[str, Rule]] = {
    "abs": _exact(lax.abs, (*INTEGERS[:4], *FLOATS), near=lax.abs),
    "ceil": _exact(lax.ceil, FLOATS),
    "floor": _exact(lax.floor, FLOATS),
    "negate": _exact(lax.neg, (*NUMBERS, *COMPLEX), near=lax.neg),
    "round-nearest-afz": _exact(lambda x: lax.round(x, lax.RoundingMethod.AWAY_FROM_ZERO), FLOATS),
    "round-nearest-even": _exact(
        lambda x: lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN), FLOATS
    ),
    "sign": _exact(lax.sign, NUMBERS),
    "is-finite": _exact(lax.is_finite, FLOATS),
    "not": _exact(lax.bitwise_not, (*BOOL, *INTEGERS)),
    "popcnt": _exact(lax.population_count, INTEGERS),
    "count-leading-zeros": _exact(lax.clz, INTEGERS),
    "reduce-precision": _exact(lambda x: lax.reduce_precision(x, 5, 4), FLOATS),
    "sqrt": Rule(
        near=lambda x: lax.sub(lax.sqrt(_from_one(x)), _one(x)),
        special=lax.sqrt,
        dtypes=FLOATS,
    ),
    "add": _exact(lax.add, (*NUMBERS, *COMPLEX), 2, near=lambda x, y: _scaled(0.5, lax.add(x, y))),
    "subtract": _exact(
        lax.sub, (*NUMBERS, *COMPLEX), 2, near=lambda x, y: _scaled(0.5, lax.sub(x, y))
    ),
    "multiply": _exact(
        lax.mul, (*NUMBERS, *COMPLEX), 2, near=lambda x, y: _scaled(0.25, lax.mul(x, y))
    ),
    "divide": _exact(
        lax.div, NUMBERS, 2, near=lambda x, y: _scaled(0.25, lax.div(x, _from_one(y)))
    ),
    "remainder": _exact(lax.rem, NUMBERS, 2),
    "maximum": _exact(lax.max, ANY, 2, near=lax.max),
    "minimum": _exact(lax.min, ANY, 2, near=lax.min),
    "mulhi": _exact(lax.mulhi, ("int32", "uint32", "int64", "uint64"), 2),
    "and": _exact(lax.bitwise_and, (*BOOL, *INTEGERS), 2),
    "or": _exact(lax.bitwise_or, (*BOOL, *INTEGERS), 2),
    "xor": _exact(lax.bitwise_xor, (*BOOL, *INTEGERS), 2),
    "shift-left": _exact(lambda x, y: lax.shift_left(x, _modulo_bits(y)), INTEGERS, 2),
    "shift-right-arithmetic": _exact(
        lambda x, y: lax.shift_right_arithmetic(x, _modulo_bits(y)), INTEGERS, 2
    ),
    "shift-right-logical": _exact(
        lambda x, y: lax.shift_right_logical(x, _modulo_bits(y)), INTEGERS, 2
    ),
    "clamp": _exact(_clamp, NUMBERS, 3, near=_clamp),
    "cbrt": _approximate(
        lax.cbrt,
        lambda x: lax.cbrt(_from_one(x)),
        _ULP_OF_POWER_OF_A_THIRD,
        double_ulp=_DOUBLE_ULP_OF_POWER_OF_A_THIRD,
    ),
    "cosine": _approximate(lax.cos, lax.cos, 6),
    "erf": _approximate(lax.erf, lambda x: _scaled(0.75, lax.erf(x)), 8),
    "exponential": _approximate(lax.exp, lambda x: lax.exp(lax.neg(_squared(x))), 6),
    "exponential-minus-one": _approximate(lax.expm1, lambda x: lax.expm1(lax.neg(_squared(x))), 8),
    "log": _approximate(lax.log, lambda x: lax.log(_from_one(x)), 6),
    "log-plus-one": _approximate(
        lax.log1p, lambda x: lax.log1p(_squared(x)), 6, double_ulp=_DOUBLE_ULP_OF_LOG_PLUS_ONE
    ),
    "logistic": _approximate(lax.logistic, lax.logistic, 8),
    "rsqrt": _approximate(lax.rsqrt, lambda x: lax.rsqrt(_from_one(x)), 4),
    "sine": _approximate(lax.sin, lax.sin, 6),
    "tan": _approximate(lax.tan, lambda x: lax.tan(_scaled(0.25, x)), 8),
    "tanh": _approximate(lax.tanh, lax.tanh, 8),
    "atan2": _approximate(lax.atan2, lambda x, y: _scaled(0.5, lax.atan2(x, _from_one(y))), 8, 2),
    "power": _approximate(
        lax.pow,
        lambda x, y: _scaled(0.25, lax.pow(_from_one(x), _scaled(0.25, y))),
        8,
        2,
    ),
}
"""The near forms take [-2, 2] into itself, and the absolute values of their partial derivatives add
up to one at most. None has a kink but those in `generate.KINKED`: rounding would decide on which
side of it a value is, and so the sign of a gradient."""


def _operation(rule: Rule) -> Operation:
    def apply(builder: Builder, step: Step) -> Value:
        first = builder.pick(step.operands[0], rule.accepts)
        if not rule.accepts(first):  # the number of the step, for want of anything better
            plain = next(dtype for dtype in ("float32", "uint32", "bool") if dtype in rule.dtypes)
            first = Value(cast(first.array, plain))
        if first.kind is Kind.EXACT and (
            rule.exact is None or (rule.near and is_floating(first.dtype) and step.variant % 3 == 0)
        ):
            first = to_near(first)
        others = [builder.like(wanted, first) for wanted in step.operands[1 : rule.arity]]
        arrays = [value.array for value in (first, *others)]
        if first.kind is Kind.NEAR and rule.near:
            return near(rule.near(*arrays), first, *others)
        if first.kind is Kind.SPECIAL and rule.special:
            array = rule.special(*arrays)
            dtype = str(array.dtype)
            return Value(array, Kind.DONE if is_floating(dtype) else Kind.EXACT, rule.ulp_of(dtype))
        assert rule.exact is not None
        return Value(on_grid(rule.exact(*arrays)))

    return apply


COMPARISONS: Final = (lax.lt, lax.ge, lax.eq, lax.ne, lax.gt, lax.le)


def compare(builder: Builder, step: Step) -> Value:
    """A boolean from two values."""
    left = builder.pick(step.operands[0], lambda value: value.kind in {Kind.EXACT, Kind.SPECIAL})
    right = builder.like(step.operands[1], left)
    chosen_form = 2 + step.variant % 2 if is_complex(left.dtype) else step.variant % 6
    return Value(COMPARISONS[chosen_form](left.array, right.array))


def select(builder: Builder, step: Step) -> Value:
    """One of two values by a third one's truth."""
    left, right, kind = builder.together(*step.operands[:2])
    condition = builder.exact(step.operands[2])
    condition = fit(condition, Kind.EXACT, "bool", left.shape)
    array = lax.select(condition.array, left.array, right.array)
    return chosen(array, kind, (left, right))


def convert(builder: Builder, step: Step) -> Value:
    """A value in another type."""
    value = builder.pick(step.operands[0], lambda value: value.kind is not Kind.DONE)
    other = builder.pick(step.operands[1]).dtype
    if value.kind is Kind.NEAR:
        return to_near(value, other if is_floating(other) else "float32")
    if value.kind is Kind.SPECIAL:
        target = other if other not in COMPLEX else "int32"
        array = lax.convert_element_type(without_denormals(value.array), target)
        return Value(array, Kind.DONE if is_floating(target) else Kind.EXACT)
    if step.variant % 3 == 0:
        return Value(lax.bitwise_and(cast(value.array, "int32"), np.int32(7)))
    return Value(cast(value.array, other))


def bitcast_convert(builder: Builder, step: Step) -> Value:
    """The bits of a value as another type."""
    value = builder.pick(
        step.operands[0],
        lambda value: (
            value.kind in {Kind.EXACT, Kind.SPECIAL} and value.dtype in (*INTEGERS, *FLOATS)
        ),
    )
    array = value.array
    if is_floating(value.dtype):
        # The bits of a NaN are not determined.
        array = without_denormals(without_nan(array))
        return Value(lax.bitcast_convert_type(array, f"uint{8 * array.dtype.itemsize}"))
    sign = "int" if value.dtype.startswith("uint") else "uint"
    return Value(lax.bitcast_convert_type(array, f"{sign}{8 * array.dtype.itemsize}"))


def complex_parts(builder: Builder, step: Step) -> Value:
    """A complex number from two values, or a part of one."""
    value = builder.exact(step.operands[0])
    if is_complex(value.dtype):
        parts = (lax.conj, lax.real, lax.imag, lambda x: lax.mul(lax.real(x), lax.imag(x)))
        return Value(on_grid(parts[step.variant % len(parts)](value.array)))
    part = "float64" if value.dtype == "float64" else "float32"
    real = cast(value.array, part)
    imaginary = builder.exact(step.operands[1])
    return Value(lax.complex(real, resize(cast(imaginary.array, part), real.shape)))


ELEMENTWISE: Final[Mapping[str, Operation]] = {
    **{opcode: _operation(rule) for opcode, rule in RULES.items()},
    "compare": compare,
    "select": select,
    "convert": convert,
    "bitcast-convert": bitcast_convert,
    "complex": complex_parts,
}
