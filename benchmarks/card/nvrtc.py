"""CUDA C to PTX by NVIDIA's run-time compiler, which JAX's CUDA packages bring along."""

from __future__ import annotations

import ctypes
import importlib.util
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
    program = ctypes.c_void_p()
    _check(nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), None, 0, None, None))
    options = [f"--gpu-architecture={architecture}".encode(), b"--use_fast_math"]
    status = nvrtc.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * 2)(*options))
    if status:
        raise NvrtcError(_read(nvrtc, program, "ProgramLog"))
    return _read(nvrtc, program, "PTX")


def _load() -> ctypes.CDLL:
    names = ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"]
    spec = importlib.util.find_spec("nvidia")
    for folder in spec.submodule_search_locations or () if spec else ():
        names += sorted(map(str, Path(folder).glob("**/libnvrtc.so.*")))
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise NvrtcError("There is no libnvrtc.")


def _check(status: int) -> None:
    if status:
        raise NvrtcError(f"NVRTC failed with status {status}.")


def _read(nvrtc: ctypes.CDLL, program: ctypes.c_void_p, what: str) -> str:
    size = ctypes.c_size_t()
    _check(getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
    text = ctypes.create_string_buffer(size.value)
    _check(getattr(nvrtc, f"nvrtcGet{what}")(program, text))
    return text.value.decode(errors="replace")
