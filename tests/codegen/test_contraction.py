"""Which multiply-adds are fused, and that it does not depend on LLVM's passes."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from fuselane.codegen.llvm import HostTarget, compile_object
from fuselane.codegen.loading import load_object
from tests.codegen.kernels import CompiledLoop, compile_loop, some
from tests.lanes.loops import counting_loop

NumpyArray = npt.NDArray[Any]

pytestmark = pytest.mark.skipif(
    "-fma" in HostTarget.host().features.split(","), reason="the machine has no multiply-adds"
)
_LANES = 64


def _run(body: str, results: list[str], opt_level: int) -> list[NumpyArray]:
    shape = f"f32[{_LANES}]"
    loop = compile_loop(counting_loop(body, results, [shape] * 3, trip_count=1))
    loaded = load_object(compile_object(loop.code.ir, opt_level=opt_level))
    arguments = [some([_LANES], seed=seed) for seed in range(3)]
    again = CompiledLoop(program=loop.program, code=loop.code, loaded=loaded)
    return [*arguments, *again.run(*arguments)[1:]]


def _fused(x: NumpyArray, y: NumpyArray, z: NumpyArray) -> NumpyArray:
    """x * y + z of floats, rounded once (but where a double lies between two floats)."""
    return (x.astype(np.float64) * y + z).astype(np.float32)


@pytest.mark.parametrize("opt_level", [1, 2])
@pytest.mark.parametrize("opcode", ["add", "subtract"])
def test_the_first_of_two_products_is_fused_across_branches(opcode: str, opt_level: int) -> None:
    """The sine between them branches, for large angles."""
    body = f"""
      u = f32[{_LANES}] multiply(e0, e1)
      s = f32[{_LANES}] sine(e2)
      v = f32[{_LANES}] multiply(e1, s)
      y = f32[{_LANES}] {opcode}(u, v)"""
    a, b, _, y, _, sine = _run(body, ["y", "e1", "s"], opt_level)
    sign = np.float32(-1 if opcode == "subtract" else 1)
    np.testing.assert_array_equal(y, _fused(a, b, sign * (b * sine)))


@pytest.mark.parametrize("opt_level", [1, 2])
def test_a_product_that_others_need_is_rounded(opt_level: int) -> None:
    body = f"""
      u = f32[{_LANES}] multiply(e0, e1)
      s = f32[{_LANES}] sine(e2)
      v = f32[{_LANES}] multiply(e1, s)
      y = f32[{_LANES}] subtract(u, v)"""
    a, b, _, y, p, _ = _run(body, ["y", "u", "e2"], opt_level)
    sine = _run(body, ["y", "u", "s"], opt_level)[-1]
    np.testing.assert_array_equal(p, a * b)
    np.testing.assert_array_equal(y, _fused(-b, sine, p))


@pytest.mark.parametrize("opt_level", [1, 2])
def test_two_products_of_the_same_factors_cancel(opt_level: int) -> None:
    body = f"""
      s = f32[{_LANES}] sine(e0)
      t = f32[{_LANES}] sine(e1)
      u = f32[{_LANES}] multiply(s, t)
      n = f32[{_LANES}] negate(t)
      v = f32[{_LANES}] multiply(n, s)
      y = f32[{_LANES}] add(u, v)"""
    y = _run(body, ["y", "e1", "e2"], opt_level)[3]
    np.testing.assert_array_equal(y, 0.0)
