"""The suite's programs on the GPU, as many as there is time for: the most telling ones first.

python -m card.suite OUT.json --seconds S [--quick]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

import jax

from card.series import Row, measure_all, run_series
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


def main() -> int:
    """Measures until the time is over; returns 1 if a result was wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=180)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--names", nargs="*", help="measures these in this process")
    options = parser.parse_args()
    if options.names is not None:
        return measure_all(options.names, options.out, partial(measure_one, options.quick))
    names = [*FIRST, *(p.name for p in PROGRAMS if p.name not in FIRST)]
    skipped = {name: find_program(name).missing() for name in names}
    names = [name for name in names if not skipped[name]]
    flags = ["--quick"] if options.quick else []
    rows: list[Row] = []
    for rows, remaining in run_series("card.suite", names, options.out, options.seconds, *flags):
        write(options.out, rows, skipped, remaining)
    return int(any(row.get("agrees") is False for row in rows))


def measure_one(is_quick: bool, name: str) -> Row:
    """Returns what there is to be known of a program."""
    program = find_program(name)
    # XLA leaves out 13 of a float's 24 bits in products of matrices unless it is told not to.
    with jax.enable_x64(program.x64), jax.default_matmul_precision("highest"):
        return measure(program, is_quick, 0.5, 1).to_json(program)


def write(
    out: Path, rows: Sequence[Row], skipped: dict[str, str], remaining: Sequence[str]
) -> None:
    """Writes what there is so far."""
    missing = sorted({sentence for sentence in skipped.values() if sentence})
    document = {"rows": rows, "missing": missing, "no time for": list(remaining)}
    out.write_text(json.dumps(document, indent=1), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
