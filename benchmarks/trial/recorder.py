"""A pytest plug-in that writes down how each test ended and what became of its loops.

Loaded by `jax_suite.py` with `-p trial.recorder`. Writes lines of JSON into the folder named by
`RECORDER_FOLDER`, a file per process: {"test", "outcome", "message"} where tests are reported, and
{"test", "fused", "refused"} where they are run, the same process but for pytest-xdist.
A line is on disk when its test has ended, so that a crash loses one test at most.
`RECORDER_SHARE` chooses a share of the tests by their names, the same ones in every run.
"""

from __future__ import annotations

import collections
import json
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fuselane

FOLDER_VARIABLE = "RECORDER_FOLDER"
SHARE_VARIABLE = "RECORDER_SHARE"
MAX_MESSAGE = 600


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keeps the share of tests that is asked for."""
    share = float(os.environ.get(SHARE_VARIABLE, "1"))
    items[:] = [item for item in items if zlib.crc32(item.nodeid.encode()) < share * 2**32]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Writes an outcome: of the call, or of set-up or tear-down if they settled it."""
    if "PYTEST_XDIST_WORKER" in os.environ or (report.when != "call" and report.passed):
        return
    is_expected_failure = hasattr(report, "wasxfail")
    outcome = "skipped" if is_expected_failure and report.outcome == "skipped" else report.outcome
    message = report.longreprtext[-MAX_MESSAGE:] if report.failed else ""
    write("outcomes", {"test": report.nodeid, "outcome": outcome, "message": message})


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Writes the decisions about loops that JAX compiled during a test."""
    num_before = len(fuselane.decisions().loops)
    try:
        return (yield)
    finally:
        loops = fuselane.decisions().loops[num_before:]
        if loops:
            reasons = collections.Counter(loop.reason.code for loop in loops)
            num_fused = reasons.pop("fused", 0)
            write("loops", {"test": item.nodeid, "fused": num_fused, "refused": dict(reasons)})


def write(kind: str, row: dict[str, Any]) -> None:
    """Appends a line to this process's file."""
    folder = Path(os.environ[FOLDER_VARIABLE])
    with (folder / f"{kind}-{os.getpid()}.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")
