"""A pytest plug-in that writes down how each test ended and what became of its loops.

Loaded by `trial.test_runs` with `-p trial.recorder`. Writes lines of JSON into the folder named by
`RECORDER_FOLDER`, a file per process: {"test", "outcome", "message"} where tests are reported, and
{"test", "fused", "refused", "faults"} and {"test", "cpu_s"} where they are run, the same process
but for pytest-xdist.
A line is on disk when its test has ended, so that a crash loses one test at most.
`RECORDER_SHARE` chooses tests by their names, from one share of them to another ("0.2 0.4": the
second fifth), the same ones in every run.
"""

from __future__ import annotations

import collections
import json
import os
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fuselane

FOLDER_VARIABLE = "RECORDER_FOLDER"
SHARE_VARIABLE = "RECORDER_SHARE"
MAX_MESSAGE = 600
INTERNAL_ERROR = "internal-error"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keeps the tests that are asked for."""
    start, end = map(float, os.environ.get(SHARE_VARIABLE, "0 1").split())
    places = [zlib.crc32(item.nodeid.encode()) / 2**32 for item in items]
    items[:] = [item for item, place in zip(items, places, strict=True) if start <= place < end]


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
    """Writes the decisions about loops that JAX compiled during a test, and its processor time."""
    before = fuselane.decisions().loops
    seen = {id(loop) for loop in before}
    start = time.process_time()
    try:
        return (yield)
    finally:
        write("times", {"test": item.nodeid, "cpu_s": round(time.process_time() - start, 3)})
        loops = [loop for loop in fuselane.decisions().loops if id(loop) not in seen]
        if loops:
            reasons = collections.Counter(loop.reason.code for loop in loops)
            row = {
                "test": item.nodeid,
                "fused": reasons.pop("fused", 0),
                "refused": dict(reasons),
                "faults": [
                    f"{loop.module} {loop.name} {loop.source}: {loop.decision.sentence}"
                    for loop in loops
                    if loop.reason.code == INTERNAL_ERROR
                ],
            }
            write("loops", row)


def write(kind: str, row: dict[str, Any]) -> None:
    """Appends a line to this process's file."""
    folder = Path(os.environ[FOLDER_VARIABLE])
    with (folder / f"{kind}-{os.getpid()}.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")
