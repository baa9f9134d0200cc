"""Other people's loops: many programs as users write them, under plain XLA and under Fuselane.

Each program has a process of its own, in which both engines take turns, so that whatever else keeps
the machine busy falls on both alike. Results are compared under the program's own rule.

    python benchmarks/suite.py --json suite.json --docs docs/performance.md
    python benchmarks/suite.py --only CartPole lorenz --quick

`pip install 'fuselane[suite]'` brings the libraries that some programs use; others run without.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rich.console import Console

from fuselane.machine import describe_machine
from programs import CATEGORIES, PROGRAMS
from programs.program import Program
from trial.outcome import Outcome
from trial.tables import format_row, list_remarks, make_markdown, make_table

BEGIN, END = "<!-- suite:begin -->", "<!-- suite:end -->"
TIME_LIMIT_S: Final = 900.0
MIN_WIDTH: Final = 120


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the programs asked for; returns 1 if any failed or gave wrong results."""
    options = parse_options(arguments)
    programs = choose_programs(options.only, options.category)
    if options.list:
        for program in programs:
            print(f"{program.name:36} {program.category:20} {program.rule.describe()}")
        return 0
    results = []
    for program in programs:
        outcome = run_in_child(program, list_child_options(options))
        print(format_row(program, outcome), flush=True)
        results.append((program, outcome))
    write_results(results, options)
    return int(any(outcome.error or not outcome.agrees for _, outcome in results))


def parse_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Returns the command line's options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="PART", help="programs with a part in their names"
    )
    parser.add_argument("--category", nargs="+", choices=CATEGORIES, default=CATEGORIES)
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that it runs")
    parser.add_argument(
        "--seconds", type=float, default=1.5, help="about how long each program is timed"
    )
    parser.add_argument(
        "--compile-rounds",
        type=int,
        default=3,
        help="how often at least each engine compiles a program",
    )
    parser.add_argument(
        "--packages",
        nargs="+",
        default=[],
        metavar="FOLDER",
        help="where optional packages are looked for after all others",
    )
    parser.add_argument("--json", type=Path, help="write everything measured")
    parser.add_argument("--markdown", type=Path, help="write the table")
    parser.add_argument("--docs", type=Path, help="put the table between a page's two marks")
    parser.add_argument("--list", action="store_true", help="list the programs, run none")
    return parser.parse_args(arguments)


def choose_programs(parts: Sequence[str], categories: Sequence[str]) -> list[Program]:
    """Returns the programs of some categories whose names contain any of the parts, if given."""
    return [
        program
        for program in PROGRAMS
        if program.category in categories
        and (not parts or any(part in program.name for part in parts))
    ]


def list_child_options(options: argparse.Namespace) -> list[str]:
    """Returns how a child is told what concerns it."""
    told = ["--seconds", str(options.seconds), "--compile-rounds", str(options.compile_rounds)]
    told += [part for folder in options.packages for part in ("--packages", folder)]
    return [*told, "--quick"] if options.quick else told


def run_in_child(program: Program, child_options: Sequence[str]) -> Outcome:
    """Measures a program in a new process, with an empty kernel cache of its own."""
    with tempfile.TemporaryDirectory(prefix="fuselane-suite-") as folder:
        path = Path(folder) / "outcome.json"
        command = [sys.executable, "-m", "trial.measure", program.name, str(path), *child_options]
        try:
            process = subprocess.run(
                command,
                cwd=Path(__file__).parent,
                env=child_environment(folder, "--quick" in child_options),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                timeout=TIME_LIMIT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return Outcome(name=program.name, error=f"Not done after {TIME_LIMIT_S:.0f} s.")
        if process.returncode != 0 or not path.exists():
            return Outcome(name=program.name, error=describe_end(process))
        return Outcome.from_json(json.loads(path.read_text()))


def child_environment(cache_dir: str, is_quick: bool) -> dict[str, str]:
    """Returns our environment, without what would switch Fuselane or hand over cached programs.

    Tiny loops are fused too, though they gain nothing: that they run is what is to be seen.
    """
    dropped = {"FUSELANE", "JAX_COMPILATION_CACHE_DIR"}
    kept = {name: value for name, value in os.environ.items() if name not in dropped}
    kept["FUSELANE_CACHE_DIR"] = cache_dir
    return {**kept, "FUSELANE_MIN_GAIN": "0"} if is_quick else kept


def describe_end(process: subprocess.CompletedProcess[str]) -> str:
    """Returns how a process ended that wrote no outcome."""
    lines = process.stderr.strip().splitlines() or ["no message"]
    if process.returncode < 0:
        return f"Ended by {signal.Signals(-process.returncode).name}: {lines[-1]}"
    return f"Exit code {process.returncode}: {lines[-1]}"


def write_results(results: Sequence[tuple[Program, Outcome]], options: argparse.Namespace) -> None:
    """Prints the table and what there is to say about it, and writes the files asked for."""
    console = Console()
    console.width = max(console.width, MIN_WIDTH)
    console.print(make_table(results))
    for remark in list_remarks(results):
        print(remark)
    machine = describe_machine()
    if options.json is not None:
        rows = [outcome.to_json(program) for program, outcome in results]
        document = {"machine": machine, "is_quick": options.quick, "rows": rows}
        options.json.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    if options.markdown is not None:
        options.markdown.write_text(make_markdown(results, machine), encoding="utf-8")
    if options.docs is not None:
        fill_in(options.docs, make_markdown(results, machine))


def fill_in(page: Path, table: str, marks: tuple[str, str] = (BEGIN, END)) -> None:
    """Replaces what stands between two marks of a page."""
    begin, end = marks
    head, rest = page.read_text(encoding="utf-8").split(begin)
    tail = rest.split(end)[1]
    page.write_text(f"{head}{begin}\n\n{table}\n{end}{tail}", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
