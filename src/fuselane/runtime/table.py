"""The kernels of this process's executables: loaded, made meanwhile if need be, and unloaded.

LLVM takes about as long for a kernel as the other loops of a module take us, and its rest XLA. So
each kernel that is only bitcode yet gets a thread of its own: when its loop has been replaced, or
else when XLA makes an executable. A call that comes before there is machine code waits for it.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import threading
from collections.abc import Callable
from typing import Any, Final, Protocol, final

from fuselane import config
from fuselane.codegen.llvm import HostTarget
from fuselane.codegen.loading import LoadedObject, load_object
from fuselane.errors import RuntimeFailure
from fuselane.runtime.cache import open_cache
from fuselane.runtime.kernel import Kernel, missing_features

MAX_IDLE_KERNELS: Final = 256
"""Kernels whose executables are gone that stay loaded; beyond it all of them are unloaded."""


@final
class Record(ctypes.Structure):
    """What the handler needs to run a kernel; `%Kernel` in `codegen.ffi_handler`.

    The function is null until there is machine code; until then calls wait while a thread makes it,
    and else ask for it.
    """

    _fields_ = (
        ("function", ctypes.c_void_p),
        ("num_tiles", ctypes.c_int64),
        ("max_threads", ctypes.c_int64),
        ("released", ctypes.c_int64),
        ("being_made", ctypes.c_int64),
    )


class Code(Protocol):
    """What holds a kernel's code in memory."""

    def make(self) -> None:
        """Returns when the record says where the code is."""
        ...

    def close(self) -> None:
        """Frees it."""
        ...


@final
class MachineCode:
    """The machine code of a kernel, made by a thread of its own, or else by a call.

    Attributes:
        record: Gets the function's address.
    """

    def __init__(self, kernel: Kernel, record: Record) -> None:
        self.record = record
        self._kernel: Kernel | None = kernel
        self._lock = threading.Lock()
        self._cache = config.cache_dir()
        self._library: LoadedObject | None = None

    def make(self) -> None:
        """Returns when the record says where the function is.

        Raises:
            CodegenError: if LLVM cannot make it or load it.
        """
        with self._lock:
            kernel = self._kernel
            if kernel is None:
                return
            if kernel.bitcode is not None:
                kernel = kernel.finished()
                open_cache(self._cache).put(kernel)
            library = load_object(kernel.object_code)
            self.record.function = library.address(kernel.symbol)
            self._library, self._kernel = library, None

    def make_meanwhile(self) -> None:
        """Has a thread make it, which Python waits for before it ends. What fails there fails again
        for the call, which says so."""

        def make() -> None:
            try:
                with contextlib.suppress(Exception):
                    self.make()
            finally:
                self.record.being_made = 0

        self.record.being_made = 1
        try:
            threading.Thread(target=make, name="fuselane-llvm", daemon=False).start()
        except RuntimeError:  # no more threads: the call makes it
            self.record.being_made = 0

    def close(self) -> None:
        """Unloads it, and makes it no more."""
        with self._lock:
            self._kernel = None
            if self._library is not None:
                self._library.close()


@final
@dataclasses.dataclass(slots=True)
class Loaded:
    """A kernel in memory, in use by all who acquired and have not released it.

    Attributes:
        code: Its code.
        record: What its handler needs; the field `released` is counted up by the handler.
        num_acquired: How often it was handed out.
    """

    code: Code
    record: Any
    num_acquired: int = 0

    @property
    def is_idle(self) -> bool:
        return bool(self.num_acquired == self.record.released)


@final
class KernelTable:
    """The kernels loaded into this process, by key."""

    def __init__(self, max_idle: int = MAX_IDLE_KERNELS) -> None:
        """Makes a table that keeps up to `max_idle` kernels nobody uses any more."""
        self._loaded: dict[str, Loaded] = {}
        self._at: dict[int, Loaded] = {}
        """By the addresses of their records: these, and older ones still in use."""
        self._lock = threading.Lock()
        self._max_idle = max_idle

    def acquire(self, key: str, load: Callable[[], Loaded]) -> int:
        """Returns the address of a kernel's record, from `load` if it is not there yet.

        The kernel stays loaded until the handler has counted the record as released, whatever
        becomes of the table: XLA keeps the address, even while Python is shutting down.
        """
        with self._lock:
            loaded = self._find(key, load)
            loaded.num_acquired += 1
            return ctypes.addressof(loaded.record)

    def begin(self, kernel: Kernel) -> None:
        """Loads a kernel that will probably be acquired soon, if it is not there yet."""
        with self._lock:
            self._find(kernel.key, lambda: load(kernel))

    def _find(self, key: str, load: Callable[[], Loaded]) -> Loaded:
        loaded = self._loaded.get(key)
        if loaded is None:
            self._unload_idle(self._max_idle)
            loaded = self._loaded[key] = load()
            self._at[ctypes.addressof(loaded.record)] = loaded
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(loaded))
        return loaded

    def made(self, address: int) -> Any:
        """Returns the record at an address, of a kernel in use, when it says where the code is.

        Raises:
            CodegenError: if LLVM cannot make the code or load it.
        """
        loaded = self._at[address]
        loaded.code.make()
        return loaded.record

    def address(self, key: str) -> int:
        """Returns the address of the record of a kernel in use."""
        return ctypes.addressof(self._loaded[key].record)

    def finish(self) -> None:
        """Returns when there is machine code of all kernels.

        Raises:
            CodegenError: if LLVM cannot make the code or load it.
        """
        for loaded in [*self._at.values()]:
            loaded.code.make()

    def forget(self) -> None:
        """Has kernels loaded anew for who comes next; those in use stay for who has them."""
        with self._lock:
            self._loaded.clear()
            self._unload_idle(0)

    def __len__(self) -> int:
        return len(self._at)

    def __contains__(self, key: str) -> bool:
        return key in self._loaded

    def _unload_idle(self, max_idle: int) -> None:
        idle = {address for address, loaded in self._at.items() if loaded.is_idle}
        if len(idle) <= max_idle:
            return
        for key, loaded in [*self._loaded.items()]:
            if ctypes.addressof(loaded.record) in idle:
                del self._loaded[key]
        for address in idle:
            loaded = self._at.pop(address)
            loaded.code.close()
            ctypes.pythonapi.Py_DecRef(ctypes.py_object(loaded))


def load(kernel: Kernel) -> Loaded:
    """Loads a kernel. If it has no machine code yet, that is begun and not waited for.

    Raises:
        RuntimeFailure: if this machine lacks instructions that it uses.
        CodegenError: if its machine code does not load.
    """
    missing = missing_features(kernel, HostTarget.host())
    if missing:
        raise RuntimeFailure(
            f"A Fuselane kernel was compiled for a machine with {', '.join(missing)}, which this"
            " one lacks; compile the program anew on this machine."
        )
    record = Record(num_tiles=kernel.num_tiles, max_threads=kernel.max_threads)
    code = MachineCode(kernel, record)
    if kernel.bitcode is None:
        code.make()
    else:
        code.make_meanwhile()
    return Loaded(code, record)


table: Final = KernelTable()
"""The kernels that run on CPUs."""
