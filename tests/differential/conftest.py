"""Settings of the differential tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fuselane.lanes import form


@pytest.fixture(autouse=True, scope="session")
def no_loop_is_too_small() -> Iterator[None]:
    """Fuses loops however little there is to gain: the ones here are small to be tested quickly."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(form, "MIN_XLA_TIME_US", 0.0)
        yield
