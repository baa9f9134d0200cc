"""Other people's tests with Fuselane on and off, in new processes: how they end and what differs.

Files of tests are run with `FUSELANE_MIN_GAIN=0`, when every loop is taken that can be, worth it
or not. Those tests that turn out to hold loops, or that do not pass, are then run with Fuselane off
and on as users run it. A test that ends differently is run again by itself, with Fuselane off and
on; it counts only if it then differs every time.
"""

from __future__ import annotations

import collections
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, final

from fuselane.machine import describe_machine
from trial.recorder import FOLDER_VARIABLE, SHARE_VARIABLE

SETTINGS: Final[Mapping[str, Mapping[str, str]]] = {
    "always": {"FUSELANE": "1", "FUSELANE_MIN_GAIN": "0"},
    "verify": {"FUSELANE": "1", "FUSELANE_MIN_GAIN": "0", "FUSELANE_VERIFY": "1"},
    "on": {"FUSELANE": "1"},
    "off": {"FUSELANE": "0"},
}
TIME_LIMIT_S: Final = 3600.0
BENCHMARKS: Final = Path(__file__).parent.parent


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Harness:
    """What all runs of one checkout's tests have in common.

    Attributes:
        checkout: Where pytest is started.
        environment: Variables that the tests are to see.
        pytest_options: What pytest is told besides.
        share: From which share of the tests to which they are run, in an order made of their names:
            (0.2, 0.4) is the second fifth.
        jobs: Processes at a time.
        num_repeats: How often a test that ends differently is run again.
        brief: Whether what passes with every loop taken is run in no other setting.
        first: The setting in which all tests are run.
    """

    checkout: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    pytest_options: Sequence[str] = ()
    share: tuple[float, float] = (0.0, 1.0)
    jobs: int = 2
    num_repeats: int = 3
    brief: bool = False
    first: str = "always"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of a file of tests.

    Attributes:
        outcomes: "passed", "failed" or "skipped" by test.
        messages: The end of what a failed test said.
        num_fused: Loops that became kernels, by test; only tests that hold loops.
        refused: Loops that did not, by reason.
        faults: Tests in which Fuselane failed on a loop, with what it said.
        cpu_s: Processor time by test, of all threads.
        seconds: How long it took.
        log: The end of what pytest said.
    """

    outcomes: Mapping[str, str]
    messages: Mapping[str, str]
    num_fused: Mapping[str, int]
    refused: Mapping[str, int]
    faults: Mapping[str, str]
    cpu_s: Mapping[str, float]
    seconds: float
    log: str

    @staticmethod
    def empty() -> Run:
        """Returns a run of no test."""
        return Run(
            outcomes={},
            messages={},
            num_fused={},
            refused={},
            faults={},
            cpu_s={},
            seconds=0.0,
            log="",
        )

    def count(self, outcome: str) -> int:
        """Returns how many tests ended in one way."""
        return sum(value == outcome for value in self.outcomes.values())


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A file's runs by setting, and what differs from the run without Fuselane.

    Attributes:
        different: Tests that end differently every time, as "setting: test: message".
        unsteady: Tests that ended differently once.
        share: Which of the file's tests were run, as in `Harness`.
        day: When it was done, as "2026-11-23".
        cpu: The processor it was done on.
    """

    file: str
    runs: Mapping[str, Run]
    different: list[str] = field(default_factory=list)
    unsteady: list[str] = field(default_factory=list)
    share: tuple[float, float] = (0.0, 1.0)
    day: str = ""
    cpu: str = ""

    def list_faults(self) -> list[str]:
        """Returns the tests in which Fuselane failed on a loop, as "setting: test: message"."""
        return [
            f"{name}: {test}: {message}"
            for name, run_ in self.runs.items()
            for test, message in run_.faults.items()
        ]


