"""What XLA hands to a typed-FFI handler, for handlers that are Python functions.

Such handlers are for finding bugs, not for speed. Those that run kernels are native
(`codegen.ffi_handler`).

Source: xla/ffi/api/c_api.h of jaxlib (interface version 0.3), as in `codegen.ffi_calls`.
"""

from __future__ import annotations

import ctypes
from typing import Any, Final, final

import ml_dtypes
import numpy as np

from fuselane.contract import NumpyArray
from fuselane.runtime.ffi import Attributes

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
        """Returns the memory of each."""
        return [self.buffers[i].contents.array() for i in range(self.size)]

    def addresses(self) -> list[int | None]:
        """Returns where each lies."""
        return [self.buffers[i].contents.data for i in range(self.size)]


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
class _ErrorCreate(ctypes.Structure):
    """XLA_FFI_Error_Create_Args."""

    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("extensions", ctypes.c_void_p),
        ("message", ctypes.c_char_p),
        ("code", ctypes.c_int),
    )


@final
class CallFrame(ctypes.Structure):
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

    @property
    def asks_for_metadata(self) -> bool:
        """Whether this is no call: XLA asks each handler once what it was written for."""
        return bool(self.extensions) and self.extensions.contents.type == _METADATA_EXTENSION

    def answer(self, major: int, minor: int) -> None:
        """Tells XLA which version of the interface a handler was written for."""
        version = self.extensions.contents.metadata.contents.version
        version.major, version.minor = major, minor

    def fail(self, message: str) -> int | None:
        """Returns the address of an error with which XLA fails the program."""
        arguments = _ErrorCreate(message=message.encode(), code=_INTERNAL)
        arguments.struct_size = _ErrorCreate.code.offset + _ErrorCreate.code.size
        create = _ERROR_FUNCTION(self.interface.contents.functions[_ERROR_CREATE])
        error: int | None = create(ctypes.byref(arguments))
        return error


HANDLER: Final = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(CallFrame))
"""A stage of a handler: returns None if all is well, or else the address of an error."""
_ERROR_FUNCTION: Final = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(_ErrorCreate))


def address_of(function: Any) -> int:
    """Returns the address of what `HANDLER` made of a function."""
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def keep(value: Any) -> None:
    """Keeps a value for as long as the process runs: XLA has its address."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))
