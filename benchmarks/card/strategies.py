"""Fusion strategies on the GPU: the same program under XLA's own fusions and under each strategy.

python -m card.strategies OUT.json --seconds S [--quick]

Loops stay with XLA, so that only what is fused differs. All strategies of a program take turns in
one process; results are compared with plain XLA's, products of matrices in full precision.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import jax
import numpy as np

import fuselane
from card.cartpole import time_in_turns
from card.series import Row, describe_error, measure_all, run_series
from fuselane.cartpole.problem import make_problem
from fuselane.cartpole.variants import BASELINE, VARIANTS
from fuselane.runtime.warning import forget_warnings
from programs.loop_free import PROGRAMS
from programs.program import Built
from trial.measure import wait

STRATEGIES: Final = ("none", "xla-2021", "xla-2023", "xla-today-gpu", "xla-today-cpu")
CARTPOLE: Final = f"cartpole/{BASELINE}"
QUICK_NAMES: Final = (CARTPOLE, PROGRAMS[0].name)
NUM_ENVS, NUM_STEPS, QUICK_STEPS = 2048, 1000, 20
PATIENCE_S: Final = 100.0
"""For all strategies of a program."""

MAX_OFF: Final = 1e-4
"""Of differences, beside the largest number of a result."""


def main() -> int:
    """Measures until the time is over; returns 1 if a result was wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=80)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--names", nargs="*", help="measures these in this process")
    options = parser.parse_args()
    if options.names is not None:
        measured = functools.partial(measure, is_quick=options.quick)
        with jax.default_matmul_precision("highest"):
            return measure_all(options.names, options.out, measured)
    names = QUICK_NAMES if options.quick else [CARTPOLE, *(p.name for p in PROGRAMS)]
    flags = ["--quick"] if options.quick else []
    rows: list[Row] = []
    for rows, remaining in run_series(
        "card.strategies", names, options.out, options.seconds, *flags, patience_s=PATIENCE_S
    ):
        left = [{"name": name, "error": "no time left"} for name in remaining]
        options.out.write_text(json.dumps([*rows, *left], indent=1), encoding="utf-8")
    return int(any(row.get("wrong") for row in rows))


def measure(name: str, *, is_quick: bool) -> Row:
    """Returns the median milliseconds under each strategy, what was wrong, and what was said."""
    built = build(name, is_quick=is_quick)
    row: Row = {"ms": {}, "wrong": {}, "failed": {}, "said": {}}
    runs: dict[str, Callable[[], Any]] = {"xla": compile_under(None, built)}
    expected = [np.asarray(leaf) for leaf in jax.tree.leaves(runs["xla"]())]
    for strategy in STRATEGIES:
        forget_warnings()
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            try:
                run = compile_under(strategy, built)
                off = compare(expected, jax.tree.leaves(run()))
            except Exception as error:
                row["failed"][strategy] = describe_error(error)
                continue
        runs[strategy] = run
        if told:
            row["said"][strategy] = "; ".join(str(warning.message) for warning in told)[:500]
        if not off <= MAX_OFF:
            row["wrong"][strategy] = off
    row["ms"] = time_in_turns(runs)
    return row


def build(name: str, *, is_quick: bool) -> Built:
    """Returns a program's function and arguments."""
    if name == CARTPOLE:
        num_steps = QUICK_STEPS if is_quick else NUM_STEPS
        variant = VARIANTS[BASELINE]
        arguments = variant.get_arguments(make_problem(NUM_ENVS, num_steps))
        return variant.make_rollout(num_steps), arguments
    (program,) = (p for p in PROGRAMS if p.name == name)
    return program.build(program.quick if is_quick else program.full)


def compile_under(strategy: str | None, built: Built) -> Callable[[], Any]:
    """Returns how to run a program compiled under a strategy, or by plain XLA."""
    function, arguments = built
    # A new object: JAX has traced and compiled nothing under it.
    jitted = jax.jit(functools.partial(function))
    if strategy is None:
        compiled = jitted.lower(*arguments).compile()
    else:
        with fuselane.enabled(fusion=strategy, loops=False):
            compiled = jitted.lower(*arguments).compile()
    return lambda: wait(compiled(*arguments))


def compare(expected: Sequence[np.ndarray], actual: Sequence[Any]) -> float:
    """Returns the largest difference of any result, beside its largest number."""
    off = 0.0
    for want, have in zip(expected, actual, strict=True):
        if jax.numpy.issubdtype(want.dtype, jax.dtypes.extended):
            continue
        a, b = np.asarray(want, np.complex128), np.asarray(have, np.complex128)
        is_same = (a == b) | (np.isnan(a) & np.isnan(b))
        differences = np.where(is_same, 0.0, np.abs(a - b))
        finite = np.abs(a[np.isfinite(a)])
        off = max(off, float(differences.max(initial=0)) / (1 + float(finite.max(initial=0))))
    return off


if __name__ == "__main__":
    sys.exit(main())
