"""Programs that need no help, with Fuselane off and on: none may become slower.

    python benchmarks/no_harm.py --docs docs/trust.md

Loops that XLA runs well, tiny loops, programs without any loop, training steps of flax, optax,
equinox and numpyro, modules that take long to compile, cheap functions called from Python, and the
bystanders and scalar programs of `suite.py`. Measured as there: a process per program, both engines
in turns. A program that misses is measured twice more, and compiled three times as often then: of
run times the middle one counts, of those to compile all together.

Where no loop became a kernel, a program counts as slower only if it also takes more time on all
cores together: what passes by the clock is noise where other processes keep the cores busy, and the
same instructions run. Compile times are those on all cores for that reason.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from fuselane.machine import describe_machine
from programs import PROGRAMS, bystanders, harmless, scalar
from programs.program import Program
from suite import fill_in, list_child_options, run_in_child
from trial.outcome import MAX_SLOWDOWN, Outcome

MAX_COMPILE_RATIO: Final = 1.05
NUM_AGAIN: Final = 2
MORE_ROUNDS: Final = 3
MARKS: Final = ("<!-- no-harm:begin -->", "<!-- no-harm:end -->")
HEADINGS: Final = (
    "Program",
    "Plain XLA, ms",
    "Fuselane, ms",
    "Times",
    "On all cores",
    "Compiling",
    "Fused",
    "",
)

Results = Sequence[tuple[Program, Outcome]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures the programs asked for; returns 1 if any misses, fails or gives wrong results."""
    options = parse_options(arguments)
    known = load(options.json) if options.resume and options.json.exists() else {}
    results = []
    for program in choose_programs(options.only):
        outcome = known.get(program.name)
        if outcome is None or judge(outcome):
            outcome = measure(program, options)
            print(format_row(program, outcome), flush=True)
        results.append((program, outcome))
        if options.json is not None:
            save(options.json, results)
    print(describe(results))
    if options.docs is not None:
        fill_in(options.docs, make_markdown(results), MARKS)
    if options.quick:  # times at tiny sizes mean nothing
        return int(any(outcome.error or not outcome.agrees for _, outcome in results))
    return int(any(judge(outcome) for _, outcome in results))


def parse_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Returns the command line's options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", default=[], metavar="PART", help="parts of names")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that it runs")
    parser.add_argument("--seconds", type=float, default=2.0, help="how long each is timed")
    parser.add_argument(
        "--compile-rounds", type=int, default=14, help="compilations by each engine"
    )
    parser.add_argument(
        "--packages", nargs="+", default=[], metavar="FOLDER", help="where libraries are, see suite"
    )
    parser.add_argument("--json", type=Path, help="write everything measured")
    parser.add_argument(
        "--resume", action="store_true", help="keep what --json has, but for what missed"
    )
    parser.add_argument("--docs", type=Path, help="put the table between a page's two marks")
    return parser.parse_args(arguments)


def choose_programs(parts: Sequence[str]) -> list[Program]:
    """Returns the programs that need no help and whose names contain any of the parts, if given."""
    of_suite = [p for p in PROGRAMS if p.category in (bystanders.CATEGORY, scalar.CATEGORY)]
    programs = [*harmless.PROGRAMS, *(p for p in of_suite if p.target is None)]
    return [p for p in programs if not parts or any(part in p.name for part in parts)]


