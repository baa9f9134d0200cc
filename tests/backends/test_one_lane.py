"""Kernels for GPUs, launch and all, on the CPU beside XLA; see `simulation`."""

from __future__ import annotations

import ctypes

import jax.numpy as jnp
import pytest

from fuselane.codegen.llvm import compile_object, load_object
from fuselane.codegen.nvptx import ThreadCode
from tests.backends.programs import LOOPS
from tests.backends.simulation import host_ir, simulate
from tests.differential.comparison import CLOSE
from tests.differential.harness import check


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    simulate(monkeypatch)


@pytest.mark.parametrize("lanes", [33, 7])
@pytest.mark.parametrize("name", LOOPS)
def test_results_are_those_of_xla(name: str, lanes: int) -> None:
    check(LOOPS[name], jnp.linspace(-3, 5, lanes), tolerance=CLOSE)


@pytest.mark.parametrize("lanes", [0, 1, 31, 32, 150, 1025])
@pytest.mark.parametrize("name", ["rows", "totals", "means"])
def test_launches_of_odd_sizes(name: str, lanes: int) -> None:
    """No lane is left out or done twice, and none but they meet: a thread has up to three lanes."""
    if lanes == 0 and name == "means":
        pytest.skip("no lanes have no maximum")
    check(LOOPS[name], jnp.linspace(-3, 5, lanes), fused=None, tolerance=CLOSE)


def test_a_launch_of_a_million_lanes() -> None:
    check(LOOPS["collatz"], jnp.arange(10**6, dtype=jnp.float32) % 7)


_SHUFFLE = 'call i32 @"llvm.nvvm.shfl.sync.down.i32"(i32 {mask}, i32 %"tid", i32 1, i32 31)'
_BARRIER = 'call void @"llvm.nvvm.barrier0"()'


@pytest.mark.parametrize(
    ("first", "others", "said"),
    [
        (_BARRIER, _BARRIER, ""),
        ("", _BARRIER, ""),  # who has left is not waited for
        ("", _SHUFFLE.format(mask=-2), ""),
        ("", _SHUFFLE.format(mask=-1), "names a thread that has left"),
        (_BARRIER, _SHUFFLE.format(mask=-1), "wait for each other"),
        (_SHUFFLE.format(mask=-2), "", "does not name a thread that is there"),
        (_SHUFFLE.format(mask=-1), _SHUFFLE.format(mask=-1), "are at different shuffles"),
    ],
)
def test_rules_of_the_hardware_are_kept(
    first: str, others: str, said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """The first thread of a warp does one thing, all others do another."""
    text = f"""target datalayout = ""
define ptx_kernel void @"k"(ptr align 16 %"a") nounwind
{{
entry:
  %"tid" = call i32 @"llvm.nvvm.read.ptx.sreg.tid.x"()
  %"is_first" = icmp eq i32 %"tid", 0
  br i1 %"is_first", label %"first", label %"others"
first:
  {first}
  ret void
others:
  {others}
  ret void
}}
"""
    code = ThreadCode(
        ir=text, symbol="k", grid_blocks=1, block_threads=32, num_rows=1, num_instructions=1
    )
    loaded = load_object(compile_object(host_ir(code, 1, 0)))
    launch = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 2, *[ctypes.c_int64] * 2)
    array = (ctypes.c_void_p * 1)()
    launch(loaded.address("k"))(array, array, 0, 1)
    heard = capfd.readouterr().out
    assert said in heard and bool(said) == bool(heard)
