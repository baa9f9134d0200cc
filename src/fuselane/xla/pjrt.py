"""XLA's compiler behind the C interface of its plug-ins, which takes HLO as it is.

JAX hands programs over as StableHLO, which knows neither layouts nor what XLA writes into fusions.
Only what compiling for a device that is not there takes is described here.

Source: xla/pjrt/c/pjrt_c_api.h. Structures begin with their size and a pointer to extensions, and
only ever grow at their ends.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any, Final, final

_ERROR_MESSAGE: Final = 1
_TOPOLOGY_CREATE: Final = 82
_COMPILE: Final = 89
"""Places of functions in the plug-in's table."""

_HEAD: Final[list[Any]] = [("struct_size", ctypes.c_size_t), ("extensions", ctypes.c_void_p)]


@final
class _Text(ctypes.Structure):
    _fields_ = [("start", ctypes.c_char_p), ("size", ctypes.c_size_t)]


@final
class _Api(ctypes.Structure):
    _fields_ = [
        *_HEAD,
        ("version_size", ctypes.c_size_t),
        ("version_extensions", ctypes.c_void_p),
        ("major", ctypes.c_int),
        ("minor", ctypes.c_int),
        ("functions", ctypes.c_void_p * (_COMPILE + 1)),
    ]


@final
class _ErrorMessage(ctypes.Structure):
    _fields_ = [
        *_HEAD,
        ("error", ctypes.c_void_p),
        ("message", ctypes.c_void_p),
        ("message_size", ctypes.c_size_t),
    ]


@final
class _NamedText(ctypes.Structure):
    _fields_ = [*_HEAD, ("name", _Text), ("type", ctypes.c_int), ("value", _Text)]


@final
class _CreateTopology(ctypes.Structure):
    _fields_ = [
        *_HEAD,
        ("name", _Text),
        ("options", ctypes.POINTER(_NamedText)),
        ("num_options", ctypes.c_size_t),
        ("topology", ctypes.c_void_p),
    ]


@final
class _Program(ctypes.Structure):
    _fields_ = [*_HEAD, ("code", _Text), ("format", _Text)]


@final
class _Compile(ctypes.Structure):
    _fields_ = [
        *_HEAD,
        ("topology", ctypes.c_void_p),
        ("program", ctypes.POINTER(_Program)),
        ("options", _Text),
        ("client", ctypes.c_void_p),
        ("executable", ctypes.c_void_p),
    ]


def compile_hlo(library: Path, data: bytes, options: bytes, config: str) -> None:
    """Compiles a module for one device that is not there, and forgets the result.

    JAX has initialized the plug-in before. What is allocated stays so: this is for a process of its
    own.

    Args:
        library: The plug-in.
        data: A serialized HloModuleProto.
        options: A serialized CompileOptionsProto.
        config: XLA's GpuTargetConfigProto of the device, as text.
    Raises:
        RuntimeError: with XLA's words, if it refuses the module.
    """
    get_api = ctypes.CDLL(str(library)).GetPjrtApi
    get_api.restype = ctypes.POINTER(_Api)
    api = get_api().contents
    named = (_NamedText * 2)(
        _named(b"target_config", config.encode()), _named(b"topology", b"1x1x1")
    )
    create = _CreateTopology(name=_text(b"gpu"), options=named, num_options=len(named))
    _call(api, _TOPOLOGY_CREATE, create)
    program = _Program(ctypes.sizeof(_Program), code=_text(data), format=_text(b"hlo"))
    arguments = _Compile(
        topology=create.topology, program=ctypes.pointer(program), options=_text(options)
    )
    _call(api, _COMPILE, arguments)


def _named(name: bytes, value: bytes) -> _NamedText:
    return _NamedText(ctypes.sizeof(_NamedText), name=_text(name), value=_text(value))


def _text(data: bytes) -> _Text:
    return _Text(data, len(data))


def _call(api: _Api, place: int, arguments: Any) -> None:
    """Calls a function of the plug-in's; raises RuntimeError with what it says went wrong."""
    arguments.struct_size = ctypes.sizeof(arguments)
    function = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(api.functions[place])
    error = function(ctypes.addressof(arguments))
    if error:
        said = _ErrorMessage(ctypes.sizeof(_ErrorMessage), error=error)
        tell = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(api.functions[_ERROR_MESSAGE])
        tell(ctypes.addressof(said))
        raise RuntimeError(ctypes.string_at(said.message, said.message_size).decode())
