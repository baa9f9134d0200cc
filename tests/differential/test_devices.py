"""Sharded programs on four virtual devices, in a process of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.differential import sharded_programs

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", sharded_programs.PROGRAMS)
def test_sharded(name: str) -> None:
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=4"
    python_path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    result = subprocess.run(
        [sys.executable, "-m", "tests.differential.sharded_programs", name],
        env={**os.environ, "XLA_FLAGS": flags.strip(), "PYTHONPATH": python_path},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        cwd=ROOT,
    )
    assert result.returncode == 0, result.stdout + result.stderr
