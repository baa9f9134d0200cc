"""Sharded programs on eight virtual devices and in several processes, each in its own."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.differential import sharded_programs

ROOT = Path(__file__).parents[2]


def start(*arguments: object, devices: int) -> subprocess.Popen[str]:
    old_flags = os.environ.get("XLA_FLAGS", "")
    flags = f"{old_flags} --xla_force_host_platform_device_count={devices}"
    python_path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return subprocess.Popen(
        [sys.executable, "-m", "tests.differential.sharded_programs", *map(str, arguments)],
        env={**os.environ, "XLA_FLAGS": flags.strip(), "PYTHONPATH": python_path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=ROOT,
    )


def finish(*processes: subprocess.Popen[str]) -> None:
    """Waits for processes and checks that all ended well; ends them all if one does not."""
    try:
        output = [process.communicate(timeout=240)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0] * len(processes), output


def test_sharded() -> None:
    """All programs in one process, which takes long to start; the last it names is the culprit."""
    finish(start(*sharded_programs.PROGRAMS, devices=8))


@pytest.mark.parametrize(("num_processes", "devices"), [(2, 2), (4, 1)])
def test_distributed(num_processes: int, devices: int) -> None:
    with socket.create_server(("localhost", 0)) as server:
        port = server.getsockname()[1]
    finish(
        *(
            start(f"localhost:{port}", num_processes, process, devices=devices)
            for process in range(num_processes)
        )
    )
