"""`fuselane explain`: the kernels and loops of a program, and why."""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console

from fuselane import config
from fuselane.cli.common import (
    OK,
    STDOUT,
    WRONG,
    add_fusion,
    check_writable,
    progress,
    say,
    seconds,
    stay_on_the_cpu,
    write,
)
from fuselane.config import Options
from fuselane.errors import InputError
from fuselane.explain.report import Report
from fuselane.explaining import report_on
from fuselane.tuning.choice import Choice
from fuselane.xla.capture import MAX_SECONDS
from fuselane.xla.inputs import capture_input
from fuselane.xla.targets import NAMES as TARGETS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = (
        "fuselane explain [options] (SCRIPT.py | SCRIPT.py:FUNCTION | -m MODULE | FILE | FOLDER) "
        "[-- ARGUMENTS ...]"
    )
    parser.add_argument(
        "input",
        nargs="?",
        help="a script, run as it is; a function in one, which returns a function to compile and "
        "its arguments; a file of HLO, StableHLO or jax.export; a folder of XLA's dumps",
    )
    parser.add_argument("-m", dest="module", metavar="MODULE", help="a module to run as a script")
    parser.add_argument(
        "--target",
        metavar="NAME",
        help=f"{', '.join(TARGETS)} or a GpuTargetConfigProto file; default cpu",
    )
    add_fusion(parser)
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page for a browser")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write it there; - prints it")
    parser.add_argument("--annotate", action="store_true", help="print the source, line by line")
    parser.add_argument(
        "--trace",
        metavar="NAME",
        help="print which passes made or removed an instruction, or opcode",
    )
    parser.add_argument(
        "--decisions",
        action="store_true",
        help="print what the fusion strategy decided, yes and no, line by line",
    )
    parser.add_argument(
        "--diff",
        metavar="OTHER",
        help="compare with another input or target, or the report in a .json file",
    )
    parser.add_argument(
        "--max-seconds",
        type=seconds,
        default=MAX_SECONDS,
        metavar="N",
        help=f"how long the script, and XLA, may take; default {MAX_SECONDS:g}",
    )
    parser.set_defaults(run=_run, arguments=[])


def _run(options: argparse.Namespace) -> int:
    if (options.input is None) == (options.module is None):
        raise InputError("Name one script, module, file or folder to explain.")
    for path in (options.html, options.json):
        if path not in (None, STDOUT):
            check_writable(path)
    # Without a flag the environment decides.
    settings = config.options_from({"fusion": options.fusion} if options.fusion else {})
    choice = Choice.by(settings)  # what is wrong with it is said before anything is compiled
    explain = functools.partial(
        _explain_input, settings=settings, choice=choice, max_seconds=options.max_seconds
    )
    stay_on_the_cpu()
    command = ["-m", options.module] if options.input is None else [options.input]
    command += options.arguments
    report, exit_code = explain(command, options.target)
    if options.html is not None:
        report.html(options.html)
    if options.json == STDOUT:
        print(report.json())
    elif options.json is not None:
        write(options.json, report.json() + "\n")
    if options.diff is not None:
        other, other_code = _explain_other(explain, options, command)
        print(report.diff(other))
        return max(exit_code, other_code)
    if options.annotate:
        print(report.annotated())
    elif options.trace:
        print(report.trace(options.trace))
    elif options.decisions:
        print(report.decided())
    elif options.json != STDOUT:
        Console().print(report)
    return exit_code


def _explain_other(
    explain: Callable[[Sequence[str], str | None], tuple[Report, int]],
    options: argparse.Namespace,
    command: Sequence[str],
) -> tuple[Report, int]:
    """Returns the report to compare with: one kept, one for another target, or on another input."""
    if options.diff in TARGETS:
        return explain(command, options.diff)
    path = Path(options.diff)
    if path.suffix == ".json":
        try:
            return Report.from_json(path.read_text(encoding="utf-8", errors="replace")), OK
        except OSError as error:
            raise InputError(
                f"The report {options.diff!r} cannot be read: {error.strerror}."
            ) from None
    return explain([options.diff], options.target)


def _explain_input(
    command: Sequence[str],
    target: str | None,
    *,
    settings: Options,
    choice: Choice,
    max_seconds: float,
) -> tuple[Report, int]:
    """Returns the report on an input, and the exit code that it makes."""
    captured = capture_input(command, target, max_s=max_seconds, on_progress=progress)
    for reason in captured.refused:
        say(f"XLA could not compile a module: {reason}.")
    if captured.exit_code:
        say(f"The script ended with exit code {captured.exit_code}.")
    report = report_on(captured.modules, settings, choice)
    return report, WRONG if captured.exit_code else OK
