"""What `benchmarks/gpu.sh` runs on a card, as far as that can be told without one."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path
from typing import Final

import jax
import numpy as np
import pytest

from card.cartpole import CUDA_KERNELS, CUDA_SOURCE, cuda_arguments
from card.nvrtc import NvrtcError, compile_cuda
from fuselane.cartpole.problem import make_problem
from fuselane.cartpole.variants import VARIANTS

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
