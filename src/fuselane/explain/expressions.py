"""The Python behind a source line, read from the user's files."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Final

from fuselane.hlo.source_lines import SourceLine

MAX_CHARACTERS: Final = 200
_MAX_FILE_BYTES: Final = 4 * 2**20


def read_expression(line: SourceLine | None) -> str:
    """Returns the expression a source line points at, on one line, or "" if it cannot be read.

    The whole line where XLA knows no columns. Only Python files are read: a module may come from
    anywhere and name any file.
    """
    if line is None:
        return ""
    lines = _read(line.file)
    last = line.end_line or line.line
    if not 1 <= line.line <= last <= len(lines):
        return ""
    chosen = [text.encode() for text in lines[line.line - 1 : last]]
    if line.end_line and line.end_column > 0:
        chosen[-1] = chosen[-1][: line.end_column]
        chosen[0] = chosen[0][line.column :]
    text = " ".join(b" ".join(chosen).decode(errors="replace").split())
    return text if len(text) <= MAX_CHARACTERS else text[: MAX_CHARACTERS - 1] + "…"


@functools.lru_cache(maxsize=64)
def _read(file: str) -> tuple[str, ...]:
    path = Path(file)
    try:
        if path.suffix != ".py" or path.stat().st_size > _MAX_FILE_BYTES:
            return ()
        return tuple(path.read_text(encoding="utf-8", errors="replace").splitlines())
    except (OSError, ValueError):
        return ()
