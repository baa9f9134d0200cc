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

ROOT = Path(__file__).resolve().parents[2]
IS_INSTALLED = any(
    entry.value == "fuselane.plugin" for entry in metadata.entry_points(group="jax_plugins")
)


def run(*arguments: str, **variables: str) -> dict[str, Any]:
    """Runs `tests.runtime.programs` in a process of its own and returns what it prints."""
    finished = subprocess.run(
        [sys.executable, "-m", "tests.runtime.programs", *arguments],
        cwd=ROOT,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    assert "uselane" not in finished.stderr, finished.stderr
    told: dict[str, Any] = json.loads(finished.stdout)
    assert told["is_right"]
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
    plain = run("plain", **persistent)
    assert plain["cache_hits"] >= 1 and plain["num_kernels"] == 0
    other = run("enabled", FUSELANE_MIN_GAIN="1", **persistent)
    assert other["num_fused"] == 1, "options are part of the key"
    entries = sorted(os.listdir(persistent["JAX_COMPILATION_CACHE_DIR"]))
    run("explain", **persistent)
    new = set(os.listdir(persistent["JAX_COMPILATION_CACHE_DIR"])) - set(entries)
    assert not [name for name in new if name.startswith("jit_program")]


def test_serialized_executable(tmp_path: Path, own_cache: Path) -> None:
    file = tmp_path / "executable"
    assert run("save", str(file))["num_fused"] == 1
    for _ in range(2):
        loaded = run("load", str(file))
        assert loaded["num_fused"] == 0 and loaded["num_kernels"] == 1
        shutil.rmtree(own_cache)


@pytest.mark.parametrize("mode", ["fork", "spawn"])
def test_children_of_a_process_that_has_enabled_it(mode: str) -> None:
    """They have kernels of their own, and their parent goes on."""
    assert run(mode)["num_kernels"] == 1


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


def test_wrong_variables_are_reported_in_a_sentence() -> None:
    finished = subprocess.run(
        [sys.executable, "-c", "import fuselane; fuselane.enable()"],
        env=os.environ | {"FUSELANE_UNROLL": "many"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "OptionError: The option unroll has to be a whole number" in finished.stderr
