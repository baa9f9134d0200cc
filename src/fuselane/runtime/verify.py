"""The custom call that compares a kernel's results to XLA's while a program runs.

All its call sites share the target `fuselane_verify` and carry one attribute, `check`, with the
text of a `contract.Check`. Operands are, for each element of the check, XLA's result; then the
kernel's; then those of each varied run; at last two scalars, s32: the step, and how many
differences earlier steps left unexplained. Results are both for the next step.

The handler is a Python function behind the typed FFI: this is for finding bugs, not for speed. When
it finds a difference, XLA fails the whole program with the check's sentence.

Source: xla/ffi/api/c_api.h of jaxlib (interface version 0.3), as in `codegen.ffi_calls`.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from typing import Any, Final, final

import jax
import ml_dtypes
import numpy as np

from fuselane.codegen.ffi_calls import API_MAJOR, API_MINOR
from fuselane.contract import Check, NumpyArray
from fuselane.errors import RuntimeFailure
from fuselane.runtime.ffi import Attributes, capsule
from fuselane.runtime.once import once

CHECK_TARGET: Final = "fuselane_verify"
"""Custom call target of every comparison."""

_METADATA_EXTENSION: Final = 1
_INTERNAL: Final = 13
_ERROR_CREATE: Final = 0  # position among the interface's functions

# XLA's element types by number: xla/xla_data.proto.
_DTYPES: Final = {
    1: np.bool_,
    2: np.int8,
    3: np.int16,
    4: np.int32,
    5: np.int64,
    6: np.uint8,
    7: np.uint16,
    8: np.uint32,
    9: np.uint64,
    10: np.float16,
    11: np.float32,
    12: np.float64,
    15: np.complex64,
    16: ml_dtypes.bfloat16,
    18: np.complex128,
}


@final
class _Version(ctypes.Structure):
    """XLA_FFI_Api_Version."""

    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("extensions", ctypes.c_void_p),
        ("major", ctypes.c_int),
        ("minor", ctypes.c_int),
    )


@final
class _Metadata(ctypes.Structure):
    """XLA_FFI_Metadata."""

    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("version", _Version),
        ("traits", ctypes.c_uint32),
        ("state_type", ctypes.c_int64),
    )


@final
class _Extension(ctypes.Structure):
    """XLA_FFI_Metadata_Extension, of which every other extension has the first three fields."""

    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("type", ctypes.c_int),
        ("next", ctypes.c_void_p),
        ("metadata", ctypes.POINTER(_Metadata)),
    )


@final
class _Buffer(ctypes.Structure):
    """XLA_FFI_Buffer."""

    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("extensions", ctypes.c_void_p),
        ("dtype", ctypes.c_int),
        ("data", ctypes.c_void_p),
        ("rank", ctypes.c_int64),
        ("sizes", ctypes.POINTER(ctypes.c_int64)),
    )

    def array(self) -> NumpyArray:
        """Returns its memory as a flat array."""
        dtype = np.dtype(_DTYPES[self.dtype])
        count = 1
        for dimension in range(self.rank):
            count *= self.sizes[dimension]
        if not count:
            return np.zeros(0, dtype)
        memory = (ctypes.c_char * (count * dtype.itemsize)).from_address(self.data)
        return np.frombuffer(memory, dtype)


@final
class _Buffers(ctypes.Structure):
    """XLA_FFI_Args and XLA_FFI_Rets."""

    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("extensions", ctypes.c_void_p),
        ("size", ctypes.c_int64),
        ("types", ctypes.c_void_p),
        ("buffers", ctypes.POINTER(ctypes.POINTER(_Buffer))),
    )

    def arrays(self) -> list[NumpyArray]:
        return [self.buffers[i].contents.array() for i in range(self.size)]


@final
class _Interface(ctypes.Structure):
    """The beginning of XLA_FFI_Api."""

    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("extensions", ctypes.c_void_p),
        ("version", _Version),
        ("internal", ctypes.c_void_p),
        ("functions", ctypes.c_void_p * 1),
    )


@final
class _CallFrame(ctypes.Structure):
    """XLA_FFI_CallFrame."""

    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("extensions", ctypes.POINTER(_Extension)),
        ("interface", ctypes.POINTER(_Interface)),
        ("context", ctypes.c_void_p),
        ("stage", ctypes.c_int),
        ("operands", _Buffers),
        ("results", _Buffers),
        ("attributes", Attributes),
        ("future", ctypes.c_void_p),
    )


@final
class _ErrorCreate(ctypes.Structure):
    """XLA_FFI_Error_Create_Args."""

    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("extensions", ctypes.c_void_p),
        ("message", ctypes.c_char_p),
        ("code", ctypes.c_int),
    )


def _handle(pointer: Any) -> int | None:
    """Answers XLA: None if all is well, or else the address of an error."""
    frame = pointer.contents
    if frame.extensions and frame.extensions.contents.type == _METADATA_EXTENSION:
        version = frame.extensions.contents.metadata.contents.version
        version.major, version.minor = API_MAJOR, API_MINOR
        return None
    try:
        text = frame.attributes.read_strings()["check"].decode()
        operands, results = frame.operands.arrays(), frame.results.arrays()
        message = run_check(_parse(text), operands, results)
    except BaseException as error:
        message = f"Fuselane failed to verify a loop: {error!r}"
    return _make_error(frame, message) if message else None


def run_check(check: Check, operands: Sequence[NumpyArray], results: Sequence[NumpyArray]) -> str:
    """Compares one call's operands and fills its results; returns what is wrong, or ""."""
    count = len(check.elements)
    runs = [operands[i * count : (i + 1) * count] for i in range(2 + check.num_variations)]
    step, num_wrong = (int(scalar[0]) for scalar in operands[-2:])
    outcome = check.compare(runs[0], runs[1], runs[2:], step, num_wrong)
    for result, value in zip(results, (step + 1, outcome.num_wrong), strict=True):
        result[0] = value
    return outcome.message


@functools.lru_cache(maxsize=1024)
def _parse(text: str) -> Check:
    return Check.from_text(text)


def _make_error(frame: Any, message: str) -> int | None:
    arguments = _ErrorCreate(message=message.encode(), code=_INTERNAL)
    arguments.struct_size = _ErrorCreate.code.offset + _ErrorCreate.code.size
    create = _ERROR_FUNCTION(frame.interface.contents.functions[_ERROR_CREATE])
    error: int | None = create(ctypes.byref(arguments))
    return error


_HANDLER: Final = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(_CallFrame))
_ERROR_FUNCTION: Final = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(_ErrorCreate))
_handler: Final = _HANDLER(_handle)


def check_attributes(check: Check) -> bytes:
    """Returns the text for a custom call's `backend_config`: a dictionary in MLIR's syntax."""
    return f'{{check = "{check.to_text()}"}}'.encode()


@once
def register() -> None:
    """Registers the handler with XLA's CPU backend; the first call does it, the others nothing.

    Raises:
        RuntimeFailure: if XLA refuses it.
    """
    # XLA keeps the address for as long as the process runs.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(_handler))
    address = ctypes.cast(_handler, ctypes.c_void_p).value
    register_target: Callable[..., None] = jax.ffi.register_ffi_target
    try:
        register_target(CHECK_TARGET, capsule(address or 0), platform="cpu")
    except Exception as error:
        raise RuntimeFailure(f"XLA refused Fuselane's check: {error}") from error
