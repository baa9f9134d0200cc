"""Programs without loops: the fusion pipeline `fuselane` beside XLA:CPU's own fusions.

    python benchmarks/loop_free.py --json docs/data/loop-free.json --docs docs/performance.md

Measured as in `suite.py`: a process for each program, in which both engines take turns. A program
is missed if it is slower than plain XLA by more than what is noise, or gives other results.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from fuselane.machine import describe_machine
from programs import loop_free
from programs.program import Program
from suite import fill_in, list_child_options, run_in_child
from trial.outcome import Outcome
from trial.tables import format_row, list_remarks

MARKS: Final = ("<!-- loop-free:begin -->", "<!-- loop-free:end -->")
MIN_TIMES: Final = 0.97
NUM_RUNS: Final = 3
HEADINGS: Final = ("Program", "XLA:CPU, ms", "`fuselane`, ms", "Times", "Kernels of ours")

Results = Sequence[tuple[Program, Outcome]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures the programs asked for; returns 1 if any is missed."""
    options = parse_options(arguments)
    os.environ["FUSELANE_FUSION"] = "fuselane"
    known = load(options.json) if options.resume and options.json.exists() else {}
    results = []
    for program in loop_free.PROGRAMS:
        is_wanted = not options.only or any(part in program.name for part in options.only)
        outcome = known.get(program.name)
        if is_wanted and outcome is None:
            outcome = measure(program, options)
            print(format_row(program, outcome), flush=True)
        if outcome is not None:
            results.append((program, outcome))
    print(describe(results))
    for remark in list_remarks(results):
        print(remark)
    if options.json is not None:
        rows = [outcome.to_json(program) for program, outcome in results]
        document = {"machine": describe_machine(), "is_quick": options.quick, "rows": rows}
        options.json.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    if options.docs is not None:
        fill_in(options.docs, make_markdown(results), MARKS)
    return int(any(is_missed(outcome, is_quick=options.quick) for _, outcome in results))


def parse_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Returns the command line's options."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", default=[], metavar="PART", help="parts of names")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that it runs")
    parser.add_argument("--seconds", type=float, default=1.5, help="how long each is timed")
    parser.add_argument("--compile-rounds", type=int, default=1, help="compilations by each engine")
    parser.add_argument(
        "--packages", nargs="+", default=[], metavar="FOLDER", help="where libraries are, see suite"
    )
    parser.add_argument("--json", type=Path, help="write everything measured")
    parser.add_argument("--resume", action="store_true", help="keep what --json has")
    parser.add_argument("--docs", type=Path, help="put the table between a page's two marks")
    return parser.parse_args(arguments)


def load(path: Path) -> dict[str, Outcome]:
    """Returns the outcomes in a results file by program."""
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
    return {row["name"]: Outcome.from_json(row) for row in rows}


def measure(program: Program, options: argparse.Namespace) -> Outcome:
    """Returns a program's outcome; of one that is missed, the middle one of three by its times."""
    outcome = run_in_child(program, list_child_options(options))
    if options.quick or not outcome.is_measured or not is_missed(outcome, is_quick=False):
        return outcome
    again = [run_in_child(program, list_child_options(options)) for _ in range(NUM_RUNS - 1)]
    measured = [outcome, *(other for other in again if other.is_measured)]
    return sorted(measured, key=lambda other: other.times)[len(measured) // 2]


def is_missed(outcome: Outcome, *, is_quick: bool) -> bool:
    """Whether a program failed, gave other results, or is slower than plain XLA."""
    if not outcome.is_measured or not outcome.agrees:
        return True
    return not is_quick and outcome.times < MIN_TIMES


def describe(results: Results) -> str:
    """Returns the geometric mean, and the least."""
    times = [outcome.times for _, outcome in results if outcome.is_measured]
    if not times:
        return "Nothing was measured."
    mean = statistics.geometric_mean(times)
    return (
        f"{len(times)} programs: {mean:.2f} times as fast as XLA:CPU (geometric mean),"
        f" {min(times):.2f} at least, {max(times):.1f} at most."
    )


def make_markdown(results: Results) -> str:
    """Returns the table for the docs."""
    machine = describe_machine()
    lines = [
        f"{describe(results)} Measured on {machine['cores']} cores of {machine['cpu']}.",
        "",
        "| " + " | ".join(HEADINGS) + " |",
        "|---|---:|---:|---:|---:|",
    ]
    for program, outcome in results:
        name = program.name.partition("/")[2]
        if not outcome.is_measured:
            lines.append(f"| {name} | {outcome.error or outcome.skipped} | | | |")
            continue
        numbers = f"{outcome.xla_ms:,.2f} | {outcome.fuselane_ms:,.2f} | {outcome.times:.2f}"
        lines.append(f"| {name} | {numbers} | {outcome.num_fused} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
