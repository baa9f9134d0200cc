"""Golden: what becomes of one program under each pass, kernel by kernel."""

from __future__ import annotations

from typing import Final

import pytest

from tests.fusion.outline import fuse, module_with, outline

SUM: Final = "sum { i = f32[] parameter(0) j = f32[] parameter(1) ROOT k = f32[] add(i, j) }"
PROGRAM: Final = """x = f32[64,64] parameter(0) z = f32[] constant(0) s = f32[64,64] sine(x)
  e = f32[64,64] exponential(s) r = f32[64] reduce(e, z), dimensions={1}, to_apply=sum
  b = f32[64,64] broadcast(r), dimensions={0} d = f32[64,64] divide(e, b)
  n = f32[64,64] negate(s) ROOT t = (f32[64,64], f32[64,64]) tuple(d, n)"""
"""Softmax of sines, and the sines with the other sign."""


@pytest.mark.parametrize(
    ("pipeline", "kernels"),
    [
        (
            "instruction-fusion",  # the exponential is expensive, the sine is computed twice
            [
                "kLoop[exponential sine] -> exponential of x",
                "reduce of fusion, z",
                "kLoop[broadcast divide] -> divide of fusion, reduce",
                "kLoop[negate sine] -> negate of x",
            ],
        ),
        (
            "gpu-instruction-fusion,fusion-merger{priced=true}",  # it is cheap, as on GPUs
            [
                "kInput[constant exponential reduce sine] -> reduce of x",
                "kLoop[broadcast divide exponential sine] -> divide of fusion, x",
                "kLoop[negate sine] -> negate of x",
            ],
        ),
        (
            "priority-fusion",  # three kernels would compute the sine
            [
                "sine of x",
                "negate of sine",
                "kInput[constant exponential reduce] -> reduce of sine",
                "kLoop[broadcast divide exponential] -> divide of fusion, sine",
            ],
        ),
        (
            "priority-fusion,fusion-cse,multi-output-fusion",  # the sine is returned, and read
            [
                "kInput[constant exponential reduce sine] -> reduce, sine of x",
                "kLoop[broadcast divide exponential negate] -> divide, negate"
                " of fusion.0, fusion.1",
            ],
        ),
    ],
)
def test_kernels(pipeline: str, kernels: list[str]) -> None:
    """Kinds, members, results and operands are these."""
    module = module_with(PROGRAM, SUM)
    fuse(module, pipeline)
    assert outline(module) == kernels
