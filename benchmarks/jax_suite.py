"""JAX's own tests with Fuselane on and off: whatever passes without it has to pass with it.

    git clone --branch jax-v0.10.2 https://github.com/jax-ml/jax
    python benchmarks/jax_suite.py jax --cases 2 --docs docs/trust.md

Each file of tests is run with `FUSELANE_MIN_GAIN=0`, when every loop is taken that can be, worth it
or not. Those tests that turn out to hold loops, or that do not pass, are then run with Fuselane off
and on as users run it, each time in fresh processes. A test that ends differently is run again by
itself, with Fuselane off and on; it counts only if it then differs every time.
Needs `pip install pytest-xdist absl-py hypothesis scipy cloudpickle matplotlib`.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, final

from fuselane.machine import describe_machine
from suite import fill_in
from trial.recorder import FOLDER_VARIABLE, SHARE_VARIABLE

FILES: Final = (
    "api_test",
    "compilation_cache_test",
    "export_test",
    "lax_control_flow_test",
    "lax_numpy_test",
    "lax_scipy_special_functions_test",
    "lax_scipy_test",
    "lax_test",
    "lax_vmap_test",
    "linalg_test",
    "ode_test",
    "pjit_test",
    "random_lax_test",
    "random_test",
    "scipy_optimize_test",
    "shard_map_test",
)
SETTINGS: Final[Mapping[str, Mapping[str, str]]] = {
    "always": {"FUSELANE": "1", "FUSELANE_MIN_GAIN": "0"},
    "on": {"FUSELANE": "1"},
    "off": {"FUSELANE": "0"},
}
TIME_LIMIT_S: Final = 3600.0
NUM_REPEATS: Final = 3
MARKS: Final = ("<!-- jax-suite:begin -->", "<!-- jax-suite:end -->")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of a file of tests.

    Attributes:
        outcomes: "passed", "failed" or "skipped" by test.
        messages: The end of what a failed test said.
        num_fused: Loops that became kernels, by test; only tests that hold loops.
        refused: Loops that did not, by reason.
        seconds: How long it took.
        log: The end of what pytest said.
    """

    outcomes: Mapping[str, str]
    messages: Mapping[str, str]
    num_fused: Mapping[str, int]
    refused: Mapping[str, int]
    seconds: float
    log: str

    @staticmethod
    def empty() -> Run:
        """Returns a run of no test."""
        return Run(outcomes={}, messages={}, num_fused={}, refused={}, seconds=0.0, log="")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A file's runs by setting, and what differs from the run without Fuselane.

    Attributes:
        different: Tests that end differently every time, as "setting: test: message".
        unsteady: Tests that ended differently once.
    """

    file: str
    runs: Mapping[str, Run]
    different: list[str] = field(default_factory=list)
    unsteady: list[str] = field(default_factory=list)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the files asked for; returns 1 if a test ends differently with Fuselane on."""
    options = parse_options(arguments)
    comparisons = []
    for file in options.files:
        comparison = compare(file, options)
        print(format_row(comparison), *comparison.different, sep="\n", flush=True)
        comparisons.append(comparison)
        if options.json is not None:
            options.json.write_text(json.dumps(to_json(comparisons, options), indent=1) + "\n")
    print(describe_totals(comparisons))
    if options.docs is not None:
        fill_in(options.docs, make_markdown(comparisons, options), MARKS)
    return int(any(c.different for c in comparisons))


def parse_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Returns the command line's options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkout", type=Path, help="JAX's source, as tagged for the installed jax")
    parser.add_argument("--files", nargs="+", choices=FILES, default=FILES, metavar="FILE")
    parser.add_argument(
        "--cases", type=int, default=2, help="generated cases per test (JAX_NUM_GENERATED_CASES)"
    )
    parser.add_argument("--share", type=float, default=1.0, help="share of each file's tests")
    parser.add_argument(
        "--brief", action="store_true", help="leave out other runs of what passes with every loop"
    )
    parser.add_argument("--x64", action="store_true", help="with 64-bit types")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time")
    parser.add_argument("--json", type=Path, help="write how every test ended")
    parser.add_argument("--docs", type=Path, help="put the table between a page's two marks")
    return parser.parse_args(arguments)


