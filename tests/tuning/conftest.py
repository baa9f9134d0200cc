"""Keeps tests out of the user's results, and from each other's warnings and settings."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fuselane import api
from fuselane.runtime import warning


@pytest.fixture(autouse=True)
def own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Gives each test a directory of its own for results; returns it."""
    directory = tmp_path / "kept"
    monkeypatch.setenv("FUSELANE_CACHE_DIR", str(directory))
    monkeypatch.delenv("FUSELANE", raising=False)
    return directory


@pytest.fixture(autouse=True)
def clean_state() -> Iterator[None]:
    """Starts and ends each test with Fuselane off and no warning given yet."""
    warning.forget_warnings()
    yield
    api.disable()
    warning.forget_warnings()
