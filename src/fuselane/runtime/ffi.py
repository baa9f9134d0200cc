"""Kernels as XLA custom calls: registering the native handler, finding the kernel of a call site.

All call sites share the target `fuselane_kernel`. Each carries two attributes: the kernel's key,
and the kernel itself as text, so that an executable from JAX's persistent compilation cache or from
`jax.experimental.serialize_executable` runs even where the kernel cache is empty.

When XLA makes an executable (while compiling or on reading it back), the handler's INSTANTIATE
stage calls `_resolve` below once per call site. It looks for the kernel among the loaded ones, in
the cache, and in the attribute, in that order. Running a kernel needs neither Python nor a look-up,
but for first calls that come before its machine code (see `runtime.table`).
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Mapping
from typing import Any, Final, final

import jax

from fuselane import config
from fuselane.codegen.ffi_calls import INSTANTIATE_SYMBOL, RESOLVER_SYMBOL
from fuselane.codegen.ffi_handler import EXECUTE_SYMBOL, WAITER_SYMBOL, build_handler_ir
from fuselane.codegen.llvm import HostTarget, compile_object
from fuselane.codegen.loading import LoadedObject, load_object
from fuselane.errors import CacheError, RuntimeFailure
from fuselane.runtime.cache import open_cache
from fuselane.runtime.kernel import Kernel, compute_key
from fuselane.runtime.once import once
from fuselane.runtime.table import load, table

TARGET: Final = "fuselane_kernel"
"""Custom call target of every kernel."""

# XLA_FFI_AttrType and XLA_FFI_DataType.
_SCALAR_ATTRIBUTE: Final = 3
_STRING_ATTRIBUTE: Final = 4
_S32: Final = 4


@final
class _Span(ctypes.Structure):
    """XLA_FFI_ByteSpan."""

    _fields_ = (("address", ctypes.c_void_p), ("size", ctypes.c_size_t))

    def read(self) -> bytes:
        return ctypes.string_at(self.address, self.size) if self.size else b""


@final
class _Scalar(ctypes.Structure):
    """XLA_FFI_Scalar."""

    _fields_ = (("dtype", ctypes.c_int), ("value", ctypes.c_void_p))


@final
class Attributes(ctypes.Structure):
    """XLA_FFI_Attrs."""

    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("extensions", ctypes.c_void_p),
        ("size", ctypes.c_int64),
        ("types", ctypes.POINTER(ctypes.c_int)),
        ("names", ctypes.POINTER(ctypes.POINTER(_Span))),
        ("values", ctypes.POINTER(ctypes.c_void_p)),
    )

    def read_strings(self) -> dict[str, bytes]:
        """Returns the string attributes by name."""
        return {
            self.names[i].contents.read().decode(): _Span.from_address(self.values[i]).read()
            for i in range(self.size)
            if self.types[i] == _STRING_ATTRIBUTE
        }

    def read_integers(self) -> dict[str, int]:
        """Returns the attributes of type i32 by name."""
        scalars = {
            self.names[i].contents.read().decode(): _Scalar.from_address(self.values[i])
            for i in range(self.size)
            if self.types[i] == _SCALAR_ATTRIBUTE
        }
        return {
            name: ctypes.c_int32.from_address(scalar.value).value
            for name, scalar in scalars.items()
            if scalar.dtype == _S32
        }


def custom_call_attributes(kernel: Kernel) -> bytes:
    """Returns the text for a custom call's `backend_config`: a dictionary in MLIR's syntax."""
    return f'{{image = "{kernel.to_text()}", key = "{kernel.key}"}}'.encode()


def find_kernel(attributes: dict[str, bytes]) -> Kernel:
    """Returns the kernel that a call site names, from the cache or else from its own attribute.

    Raises:
        RuntimeFailure: if it is in neither.
    """
    key = attributes.get("key", b"").decode()
    kernel = open_cache(config.cache_dir()).get(key)
    if kernel is not None:
        return kernel
    try:
        kernel = Kernel.from_text(attributes.get("image", b""))
    except CacheError as error:
        raise RuntimeFailure(
            f"Fuselane's kernel {key[:12]} is neither cached nor in the executable."
        ) from error
    if kernel.key != key:
        raise RuntimeFailure(f"The executable holds another kernel than {key[:12]}.")
    return kernel


_RESOLVER: Final = ctypes.CFUNCTYPE(
    ctypes.c_void_p, ctypes.POINTER(Attributes), ctypes.c_void_p, ctypes.c_int64
)


def make_resolver(resolve: Callable[[Attributes], int]) -> Any:
    """Returns what a handler's `fuselane_resolver` holds, as ctypes has it.

    Args:
        resolve: Returns the address of the record of what a call's attributes name.
    """

    def answer(pointer: Any, message: int, capacity: int) -> int | None:
        return _answer(lambda: resolve(pointer.contents), message, capacity)

    return _RESOLVER(answer)


def _answer(find: Callable[[], int], message: int, capacity: int) -> int | None:
    """Returns an address to C, or writes a message of up to so many bytes."""
    try:
        return find()
    except BaseException as error:
        text = str(error) if isinstance(error, RuntimeFailure) else f"Fuselane failed: {error!r}"
        encoded = text.encode()[: capacity - 1] + b"\0"
        ctypes.memmove(message, encoded, len(encoded))
        return None


def _resolve(attributes: Attributes) -> int:
    """Returns the address of the record of the kernel that a call names."""
    strings = attributes.read_strings()
    key = strings.get("key", b"").decode()
    return table.acquire(key, lambda: load(find_kernel(strings)))


_resolver: Final = make_resolver(_resolve)

_WAITER: Final = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)


def _wait(record: int, message: int, capacity: int) -> int | None:
    """Returns a kernel's function once there is one, or writes why there will be none."""
    return _answer(lambda: int(table.made(record).function), message, capacity)


