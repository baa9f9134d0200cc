"""What `benchmarks/gpu.sh` runs on a card, as far as that can be told without one."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import time
from argparse import Namespace
from pathlib import Path
from typing import Any, Final

import jax
import numpy as np
import pytest

from card import run
from card.cartpole import CUDA_KERNELS, CUDA_SOURCE, cuda_arguments, fused_run
from card.nvrtc import NvrtcError, compile_cuda
from card.series import run_series
from fuselane.cartpole.problem import make_problem
from fuselane.cartpole.variants import VARIANTS
from fuselane.runtime.warning import FuselaneWarning

NUM_ENVS: Final = 100
NUM_STEPS: Final = 100
AS_CPP: Final = """
#include <cmath>
#define __global__
#define __device__
struct { unsigned x; } blockIdx, blockDim = {1}, threadIdx;
"""


@pytest.mark.skipif(shutil.which("c++") is None, reason="there is no C++ compiler")
@pytest.mark.parametrize("variant", CUDA_KERNELS)
def test_cuda_by_hand_computes_what_jax_does(variant: str, tmp_path: Path) -> None:
    """The kernel as C++, a thread after the other: the same resets, with the same numbers."""
    problem = make_problem(NUM_ENVS, NUM_STEPS)
    arguments = [np.asarray(a) for a in cuda_arguments(variant, problem, NUM_STEPS)]
    result = np.empty_like(arguments[0])
    name = CUDA_KERNELS[variant]
    call = ", ".join(f"({kind}*)arrays[{i}]" for i, kind in enumerate(_kinds(arguments)))
    source, library = tmp_path / "kernel.cpp", tmp_path / "kernel.so"
    run = f"for (unsigned i = 0; i < {NUM_ENVS + 3}; i++) {{ blockIdx.x = i; {name}({call}); }}"
    text = CUDA_SOURCE.read_text(encoding="utf-8")
    source.write_text(f'{AS_CPP}{text}extern "C" void run(void **arrays) {{ {run} }}')
    subprocess.run(["c++", "-O1", "-shared", "-fPIC", "-w", source, "-o", library], check=True)
    arrays = [*arguments, result]
    ctypes.CDLL(str(library)).run((ctypes.c_void_p * len(arrays))(*(a.ctypes.data for a in arrays)))
    rollout = VARIANTS[variant].make_rollout(NUM_STEPS)
    expected = jax.jit(rollout)(*VARIANTS[variant].get_arguments(problem))
    np.testing.assert_allclose(result, expected, atol=1e-4)


def _kinds(arguments: list[np.ndarray]) -> list[str]:
    kinds = {"float32": "float", "int32": "int", "uint32": "unsigned"}
    return [*(kinds[str(a.dtype)] for a in arguments), "float"]


@pytest.mark.parametrize("architecture", ["compute_75", "compute_80", "compute_90", "compute_100"])
def test_cuda_by_hand_compiles(architecture: str) -> None:
    try:
        ptx = compile_cuda(CUDA_SOURCE.read_text(encoding="utf-8"), architecture)
    except NvrtcError as error:
        if "neither" in str(error):
            pytest.skip(str(error))
        raise
    assert all(f".entry {name}(" in ptx for name in CUDA_KERNELS.values())


def test_a_loop_that_estimates_leave_to_xla_is_timed_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem = make_problem(NUM_ENVS, NUM_STEPS)
    remarks: list[str] = []
    fused_run("concat", problem, NUM_STEPS, remarks)()
    assert not remarks
    monkeypatch.setenv("FUSELANE_MIN_GAIN", "1e9")
    fused_run("concat", problem, NUM_STEPS, remarks)()
    (remark,) = remarks
    assert remark.startswith("by default left to XLA: "), remark
    monkeypatch.setenv("FUSELANE_MAX_COMPILE_S", "1e-6")
    with pytest.warns(FuselaneWarning), pytest.raises(RuntimeError, match="not fused: "):
        fused_run("concat", problem, NUM_STEPS, remarks)


CHILD: Final = """
import os, pathlib, sys
from card import series

def measure(name):
    if name == "dies":
        os._exit(9)
    if name == "raises":
        raise ValueError("no such thing")
    if name == "breaks":
        series.is_gpu_alive = lambda: False
    return {"process": os.getpid()}

sys.exit(series.measure_all(sys.argv[3:], pathlib.Path(sys.argv[1]), measure))
"""


def test_a_series_goes_on_behind_what_ends_a_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "child_of_series.py").write_text(CHILD, encoding="utf-8")
    paths = (tmp_path, *(Path(__file__).parents[1] / name for name in ("src", "benchmarks")))
    monkeypatch.setenv("PYTHONPATH", ":".join(map(str, paths)))
    names = ["one", "dies", "two", "breaks", "three", "raises", "four"]
    *_, (rows, remaining) = run_series("child_of_series", names, tmp_path / "out.json", 120)
    assert not remaining and [row["name"] for row in rows] == names
    errors = {row["name"]: row["error"] for row in rows if "error" in row}
    assert errors == {"dies": "exit code 9", "raises": "ValueError: no such thing"}
    processes = [row.get("process") for row in rows]
    assert processes[2] == processes[3] and processes[4] == processes[6]
    assert len({processes[0], processes[2], processes[4]}) == 3


def test_nothing_is_measured_where_jax_has_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be a CPU that JAX has fallen back to, with nvidia-smi beside it."""
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    assert run.find_missing({"JAX's first device": "gpu, NVIDIA H100 80GB HBM3"}) == ""
    assert "Its first device: cpu, cpu." in run.find_missing({"JAX's first device": "cpu, cpu"})
    assert "No module" in run.find_missing({"JAX's first device": "No module named 'jax'"})


def test_tests_run_side_by_side_as_far_as_cores_and_memory_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    assert run.count_workers("NVIDIA H100 80GB HBM3, 580.159.04, 81559 MiB") == 16
    assert run.count_workers("NVIDIA T400, 550.54, 4096 MiB") == 4
    assert run.count_workers("no words of memory") == 16
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert run.count_workers("NVIDIA T400, 550.54, 4096 MiB") == 1


def test_parts_get_what_those_before_have_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last one has all the time that there still is."""
    limits: list[float] = []

    def run_part(command: Any, out: Path, seconds: float) -> dict[str, Any]:
        limits.append(seconds)
        return {"ended": "exit code 0", "seconds": 0.0, "result": None, "said": ""}

    monkeypatch.setattr(run, "run_part", run_part)
    found = {"machine": {"card": "C"}, "date": "2026-11-24 04:00"}
    options = Namespace(only=list(run.SHARES), dry=False)
    run.run_parts(found, tmp_path / "new" / "folder", options, time.monotonic() + 500)
    assert limits[0] == pytest.approx(50, rel=0.1) and limits[-1] == pytest.approx(500, rel=0.1)
    page = (tmp_path / "new" / "folder" / "gpu-2026-11-24-c.md").read_text(encoding="utf-8")
    assert "## tests" in page
