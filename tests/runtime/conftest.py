"""Every test has a cache of its own, and loops are taken whether or not that is worth it: newer XLA
makes one function of the small ones that are looked at here."""

import pytest

from tests.isolation import clean_state, own_cache

__all__ = ["clean_state", "own_cache"]


@pytest.fixture(autouse=True)
def any_gain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sets the least gain that users may ask for."""
    monkeypatch.setenv("FUSELANE_MIN_GAIN", "0")
