"""Whole processes: the environment's switch, JAX's persistent compilation cache, executables."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

import fuselane
from fuselane.errors import OptionError

ROOT = Path(__file__).resolve().parents[2]
IS_INSTALLED = any(
    entry.value == "fuselane.plugin" for entry in metadata.entry_points(group="jax_plugins")
)


def run(mode: str, **variables: str) -> dict[str, Any]:
    """Runs `tests.runtime.programs` in a process of its own and returns what it prints."""
    (told,) = run_all(mode, **variables)
    return told


def run_all(*modes: str, **variables: str) -> list[dict[str, Any]]:
    """Runs it in several modes, one after the other in one process, which takes long to start."""
    finished = subprocess.run(
        [sys.executable, "-m", "tests.runtime.programs", *modes],
        cwd=ROOT,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    assert "uselane" not in finished.stderr, finished.stderr
    told = [json.loads(line) for line in finished.stdout.splitlines()]
    assert [mode["is_right"] for mode in told] == [True] * len(modes)
    return told


@pytest.fixture
def persistent(tmp_path: Path) -> dict[str, str]:
    """Variables that switch on JAX's persistent compilation cache, in a directory of its own."""
    return {
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path / "jax"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "0",
    }


@pytest.mark.skipif(not IS_INSTALLED, reason="needs the package's entry points")
def test_switched_on_by_the_environment() -> None:
    assert run("plain", FUSELANE="1")["num_fused"] == 1


def test_not_even_imported_unless_asked_for() -> None:
    told = run("plain")
    assert told["num_fused"] == 0 and not told["is_imported"]


def test_persistent_cache(persistent: dict[str, str], own_cache: Path) -> None:
    """A later process compiles nothing; its kernel comes from our cache or the executable."""
    assert run("enabled", **persistent)["num_fused"] == 1
    for _ in range(2):
        later = run("enabled", **persistent)
        assert later["cache_hits"] >= 1
        assert later["num_fused"] == 0 and later["num_kernels"] == 1
        shutil.rmtree(own_cache)
    off = run("enabled", FUSELANE="0", **persistent)
    assert off["cache_hits"] == 0 and off["num_kernels"] == 0
    plain, other, _ = run_all("plain", "enabled", "explain", FUSELANE_MIN_GAIN="1", **persistent)
    assert plain["cache_hits"] >= 1 and plain["num_kernels"] == 0
    assert other["num_fused"] == 1, "options are part of the key"
    entries = Path(persistent["JAX_COMPILATION_CACHE_DIR"]).glob("jit_program*-cache")
    assert len(list(entries)) == 3, "explaining leaves none"


def test_serialized_executable(tmp_path: Path, own_cache: Path) -> None:
    file = tmp_path / "executable"
    assert run(f"save={file}")["num_fused"] == 1
    for _ in range(2):
        loaded = run(f"load={file}")
        assert loaded["num_fused"] == 0 and loaded["num_kernels"] == 1
        shutil.rmtree(own_cache)


def test_children_of_a_process_that_has_enabled_it() -> None:
    """They have kernels of their own, and their parent goes on."""
    forked, spawned = run_all("fork", "spawn")
    assert forked["num_kernels"] == 1
    assert spawned["is_right"]


def test_two_processes_compile_at_once(persistent: dict[str, str]) -> None:
    command = [sys.executable, "-m", "tests.runtime.programs", "enabled"]
    processes = [
        subprocess.Popen(
            command, cwd=ROOT, env=os.environ | persistent, stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    for process in processes:
        output, _ = process.communicate(timeout=120)
        told = json.loads(output)
        assert process.returncode == 0 and told["is_right"] and told["num_kernels"] == 1


def test_wrong_variables_are_reported_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSELANE_UNROLL", "many")
    with pytest.raises(OptionError, match=r"^The option unroll has to be a whole number"):
        fuselane.enable()