def compare(file: str, options: argparse.Namespace) -> Comparison:
    """Runs one file under all settings, and again what ended differently."""
    always = run([f"tests/{file}.py"], "always", options)
    not_passed = {test for test, outcome in always.outcomes.items() if outcome != "passed"}
    checked = sorted(not_passed if options.brief else not_passed | always.num_fused.keys())
    on, off = (run(checked, name, options) for name in ("on", "off"))
    comparison = Comparison(file=file, runs={"always": always, "on": on, "off": off})
    for name in ("always", "on"):
        for test in find_differences(off, comparison.runs[name], checked):
            message = is_steady(test, name, options)
            entry = f"{name}: {test}"
            if message is None:
                comparison.unsteady.append(entry)
            else:
                comparison.different.append(f"{entry}: {message}")
    return comparison


def find_differences(off: Run, on: Run, tests: Sequence[str]) -> list[str]:
    """Returns those of some tests that end differently, or in one of two runs only."""
    return [test for test in tests if off.outcomes.get(test) != on.outcomes.get(test)]


def is_steady(test: str, setting: str, options: argparse.Namespace) -> str | None:
    """Returns what a test says whose outcome depends on Fuselane every time, or None."""
    message = ""
    for _ in range(NUM_REPEATS):
        off, on = (run([test], name, options, jobs=0) for name in ("off", setting))
        if not find_differences(off, on, [test]):
            return None
        message = on.messages.get(test) or off.messages.get(test) or on.log
    return message


