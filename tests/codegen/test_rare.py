"""Rare code works on pieces of wide vectors, and makes of them what it makes of narrow ones."""

from __future__ import annotations

from functools import cache
from typing import Final

import numpy as np
import pytest

from fuselane.codegen.math import MATH_OPCODES
from fuselane.hlo.shape import PrimitiveType
from tests.codegen.harness import (
    BINARY_MATH,
    CompiledCases,
    NumpyArray,
    build_module,
    compile_cases,
    math_case,
)

F32, F64 = PrimitiveType.F32, PrimitiveType.F64
NARROW, WIDE = 8, 64
OPCODES: Final = sorted(MATH_OPCODES)


@cache
def compiled() -> CompiledCases:
    """Returns every function for vectors that are one piece, and for those that are several."""
    cases = [math_case(opcode, type_) for opcode in OPCODES for type_ in (F32, F64)]
    return compile_cases(cases, (NARROW, WIDE))


def numbers(element_type: PrimitiveType) -> NumpyArray:
    """Returns usual numbers, all special ones and those of every exponent, well mixed."""
    rng = np.random.default_rng(5)
    exponents = (-149, 127) if element_type is F32 else (-1070, 1023)
    every = np.ldexp(rng.uniform(-2, 2, 300), rng.integers(*exponents, 300))
    special = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, -0.5, 1e5, 2.0**40, 1e-42]
    mixed = np.concatenate([every, special * 7, rng.normal(size=1024 - 377)])
    with np.errstate(over="ignore"):
        return rng.permutation(mixed).astype(element_type.dtype)


@pytest.mark.parametrize("element_type", [F32, F64], ids=lambda type_: type_.lower)
@pytest.mark.parametrize("opcode", OPCODES)
def test_pieces_give_the_same_bits(opcode: str, element_type: PrimitiveType) -> None:
    x = numbers(element_type)
    operands = (x, np.roll(x, 1)) if opcode in BINARY_MATH else (x,)
    name = f"{opcode}.{element_type.lower}"
    narrow, wide = (compiled().run(name, width, *operands) for width in (NARROW, WIDE))
    np.testing.assert_array_equal(wide, narrow)
    np.testing.assert_array_equal(np.signbit(wide), np.signbit(narrow))


@pytest.mark.parametrize(("element_type", "suffix"), [(F32, "v16f32"), (F64, "v8f64")])
def test_wide_vectors_go_by_pieces(element_type: PrimitiveType, suffix: str) -> None:
    """The long body is there once, for a piece; that of the whole calls it for each."""
    text = str(build_module([math_case("sine", element_type)], (WIDE,)))
    functions = {
        part.partition("(")[0].split('@"')[1].rstrip('"'): part
        for part in text.split("define ")[1:]
    }
    whole = functions[f"fuselane.sine.rare.v{WIDE}{suffix[-3:]}"]
    piece = f"fuselane.sine.rare.{suffix}"
    assert whole.count(f'@"{piece}"(') == WIDE // int(suffix[1:-3])
    assert "fma" not in whole and "fma" in functions[piece]
