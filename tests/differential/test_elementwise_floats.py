"""Every elementwise operation on floats, over special values and their pairs."""

from __future__ import annotations

from typing import Final

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.extend.core import primitives

from fuselane.fuzz.kinds import FLOATS
from tests.differential.comparison import Tolerance
from tests.differential.harness import Program, check_operations
from tests.differential.values import (
    binary_rows,
    moderate,
    needs_x64,
    unary_rows,
    without_ambiguous,
    without_denormals,
)

_CBRT_ULP: Final = 6 if jax.__version_info__ < (0, 12) else 120
"""XLA of JAX 0.12 takes powers, as its older emitters did: off by up to the error of a third."""

EXACT_UNARY: Final[dict[str, Program]] = {
    "abs": lax.abs,
    "ceil": lax.ceil,
    "floor": lax.floor,
    "is_finite": lax.is_finite,
    "neg": lax.neg,
    "round_away": lambda x: lax.round(x, lax.RoundingMethod.AWAY_FROM_ZERO),
    "round_even": lambda x: lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN),
    "sign": lax.sign,
    "sqrt": lax.sqrt,
    "square": lax.square,
    "reduce_precision_e5m10": lambda x: lax.reduce_precision(x, 5, 10),
    "reduce_precision_e8m7": lambda x: lax.reduce_precision(x, 8, 7),
    "reduce_precision_e4m3": lambda x: lax.reduce_precision(x, 4, 3),
    "reduce_precision_e5m0": lambda x: lax.reduce_precision(x, 5, 0),
    "signbit": jnp.signbit,
    "truncate": jnp.trunc,
    "plus_constant": lambda x: x + 1.5,
    "times_constant": lambda x: x * 3.0,
    "over_constant": lambda x: x / 3.0,
    "constant_over": lambda x: 2.0 / x,
    "is_nan": jnp.isnan,
    "nan_to_num": jnp.nan_to_num,
    "cube": lambda x: lax.integer_pow(x, 3),
}
# Our bound plus what XLA's own approximation adds to it.
APPROXIMATE_UNARY: Final[dict[str, tuple[Program, int]]] = {
    "cbrt": (lax.cbrt, _CBRT_ULP),
    "cos": (lax.cos, 6),
    "erf": (lax.erf, 8),
    "exp": (lax.exp, 6),
    "exp2": (lax.exp2, 8),
    "expm1": (lax.expm1, 8),
    "log": (lax.log, 6),
    "log1p": (lax.log1p, 6),
    "logistic": (lax.logistic, 8),
    "rsqrt": (lax.rsqrt, 4),
    "sin": (lax.sin, 6),
    "tan": (lax.tan, 8),
    "tanh": (lax.tanh, 8),
    "inverse_square": (lambda x: lax.integer_pow(x, -2), 4),
}
COMPOSITE_UNARY: Final[dict[str, Program]] = {
    "acos": lax.acos,
    "acosh": lax.acosh,
    "asin": lax.asin,
    "asinh": lax.asinh,
    "atan": lax.atan,
    "atanh": lax.atanh,
    "bessel_i0e": lax.bessel_i0e,
    "cosh": lax.cosh,
    "digamma": lax.digamma,
    "erf_inv": lax.erf_inv,
    "erfc": lax.erfc,
    "gelu": jax.nn.gelu,
    "lgamma": lax.lgamma,
    "log_sigmoid": jax.nn.log_sigmoid,
    "sinc": jnp.sinc,
    "sinh": lax.sinh,
    "softplus": jax.nn.softplus,
}
EXACT_BINARY: Final[dict[str, Program]] = {
    "add": lax.add,
    "sub": lax.sub,
    "mul": lax.mul,
    "div": lax.div,
    "rem": lax.rem,
    "max": lax.max,
    "min": lax.min,
    "eq": lax.eq,
    "ne": lax.ne,
    "lt": lax.lt,
    "le": lax.le,
    "gt": lax.gt,
    "ge": lax.ge,
    "nextafter": lax.nextafter,
    "select": lambda x, y: lax.select(x < y, x, y),
    "select_not": lambda x, y: jnp.where(~(x > 1), y, -x),
    "clamp_scalars": lambda x, y: lax.clamp(x.dtype.type(-1.5), x, x.dtype.type(2.5)),
    "clamp": lambda x, y: lax.clamp(-lax.abs(y), x, lax.abs(y)),
    "clamp_empty": lambda x, y: lax.clamp(y, x, -y),
    "copysign": jnp.copysign,
    "mod": jnp.mod,
    "floor_divide": jnp.floor_divide,
    "heaviside": jnp.heaviside,
}
TOTAL_ORDER: Final[dict[str, Program]] = {
    "eq_to": primitives.eq_to_p.bind,
    "le_to": primitives.le_to_p.bind,
    "lt_to": primitives.lt_to_p.bind,
}


@pytest.mark.parametrize("dtype", FLOATS)
def test_exact_unary(dtype: str) -> None:
    check_operations(EXACT_UNARY, unary_rows(dtype), x64=needs_x64(dtype))


@pytest.mark.parametrize("dtype", FLOATS)
def test_approximate_unary(dtype: str) -> None:
    operations = {name: operation for name, (operation, _) in APPROXIMATE_UNARY.items()}
    ulps = {name: ulp for name, (_, ulp) in APPROXIMATE_UNARY.items()}
    check_operations(
        operations,
        without_denormals(unary_rows(dtype)),
        tolerance=Tolerance(by_name=ulps),
        x64=needs_x64(dtype),
    )


@pytest.mark.parametrize("dtype", FLOATS)
def test_compositions_of_approximate_operations(dtype: str) -> None:
    limits = {"float64": 1e-11, "float32": 2e-4, "float16": 5e-2, "bfloat16": 2e-1}
    tolerance = Tolerance(ulp=16, relative=limits[dtype], absolute=limits[dtype])
    rows = moderate(dtype, (5, 151))
    check_operations(COMPOSITE_UNARY, rows, tolerance=tolerance, x64=needs_x64(dtype))


@pytest.mark.parametrize("dtype", FLOATS)
def test_exact_binary(dtype: str) -> None:
    rows = map(without_ambiguous, binary_rows(dtype))
    check_operations(EXACT_BINARY, *rows, x64=needs_x64(dtype))


@pytest.mark.parametrize("dtype", FLOATS)
def test_approximate_binary(dtype: str) -> None:
    operations: dict[str, Program] = {"pow": lax.pow, "atan2": lax.atan2}
    check_operations(
        operations,
        *map(without_denormals, binary_rows(dtype)),
        tolerance=Tolerance(by_name={"pow": 8, "atan2": 8}),
        x64=needs_x64(dtype),
    )


@pytest.mark.parametrize("dtype", FLOATS)
def test_total_order_comparisons(dtype: str) -> None:
    check_operations(TOTAL_ORDER, *binary_rows(dtype), x64=needs_x64(dtype))


@pytest.mark.parametrize("dtype", FLOATS)
def test_powers_of_integer_exponent(dtype: str) -> None:
    def power(x: jax.Array) -> jax.Array:
        return lax.pow(x, jnp.int32(5)) + lax.pow(x, jnp.int32(-3))

    rows = moderate(dtype, (5, 151))
    check_operations({"power": power}, rows, tolerance=Tolerance(ulp=16), x64=needs_x64(dtype))
