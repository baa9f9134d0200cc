"""The documentation names everything it promises to name."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Final

import pytest

import fuselane
from fuselane.cartpole.variants import VARIANTS
from fuselane.config import Options
from fuselane.decisions import Reason
from fuselane.explain.support_table import support_table

ROOT: Final = Path(__file__).resolve().parents[1]
NAMES: Final = {
    "support.md": [reason.code for reason in Reason],
    "api.md": [field.name for field in dataclasses.fields(Options)],
    "cli.md": list(VARIANTS),
}


@pytest.mark.parametrize("page", NAMES)
def test_pages_are_complete(page: str) -> None:
    """Each opcode, reason, option and variant stands on its page; a fused loop needs no reason."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    missing = [name for name in NAMES[page] if f"`{name}`" not in text and name != "fused"]
    assert missing == []


def test_table_of_opcodes_is_up_to_date() -> None:
    """docs/support.md holds what `fuselane support` prints."""
    text = (ROOT / "docs" / "support.md").read_text(encoding="utf-8")
    table = text.split("<!-- support:begin -->\n")[1].split("\n<!-- support:end -->")[0]
    assert table == support_table()


def test_the_map_names_all_rooms_and_nothing_else() -> None:
    """CONTRIBUTING.md says where things are, and what it names is there."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    section = text.split("## Where things are\n")[1].split("\n## ")[0]
    named = {name for name in section.split("`")[1::2] if not name.startswith("src/")}
    package = ROOT / "src" / "fuselane"
    missing = [name for name in named if name != "while" and not (package / name).exists()]
    rooms = {p.name for p in package.iterdir() if p.name[0] != "_" and p.name != "py.typed"}
    assert (missing, rooms - named) == ([], set())


def test_ci_finds_the_test_command_in_the_readme() -> None:
    """The README has the two commands, each on one line."""
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    commands = [line for line in lines if line.startswith("python3 -m venv ")]
    assert len(commands) == 2
    assert commands[0].endswith("fuselane cartpole") and "pytest" in commands[1]


def test_the_readme_example_runs_and_is_fused(capsys: pytest.CaptureFixture[str]) -> None:
    """What the README shows works as shown."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    example = text.split("```python\n")[1].split("```")[0]
    try:
        exec(compile(example, "README.md", "exec"), {"__name__": "readme"})
    finally:
        fuselane.disable()
    assert "one native kernel over 2048 lanes" in " ".join(capsys.readouterr().out.split())
