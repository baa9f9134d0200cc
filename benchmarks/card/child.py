"""Child processes that cannot hang, nor leave anything running on the card."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Final

_POLL_S: Final = 0.2
_PR_SET_PDEATHSIG: Final = 1


def end_with_parent() -> None:
    """Has this process killed when the one that started it ends, however that ends (on Linux)."""
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))


def run_group(
    command: Sequence[str],
    seconds: float,
    *,
    output: IO[bytes] | None = None,
    cwd: Path | None = None,
    patience_s: float = float("inf"),
    progress: Path | None = None,
) -> str:
    """Runs a command in a process group of its own, all of which is killed at the end.

    Args:
        command: The program and its arguments.
        seconds: That it may take.
        output: Where what it prints goes; by default where ours does.
        cwd: Its working directory.
        patience_s: How long `progress` may stay as it is.
        progress: A file that grows.
    Returns:
        How it ended.
    """
    start = time.monotonic()
    process = subprocess.Popen(
        command, stdout=output, stderr=output, cwd=cwd, start_new_session=True
    )
    seen, since = -1, start
    try:
        while process.poll() is None:
            now = time.monotonic()
            size = progress.stat().st_size if progress is not None and progress.exists() else 0
            if size != seen:
                seen, since = size, now
            if now - start > seconds:
                return f"stopped after {seconds:.0f} s"
            if now - since > patience_s:
                return f"stopped, as nothing was done for {patience_s:.0f} s"
            time.sleep(_POLL_S)
        return f"exit code {process.returncode}"
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
