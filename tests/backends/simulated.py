"""Pytest plug-in: whatever the tests fuse runs as kernels for GPUs would, on the CPU.

python -m pytest -p tests.backends.simulated tests/differential

Tests of what only the CPU's kernels do (tiles, threads, refusals) may fail.
"""

from __future__ import annotations

import pytest

from tests.backends.simulation import simulate


@pytest.fixture(autouse=True)
def simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulates a GPU in every test."""
    simulate(monkeypatch)
