"""Small loops of every kind on the GPU, under plain XLA and under Fuselane: are results the same?

python -m card.loops OUT.json --seconds S
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
from pathlib import Path
from typing import Final

import jax
import jax.numpy as jnp
import numpy as np

import fuselane
from card.series import Row, describe_error, measure_all, run_series
from tests.backends.programs import CROWDS, LOOPS, picking

PROGRAMS: Final = {**LOOPS, **CROWDS, "picking": picking(64)}
SIZES: Final = (2048, 33)
MANY: Final = 1_000_000
"""Lanes of those of which many have another layout."""

RELATIVE: Final = 1e-4


def main() -> int:
    """Compares all loops; returns 1 if any result is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--names", nargs="*", help="compares these in this process")
    options = parser.parse_args()
    if options.names is not None:
        # XLA leaves out 13 of a float's 24 bits in products of matrices unless it is told not to.
        with jax.default_matmul_precision("highest"):
            return measure_all(options.names, options.out, compare)
    names = [f"{name} {lanes}" for name in PROGRAMS for lanes in SIZES]
    names += [] if options.quick else [f"{name} {MANY}" for name in ("picking", "drawn", "rows")]
    rows: list[Row] = []
    for rows, _ in run_series("card.loops", names, options.out, options.seconds):
        options.out.write_text(json.dumps(rows), encoding="utf-8")
    return int(any(row.get("wrong") or "error" in row for row in rows))


def run(program: str, argument: jax.Array) -> list[np.ndarray]:
    """Returns the results of a program, which comes of its compiler afresh."""
    results = jax.jit(functools.partial(PROGRAMS[program]))(argument)
    return [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(results)]


def compare(name: str) -> dict[str, str]:
    """Returns what was wrong with a loop, or "", and what became of it."""
    program, _, lanes = name.partition(" ")
    argument = jnp.linspace(-3, 5, int(lanes))
    expected = run(program, argument)
    before = len(fuselane.decisions().loops)
    try:
        with fuselane.enabled(gpu=True, min_gain=0):
            actual = run(program, argument)
    except Exception as error:
        return {"wrong": describe_error(error), "said": ""}
    loops = fuselane.decisions().loops[before:]
    said = "; ".join(loop.decision.sentence for loop in loops) or "no loop was seen"
    for a, b in zip(expected, actual, strict=True):
        off = float(np.max(np.abs(a - b) / (np.abs(a) + 1), initial=0.0))
        if not off <= RELATIVE:
            return {"wrong": f"off by {off:.3g}", "said": said}
    return {"wrong": "", "said": said}


if __name__ == "__main__":
    sys.exit(main())
