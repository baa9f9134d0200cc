"""Elementary functions: errors against exact values, special values, what the code looks like.

benchmarks/accuracy/ulp.py measures the errors thoroughly; here samples guard the bounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Final

import mpmath
import numpy as np
import pytest
from llvmlite import ir

from fuselane.codegen.llvm import optimised_ir
from fuselane.codegen.math import MATH_OPCODES, emit_math
from fuselane.errors import CodegenError
from fuselane.hlo.shape import PrimitiveType
from tests.codegen.harness import (
    BINARY_MATH,
    Case,
    CompiledCases,
    NumpyArray,
    build_module,
    compile_cases,
    math_case,
)

F32, F64 = PrimitiveType.F32, PrimitiveType.F64
FLOAT_TYPES: Final = (F32, F64)
UNARY: Final = tuple(sorted(MATH_OPCODES - set(BINARY_MATH)))
OPCODES: Final = UNARY + BINARY_MATH
WIDTH: Final = 16
# The largest error that benchmarks/accuracy/ulp.py finds among all floats is 1.97, but for tanh.
MAX_ULP: Final = 2.0
MAX_TANH_ULP: Final = 4.9

EXACT: Final[dict[str, Callable[..., Any]]] = {
    "atan2": mpmath.atan2,
    "cbrt": lambda x: mpmath.sign(x) * mpmath.cbrt(abs(x)),
    "cosine": mpmath.cos,
    "erf": mpmath.erf,
    "exponential": mpmath.exp,
    "exponential-minus-one": mpmath.expm1,
    "log": mpmath.log,
    "log-plus-one": mpmath.log1p,
    "logistic": lambda x: 1 / (1 + mpmath.exp(-x)),
    "power": mpmath.power,
    "rsqrt": lambda x: 1 / mpmath.sqrt(x),
    "sine": mpmath.sin,
    "sqrt": mpmath.sqrt,
    "tan": mpmath.tan,
    "tanh": mpmath.tanh,
}
NUMPY: Final[dict[str, Callable[..., Any]]] = {
    "atan2": np.arctan2,
    "cbrt": np.cbrt,
    "cosine": np.cos,
    "erf": np.vectorize(math.erf),
    "exponential": np.exp,
    "exponential-minus-one": np.expm1,
    "log": np.log,
    "log-plus-one": np.log1p,
    "logistic": lambda x: 1 / (1 + np.exp(-x)),
    "power": np.power,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sine": np.sin,
    "sqrt": np.sqrt,
    "tan": np.tan,
    "tanh": np.tanh,
}


@cache
def compiled(*, flush_denormals: bool = False) -> CompiledCases:
    """Returns every function in every type, for vectors and scalars."""
    cases = [math_case(opcode, element_type) for opcode in OPCODES for element_type in FLOAT_TYPES]
    return compile_cases(cases, (0, WIDTH), flush_denormals=flush_denormals)


def run(
    opcode: str, element_type: PrimitiveType, *operands: NumpyArray, width: int = WIDTH
) -> NumpyArray:
    """Applies a function to arrays of any size."""
    size = operands[0].size
    padded = [np.resize(operand, -(-size // WIDTH) * WIDTH) for operand in operands]
    return compiled().run(f"{opcode}.{element_type.lower}", width, *padded)[:size]


def units(exact: float, element_type: PrimitiveType) -> float:
    """Returns the distance of the type's numbers at `exact`."""
    mantissa, least = (24, -125) if element_type is F32 else (53, -1021)
    return math.ldexp(1.0, max(math.frexp(exact)[1], least) - mantissa)


def error(
    opcode: str, element_type: PrimitiveType, value: float, operands: Sequence[float]
) -> float:
    """Returns the distance from the exact result in units of its last place."""
    with mpmath.workprec(200):
        exact = EXACT[opcode](*(mpmath.mpf(float(operand)) for operand in operands))
        if abs(exact) > mpmath.mpf(float(np.finfo(element_type.dtype).max)):
            return 0.0 if math.isinf(value) else math.inf
        return float(abs(mpmath.mpf(value) - exact) / units(float(exact), element_type))


