"""Pytest plug-in that writes counts and failures to a file as they come, should time run out.

Tests of loops then compare results only: on a GPU, other loops than on a CPU may be left to XLA.

python -m pytest -p card.counting --results=OUT.json
"""

from __future__ import annotations

import collections
import json
import time
from pathlib import Path
from typing import Final

import pytest

from tests.differential import harness

_EVERY_S: Final = 2.0


class Results:
    """What has become of the tests so far, of all workers."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.counts: collections.Counter[str] = collections.Counter()
        self.failed: dict[str, str] = {}
        self._written = 0.0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Counts a test, by what it ended with."""
        if report.when != "call" and report.passed:
            return
        self.counts[report.outcome] += 1
        if report.failed:
            lines = str(report.longrepr).strip().splitlines() or [""]
            self.failed[report.nodeid] = lines[-1][:300]
        if time.monotonic() - self._written > _EVERY_S:
            self.write()

    def pytest_sessionfinish(self) -> None:
        """Writes the end."""
        self.write()

    def write(self) -> None:
        """Writes what there is."""
        self._written = time.monotonic()
        text = json.dumps({"counts": self.counts, "failed": self.failed}, indent=1)
        self.path.write_text(text, encoding="utf-8")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the option."""
    parser.addoption("--results", type=Path, help="where counts and failures go")


def pytest_configure(config: pytest.Config) -> None:
    """Counts in the process that starts the workers only."""
    vars(harness).update(assert_decisions=lambda *_: None)
    path = config.getoption("--results")
    if path is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Results(path))
