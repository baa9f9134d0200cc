"""Text files that are whole or as they were, whatever goes wrong while they are written."""

from __future__ import annotations

import contextlib
import secrets
from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    """Writes a file as UTF-8, beside its place first.

    A file that is there keeps its permissions, and a symbolic link what it points at. Where nothing
    can be put beside it, and what is no regular file, such as a pipe, is written in place.

    Raises:
        OSError: if it cannot be written; it is as it was then, unless it was written in place.
    """
    place = path.resolve()
    data = text.encode()
    beside = place.with_name(f".fuselane-{secrets.token_hex(8)}")
    if Path("/dev") in path.parents or (place.exists() and not place.is_file()):
        place.write_bytes(data)
        return
    try:
        file = beside.open("xb")
    except PermissionError:
        place.write_bytes(data)
        return
    try:
        with file:
            file.write(data)
        with contextlib.suppress(FileNotFoundError):
            beside.chmod(place.stat().st_mode)
        beside.replace(place)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
