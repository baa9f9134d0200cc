"""Files in a directory that nobody but the user can write to.

Machine code is loaded from it, so what is checked has to be what is used. The directory is opened
once, the open directory is checked, and every file is reached through it, never by its path again:
whoever can rename a directory further up cannot slip in another. Files are regular ones of the
user's own; links are not followed.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final, final

TEMPORARY: Final = ".tmp-"
"""How the names of files begin that are being written, or that a writer left behind that died."""

_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH


@final
class PrivateDirectory:
    """An open directory; see `open_private`."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def read(self, name: str, max_bytes: int) -> bytes:
        """Returns what a file holds.

        Raises:
            OSError: if there is none, or it is larger, not a regular file, or not this user's.
        """
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(name, flags, dir_fd=self._descriptor)
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or not _is_own(status):
                raise PermissionError(None, "the file is not this user's alone")
            if status.st_size > max_bytes:
                raise OSError(None, "the file is too large")
            return file.read(max_bytes)

    def write(self, name: str, data: bytes) -> None:
        """Writes a file so that others see all of it or nothing.

        Raises:
            OSError: if it cannot be written; nothing is left of it then.
        """
        temporary = TEMPORARY + secrets.token_hex(8)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(temporary, flags, 0o600, dir_fd=self._descriptor)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
            os.replace(temporary, name, src_dir_fd=self._descriptor, dst_dir_fd=self._descriptor)
        except BaseException:
            self.remove(temporary)
            raise

    def remove(self, name: str) -> None:
        """Removes a file if that can be done."""
        with contextlib.suppress(OSError):
            os.unlink(name, dir_fd=self._descriptor)

    def touch(self, name: str) -> None:
        """Makes a file the one used last if that can be done."""
        with contextlib.suppress(OSError):
            os.utime(name, dir_fd=self._descriptor, follow_symlinks=False)

    def files(self) -> Iterator[tuple[str, os.stat_result]]:
        """Yields the name and status of every regular file."""
        with os.scandir(self._descriptor) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    status = entry.stat(follow_symlinks=False)
                    if stat.S_ISREG(status.st_mode):
                        yield entry.name, status


@contextlib.contextmanager
def open_private(path: Path, *, create: bool = False) -> Iterator[PrivateDirectory]:
    """Opens a directory for the files above.

    Args:
        path: Where; a link counts if the user made it.
        create: Whether to make it if it is not there, for this user only.
    Raises:
        PermissionError: if others can write to it.
        OSError: if it cannot be opened or made.
    """
    if create and not path.is_dir():
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    if path.is_symlink() and path.lstat().st_uid != os.geteuid():
        raise PermissionError(None, "the directory is a link that is not this user's")
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if not _is_own(os.fstat(descriptor)):
            raise PermissionError(None, "the directory is not this user's alone")
        yield PrivateDirectory(descriptor)
    finally:
        os.close(descriptor)


def _is_own(status: os.stat_result) -> bool:
    """Whether something is this user's, and nobody else can write to it."""
    return status.st_uid == os.geteuid() and not status.st_mode & _OTHERS_WRITE
