"""The suite's programs on the GPU, as many as there is time for: the most telling ones first.

python -m card.suite OUT.json --seconds S [--packages FOLDER] [--quick]

One process measures program after program, since starting JAX on a GPU takes seconds; where a
program ends it, or none is done for a while, the next process goes on with the one behind it.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import jax

from card.child import run_group
from programs import PROGRAMS, find_program
from trial.measure import measure

FIRST: Final = (
    "gymnax/CartPole-v1",
    "ode/lorenz",
    "monte-carlo/gbm",
    "mcmc/metropolis",
    "ode/diffrax-fixed",
    "roots/mandelbrot-real",
    "gymnax/Pendulum-v1",
    "recurrent/gru",
    "monte-carlo/heston",
    "mcmc/blackjax-hmc",
    "roots/collatz",
    "gymnax/MountainCar-v0",
    "monte-carlo/mean-path",
    "scalar/logistic-map",
    "bystander/heat",
    "ode/diffrax-adaptive",
    "gymnax/Acrobot-v1",
    "ode/double-pendulum",
)
"""One of each kind, before the others in the suite's order."""

PATIENCE_S: Final = 60.0
"""Without a program done for so long, the process is taken to hang."""


def main() -> int:
    """Measures until the time is over; returns 1 if a result was wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=180)
    parser.add_argument("--packages", default="")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--names", nargs="*", help="measures these in this process")
    options = parser.parse_args()
    if options.packages:
        sys.path.append(options.packages)
    if options.names is not None:
        return measure_all(options.names, options.out, is_quick=options.quick)
    names = [*FIRST, *(p.name for p in PROGRAMS if p.name not in FIRST)]
    skipped = {name: find_program(name).missing() for name in names}
    rows: list[dict[str, Any]] = []
    remaining = [name for name in names if not skipped[name]]
    deadline = time.monotonic() + options.seconds
    while remaining and time.monotonic() < deadline:
        found, ended = measure_in_child(remaining, options, deadline - time.monotonic())
        rows += found
        remaining = remaining[len(found) :]
        if remaining and time.monotonic() < deadline:
            rows.append({"name": remaining.pop(0), "error": ended})
        write(options.out, rows, skipped, remaining)
    write(options.out, rows, skipped, remaining)
    return int(any(row.get("agrees") is False for row in rows))


def measure_in_child(
    names: Sequence[str], options: argparse.Namespace, seconds: float
) -> tuple[list[dict[str, Any]], str]:
    """Returns the rows of the programs that a process got done, in order, and how it ended."""
    lines = options.out.with_suffix(".lines")
    lines.unlink(missing_ok=True)
    command = [sys.executable, "-m", "card.suite", str(lines), "--names", *names]
    command += ["--packages", options.packages, *(["--quick"] if options.quick else [])]
    ended = run_group(command, seconds, patience_s=PATIENCE_S, progress=lines)
    text = lines.read_text(encoding="utf-8") if lines.is_file() else ""
    return [json.loads(line) for line in text.splitlines() if line.endswith("}")], ended


def measure_all(names: Sequence[str], out: Path, *, is_quick: bool) -> int:
    """Measures programs in this process, a line of JSON for each."""
    for name in names:
        program = find_program(name)
        try:
            with jax.enable_x64(program.x64):
                row = measure(program, is_quick, 0.5, 1).to_json(program)
        except Exception as error:
            row = {"name": name, "error": f"{type(error).__name__}: {error}"[:500]}
        with out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
    return 0


def write(
    out: Path, rows: Sequence[dict[str, Any]], skipped: dict[str, str], remaining: Sequence[str]
) -> None:
    """Writes what there is so far."""
    missing = sorted({sentence for sentence in skipped.values() if sentence})
    document = {"rows": rows, "missing": missing, "no time for": list(remaining)}
    out.write_text(json.dumps(document, indent=1), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
