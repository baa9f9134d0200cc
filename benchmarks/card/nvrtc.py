"""CUDA C to PTX by NVIDIA's run-time compiler, which JAX's CUDA packages bring along, or nvcc."""

from __future__ import annotations

import ctypes
import importlib.util
import shutil
import subprocess
import tempfile
from pathlib import Path


class NvrtcError(Exception):
    """NVRTC is not there, or does not like a program."""


def compile_cuda(source: str, architecture: str) -> str:
    """Returns the PTX of a CUDA C program.

    Args:
        source: Its text.
        architecture: Such as "compute_90".
    Raises:
        NvrtcError: with what the compiler said.
    """
    nvrtc = _load()
    if nvrtc is None:
        return _run_nvcc(source, architecture)
    program = ctypes.c_void_p()
    _check(nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), None, 0, None, None))
    options = [f"--gpu-architecture={architecture}".encode(), b"--use_fast_math"]
    status = nvrtc.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * 2)(*options))
    if status:
        raise NvrtcError(_read(nvrtc, program, "ProgramLog"))
    return _read(nvrtc, program, "PTX")


def _run_nvcc(source: str, architecture: str) -> str:
    nvcc = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
    if nvcc is None:
        raise NvrtcError("There is neither libnvrtc nor nvcc.")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "program.cu"
        path.write_text(source, encoding="utf-8")
        ptx = path.with_suffix(".ptx")
        command = [nvcc, "-ptx", f"-arch={architecture}", "--use_fast_math", str(path)]
        run = subprocess.run(
            [*command, "-o", str(ptx)], capture_output=True, text=True, timeout=60, check=False
        )
        if run.returncode:
            raise NvrtcError(run.stderr[-1000:])
        return ptx.read_text(encoding="utf-8")


def _load() -> ctypes.CDLL | None:
    names = ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"]
    spec = importlib.util.find_spec("nvidia")
    for folder in spec.submodule_search_locations or () if spec else ():
        names += sorted(map(str, Path(folder).glob("**/libnvrtc.so.*")))
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None


def _check(status: int) -> None:
    if status:
        raise NvrtcError(f"NVRTC failed with status {status}.")


def _read(nvrtc: ctypes.CDLL, program: ctypes.c_void_p, what: str) -> str:
    size = ctypes.c_size_t()
    _check(getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
    text = ctypes.create_string_buffer(size.value)
    _check(getattr(nvrtc, f"nvrtcGet{what}")(program, text))
    return text.value.decode(errors="replace")
