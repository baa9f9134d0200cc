"""The kernel cache: in memory, and on disk for the next process.

One file per kernel, named by its key, in a directory only the user can write, since machine code is
loaded from it (see `runtime.private_directory`). Files are written beside their place and renamed
into it, so readers in other processes see a whole file or none; a file whose content does not match
its own hash is deleted and made anew. Above its size limit the files unused longest go first.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Final, final

from fuselane.errors import CacheError
from fuselane.runtime.kernel import MAX_BYTES, Kernel
from fuselane.runtime.private_directory import TEMPORARY, PrivateDirectory, open_private
from fuselane.runtime.warning import warn_once

DEFAULT_DISK_BYTES: Final = 256 * 2**20
MEMORY_BYTES: Final = 4 * 2**20
"""Object code kept in memory beside the disk, a thousand small kernels; loaded machine code is not
counted, see `runtime.table`."""

_SUFFIX: Final = ".kernel"
_KEY: Final = re.compile(r"[0-9a-f]{64}")
_STALE_SECONDS: Final = 3600
_KEEP_SHARE: Final = 0.8


@final
class KernelCache:
    """Kernels by key. Safe for several threads and, on disk, for several processes."""

    def __init__(self, directory: Path | None, disk_bytes: int = DEFAULT_DISK_BYTES) -> None:
        """Makes a cache.

        Args:
            directory: Where files are kept; made when first needed. None keeps kernels in memory.
            disk_bytes: Size of all files above which some are deleted; 0 reads and writes none.
        """
        self._directory = directory
        self.disk_bytes = disk_bytes
        self._kernels: OrderedDict[str, Kernel] = OrderedDict()
        self._memory_bytes = 0
        self._builds: dict[str, threading.Lock] = {}
        self._lock = threading.RLock()
        self._used_bytes: int | None = None
        self._is_writable = True

    @property
    def directory(self) -> Path | None:
        """Returns where kernels are kept on disk, or None."""
        return self._directory if self.disk_bytes > 0 else None

    def get(self, key: str) -> Kernel | None:
        """Returns a kernel from memory or disk, or None."""
        with self._lock:
            kernel = self._kernels.get(key)
            if kernel is not None:
                self._kernels.move_to_end(key)
                return kernel
        kernel = self._read(key)
        if kernel is not None:
            self._remember(kernel)
        return kernel

    def put(self, kernel: Kernel) -> None:
        """Keeps a kernel in memory and, if it has machine code and that works, on disk."""
        self._remember(kernel)
        self._write(kernel)

    def get_or_build(self, key: str, build: Callable[[], Kernel]) -> Kernel:
        """Returns the kernel of a key, making it if need be; threads that ask at once wait for one.

        Whatever `build` raises is passed on, and the next caller tries again.
        """
        with self._lock:
            lock = self._builds.setdefault(key, threading.Lock())
        try:
            with lock:
                kernel = self.get(key)
                if kernel is None:
                    kernel = build()
                    self.put(kernel)
                return kernel
        finally:
            with self._lock:
                self._builds.pop(key, None)

    def forget(self) -> None:
        """Empties the memory, not the disk."""
        with self._lock:
            self._kernels.clear()
            self._memory_bytes = 0

    def disk_usage(self) -> tuple[int, int]:
        """Returns how many kernels are on disk and their bytes."""
        if self.directory is None:
            return 0, 0
        try:
            with open_private(self.directory) as directory:
                sizes = [status.st_size for _, status in _kernels(directory)]
        except OSError:
            return 0, 0
        return len(sizes), sum(sizes)

    def _remember(self, kernel: Kernel) -> None:
        with self._lock:
            before = self._kernels.pop(kernel.key, None)
            self._memory_bytes -= before.num_bytes if before is not None else 0
            self._kernels[kernel.key] = kernel
            self._memory_bytes += kernel.num_bytes
            while self._memory_bytes > MEMORY_BYTES and len(self._kernels) > 1:
                _, oldest = self._kernels.popitem(last=False)
                self._memory_bytes -= oldest.num_bytes

    def _read(self, key: str) -> Kernel | None:
        """Returns a kernel from disk, or None; a damaged file is deleted."""
        if self.directory is None or not _KEY.fullmatch(key):
            return None
        name = key + _SUFFIX
        try:
            with open_private(self.directory) as directory:
                data = directory.read(name, MAX_BYTES)
                try:
                    kernel = Kernel.from_bytes(data)
                    if kernel.key != key:
                        raise CacheError("The file holds another kernel than its name says.")
                except CacheError:
                    directory.remove(name)
                    return None
                directory.touch(name)
                return kernel
        except OSError:
            return None

    def _write(self, kernel: Kernel) -> None:
        """Writes a kernel; of one that is bitcode, only says if its machine code could not be kept,
        since the user's thread, to whom that can be said, is not there when it is made."""
        if self.directory is None or not self._is_writable:
            return
        try:
            with open_private(self.directory, create=True) as directory:
                if kernel.bitcode is None:
                    data = kernel.to_bytes()
                    directory.write(kernel.key + _SUFFIX, data)
                    self._make_room(directory, len(data))
        except OSError as error:
            self._is_writable = False
            reason = error.strerror or str(error)
            warn_once(f"Fuselane cannot keep kernels in {self.directory}: {reason}.")

    def _make_room(self, directory: PrivateDirectory, added: int) -> None:
        """Deletes the files unused longest when all of them have become too large."""
        with self._lock:
            if self._used_bytes is not None:
                self._used_bytes += added
                if self._used_bytes <= self.disk_bytes:
                    return
            files = sorted(_kernels(directory), key=lambda file: file[1].st_mtime)
            total = sum(status.st_size for _, status in files)
            allowed = self.disk_bytes * (_KEEP_SHARE if total > self.disk_bytes else 1)
            for name, status in files[:-1]:
                if total <= allowed:
                    break
                directory.remove(name)
                total -= status.st_size
            self._used_bytes = total


def _kernels(directory: PrivateDirectory) -> list[tuple[str, os.stat_result]]:
    """Returns the kernels on disk; deletes what crashed writers left behind."""
    kernels = []
    for name, status in directory.files():
        if name.endswith(_SUFFIX):
            kernels.append((name, status))
        elif name.startswith(TEMPORARY) and _is_stale(status):
            directory.remove(name)
    return kernels


def _is_stale(status: os.stat_result) -> bool:
    return time.time() - status.st_mtime > _STALE_SECONDS


_caches: dict[Path, KernelCache] = {}
_caches_lock = threading.Lock()


def open_cache(directory: Path, disk_bytes: int | None = None) -> KernelCache:
    """Returns this process's cache for a directory, one object however often it is asked for.

    Args:
        directory: Where files are kept.
        disk_bytes: New limit of its size on disk; None leaves it as it is.
    """
    with _caches_lock:
        cache = _caches.get(directory)
        if cache is None:
            cache = _caches[directory] = KernelCache(directory)
        if disk_bytes is not None:
            cache.disk_bytes = disk_bytes
        return cache
