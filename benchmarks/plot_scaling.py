"""Draws what `scaling.py` measured. Needs matplotlib, from `pip install 'fuselane[peers]'`.

python benchmarks/plot_scaling.py docs/data/scaling.json docs/images/scaling.svg
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
from matplotlib import pyplot

ENGINES: Final = {"xla": "plain XLA", "fuselane": "Fuselane"}
COLORS: Final = {
    "concat": "#1f77b4",
    "naive": "#d62728",
    "no_concat": "#2ca02c",
    "unroll10": "#9467bd",
}


def draw(points: Sequence[dict[str, Any]], path: Path) -> None:
    """Draws time per step over environments, and time of a run over steps, both log-log."""
    mpl.rcParams["svg.hashsalt"] = "fuselane"  # equal data give equal files
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for variant in dict.fromkeys(point["variant"] for point in points):
        mine = [point for point in points if point["variant"] == variant]
        by_envs = [point for point in mine if point["sweep"] == "envs"]
        by_steps = [point for point in mine if point["sweep"] == "steps" and point["steps"] > 0]
        for engine, name in ENGINES.items():
            style = {
                "color": COLORS[variant],
                "linestyle": "--" if engine == "xla" else "-",
                "marker": ".",
                "label": f"{variant}, {name}",
            }
            envs = [point["envs"] for point in by_envs]
            left.loglog(envs, [p[f"{engine}_ms"] * 1e3 / p["steps"] for p in by_envs], **style)
            steps = [point["steps"] for point in by_steps]
            right.loglog(steps, [p[f"{engine}_ms"] for p in by_steps], **style)
    left.set(xlabel="environments", ylabel="µs per step of all environments")
    right.set(xlabel="steps", ylabel="ms per run of 2048 environments")
    left.legend(fontsize="small")
    for axes in (left, right):
        axes.grid(visible=True, which="major", alpha=0.3)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def main(arguments: Sequence[str] | None = None) -> None:
    """Reads the JSON and writes the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("json", type=Path)
    parser.add_argument("picture", type=Path)
    options = parser.parse_args(arguments)
    draw(json.loads(options.json.read_text())["points"], options.picture)


if __name__ == "__main__":
    main()
