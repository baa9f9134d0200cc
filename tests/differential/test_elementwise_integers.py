"""Every elementwise operation on integers and booleans: always the same bits as XLA."""

from __future__ import annotations

from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from fuselane.fuzz.kinds import INTEGERS
from tests.differential.harness import Program, check, check_operations, run_fused
from tests.differential.values import binary_rows, needs_x64, unary_rows

UNARY: Final[dict[str, Program]] = {
    "neg": lax.neg,
    "not": lax.bitwise_not,
    "sign": lax.sign,
    "clz": lax.clz,
    "popcnt": lax.population_count,
    "square": lax.square,
    "cube": lambda x: lax.integer_pow(x, 3),
    "seventh_power": lambda x: lax.integer_pow(x, 7),
    "over_3": lambda x: lax.div(x, jnp.asarray(3, x.dtype)),
    "over_4": lambda x: lax.div(x, jnp.asarray(4, x.dtype)),
    "over_zero": lambda x: lax.div(x, jnp.asarray(0, x.dtype)),
    "rem_7": lambda x: lax.rem(x, jnp.asarray(7, x.dtype)),
    "rem_8": lambda x: lax.rem(x, jnp.asarray(8, x.dtype)),
    "rem_zero": lambda x: lax.rem(x, jnp.asarray(0, x.dtype)),
    "floor_divide_5": lambda x: x // jnp.asarray(5, x.dtype),
    "mod_5": lambda x: x % jnp.asarray(5, x.dtype),
    "shift_left_3": lambda x: lax.shift_left(x, jnp.asarray(3, x.dtype)),
    "shift_right_3": lambda x: lax.shift_right_arithmetic(x, jnp.asarray(3, x.dtype)),
    "rotate_5": lambda x: (
        lax.shift_left(x, jnp.asarray(5, x.dtype))
        | lax.shift_right_logical(x, jnp.asarray(x.dtype.itemsize * 8 - 5, x.dtype))
    ),
}
SIGNED_UNARY: Final[dict[str, Program]] = {
    "abs": lax.abs,
    "over_minus_1": lambda x: lax.div(x, jnp.asarray(-1, x.dtype)),
    "rem_minus_1": lambda x: lax.rem(x, jnp.asarray(-1, x.dtype)),
    "over_minus_6": lambda x: lax.div(x, jnp.asarray(-6, x.dtype)),
}
BINARY: Final[dict[str, Program]] = {
    "add": lax.add,
    "sub": lax.sub,
    "mul": lax.mul,
    "div": lax.div,
    "rem": lax.rem,
    "max": lax.max,
    "min": lax.min,
    "and": lax.bitwise_and,
    "or": lax.bitwise_or,
    "xor": lax.bitwise_xor,
    "shift_left": lax.shift_left,
    "shift_right_logical": lax.shift_right_logical,
    "shift_right_arithmetic": lax.shift_right_arithmetic,
    "eq": lax.eq,
    "ne": lax.ne,
    "lt": lax.lt,
    "le": lax.le,
    "gt": lax.gt,
    "ge": lax.ge,
    "select": lambda x, y: lax.select(x > y, x - y, y),
    "clamp": lambda x, y: lax.clamp(jnp.asarray(3, x.dtype), x, y),
    "clamp_scalars": lambda x, y: lax.clamp(jnp.asarray(2, x.dtype), x, jnp.asarray(100, x.dtype)),
    "floor_divide": jnp.floor_divide,
    "mod": jnp.mod,
    "power": lambda x, y: jnp.power(x, y & jnp.asarray(7, y.dtype)),
}
BOOLEAN: Final[dict[str, Program]] = {
    "and": lax.bitwise_and,
    "or": lax.bitwise_or,
    "xor": lax.bitwise_xor,
    "not": lambda x, y: lax.bitwise_not(x),
    "eq": lax.eq,
    "ne": lax.ne,
    "lt": lax.lt,
    "le": lax.le,
    "gt": lax.gt,
    "ge": lax.ge,
    "max": lax.max,
    "min": lax.min,
    "select": lambda x, y: lax.select(x, y, ~y),
    "where_scalar": lambda x, y: jnp.where(x & ~y, 3, -1),
}


@pytest.mark.parametrize("dtype", INTEGERS)
def test_unary(dtype: str) -> None:
    operations = UNARY if dtype.startswith("u") else UNARY | SIGNED_UNARY
    check_operations(operations, unary_rows(dtype), x64=needs_x64(dtype))


@pytest.mark.parametrize("dtype", INTEGERS)
def test_binary(dtype: str) -> None:
    check_operations(BINARY, *binary_rows(dtype), x64=needs_x64(dtype))


def test_boolean() -> None:
    check_operations(BOOLEAN, *binary_rows("bool"))


@pytest.mark.parametrize("dtype", ["int32", "uint8", "int64"])
def test_with_uniform_operand(dtype: str) -> None:
    """A divisor or shift that is the same for all lanes, known only at run time, zero included."""

    def step(lanes: jax.Array, uniform: jax.Array) -> tuple[jax.Array, Any]:
        everywhere = jnp.full_like(lanes, uniform)
        results = (
            lax.div(lanes, everywhere),
            lax.rem(lanes, everywhere),
            lax.shift_left(lanes, everywhere),
            lax.shift_right_arithmetic(lanes, everywhere),
            lax.div(everywhere, lanes),
        )
        return lanes ^ results[0], results

    def program(lanes: jax.Array, uniforms: jax.Array) -> Any:
        return lax.scan(step, lanes, uniforms)

    lanes, uniforms = binary_rows(dtype)
    check(program, lanes.ravel(), uniforms.ravel()[:24], x64=needs_x64(dtype))


@pytest.mark.parametrize("wide", ["int32", "uint32"])
def test_upper_halves_of_narrow_factors(wide: str) -> None:
    """Compared with NumPy: XLA's code generator, LLVM's, gets this wrong by itself (jax 0.10.2)."""

    def step(lanes: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
        factor = (lanes & 127).astype(wide)
        upper = lax.mulhi(factor, lanes.astype(wide)).astype(jnp.int16)
        return lanes * 3 + 1, upper

    lanes = np.arange(-30_000, 30_000, 1_111, dtype=np.int16)
    options = {"verify": False}  # with FUSELANE_VERIFY=1 XLA's numbers would be the standard
    _, actual = run_fused(lambda lanes: lax.scan(step, lanes, length=4), lanes, options=options)
    for row in np.asarray(actual):
        factor, other = ((x.astype(wide).astype(np.int64)) for x in (lanes & 127, lanes))
        np.testing.assert_array_equal(row, ((factor * other) >> 32).astype(np.int16))
        lanes = lanes * np.int16(3) + np.int16(1)
