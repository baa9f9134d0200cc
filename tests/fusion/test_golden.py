"""Golden: what becomes of one program under each pass, kernel by kernel."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import pytest

from fuselane.fusion.lane_kernels import LaneKernels
from fuselane.fusion.pipelines import PIPELINES
from fuselane.fusion.running import apply
from tests.fusion.outline import fuse, module_with, outline
from tests.fusion.test_lane_kernels import answer

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
        (
            "xla-today-cpu,fuselane",  # two that read `x` are joined, and share the sine
            [
                "kLoop[exponential negate sine] -> exponential, negate of x",
                "reduce of fusion.0, z",
                "kLoop[broadcast divide] -> divide of fusion.0, reduce",
            ],
        ),
    ],
)
def test_kernels(pipeline: str, kernels: list[str]) -> None:
    """Kinds, members, results and operands are these."""
    module = module_with(PROGRAM, SUM)
    fuse(module, pipeline)
    assert outline(module) == kernels


@pytest.mark.parametrize(
    ("answers", "kernels"),
    [
        ([True], ["while of tuple"]),
        (
            [False, False, True],  # the whole, up to the sum, and what follows from it and else
            [
                "kLoop[exponential sine] -> exponential, sine of x",
                "kLoop[reduce] -> reduce of fusion.0, z",
                "while of tuple",
                "while of tuple",
            ],
        ),
        (
            [False],
            [
                "sine of x",
                "exponential of sine",
                "reduce of exponential, z",
                "broadcast of reduce",
                "divide of exponential, broadcast",
                "negate of sine",
            ],
        ),
    ],
)
def test_kernels_of_fuselane(answers: list[bool], kernels: list[str]) -> None:
    """A loop stands for each kernel that is made; what is left is fused as by XLA, and joined."""
    module = module_with(PROGRAM, SUM)
    maker = answer(*answers)
    apply(
        module,
        tuple(
            replace(p, make_kernel=maker) if isinstance(p, LaneKernels) else p
            for p in PIPELINES["fuselane"]
        ),
    )
    buffers = "kLoop[broadcast] -> broadcast of constant"
    assert [line for line in outline(module) if not line.startswith(buffers)] == kernels