def doubles(opcode: str) -> tuple[NumpyArray, ...]:
    """Returns doubles of every exponent and of usual sizes, in the function's domain."""
    rng = np.random.default_rng(3)
    every = np.ldexp(rng.uniform(1, 2, 120), rng.integers(-1021, 1023, 120))
    every = every * rng.choice([-1.0, 1.0], 120)
    if opcode == "power":
        base = np.abs(every)
        return base, rng.uniform(-700, 700, 120) / np.log(base)
    if opcode == "atan2":
        return every * rng.normal(size=120), every * rng.normal(size=120)
    numbers = np.concatenate([every, rng.normal(size=200), rng.uniform(-740, 700, 100)])
    if opcode in ("log", "rsqrt", "sqrt"):
        return (np.abs(numbers),)
    return (numbers[numbers > -1] if opcode == "log-plus-one" else numbers,)


@pytest.mark.parametrize("opcode", UNARY)
def test_floats_over_all_exponents(opcode: str) -> None:
    bits = np.arange(0, 1 << 32, 65521, dtype=np.uint64).astype(np.uint32)
    x = bits.view(np.float32)
    with np.errstate(all="ignore"):
        exact = NUMPY[opcode](x.astype(np.float64))
        values = run(opcode, F32, x).astype(np.float64)
        overflow = np.abs(exact) >= 2.0**128
        steps = np.ldexp(1.0, np.maximum(np.frexp(exact)[1], -125) - 24)
        errors = np.abs(values - exact) / steps
    number = ~np.isnan(exact)
    assert np.array_equal(np.isnan(values), ~number)
    assert np.array_equal(values[overflow], np.copysign(np.inf, exact[overflow]))
    max_ulp = MAX_TANH_ULP if opcode == "tanh" else MAX_ULP
    assert errors[number & ~overflow].max() <= max_ulp