_waiter: Final = _WAITER(_wait)


@functools.cache
def native_handler() -> LoadedObject:
    """Returns the handler of kernels on CPUs, in executable memory."""
    callbacks = {RESOLVER_SYMBOL: _resolver, WAITER_SYMBOL: _waiter}
    return load_handler("handler", build_handler_ir(), callbacks)


@once
def register() -> None:
    """Registers the handler with XLA's CPU backend; the first call does it, the others nothing.

    Raises:
        RuntimeFailure: if LLVM or XLA refuses it.
    """
    stages = {"instantiate": INSTANTIATE_SYMBOL, "execute": EXECUTE_SYMBOL}
    register_handler(TARGET, native_handler(), stages, "cpu")


def load_handler(name: str, text: str, callbacks: Mapping[str, Any]) -> LoadedObject:
    """Returns a handler in executable memory, from the cache or fresh from LLVM.

    Args:
        name: Tells it from other handlers.
        text: LLVM IR of it.
        callbacks: What its variables are to hold, as ctypes has it; stays for the life of the
            process.
    """
    handler = load_object(_handler_kernel(name, text).object_code)
    # XLA keeps these addresses, and calls them even while Python is shutting down.
    for immortal in (handler, *callbacks.values()):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(immortal))
    for symbol, callback in callbacks.items():
        place = ctypes.c_void_p.from_address(handler.address(symbol))
        place.value = ctypes.cast(callback, ctypes.c_void_p).value
    return handler


def register_handler(
    target: str, handler: LoadedObject, stages: Mapping[str, str], platform: str
) -> None:
    """Registers a handler with XLA.

    Args:
        target: Custom call target.
        handler: From `load_handler`.
        stages: Its functions, by XLA's names of the stages.
        platform: XLA's name of it.
    Raises:
        RuntimeFailure: if XLA refuses it.
    """
    addresses = {stage: handler.address(symbol) for stage, symbol in stages.items()}
    register_functions(target, addresses, platform)


def register_functions(target: str, addresses: Mapping[str, int], platform: str) -> None:
    """Registers C functions with XLA as a handler.

    Args:
        target: Custom call target.
        addresses: Of the functions, by XLA's names of the stages.
        platform: XLA's name of it.
    Raises:
        RuntimeFailure: if XLA refuses them.
    """
    wrap: Callable[[Any], Any] = jax.ffi.pycapsule
    functions = {stage: wrap(ctypes.c_void_p(address)) for stage, address in addresses.items()}
    try:
        jax.ffi.register_ffi_target(target, functions, platform=platform)
    except Exception as error:
        raise RuntimeFailure(f"XLA refused Fuselane's handler: {error}") from error


def _handler_kernel(name: str, text: str) -> Kernel:
    """Returns a handler's object code, kept like a kernel that has no tiles."""
    target = HostTarget.host()
    key = compute_key(name, text, repr(target))

    def build() -> Kernel:
        return Kernel(
            key=key,
            symbol=INSTANTIATE_SYMBOL,
            object_code=compile_object(text, target),
            num_tiles=0,
            max_threads=0,
            target=target,
        )

    return open_cache(config.cache_dir()).get_or_build(key, build)
