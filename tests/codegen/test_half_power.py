"""Powers with a constant half of an odd number for exponent."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from itertools import product
from typing import Final

import jax
import mpmath
import numpy as np
import pytest
from llvmlite import ir

from fuselane.codegen.math import emit_math
from fuselane.codegen.types import float_constant
from fuselane.hlo.shape import PrimitiveType
from tests.backends.test_gpu import lane_program, lanes, ptx_of
from tests.codegen.harness import Case, CompiledCases, NumpyArray, compile_cases
from tests.codegen.test_math import FLOAT_TYPES, units

F32: Final = PrimitiveType.F32
EXPONENTS: Final = (-3.5, -2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 3.5)
WIDTH: Final = 8
MAX_MODERATE_ULP: Final = 0.51
SPECIAL: Final = (math.nan, 0.0, -0.0, math.inf, -math.inf, -1.0, -8.0, 1.0)


def case(exponent: float, element_type: PrimitiveType) -> Case:
    def emit(builder: ir.IRBuilder, operands: Sequence[ir.Value]) -> ir.Value:
        constant = float_constant(operands[0].type, exponent)
        return emit_math(builder, "power", [operands[0], constant])

    return Case(
        name=f"{exponent}.{element_type.lower}",
        emit=emit,
        operand_types=(element_type,),
        result_type=element_type,
    )


@cache
def compiled(*, flush_denormals: bool = False) -> CompiledCases:
    cases = [case(exponent, type_) for exponent in EXPONENTS for type_ in FLOAT_TYPES]
    return compile_cases(cases, (0, WIDTH), flush_denormals=flush_denormals)


def worst_ulp(exponent: float, element_type: PrimitiveType, x: NumpyArray) -> float:
    values = compiled().run(f"{exponent}.{element_type.lower}", WIDTH, x)
    worst = 0.0
    with mpmath.workprec(200):
        for number, value in zip(x, values, strict=True):
            exact = mpmath.power(mpmath.mpf(float(number)), exponent)
            if abs(exact) > mpmath.mpf(float(np.finfo(element_type.dtype).max)):
                assert math.isinf(value)
                continue
            distance = abs(mpmath.mpf(float(value)) - exact)
            worst = max(worst, float(distance / units(float(exact), element_type)))
    return worst


@pytest.mark.parametrize("exponent", EXPONENTS)
@pytest.mark.parametrize("element_type", FLOAT_TYPES, ids=lambda type_: type_.lower)
def test_errors(exponent: float, element_type: PrimitiveType) -> None:
    """Half a unit, but for results that are denormal: those are rounded twice."""
    rng = np.random.default_rng(5)
    moderate = np.exp(rng.normal(size=400) * 4).astype(element_type.dtype)
    assert worst_ulp(exponent, element_type, moderate) <= MAX_MODERATE_ULP
    least, most = (-126, 127) if element_type is F32 else (-1022, 1023)
    every = np.ldexp(rng.uniform(1, 2, 400), rng.integers(least, most, 400))
    assert worst_ulp(exponent, element_type, every.astype(element_type.dtype)) <= 1.0
    denormal = np.ldexp(rng.uniform(0, 1, 400), least).astype(element_type.dtype)
    assert worst_ulp(exponent, element_type, denormal) <= MAX_MODERATE_ULP


@pytest.mark.parametrize("exponent", EXPONENTS)
@pytest.mark.parametrize("element_type", FLOAT_TYPES, ids=lambda type_: type_.lower)
@pytest.mark.parametrize("flush_denormals", [False, True], ids=["denormals", "flushed"])
def test_special_values_are_those_of_c(
    exponent: float, element_type: PrimitiveType, flush_denormals: bool
) -> None:
    x = np.array(SPECIAL, element_type.dtype)
    values = compiled(flush_denormals=flush_denormals).run(
        f"{exponent}.{element_type.lower}", WIDTH, x
    )
    with np.errstate(all="ignore"):
        wanted = np.power(x, np.full_like(x, exponent))  # by C's pow
    np.testing.assert_array_equal(values, wanted)
    np.testing.assert_array_equal(np.signbit(values[1:5]), np.signbit(wanted[1:5]))


@pytest.mark.parametrize("element_type", FLOAT_TYPES, ids=lambda type_: type_.lower)
def test_scalars_have_the_bits_of_vectors(element_type: PrimitiveType) -> None:
    x = np.exp(np.random.default_rng(6).normal(size=64) * 9).astype(element_type.dtype)
    for exponent in EXPONENTS:
        name = f"{exponent}.{element_type.lower}"
        scalars, vectors = (compiled().run(name, width, x) for width in (0, WIDTH))
        np.testing.assert_array_equal(scalars, vectors)


def test_the_bits_of_a_lane_do_not_depend_on_its_neighbours() -> None:
    """One lane of no moderate size sends the whole vector the rare way."""
    x = np.exp(np.random.default_rng(7).normal(size=64) * 4)
    for element_type, exponent in product(FLOAT_TYPES, EXPONENTS):
        name = f"{exponent}.{element_type.lower}"
        alone = x.astype(element_type.dtype)
        beside = alone.copy()
        beside[::WIDTH] = np.finfo(element_type.dtype).max
        values = [compiled().run(name, WIDTH, numbers) for numbers in (alone, beside)]
        others = np.arange(len(x)) % WIDTH != 0
        np.testing.assert_array_equal(values[0][others], values[1][others])


@pytest.mark.parametrize("exponent", [1.0, 0.3, 1.25, 4.5, -4.5, math.nan, math.inf])
def test_other_exponents_have_the_code_of_any(exponent: float) -> None:
    function = ir.Function(
        ir.Module("test"), ir.FunctionType(ir.FloatType(), [ir.FloatType()]), "f"
    )
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    (x,) = function.args
    call = emit_math(builder, "power", [x, float_constant(x.type, exponent)])
    assert call.callee.name == "fuselane.power.float"


def test_ptx_takes_the_names_of_their_functions() -> None:
    def program(x: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, 9, lambda i, x: (x * x + 1) ** -1.5 + x**2.5, x)

    ptx = ptx_of(lane_program(program, lanes(33)))
    assert "power_$_inverse_$_1_$_5_$_rare" in ptx and "-1.5" not in ptx