def compare(file: str, tests: Sequence[str], harness: Harness) -> Comparison:
    """Runs tests under all settings, and again what ended differently."""
    first = run(tests, harness.first, harness)
    not_passed = {test for test, outcome in first.outcomes.items() if outcome != "passed"}
    checked = sorted(not_passed if harness.brief else not_passed | first.num_fused.keys())
    on, off = (run(checked, name, harness) for name in ("on", "off"))
    comparison = Comparison(
        file=file,
        runs={harness.first: first, "on": on, "off": off},
        share=harness.share,
        day=time.strftime("%Y-%m-%d", time.gmtime()),
        cpu=str(describe_machine()["cpu"]),
    )
    for name in (harness.first, "on"):
        for test in find_differences(off, comparison.runs[name], checked):
            message = is_steady(test, name, harness)
            entry = f"{name}: {test}"
            if message is None:
                comparison.unsteady.append(entry)
            else:
                comparison.different.append(f"{entry}: {message}")
    return comparison


def find_differences(off: Run, on: Run, tests: Sequence[str]) -> list[str]:
    """Returns those of some tests that end differently, or in one of two runs only."""
    return [test for test in tests if off.outcomes.get(test) != on.outcomes.get(test)]


def is_steady(test: str, setting: str, harness: Harness) -> str | None:
    """Returns what a test says whose outcome depends on Fuselane every time, or None."""
    message = ""
    for _ in range(harness.num_repeats):
        off, on = (run([test], name, harness, jobs=0) for name in ("off", setting))
        if not find_differences(off, on, [test]):
            return None
        message = on.messages.get(test) or off.messages.get(test) or on.log
    return message


def run(tests: Sequence[str], setting: str, harness: Harness, jobs: int = -1) -> Run:
    """Runs tests under a setting in new processes, with empty caches."""
    if not tests:
        return Run.empty()
    with tempfile.TemporaryDirectory(prefix="fuselane-tests-") as folder:
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        command += ["-p", "trial.recorder", "-n", str(harness.jobs if jobs < 0 else jobs)]
        start = time.perf_counter()
        try:
            process = subprocess.run(
                [*command, *harness.pytest_options, *tests],
                cwd=harness.checkout,
                env=child_environment(setting, folder, harness),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                timeout=TIME_LIMIT_S,
                check=False,
            )
            log = process.stdout
        except subprocess.TimeoutExpired:
            log = f"Not done after {TIME_LIMIT_S:.0f} s."
        return read_run(Path(folder), time.perf_counter() - start, log[-2000:])