def test_tanh_of_floats_is_never_beyond_one() -> None:
    first, last = np.array([7.0, 9.5], np.float32).view(np.uint32)
    x = np.arange(first, last, dtype=np.uint32).view(np.float32)
    x = x[: x.size // WIDTH * WIDTH]
    values = run("tanh", F32, x)
    assert values.max() == 1
    assert (values[x > 9] == 1).all()
    assert np.array_equal(run("tanh", F32, -x), -values)


@pytest.mark.parametrize("opcode", BINARY_MATH)
def test_pairs_of_floats(opcode: str) -> None:
    rng = np.random.default_rng(4)
    x, y = rng.normal(size=(2, 1 << 16)).astype(np.float32)
    x = np.exp(9 * x) if opcode == "power" else x
    with np.errstate(all="ignore"):
        exact = NUMPY[opcode](x.astype(np.float64), y.astype(np.float64))
    values = run(opcode, F32, x, y).astype(np.float64)
    steps = np.ldexp(1.0, np.maximum(np.frexp(exact)[1], -125) - 24)
    assert (np.abs(values - exact) / steps).max() <= MAX_ULP


@pytest.mark.parametrize("opcode", OPCODES)
def test_doubles_over_all_exponents(opcode: str) -> None:
    operands = doubles(opcode)
    values = run(opcode, F64, *operands)
    for value, *numbers in zip(values, *operands, strict=True):
        assert error(opcode, F64, float(value), numbers) <= MAX_ULP, numbers


@pytest.mark.parametrize("opcode", OPCODES)
@pytest.mark.parametrize("element_type", FLOAT_TYPES, ids=lambda type_: type_.lower)
def test_scalars_give_what_vectors_give(opcode: str, element_type: PrimitiveType) -> None:
    with np.errstate(over="ignore"):
        operands = [operand.astype(element_type.dtype) for operand in doubles(opcode)]
    vector = run(opcode, element_type, *operands)
    scalar = run(opcode, element_type, *operands, width=0)
    np.testing.assert_array_equal(vector, scalar)


@pytest.mark.parametrize("opcode", ("sine", "cosine", "tan"))
@pytest.mark.parametrize("element_type", FLOAT_TYPES, ids=lambda type_: type_.lower)
def test_angles_next_to_quarter_turns(opcode: str, element_type: PrimitiveType) -> None:
    """Where most digits of the angle cancel; the last double is the worst of all."""
    with mpmath.workprec(200):
        counts = [mpmath.mpf(n) for n in (1, 2, 3, 5, 4000, 41721, 41722, 41723, 2**29 - 1)]
        quarters = [float(count * mpmath.pi / 2) for count in counts]
    near = np.array(quarters, element_type.dtype)
    worst = [6381956970095103 * 2.0**797] if element_type is F64 else [16367173 * 2.0**72]
    x = np.concatenate([near, np.nextafter(near, 0), np.array(worst, element_type.dtype)])
    for value, number in zip(run(opcode, element_type, x), x, strict=True):
        assert error(opcode, element_type, float(value), [float(number)]) <= MAX_ULP, number


@pytest.mark.parametrize("opcode", UNARY)
@pytest.mark.parametrize("element_type", FLOAT_TYPES, ids=lambda type_: type_.lower)
def test_rare_lanes_leave_the_others_alone(opcode: str, element_type: PrimitiveType) -> None:
    usual = np.linspace(0.25, 4, WIDTH).astype(element_type.dtype)
    expected = run(opcode, element_type, usual)
    for rare in (np.nan, np.inf, 0.0, 1e30, np.finfo(element_type.dtype).smallest_subnormal):
        x = usual.copy()
        x[5] = rare
        values = run(opcode, element_type, x)
        np.testing.assert_array_equal(np.delete(values, 5), np.delete(expected, 5))


@pytest.mark.parametrize(
    ("opcode", "operands", "expected"),
    [
        ("atan2", (-0.0, 0.0), -0.0),
        ("atan2", (0.0, -0.0), math.pi),
        ("atan2", (-0.0, -1.0), -math.pi),
        ("atan2", (2.0, -0.0), math.pi / 2),
        ("atan2", (math.inf, -math.inf), 3 * math.pi / 4),
        ("atan2", (math.nan, 0.0), math.nan),
        ("atan2", (math.inf, math.nan), math.nan),
        ("cbrt", (-0.0,), -0.0),
        ("cbrt", (-math.inf,), -math.inf),
        ("cosine", (math.inf,), math.nan),
        ("erf", (-math.inf,), -1.0),
        ("exponential", (-math.inf,), 0.0),
        ("exponential", (math.inf,), math.inf),
        ("exponential-minus-one", (-0.0,), -0.0),
        ("exponential-minus-one", (-math.inf,), -1.0),
        ("log", (-0.0,), -math.inf),
        ("log", (-1.0,), math.nan),
        ("log", (math.inf,), math.inf),
        ("log-plus-one", (-0.0,), -0.0),
        ("log-plus-one", (-1.0,), -math.inf),
        ("log-plus-one", (-2.0,), math.nan),
        ("logistic", (-math.inf,), 0.0),
        ("logistic", (math.inf,), 1.0),
        ("power", (math.nan, 0.0), 1.0),
        ("power", (1.0, math.nan), 1.0),
        ("power", (-1.0, math.inf), 1.0),
        ("power", (-8.0, 3.0), -512.0),
        ("power", (-8.0, 0.5), math.nan),
        ("power", (-0.0, -3.0), -math.inf),
        ("power", (-0.0, -2.0), math.inf),
        ("power", (-0.0, 0.5), 0.0),
        ("power", (0.5, -math.inf), math.inf),
        ("power", (-math.inf, 3.0), -math.inf),
        ("power", (-math.inf, -3.0), -0.0),
        ("power", (2.0, math.nan), math.nan),
        ("rsqrt", (-0.0,), -math.inf),
        ("rsqrt", (math.inf,), 0.0),
        ("rsqrt", (-1.0,), math.nan),
        ("sine", (-0.0,), -0.0),
        ("sine", (-math.inf,), math.nan),
        ("sqrt", (-0.0,), -0.0),
        ("tan", (-0.0,), -0.0),
        ("tanh", (-0.0,), -0.0),
        ("tanh", (math.inf,), 1.0),
    ],
)
@pytest.mark.parametrize("element_type", FLOAT_TYPES, ids=lambda type_: type_.lower)
@pytest.mark.parametrize("flush_denormals", (False, True), ids=("denormals", "flushed"))
def test_special_values(
    opcode: str,
    operands: tuple[float, ...],
    expected: float,
    element_type: PrimitiveType,
    flush_denormals: bool,
) -> None:
    arrays = [np.full(WIDTH, operand, element_type.dtype) for operand in operands]
    name = f"{opcode}.{element_type.lower}"
    values = compiled(flush_denormals=flush_denormals).run(name, WIDTH, *arrays)
    wanted = np.full(WIDTH, expected, element_type.dtype)
    np.testing.assert_array_equal(values, wanted)
    if not math.isnan(expected):
        np.testing.assert_array_equal(np.signbit(values), np.signbit(wanted))


@pytest.mark.parametrize("opcode", UNARY)
@pytest.mark.parametrize("element_type", FLOAT_TYPES, ids=lambda type_: type_.lower)
def test_denormal_numbers_count_where_they_are_not_flushed(
    opcode: str, element_type: PrimitiveType
) -> None:
    tiny = float(np.finfo(element_type.dtype).tiny)
    x = np.array([tiny / 3, tiny * 0.999, float(np.finfo(element_type.dtype).smallest_subnormal)])
    if opcode in ("exponential", "logistic"):
        x = np.array([math.log(tiny) - 1, math.log(tiny) - 9])
    x = x.astype(element_type.dtype)
    for value, number in zip(run(opcode, element_type, x), x, strict=True):
        assert error(opcode, element_type, float(value), [float(number)]) <= MAX_ULP, number


@pytest.mark.parametrize("element_type", FLOAT_TYPES, ids=lambda type_: type_.lower)
def test_flushed_denormals_are_zeros(element_type: PrimitiveType) -> None:
    x = np.full(WIDTH, np.finfo(element_type.dtype).tiny / 4, element_type.dtype)
    code = compiled(flush_denormals=True)
    expected = {"log": -np.inf, "rsqrt": np.inf, "exponential": 1.0, "sine": 0.0, "tanh": 0.0}
    for opcode, value in expected.items():
        result = code.run(f"{opcode}.{element_type.lower}", WIDTH, x)
        np.testing.assert_array_equal(result, np.full(WIDTH, value, element_type.dtype))


@pytest.mark.parametrize("opcode", UNARY)
@pytest.mark.parametrize("element_type", FLOAT_TYPES, ids=lambda type_: type_.lower)
def test_smallest_normal_numbers_where_denormals_are_flushed(
    opcode: str, element_type: PrimitiveType
) -> None:
    tiny = float(np.finfo(element_type.dtype).tiny)
    x = np.resize([1.0, 1.1, 1.25, 1.9, 2.0, 3.1, 4.0, 9.0], WIDTH) * tiny
    if opcode not in ("log", "rsqrt", "sqrt"):
        x[1::3] *= -1
    x = x.astype(element_type.dtype)
    code = compiled(flush_denormals=True)
    values = code.run(f"{opcode}.{element_type.lower}", WIDTH, x)
    for value, number in zip(values, x, strict=True):
        assert error(opcode, element_type, float(value), [float(number)]) <= MAX_ULP, number


def test_sine_and_cosine_of_one_angle_share_their_reduction() -> None:
    def both(builder: ir.IRBuilder, operands: Sequence[ir.Value]) -> ir.Value:
        sine, cosine = (emit_math(builder, opcode, operands) for opcode in ("sine", "cosine"))
        return builder.fadd(sine, cosine)

    def count(case_: Case) -> int:
        text = optimised_ir(build_module([case_], (WIDTH,)))
        kernel = text[text.index(f"@{case_.name}") :].partition("\n}")[0]
        return kernel.count("call <16 x float> @llvm.fma")

    pair = Case(name="both", emit=both, operand_types=(F32,), result_type=F32)
    alone = Case(
        name="alone",
        emit=lambda builder, operands: emit_math(builder, "sine", operands),
        operand_types=(F32,),
        result_type=F32,
    )
    assert count(pair) == count(alone)


@pytest.mark.parametrize("opcode", ["sine", "cosine", "tan"])
def test_large_floats_are_reduced_as_doubles_all_at_once(opcode: str) -> None:
    """Up to 2**30, as phases that nobody wraps are; only what is larger is done lane by lane."""
    case_ = Case(
        name="wave",
        emit=lambda builder, operands: emit_math(builder, opcode, operands),
        operand_types=(F32,),
        result_type=F32,
    )
    text = str(build_module([case_], (WIDTH,)))
    rare = next(part for part in text.split("define ") if ".rare." in part.partition("(")[0])
    assert rare.index("<16 x float>") < rare.index("<16 x double>") < rare.index("br i1")
    assert rare.index("fuselane.reduce_large_angle") > rare.index("br i1")


@pytest.mark.parametrize("opcode", OPCODES)
def test_no_function_of_another_library_is_called(opcode: str) -> None:
    text = optimised_ir(build_module([math_case(opcode, F64)], (8,)))
    declared = [line for line in text.splitlines() if line.startswith("declare")]
    assert all("@llvm." in line for line in declared), declared


def test_an_unknown_opcode_is_refused() -> None:
    builder = ir.IRBuilder()
    with pytest.raises(CodegenError, match="lgamma"):
        emit_math(builder, "lgamma", [ir.Constant(ir.FloatType(), 1.0)])