def run(tests: Sequence[str], setting: str, options: argparse.Namespace, jobs: int = -1) -> Run:
    """Runs tests under a setting in new processes, with empty caches."""
    if not tests:
        return Run.empty()
    with tempfile.TemporaryDirectory(prefix="fuselane-jax-") as folder:
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        command += ["-p", "trial.recorder", "-n", str(options.jobs if jobs < 0 else jobs), *tests]
        start = time.perf_counter()
        try:
            process = subprocess.run(
                command,
                cwd=options.checkout,
                env=child_environment(setting, folder, options),
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


def child_environment(setting: str, folder: str, options: argparse.Namespace) -> dict[str, str]:
    """Returns the environment of a run."""
    dropped = ("FUSELANE", "JAX_", "PYTEST_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
    paths = [str(Path(__file__).parent), *filter(None, [kept.get("PYTHONPATH")])]
    return {
        **kept,
        **SETTINGS[setting],
        "FUSELANE_CACHE_DIR": f"{folder}/kernels",
        FOLDER_VARIABLE: folder,
        SHARE_VARIABLE: str(options.share),
        "JAX_ENABLE_X64": str(int(options.x64)),
        "JAX_NUM_GENERATED_CASES": str(options.cases),
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": os.pathsep.join(paths),
    }


def read_run(folder: Path, seconds: float, log: str) -> Run:
    """Returns what the recorders of a run wrote."""
    outcomes: dict[str, str] = {}
    messages: dict[str, str] = {}
    num_fused: collections.Counter[str] = collections.Counter()
    refused: collections.Counter[str] = collections.Counter()
    for row in read_rows(folder, "outcomes"):
        test = row["test"]
        if outcomes.get(test) != "failed":
            outcomes[test] = row["outcome"]
        if row["outcome"] == "failed":
            messages[test] = row["message"]
    for row in read_rows(folder, "loops"):
        num_fused[row["test"]] += row["fused"]
        refused.update(row["refused"])
    return Run(
        outcomes=outcomes,
        messages=messages,
        num_fused=num_fused,
        refused=refused,
        seconds=seconds,
        log=log,
    )


def read_rows(folder: Path, kind: str) -> Iterator[dict[str, Any]]:
    """Yields the lines of all processes' files of one kind."""
    for path in sorted(folder.glob(f"{kind}-*.jsonl")):
        yield from map(json.loads, path.read_text(encoding="utf-8").splitlines())


def count(run: Run, outcome: str) -> int:
    """Returns how many tests ended in one way."""
    return sum(value == outcome for value in run.outcomes.values())


def format_row(comparison: Comparison) -> str:
    """Returns a line to print as soon as a file is done."""
    parts = [f"{comparison.file:34}"]
    for name, run_ in comparison.runs.items():
        ends = "/".join(str(count(run_, end)) for end in ("passed", "failed", "skipped"))
        fused = sum(run_.num_fused.values())
        parts.append(f"{name} {ends}, {fused} fused, {run_.seconds:.0f} s;")
    return " ".join([*parts, f"{len(comparison.different)} different"])


def describe_totals(comparisons: Sequence[Comparison]) -> str:
    """Returns sentences about all files together."""
    total = sum(len(c.runs["always"].outcomes) for c in comparisons)
    checked = sum(len(c.runs["off"].outcomes) for c in comparisons)
    lines = [f"{total:,} tests, {checked:,} of them run in other settings too."]
    for name in comparisons[0].runs:
        runs = [c.runs[name] for c in comparisons]
        fused = sum(sum(r.num_fused.values()) for r in runs)
        loops = fused + sum(sum(r.refused.values()) for r in runs)
        failed = sum(count(r, "failed") for r in runs)
        minutes = sum(r.seconds for r in runs) / 60
        lines.append(
            f"{name}: {failed} failed, {fused:,} of {loops:,} loops fused, {minutes:.0f} min."
        )
    different = sum(len(c.different) for c in comparisons)
    unsteady = sum(len(c.unsteady) for c in comparisons)
    lines.append(f"{different} end differently every time, {unsteady} did so once.")
    return "\n".join(lines)


def make_markdown(comparisons: Sequence[Comparison], options: argparse.Namespace) -> str:
    """Returns the table of a docs page."""
    machine = describe_machine()
    names = list(comparisons[0].runs)
    headings = ["File", "Tests", "With loops", *(f"Failed, {name}" for name in names)]
    headings += [*(f"Loops fused, {name}" for name in names[:-1]), "Different"]
    lines = [
        f"jax {machine['jax']}, `JAX_NUM_GENERATED_CASES={options.cases}`, "
        f"{'64' if options.x64 else '32'}-bit types, {machine['cpu']}, {machine['cores']} cores, "
        f"{time.strftime('%Y-%m-%d', time.gmtime())}"
        + (f", {options.share:.0%} of each file's tests." if options.share < 1 else "."),
        "",
        f"| {' | '.join(headings)} |",
        f"|{'---|' * len(headings)}",
    ]
    for c in comparisons:
        always = c.runs["always"]
        cells = [f"`{c.file}`", len(always.outcomes), len(always.num_fused)]
        cells += [count(c.runs[name], "failed") for name in names]
        cells += [sum(c.runs[name].num_fused.values()) for name in names[:-1]]
        lines.append(f"| {' | '.join(map(str, [*cells, len(c.different)]))} |")
    lines += ["", re.sub("\n", " ", describe_totals(comparisons))]
    return "\n".join(lines) + "\n"


def to_json(comparisons: Sequence[Comparison], options: argparse.Namespace) -> dict[str, Any]:
    """Returns everything measured."""
    rows = [
        {
            "file": c.file,
            "different": c.different,
            "unsteady": c.unsteady,
            "runs": {
                name: {
                    "outcomes": dict(run_.outcomes),
                    "num_fused": dict(run_.num_fused),
                    "refused": dict(run_.refused),
                    "seconds": run_.seconds,
                    "messages": dict(run_.messages),
                    "log": run_.log,
                }
                for name, run_ in c.runs.items()
            },
        }
        for c in comparisons
    ]
    settings = {"cases": options.cases, "share": options.share, "x64": options.x64}
    return {"machine": describe_machine(), **settings, "rows": rows}


if __name__ == "__main__":
    sys.exit(main())
