"""`fuselane tune`: a search for the best fusions of a program."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from pathlib import Path
from typing import Final, final

from fuselane.cli.common import INTERRUPTED, OK, check_writable, natural, seconds, write
from fuselane.tuner import tune_input
from fuselane.tuning.evaluation import Progress
from fuselane.tuning.searches import SEARCHES
from fuselane.tuning.settings import TuneSettings
from fuselane.xla.targets import CPU, find_target

_SCALES: Final = {"s": 1.0, "m": 60.0, "h": 3600.0}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what the command takes."""
    parser.usage = "fuselane tune [options] (SCRIPT.py | SCRIPT.py:FUNCTION) [-- ARGUMENTS ...]"
    parser.add_argument(
        "input",
        help="a script, all of whose programs that take long are tuned, or a function in one, "
        "which returns a function to compile and its arguments",
    )
    parser.add_argument("--metric", help="time, or modelled; default time, and modelled for a GPU")
    parser.add_argument(
        "--target", metavar="NAME", default=CPU, help="a GPU to model, such as h100; default cpu"
    )
    parser.add_argument(
        "--budget", type=_duration, default=60.0, metavar="TIME", help="as 90s or 5m; default 60s"
    )
    parser.add_argument(
        "--candidates", type=natural, metavar="N", help="new ones to look at, if less"
    )
    parser.add_argument(
        "--search", default="annealing", help=f"{', '.join(SEARCHES)}; default annealing"
    )
    parser.add_argument(
        "--from",
        dest="starts",
        action="append",
        default=[],
        metavar="PIPELINE",
        help="where to start; may be given several times; default all named pipelines",
    )
    parser.add_argument(
        "--loops", action="store_true", help="also make loops kernels, before fusing the rest"
    )
    parser.add_argument(
        "--xla-options", action="store_true", help="also try options of XLA's code generator"
    )
    parser.add_argument("--seed", type=natural, default=0, metavar="S", help="default 0")
    parser.add_argument(
        "--fresh", action="store_true", help="forget what this search has found so far"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there")
    parser.set_defaults(run=_run, arguments=[])


def _run(options: argparse.Namespace) -> int:
    is_cpu = find_target(options.target).gpu is None
    settings = TuneSettings(
        metric=options.metric or ("time" if is_cpu else "modelled"),
        target=options.target,
        budget_s=options.budget,
        questions=options.candidates,
        search=options.search,
        starts=tuple(options.starts),
        loops=options.loops,
        xla_options=options.xla_options,
        seed=options.seed,
        fresh=options.fresh,
    )
    if options.json is not None:
        check_writable(options.json)
    line = _ProgressLine(settings.budget_s)
    results = tune_input([options.input, *options.arguments], settings, line.show)
    line.end()
    for result in results:
        print(result.text())
    if options.json is not None:
        write(options.json, json.dumps([result.to_json() for result in results], indent=2) + "\n")
    return INTERRUPTED if any(result.is_interrupted for result in results) else OK


@final
class _ProgressLine:
    """A line on a terminal that tells how far a search has come; nothing elsewhere."""

    def __init__(self, budget_s: float) -> None:
        self._budget_s = budget_s
        self._is_shown = sys.stderr.isatty()

    def show(self, progress: Progress) -> None:
        """Writes the line over the one before."""
        if not self._is_shown:
            return
        gain = progress.xla_us / progress.best_us if progress.best_us else 1.0
        if progress.is_interrupted:
            print(
                "\nComparing the best with XLA's own; Ctrl-C again to leave that.", file=sys.stderr
            )
            return
        line = (
            f"{progress.used_s:4.0f} of {self._budget_s:.0f} s, {progress.num_asked} candidates, "
            f"{progress.num_measured} different, best {gain:.3f} times XLA's speed: {progress.best}"
        )
        width = shutil.get_terminal_size().columns - 1
        print(f"\r{line[:width]:{width}}", end="", file=sys.stderr, flush=True)

    def end(self) -> None:
        """Leaves the line."""
        if self._is_shown:
            print(file=sys.stderr)


def _duration(text: str) -> float:
    """Returns the seconds of `90`, `90s`, `1.5m` or `2h`."""
    scale = _SCALES.get(text[-1:])
    try:
        return seconds(text) if scale is None else scale * seconds(text[:-1])
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(f"{text!r} is no time such as 90s, 5m or 1h") from None
