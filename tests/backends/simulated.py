"""Pytest plug-in: whatever the tests fuse runs as kernels for GPUs would, on the CPU.

python -m pytest -p tests.backends.simulated tests/differential

Tests that are marked `for_cpus` assert what only the CPU's kernels do, and are skipped. So are
those that want a kernel, when their results have been compared, where a GPU's thread has no memory
for it.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

import fuselane
from fuselane.decisions import Reason
from tests.backends.simulation import simulate
from tests.differential import harness


@pytest.fixture(autouse=True)
def simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulates a GPU in every test."""

    def assert_decisions(report: fuselane.Report, refused: Sequence[str] = ()) -> None:
        for loop in report.loops:
            if loop.reason is Reason.TOO_LARGE and not refused:
                pytest.skip(loop.decision.sentence)
        asserted(report, refused)

    asserted = harness.assert_decisions
    monkeypatch.setattr(harness, "assert_decisions", assert_decisions)
    simulate(monkeypatch)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips what is marked."""
    for item in items:
        if item.get_closest_marker("for_cpus"):
            item.add_marker(pytest.mark.skip(reason="asserts what the CPU's kernels do"))
