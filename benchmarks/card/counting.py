"""Pytest plug-in that writes counts and failures to a file as they come, should time run out.

Tests come in an order drawn at random, the same each time: what there is time for is of all kinds.
Tests of loops compare results only, since on a GPU other loops than on a CPU may be left to XLA.
Floats that are off by a little count as rounded, where a test asks for less: elementary functions
are not XLA's there (libdevice's), and sums are in another order. In products of matrices XLA leaves
out 13 of 24 bits unless it is told not to, as it is here.
Tests marked `for_cpus` assert what only the CPU's kernels do, and are skipped.

python -m pytest -p card.counting --results=OUT.json
"""

from __future__ import annotations

import collections
import json
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import jax
import pytest

from card.series import is_gpu_alive
from tests.differential import harness
from tests.differential.comparison import EXACT, Tolerance, assert_same_results

_EVERY_S: Final = 2.0

ROUNDED: Final = Tolerance(ulp=1024, relative=2e-5, absolute=2e-5)
_MARK: Final = ("rounded", True)
_DIFFERS: Final = ("differs", True)
DECIDED: Final = "decided otherwise"
"""What becomes of tests whose results are right, and which assert what became of a loop."""


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
        properties = set(map(tuple, report.user_properties))
        lines = str(report.longrepr).strip().splitlines() or [""]
        outcome: str = report.outcome
        if report.passed and _MARK in properties:
            outcome = "rounded"
        elif report.failed and _DIFFERS not in properties and lines[-1].endswith("AssertionError"):
            outcome = DECIDED
        elif report.failed:
            self.failed[report.nodeid] = lines[-1][:300]
        self.counts[outcome] += 1
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


class Leaving:
    """Ends a worker whose GPU is in a state in which nothing runs any more; another takes over."""

    def __init__(self) -> None:
        self.is_broken = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Looks at the GPU when a test has failed."""
        self.is_broken = self.is_broken or (report.failed and not is_gpu_alive())

    def pytest_runtest_logfinish(self) -> None:
        """Leaves when all that is known of the test has been told."""
        if self.is_broken:
            os._exit(1)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the option."""
    parser.addoption("--results", type=Path, help="where counts and failures go")


@pytest.fixture(autouse=True)
def rounding(monkeypatch: pytest.MonkeyPatch, record_property: Any) -> Iterator[None]:
    """Lets floats be off by more than a test asks for, and notes it."""

    def compare(expected: Any, actual: Any, tolerance: Tolerance = EXACT) -> None:
        try:
            assert_same_results(expected, actual, tolerance)
        except AssertionError:
            try:
                assert_same_results(expected, actual, ROUNDED)
            except AssertionError:
                record_property(*_DIFFERS)
                raise
            record_property(*_MARK)

    monkeypatch.setattr(harness, "assert_same_results", compare)
    with jax.default_matmul_precision("highest"):
        yield


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Shuffles the tests, in every worker alike, and skips what is marked."""
    random.Random(0).shuffle(items)
    for item in items:
        if item.get_closest_marker("for_cpus"):
            item.add_marker(pytest.mark.skip(reason="asserts what the CPU's kernels do"))


def pytest_configure(config: pytest.Config) -> None:
    """Counts in the process that starts the workers only."""
    vars(harness).update(assert_decisions=lambda *_: None)
    path = config.getoption("--results")
    if hasattr(config, "workerinput"):
        config.pluginmanager.register(Leaving())
    elif path is not None:
        config.pluginmanager.register(Results(path))
