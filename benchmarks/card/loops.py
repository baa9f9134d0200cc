"""Small loops of every kind on the GPU, under plain XLA and under Fuselane: are results the same?

python -m card.loops OUT.json --seconds S
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import fuselane
from tests.backends.programs import LOOPS

RELATIVE = 1e-4


def main() -> int:
    """Compares all loops; returns 1 if any result is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=60)
    options = parser.parse_args()
    deadline = time.monotonic() + options.seconds
    rows: list[dict[str, Any]] = []
    for name in LOOPS:
        for lanes in (2048, 33):
            if time.monotonic() < deadline:
                rows.append({"name": f"{name} {lanes}", **compare(name, lanes)})
                options.out.write_text(json.dumps(rows), encoding="utf-8")
    return int(any(row["wrong"] for row in rows))


def compare(name: str, lanes: int) -> dict[str, str]:
    """Returns what was wrong with a loop, or "", and what became of it."""
    argument = jnp.linspace(-3, 5, lanes)
    expected = jax.jit(LOOPS[name])(argument)
    try:
        with fuselane.enabled(gpu=True, min_gain=0):
            before = len(fuselane.decisions().loops)
            actual = jax.jit(LOOPS[name])(argument)
            loops = fuselane.decisions().loops[before:]
    except Exception as error:
        return {"wrong": f"{type(error).__name__}: {error}"[:500], "said": ""}
    said = "; ".join(loop.decision.sentence for loop in loops) or "no loop was seen"
    for one, other in zip(jax.tree.leaves(expected), jax.tree.leaves(actual), strict=True):
        a, b = np.asarray(one, np.float64), np.asarray(other, np.float64)
        off = float(np.max(np.abs(a - b) / (np.abs(a) + 1), initial=0.0))
        if not off <= RELATIVE:
            return {"wrong": f"off by {off:.3g}", "said": said}
    return {"wrong": "", "said": said}


if __name__ == "__main__":
    sys.exit(main())
