"""Settings of the differential tests."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def no_loop_is_too_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fuses loops however little there is to gain: the ones here are small to be tested quickly."""
    monkeypatch.setenv("FUSELANE_MIN_GAIN", "0")