def child_environment(setting: str, folder: str, harness: Harness) -> dict[str, str]:
    """Returns the environment of a run."""
    dropped = ("FUSELANE", "JAX_", "PYTEST_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
    paths = [str(BENCHMARKS), *filter(None, [kept.get("PYTHONPATH")])]
    return {
        **kept,
        **harness.environment,
        **SETTINGS[setting],
        "FUSELANE_CACHE_DIR": f"{folder}/kernels",
        FOLDER_VARIABLE: folder,
        SHARE_VARIABLE: " ".join(map(str, harness.share)),
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": os.pathsep.join(paths),
    }


def read_run(folder: Path, seconds: float, log: str) -> Run:
    """Returns what the recorders of a run wrote."""
    outcomes: dict[str, str] = {}
    messages: dict[str, str] = {}
    num_fused: collections.Counter[str] = collections.Counter()
    refused: collections.Counter[str] = collections.Counter()
    faults: dict[str, str] = {}
    for row in read_rows(folder, "outcomes"):
        test = row["test"]
        if outcomes.get(test) != "failed":
            outcomes[test] = row["outcome"]
        if row["outcome"] == "failed":
            messages[test] = row["message"]
    for row in read_rows(folder, "loops"):
        num_fused[row["test"]] += row["fused"]
        refused.update(row["refused"])
        if row["faults"]:
            faults[row["test"]] = row["faults"][0]
    return Run(
        outcomes=outcomes,
        messages=messages,
        num_fused=dict(num_fused),
        refused=dict(refused),
        faults=faults,
        cpu_s={row["test"]: row["cpu_s"] for row in read_rows(folder, "times")},
        seconds=seconds,
        log=log,
    )


def read_rows(folder: Path, kind: str) -> Iterator[dict[str, Any]]:
    """Yields the lines of all processes' files of one kind."""
    for path in sorted(folder.glob(f"{kind}-*.jsonl")):
        yield from map(json.loads, path.read_text(encoding="utf-8").splitlines())


def format_row(comparison: Comparison) -> str:
    """Returns a line to print as soon as a file is done."""
    parts = [f"{comparison.file:34}"]
    for name, run_ in comparison.runs.items():
        ends = "/".join(str(run_.count(end)) for end in ("passed", "failed", "skipped"))
        fused = sum(run_.num_fused.values())
        cpu_s = sum(run_.cpu_s.values())
        parts.append(f"{name} {ends}, {fused} fused, {run_.seconds:.0f} s, CPU {cpu_s:.0f} s;")
    return " ".join([*parts, f"{len(comparison.different)} different"])


def describe_totals(comparisons: Sequence[Comparison]) -> str:
    """Returns sentences about all files together."""
    names = list(comparisons[0].runs)
    total = sum(len(c.runs[names[0]].outcomes) for c in comparisons)
    checked = sum(len(c.runs["off"].outcomes) for c in comparisons)
    lines = [f"{total:,} tests, {checked:,} of them run in other settings too."]
    for name in names:
        runs = [c.runs[name] for c in comparisons]
        fused = sum(sum(r.num_fused.values()) for r in runs)
        loops = fused + sum(sum(r.refused.values()) for r in runs)
        failed = sum(r.count("failed") for r in runs)
        minutes = sum(r.seconds for r in runs) / 60
        lines.append(
            f"{name}: {failed} failed, {fused:,} of {loops:,} loops fused, {minutes:.0f} min."
        )
    different = sum(len(c.different) for c in comparisons)
    unsteady = sum(len(c.unsteady) for c in comparisons)
    lines.append(f"{different} end differently every time, {unsteady} did so once.")
    return "\n".join(lines)


def list_rows(comparisons: Sequence[Comparison]) -> list[dict[str, Any]]:
    """Returns everything measured, for JSON."""
    return [
        {
            "file": c.file,
            "share": c.share,
            "day": c.day,
            "cpu": c.cpu,
            "different": c.different,
            "unsteady": c.unsteady,
            "runs": {name: dataclasses.asdict(run_) for name, run_ in c.runs.items()},
        }
        for c in comparisons
    ]


def read_comparisons(rows: Sequence[Mapping[str, Any]]) -> list[Comparison]:
    """Returns what `list_rows` made rows of."""
    return [
        Comparison(
            **{
                **row,
                "share": tuple(row["share"]),
                "runs": {name: Run(**run_) for name, run_ in row["runs"].items()},
            }
        )
        for row in rows
    ]


def add_up(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """Returns one comparison a file, of all its parts."""
    files = dict.fromkeys(c.file for c in comparisons)
    return [add_parts([c for c in comparisons if c.file == file]) for file in files]


def add_parts(parts: Sequence[Comparison]) -> Comparison:
    """Returns the parts of a file as one; its share starts at zero, wherever theirs do."""
    return Comparison(
        file=parts[0].file,
        runs={name: add_runs([part.runs[name] for part in parts]) for name in parts[0].runs},
        different=[entry for part in parts for entry in part.different],
        unsteady=[entry for part in parts for entry in part.unsteady],
        share=(0.0, round(sum(part.share[1] - part.share[0] for part in parts), 6)),
        day=max(part.day for part in parts),
        cpu=" and ".join(dict.fromkeys(part.cpu for part in parts)),
    )


def add_runs(runs: Sequence[Run]) -> Run:
    """Returns runs of different tests as one."""
    return Run(
        outcomes={test: end for run_ in runs for test, end in run_.outcomes.items()},
        messages={test: message for run_ in runs for test, message in run_.messages.items()},
        num_fused={test: number for run_ in runs for test, number in run_.num_fused.items()},
        refused=dict(
            sum(map(collections.Counter, (r.refused for r in runs)), collections.Counter())
        ),
        faults={test: fault for run_ in runs for test, fault in run_.faults.items()},
        cpu_s={test: cpu_s for run_ in runs for test, cpu_s in run_.cpu_s.items()},
        seconds=sum(run_.seconds for run_ in runs),
        log=runs[-1].log,
    )
