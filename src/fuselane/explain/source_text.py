"""The text of the user's source files, as far as a report may show it."""

from __future__ import annotations

import linecache
from pathlib import Path
from typing import Final

MAX_FILE_BYTES: Final = 4_000_000


def read_source(file: str) -> list[str]:
    """Returns the lines of a source file, or none where there is no text to show.

    The name comes from the program's metadata, and a module may come from anywhere: only Python
    files and what was typed into an interpreter are read.

    Args:
        file: Path as Python knew it, such as `/home/me/train.py` or `<ipython-input-3>`.
    """
    if file.startswith("<"):
        return [line.rstrip("\n") for line in linecache.getlines(file)]
    path = Path(file)
    try:
        if path.suffix != ".py" or not path.is_file() or path.stat().st_size > MAX_FILE_BYTES:
            return []
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except (OSError, ValueError):
        return []


def windows(lines: set[int], length: int, margin: int) -> list[range]:
    """Returns the line numbers to show around some lines: runs in order that do not touch.

    Args:
        lines: Numbers counted from 1.
        length: How many lines the file has.
        margin: Lines to show before and behind each.
    """
    runs: list[range] = []
    for line in sorted(line for line in lines if 1 <= line <= length):
        start, stop = max(1, line - margin), min(length, line + margin) + 1
        if runs and start <= runs[-1].stop:
            runs[-1] = range(runs[-1].start, stop)
        else:
            runs.append(range(start, stop))
    return runs
