"""Rotations written as two shifts are one operation in a kernel."""

from __future__ import annotations

import numpy as np
import pytest

from fuselane.hlo.module import HloModule
from tests.codegen.kernels import NumpyArray, compile_loop
from tests.lanes.loops import counting_loop

LANES = 21


def _values(dtype: str) -> NumpyArray:
    info = np.iinfo(dtype)
    values = np.random.default_rng(0).integers(info.min, info.max, LANES, dtype, endpoint=True)
    values[:4] = 0, 1, info.max, info.min
    return values


def _run(opcode: str, type_: str, dtype: str, left: int, right: int) -> tuple[str, NumpyArray]:
    body = f"""
      a = {type_}[] constant({left})
      b = {type_}[] constant({right})
      left = {type_}[{LANES}] broadcast(a), dimensions={{}}
      right = {type_}[{LANES}] broadcast(b), dimensions={{}}
      l = {type_}[{LANES}] shift-left(e0, left)
      r = {type_}[{LANES}] shift-right-logical(e0, right)
      y = {type_}[{LANES}] {opcode}(r, l)"""
    loop = compile_loop(counting_loop(body, ["y"], [f"{type_}[{LANES}]"], trip_count=1))
    *_, result = loop.run(_values(dtype))
    return loop.code.ir, result


@pytest.mark.parametrize(("type_", "dtype"), [("u8", "uint8"), ("s32", "int32"), ("u64", "uint64")])
@pytest.mark.parametrize("opcode", ["or", "add", "xor"])
@pytest.mark.parametrize("left", [1, 5])
def test_rotations(opcode: str, type_: str, dtype: str, left: int) -> None:
    bits = np.iinfo(dtype).bits
    ir, result = _run(opcode, type_, dtype, left, bits - left)
    assert "llvm.fshl" in ir
    assert " shl " not in ir and " lshr " not in ir
    pattern = _values(dtype).view(f"u{bits // 8}")
    expected = pattern << left | pattern >> (bits - left)
    np.testing.assert_array_equal(result, expected.astype(f"u{bits // 8}").view(dtype))


def test_other_pairs_of_shifts_are_none() -> None:
    for opcode, left, right in (("or", 5, 26), ("and", 5, 27)):
        ir, result = _run(opcode, "s32", "int32", left, right)
        assert "llvm.fshl" not in ir
        pattern = _values("int32").view("uint32")
        joined = (np.bitwise_or if opcode == "or" else np.bitwise_and)(
            pattern << np.uint32(left), pattern >> np.uint32(right)
        )
        np.testing.assert_array_equal(result, joined.view("int32"))


@pytest.mark.parametrize(("type_", "dtype"), [("u32", "uint32"), ("s64", "int64")])
def test_rotations_mixed_are_hidden_from_known_bits(type_: str, dtype: str) -> None:
    bits = np.iinfo(dtype).bits
    loop = compile_loop(_mixing_loop(type_, bits))
    *_, result = loop.run(_values(dtype))
    assert loop.code.ir.count("llvm.arithmetic.fence") == 2  # declared, called
    pattern = _values(dtype).view(f"u{bits // 8}")
    expected = (pattern << 13 | pattern >> (bits - 13)) ^ pattern
    np.testing.assert_array_equal(result, expected.view(dtype))


def _mixing_loop(type_: str, bits: int) -> HloModule:
    body = f"""
      a = {type_}[] constant(13)
      b = {type_}[] constant({bits - 13})
      left = {type_}[{LANES}] broadcast(a), dimensions={{}}
      right = {type_}[{LANES}] broadcast(b), dimensions={{}}
      l = {type_}[{LANES}] shift-left(e0, left)
      r = {type_}[{LANES}] shift-right-logical(e0, right)
      rotated = {type_}[{LANES}] or(r, l)
      y = {type_}[{LANES}] xor(rotated, e0)"""
    return counting_loop(body, ["y"], [f"{type_}[{LANES}]"], trip_count=1)
