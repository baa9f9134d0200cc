"""How CartPole's time grows with environments and steps, under plain XLA and under Fuselane.

Both engines run in one process and take turns. Large numbers of environments get fewer steps, so
that no point takes minutes. `plot_scaling.py` draws the JSON.

    python benchmarks/scaling.py --json docs/data/scaling.json
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

from fuselane.cartpole.contender import JaxContender, run_in_turns
from fuselane.cartpole.problem import make_problem
from fuselane.cartpole.variants import VARIANTS
from fuselane.machine import describe_machine

ENVS: Final = (16, 17, 64, 100, 256, 1000, 2048, 5000, 16_384, 65_536, 262_144, 1_000_000)
STEPS: Final = (0, 1, 10, 100, 1000, 10_000)
STEPS_AT: Final = 2048
MAX_ENV_STEPS: Final = 20_480_000
MIN_STEPS, MAX_STEPS = 20, 10_000
TARGET_MS: Final = 1000.0
MIN_REPEATS, MAX_REPEATS = 3, 200


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One size: medians of both engines, and how often plain XLA's time is Fuselane's."""

    sweep: str
    variant: str
    envs: int
    steps: int
    xla_ms: float
    fuselane_ms: float
    times: float
    is_fused: bool


def list_sizes(is_quick: bool) -> Iterator[tuple[str, int, int]]:
    """Yields what is swept, environments and steps of each point."""
    for envs in (16, 100) if is_quick else ENVS:
        steps = max(MIN_STEPS, min(MAX_STEPS, MAX_ENV_STEPS // envs))
        yield "envs", envs, MIN_STEPS if is_quick else steps
    for steps in (1, 10) if is_quick else STEPS:
        yield "steps", STEPS_AT, steps


def measure(sweep: str, variant: str, envs: int, steps: int) -> Point:
    """Times both engines on one size."""
    problem = make_problem(envs, steps)
    xla, fused = (
        JaxContender(engine, VARIANTS[variant], problem) for engine in ("xla", "fuselane")
    )
    warm_ms = max(max(times) for times in run_in_turns([xla, fused], 2).values())
    num_repeats = int(max(MIN_REPEATS, min(MAX_REPEATS, TARGET_MS / warm_ms)))
    times_ms = run_in_turns([xla, fused], num_repeats)
    xla_ms, fuselane_ms = statistics.median(times_ms[xla]), statistics.median(times_ms[fused])
    return Point(
        sweep=sweep,
        variant=variant,
        envs=envs,
        steps=steps,
        xla_ms=xla_ms,
        fuselane_ms=fuselane_ms,
        times=xla_ms / fuselane_ms,
        is_fused=fused.is_fused,
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures all points, prints them and writes the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=["concat", "naive"])
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument(
        "--quick", action="store_true", help="a few tiny sizes, to see that it runs"
    )
    options = parser.parse_args(arguments)
    points = []
    print(
        f"{'variant':10} {'envs':>9} {'steps':>6} {'xla ms':>10} {'fuselane ms':>12} {'times':>7}"
    )
    for variant in options.variants:
        for sweep, envs, steps in list_sizes(options.quick):
            point = measure(sweep, variant, envs, steps)
            points.append(point)
            print(
                f"{variant:10} {envs:9,} {steps:6,} {point.xla_ms:10.3f} {point.fuselane_ms:12.3f} "
                f"{point.times:7.2f}{'' if point.is_fused else '  left to XLA'}",
                flush=True,
            )
    results = {"machine": describe_machine(), "points": [dataclasses.asdict(p) for p in points]}
    options.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