def measure(program: Program, options: argparse.Namespace) -> Outcome:
    """Returns a program's outcome: of its first run if that is good, of the middle one of three."""
    outcome = run_in_child(program, list_child_options(options))
    if options.quick or not outcome.is_measured or not judge(outcome):
        return outcome
    longer = argparse.Namespace(**vars(options))
    longer.compile_rounds *= MORE_ROUNDS
    again = [run_in_child(program, list_child_options(longer)) for _ in range(NUM_AGAIN)]
    outcomes = [outcome, *(other for other in again if other.is_measured)]
    middle = sorted(outcomes, key=lambda o: o.times)[len(outcomes) // 2]
    return dataclasses.replace(
        middle,
        compile_ratios=tuple(itertools.chain(*(o.compile_ratios for o in outcomes))),
        compile_cpu_ratios=tuple(itertools.chain(*(o.compile_cpu_ratios for o in outcomes))),
    )


def judge(outcome: Outcome) -> str:
    """Returns what is wrong with an outcome, or ""."""
    if not outcome.is_measured:
        return "failed" if outcome.error else ""
    missed = [] if outcome.agrees else ["wrong"]
    if is_slower(outcome):
        missed.append("slower")
    if not outcome.num_fused and outcome.compile_cpu_ratio > MAX_COMPILE_RATIO:
        missed.append("compile time")
    return " and ".join(missed)


def is_slower(outcome: Outcome) -> bool:
    """Returns whether a program takes longer with Fuselane, see the module's head."""
    on_all_cores = outcome.xla_cpu_ms / outcome.fuselane_cpu_ms
    least = 1.0 - MAX_SLOWDOWN
    return outcome.times < least and (outcome.num_fused > 0 or on_all_cores < least)


def load(path: Path) -> dict[str, Outcome]:
    """Returns the outcomes of a results file by program."""
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
    return {row["name"]: Outcome.from_json(row) for row in rows}


def save(path: Path, results: Results) -> None:
    """Writes a results file."""
    rows = [outcome.to_json(program) for program, outcome in results]
    document = {"machine": describe_machine(), "rows": rows}
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


def list_cells(program: Program, outcome: Outcome) -> tuple[str, ...]:
    """Returns a row's cells, in the order of the headings."""
    if not outcome.is_measured:
        return (program.name, *[""] * 6, "skipped" if outcome.skipped else "failed")
    return (
        program.name,
        f"{outcome.xla_ms:,.2f}",
        f"{outcome.fuselane_ms:,.2f}",
        f"{outcome.times:.2f}",
        f"{outcome.xla_cpu_ms / outcome.fuselane_cpu_ms:.2f}",
        f"{outcome.compile_cpu_ratio:.2f}",
        f"{outcome.num_fused} of {len(outcome.loops)}",
        judge(outcome),
    )


def format_row(program: Program, outcome: Outcome) -> str:
    """Returns a line to print as soon as a program is done."""
    if not outcome.is_measured:
        return f"{program.name:36} {outcome.skipped or outcome.error}"
    name, *cells = list_cells(program, outcome)
    return f"{name:36} {' '.join(f'{cell:>9}' for cell in cells)} {outcome.disagreement}"


def describe(results: Results) -> str:
    """Returns sentences about all programs together."""
    measured = [outcome for _, outcome in results if outcome.is_measured]
    unfused = [outcome for outcome in measured if not outcome.num_fused]
    num_skipped = sum(bool(outcome.skipped) for _, outcome in results)
    num_missed = sum(bool(judge(outcome)) for _, outcome in results)
    sentences = [f"{len(measured)} programs, {num_skipped} skipped, {num_missed} missed."]
    if measured:
        sentences.append(f"Lowest ratio of run times {min(o.times for o in measured):.2f}.")
    if unfused:
        highest = max(outcome.compile_cpu_ratio for outcome in unfused)
        sentences.append(
            f"{len(unfused)} programs without a kernel: highest ratio of compile times "
            f"{highest:.2f}, mean {sum(o.compile_cpu_ratio for o in unfused) / len(unfused):.3f}."
        )
    return " ".join(sentences)


def make_markdown(results: Results) -> str:
    """Returns the table of a docs page."""
    machine = describe_machine()
    lines = [
        f"jax {machine['jax']}, {machine['cpu']}, {machine['cores']} cores, "
        f"{time.strftime('%Y-%m-%d', time.gmtime())}. {describe(results)}",
        "",
        f"| {' | '.join(HEADINGS)} |",
        f"|{'---|' * len(HEADINGS)}",
        *(f"| {' | '.join(list_cells(*row))} |" for row in results),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
