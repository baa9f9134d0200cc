"""Settings of the differential tests."""

from __future__ import annotations

import pytest

from fuselane.lanes import form


@pytest.fixture(autouse=True)
def no_loop_is_too_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fuses loops however little there is to gain: the ones here are small to be tested quickly."""
    monkeypatch.setattr(form, "MIN_XLA_TIME_US", 0.0)
