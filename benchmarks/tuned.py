"""What a search finds on the paper's CartPole, beside all named pipelines.

It starts from `xla-2021` on the variant `concat` and has 60 seconds. Then what it found, XLA's own
fusions and all named pipelines run in turns. Returns 1 if a named pipeline takes less time than
what any search found, beyond noise.

    python benchmarks/tuned.py --seeds 0 1 2 --docs docs/tuning.md
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import jax

from fuselane.cartpole.problem import make_problem
from fuselane.cartpole.variants import BASELINE, VARIANTS
from fuselane.comparing import XLA, StrategyCosts, compare_strategies, measure
from fuselane.fusion.pipelines import PIPELINES
from fuselane.machine import describe_machine
from fuselane.tuner import tune_program
from fuselane.tuning.settings import TuneSettings
from fuselane.xla.capture import capture, lower
from fuselane.xla.programs import program_of
from fuselane.xla.targets import CPU
from suite import fill_in

MARKS: Final = ("<!-- tuned:begin -->", "<!-- tuned:end -->")
START: Final = "xla-2021"
NOISE: Final = 1.02
"""Medians of one program, run in turns with itself, are no further apart."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Searches once for each seed, and compares."""
    options = parse_options(arguments)
    problem = make_problem(options.envs, options.steps)
    variant = VARIANTS[BASELINE]
    jitted, values = jax.jit(variant.make_rollout(options.steps)), variant.get_arguments(problem)
    program = program_of(jitted, values)
    found: dict[str, list[int]] = {}
    """Seeds by what the search found with them."""
    for seed in options.seeds:
        settings = TuneSettings(budget_s=options.budget, starts=(START,), seed=seed)
        with tempfile.TemporaryDirectory() as folder:
            os.environ["FUSELANE_CACHE_DIR"] = folder  # nothing is known, and nothing is left
            tuning = tune_program(program, settings)
        print(tuning.text(), flush=True)
        found.setdefault(tuning.best.fusion or XLA, []).append(seed)
    strategies = [text for text in dict.fromkeys([*PIPELINES, *found]) if text != XLA]
    rows = compare_strategies(capture(lower(jitted, CPU, *values), CPU), strategies)
    rows = measure(program, [XLA, *strategies], rows, rounds=options.rounds)
    table = make_table(rows, found, options)
    print(table)
    if options.docs is not None:
        fill_in(options.docs, table, MARKS)
    return int(time_lost(rows, found) > NOISE)


def parse_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Returns the command line's options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--envs", type=int, default=2048)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--budget", type=float, default=60.0, help="seconds of a search")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--rounds", type=int, default=101, help="runs of each strategy")
    parser.add_argument("--docs", type=Path, help="put the table between a page's two marks")
    return parser.parse_args(arguments)


def time_lost(rows: Sequence[StrategyCosts], found: dict[str, list[int]]) -> float:
    """Returns the time of the worst that was found, divided by that of the best named pipeline."""
    times = {row.strategy: row.measured_us or 0.0 for row in rows}
    return max(times[text] for text in found) / min(times[name] for name in PIPELINES)


def make_table(
    rows: Sequence[StrategyCosts], found: dict[str, list[int]], options: argparse.Namespace
) -> str:
    """Returns the table for the docs, the fastest first."""
    machine = describe_machine()
    own_us = rows[0].measured_us or 0.0
    lines = [
        f"{options.envs} environments, {options.steps} steps, {options.budget:.0f} seconds for each"
        f" search, medians of {options.rounds} runs in turns, on {machine['cores']} cores of"
        f" {machine['cpu']}.",
        "",
        "| strategy | kernels per step | ms | times XLA |",
        "|---|---:|---:|---:|",
    ]
    for row in sorted(rows, key=lambda row: row.measured_us or 0.0):
        name = "XLA's own" if row.strategy == XLA else f"`{row.strategy}`"
        if seeds := found.get(row.strategy):
            name += f" (found with seed {', '.join(map(str, seeds))})"
        us = row.measured_us or 0.0
        kernels = row.num_launches / options.steps
        lines.append(f"| {name} | {kernels:.1f} | {us * 1e-3:.2f} | {own_us / us:.2f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
