"""Fixtures that keep tests out of the user's cache, and from each other's warnings and settings.

Folders whose conftest.py imports them have them for all of their tests.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fuselane import api
from fuselane.runtime import warning


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Gives each test an empty directory for kernels and results; returns it."""
    directory = tmp_path / "kernels"
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
