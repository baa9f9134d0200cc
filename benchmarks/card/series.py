"""Measurements one after the other in one process, since starting JAX on a GPU takes seconds.

Where one ends the process, hangs, or leaves it unable to use the GPU (behind an illegal address,
say, every call fails), the next process goes on with those that remain.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import jax

from card.child import end_with_parent, run_group

PATIENCE_S: Final = 60.0

_BROKEN: Final = 3
"""Exit code of a process that leaves what remains to another one."""

Row = dict[str, Any]


def run_series(
    module: str,
    names: Sequence[str],
    out: Path,
    seconds: float,
    *flags: str,
    patience_s: float = PATIENCE_S,
) -> Iterator[tuple[list[Row], list[str]]]:
    """Yields the rows of all measurements so far, and the names that remain, after each process.

    Args:
        module: Called as `python -m MODULE LINES --names NAME ..`; it calls `measure_all`.
        names: Of the measurements.
        out: Next to it is the file of lines.
        seconds: For all of them.
        flags: Further arguments.
        patience_s: Without a measurement done for so long, the process is taken to hang.
    """
    deadline = time.monotonic() + seconds
    rows: list[Row] = []
    remaining = list(names)
    lines = out.with_suffix(".lines")
    while remaining and time.monotonic() < deadline:
        seconds = deadline - time.monotonic()
        command = [sys.executable, "-m", module, str(lines), *flags, "--names", *remaining]
        found, ended = _run_process(command, lines, seconds, patience_s)
        rows += found
        remaining = remaining[len(found) :]
        is_over = time.monotonic() >= deadline
        if remaining and not is_over and ended != f"exit code {_BROKEN}":
            rows.append({"name": remaining.pop(0), "error": ended})
        yield rows, remaining


def _run_process(
    command: Sequence[str], lines: Path, seconds: float, patience_s: float
) -> tuple[list[Row], str]:
    """Returns the rows that a process wrote, and how it ended."""
    lines.unlink(missing_ok=True)
    ended = run_group(command, seconds, patience_s=patience_s, progress=lines)
    text = lines.read_text(encoding="utf-8") if lines.is_file() else ""
    return [json.loads(line) for line in text.splitlines() if line.endswith("}")], ended


def measure_all(names: Sequence[str], lines: Path, measure: Callable[[str], Row]) -> int:
    """Measures in this process, a line of JSON for each; returns its exit code.

    Args:
        names: Of the measurements.
        lines: The file the lines go to.
        measure: Returns what there is to be known of one.
    """
    end_with_parent()
    for name in names:
        try:
            row = {"name": name, **measure(name)}
        except Exception as error:
            row = {"name": name, "error": describe_error(error)}
        with lines.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        if not is_gpu_alive():
            return _BROKEN
    return 0


def is_gpu_alive() -> bool:
    """Whether this process can still compute on its first device."""
    try:
        return float(jax.device_put(2.0).block_until_ready()) == 2.0
    except Exception:
        return False


def describe_error(error: Exception) -> str:
    """Returns an error in a few hundred letters."""
    return f"{type(error).__name__}: {error}"[:500]
