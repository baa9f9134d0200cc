"""Child processes, bounded in time and in what they write."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, final

from fuselane.errors import CaptureError

MAX_FOLDER_BYTES: Final = 8 * 2**30
"""The most a child may write."""

_STDERR: Final = 2
_POLL_S: Final = 0.05
_SIZE_POLL_S: Final = 1.0


def run_child(
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    log: Path | None,
    folder: Path,
    max_s: float,
    watch: Callable[[], None] = lambda: None,
) -> int:
    """Runs a program until it ends, and returns its exit code, negative for a signal.

    Whatever happens, neither it nor a process it started is left running.

    Args:
        command: The program and its arguments.
        environment: All of its environment.
        log: Where what it prints goes; None is this process's standard error.
        folder: Where it writes; checked for its size.
        max_s: Seconds it may take.
        watch: Called now and then while it runs.
    Raises:
        CaptureError: if it takes longer, or writes more than MAX_FOLDER_BYTES.
    """
    deadline = time.monotonic() + max_s
    with contextlib.ExitStack() as stack:
        output = _STDERR if log is None else stack.enter_context(log.open("wb"))
        process = subprocess.Popen(
            command,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        stack.callback(_end, process)
        folder_size = _FolderSize(folder)
        while process.poll() is None:
            watch()
            if time.monotonic() > deadline:
                raise CaptureError(f"It took longer than {max_s:g} seconds, so it was stopped.")
            if folder_size.get() > MAX_FOLDER_BYTES:
                limit = f"{MAX_FOLDER_BYTES / 2**30:g} GiB"
                raise CaptureError(f"XLA wrote more than {limit} of dumps, so it was stopped.")
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_POLL_S)
        watch()
        return process.returncode


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kills a process and all of its session, and waits for it."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@final
class _FolderSize:
    """The size of all files in a folder, looked up once in a while."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._next_time = 0.0
        self._num_bytes = 0

    def get(self) -> int:
        """Returns the bytes of all files as of at most a second ago."""
        if time.monotonic() >= self._next_time:
            self._num_bytes = 0
            for path in self._folder.rglob("*"):
                with contextlib.suppress(OSError):
                    self._num_bytes += path.lstat().st_size
            self._next_time = time.monotonic() + _SIZE_POLL_S
        return self._num_bytes


_CHATTER: Final = re.compile(r"[IW]\d{4} |WARNING: ")
"""How lines of XLA's log begin that are no complaints."""


def last_words(log: Path) -> str:
    """Returns the last line of a child's log that complains, without a final dot."""
    text = log.read_bytes()[-65536:].decode(errors="replace") if log.is_file() else ""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    lines = [line for line in lines if not _CHATTER.match(line)]
    return lines[-1].rstrip(".") if lines else ""
