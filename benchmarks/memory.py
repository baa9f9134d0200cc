"""How much memory a CartPole run takes at its peak, under plain XLA and under Fuselane.

Every run has a process of its own; the one of plain XLA never loads Fuselane's compiler.

    python benchmarks/memory.py --json docs/data/memory.json
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from fuselane.cartpole.contender import JaxContender
from fuselane.cartpole.problem import make_problem
from fuselane.cartpole.variants import VARIANTS
from fuselane.machine import describe_machine

ENGINES: Final = ("xla", "fuselane")
SIZES: Final = ((2048, 10_000), (1_000_000, 20))
# getrusage counts kilobytes on Linux, bytes on macOS.
RSS_UNIT_BYTES: Final = 1 if sys.platform == "darwin" else 1024


def run_once(engine: str, variant: str, envs: int, steps: int) -> int:
    """Compiles and runs a variant in this process; returns its peak resident set in bytes."""
    contender = JaxContender(engine, VARIANTS[variant], make_problem(envs, steps))
    contender.run()
    contender.run()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * RSS_UNIT_BYTES


def run_in_child(engine: str, variant: str, envs: int, steps: int) -> int:
    """Returns the peak resident set in bytes of a new process that runs a variant."""
    command = [sys.executable, __file__, "--child", engine, variant, str(envs), str(steps)]
    return int(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def measure(variant: str, envs: int, steps: int, num_rounds: int) -> dict[str, str | float]:
    """Returns the median peaks of both engines, in MiB."""
    peaks: dict[str, list[int]] = {engine: [] for engine in ENGINES}
    for _ in range(num_rounds):
        for engine in ENGINES:
            peaks[engine].append(run_in_child(engine, variant, envs, steps))
    xla_mib, fuselane_mib = (statistics.median(peaks[engine]) / 2**20 for engine in ENGINES)
    return {
        "variant": variant,
        "envs": envs,
        "steps": steps,
        "xla_mib": xla_mib,
        "fuselane_mib": fuselane_mib,
        "added_mib": fuselane_mib - xla_mib,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures all variants, prints them and writes the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--quick", action="store_true", help="one tiny run, to see that it works")
    parser.add_argument("--child", nargs=4, metavar=("ENGINE", "VARIANT", "ENVS", "STEPS"))
    options = parser.parse_args(arguments)
    if options.child:
        engine, variant, envs, steps = options.child
        print(run_once(engine, variant, int(envs), int(steps)))
        return
    sizes = ((100, 20),) if options.quick else SIZES
    variants = ("concat",) if options.quick else tuple(VARIANTS)
    rows = []
    print(
        f"{'variant':10} {'envs':>9} {'steps':>6} {'xla MiB':>9} {'fuselane MiB':>13} {'+MiB':>7}"
    )
    for variant in variants:
        for envs, steps in sizes:
            row = measure(variant, envs, steps, 1 if options.quick else options.rounds)
            rows.append(row)
            print(
                f"{variant:10} {envs:9,} {steps:6,} {row['xla_mib']:9.0f} "
                f"{row['fuselane_mib']:13.0f} {row['added_mib']:7.1f}",
                flush=True,
            )
    if options.json is not None:
        document = {"machine": describe_machine(), "rows": rows}
        options.json.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
