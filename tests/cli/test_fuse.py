"""`fuselane fuse`, `fuselane run --fusion`, `fuselane cartpole --strategies`."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import fuselane
from fuselane import cli
from fuselane.fusion.plan import read_plan
from fuselane.fusion.strategies import split_strategies

SCRIPT = """
import jax, jax.numpy as jnp
def step(x):
    s = jnp.sin(x)
    return s * 2, jnp.exp(s[::-1])
def program():
    return step, (jnp.linspace(0.0, 1.0, 50),)
if __name__ == "__main__":
    print(jax.jit(step)(jnp.linspace(0.0, 1.0, 50))[0].sum())
"""


@pytest.fixture(autouse=True)
def fuselane_off(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.delenv("FUSELANE", raising=False)
    monkeypatch.setenv("FUSELANE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "120")
    fuselane.disable()
    yield
    fuselane.disable()


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return path


@pytest.mark.parametrize("columns", ["120", "30"])
def test_compare(
    script: Path,
    columns: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """XLA's own and each strategy has a row; a function on the CPU is timed. A narrow terminal cuts
    nothing off."""
    monkeypatch.setenv("COLUMNS", columns)
    command = ["fuse", f"{script}:program", "--pipeline", "none", "--compare", "xla-2021"]
    assert cli.main([*command, "--rounds", "1"]) == cli.OK
    rows = {
        line.split()[0]: line.split()
        for line in capsys.readouterr().out.splitlines()
        if line.strip()
    }
    kernels = {name: int(rows[name][1]) for name in ("xla", "none", "xla-2021")}
    assert kernels["none"] > kernels["xla"] >= kernels["xla-2021"]
    assert all(float(rows[name][5].replace(",", "")) > 0 for name in kernels)
    assert all(float(rows[name][6]) < 1e-5 for name in kernels)


def test_save(script: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A plan is written, which `run --fusion` follows."""
    plan = tmp_path / "plan.json"
    assert cli.main(["fuse", str(script), "--pipeline", "xla-2021", "--save", str(plan)]) == cli.OK
    names = [module.name for module in read_plan(plan)]
    assert "jit_step" in names
    assert cli.main(["run", "--fusion", str(plan), "--no-loops", str(script)]) == cli.OK
    out = capsys.readouterr()
    assert "could not" not in out.err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--pipeline", "all"], "There is no fusion pass 'all'"),
        (["--save", "plan.json"], "--save writes what --pipeline fuses, so name one."),
        (["--pipeline", "gone.json"], "cannot be read"),
        (["--pipeline", "fuselane", "--save", "plan.json"], "A plan cannot say what 'fuselane'"),
        (["--pipeline", "split-kernel", "--save", "plan.json"], "A plan cannot say what 'split-"),
        (["--pipeline", "none", "--save", "/gone/plan.json"], "cannot be written"),
        (["--pipeline", "fuselane", "--target", "h100"], "goes on from XLA:CPU's fusions only."),
    ],
)
def test_bad_input(
    script: Path, arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """One sentence, before anything is compiled."""
    assert cli.main(["fuse", str(script), *arguments]) == cli.BAD_INPUT
    assert sentence in capsys.readouterr().err


def test_warnings_are_sentences(script: Path, tmp_path: Path) -> None:
    """But for those that point at a line of the user's."""
    plan = tmp_path / "plan.json"
    assert cli.main(["fuse", str(script), "--pipeline", "xla-2021", "--save", str(plan)]) == cli.OK
    plan.write_text(plan.read_text().replace("sine #0", "sien #0"))
    command = [sys.executable, "-m", "fuselane"]
    compared = [*command, "fuse", f"{script}:program", "--pipeline", str(plan), "--rounds", "1"]
    ran = subprocess.run(compared, capture_output=True, text=True, check=True)
    assert re.search("^fuselane: A plan could not be followed in 2 places", ran.stderr, re.M)
    assert "FuselaneWarning" not in ran.stderr
    run = [*command, "run", "--fusion", str(plan), str(script)]
    ran = subprocess.run(run, capture_output=True, text=True, check=True)
    assert "script.py:9: FuselaneWarning: A plan could not be followed in 2" in ran.stderr


def test_cartpole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Kernels per step by strategy; the paper's changed rule makes one kernel of two."""
    path = tmp_path / "results.json"
    size = ["--envs", "33", "--steps", "20", "--repeats", "1", "--variants", "concat"]
    assert cli.main(["cartpole", "--strategies", *size, "--json", str(path)]) == cli.OK
    rows = {row["strategy"]: row for row in json.loads(path.read_text())}
    launches = {name: row["num_launches"] for name, row in rows.items()}
    merger = "xla-today-cpu,fusion-merger{max-consumers=3}"
    assert launches["none"] > launches["xla"] > launches[merger]
    assert rows[merger]["num_kernels"] < rows["xla-today-cpu"]["num_kernels"]
    assert "The paper" in capsys.readouterr().out


def test_lists_of_strategies() -> None:
    """Commas separate, but for those in braces and parentheses; semicolons come first."""
    assert split_strategies("a,b{c=1,d=2},fixed-point(e,f)") == [
        "a",
        "b{c=1,d=2}",
        "fixed-point(e,f)",
    ]
    assert split_strategies("a;b,c{d=1}") == ["a", "b,c{d=1}"]
    assert split_strategies("") == []
