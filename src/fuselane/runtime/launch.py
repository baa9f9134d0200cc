"""Kernels for GPUs as calls of our own handler: the fallback for XLA's `__gpu$xla.gpu.ptx`.

Calls carry the attributes of XLA's own, but for how they name parameters (`runtime.ptx_call`).
When XLA makes an executable, the handler's INSTANTIATE stage asks `_resolve` below for what is to
be launched; the driver gets it at the first call. From then on, a call needs no Python.
"""

from __future__ import annotations

import ctypes
from typing import Any, Final, final

from fuselane.codegen.ffi_calls import INSTANTIATE_SYMBOL, RESOLVER_SYMBOL
from fuselane.codegen.launch_handler import (
    DRIVER_FUNCTIONS,
    DRIVER_SYMBOL,
    LAUNCH_SYMBOL,
    build_launch_ir,
)
from fuselane.errors import RuntimeFailure
from fuselane.runtime.driver import open_driver
from fuselane.runtime.ffi import (
    Attributes,
    load_handler,
    make_resolver,
    register_handler,
)
from fuselane.runtime.kernel import compute_key
from fuselane.runtime.once import once
from fuselane.runtime.ptx_call import LAUNCH_TARGET
from fuselane.runtime.table import KernelTable, Loaded


@final
class _Launch(ctypes.Structure):
    """What the handler launches; `%Launch` in `codegen.launch_handler`."""

    _fields_ = (
        ("text", ctypes.c_char_p),
        ("name", ctypes.c_char_p),
        ("grid_blocks", ctypes.c_uint32),
        ("released", ctypes.c_int64),
        ("block_threads", ctypes.c_uint32),
        ("shared_bytes", ctypes.c_uint32),
        ("num_inputs", ctypes.c_int64),
        ("kernel", ctypes.c_void_p),
        ("library", ctypes.c_void_p),
    )


@final
class _Module:
    """What the driver has loaded for a launch, if it ever came to that."""

    def __init__(self, launch: _Launch) -> None:
        self._launch = launch

    def make(self) -> None:
        """Does nothing: the driver loads it with the first launch."""

    def close(self) -> None:
        """Has the driver unload it."""
        if self._launch.library:
            open_driver().cuLibraryUnload(ctypes.c_void_p(self._launch.library))


_SIZES: Final = {
    "grid_blocks": "grid_x",
    "block_threads": "block_x",
    "shared_bytes": "shared_mem_bytes",
    "num_inputs": "num_inputs",
}
"""Fields of a launch, and the attributes they come from."""

table: Final = KernelTable()


def _resolve(attributes: Attributes) -> int:
    """Returns the address of what a call's attributes say to launch."""
    strings, numbers = attributes.read_strings(), attributes.read_integers()
    try:
        name, text = strings["name"], strings["kernel_data"]
        sizes = {field: numbers[attribute] for field, attribute in _SIZES.items()}
    except KeyError as error:
        raise RuntimeFailure(f"A call of Fuselane's launch has no attribute {error}.") from None

    def load() -> Loaded:
        launch = _Launch(text=text, name=name, **sizes)
        return Loaded(_Module(launch), launch)

    return table.acquire(compute_key(repr(text), repr(name), repr(sizes)), load)


_resolver: Final = make_resolver(_resolve)


@once
def register() -> None:
    """Registers the handler with XLA's GPU backend, now or as soon as JAX has loaded that.

    The first call does it, the others nothing. Neither a GPU nor a driver need be there.

    Raises:
        RuntimeFailure: if LLVM or XLA refuses it.
    """
    register_stages("CUDA", open_driver())


def register_stages(platform: str, driver: Any) -> None:
    """Registers the handler with one of XLA's platforms.

    Args:
        platform: XLA's name of it.
        driver: What `open_driver` returned.
    """
    handler = load_handler("launch", build_launch_ir(), {RESOLVER_SYMBOL: _resolver})
    functions = (ctypes.c_void_p * len(DRIVER_FUNCTIONS)).from_address(
        handler.address(DRIVER_SYMBOL)
    )
    if all(hasattr(driver, name) for name in DRIVER_FUNCTIONS):
        for position, name in enumerate(DRIVER_FUNCTIONS):
            functions[position] = ctypes.cast(getattr(driver, name), ctypes.c_void_p).value
    stages = {"instantiate": INSTANTIATE_SYMBOL, "execute": LAUNCH_SYMBOL}
    register_handler(LAUNCH_TARGET, handler, stages, platform)
