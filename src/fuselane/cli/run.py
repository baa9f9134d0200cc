"""`fuselane run`: a script under Fuselane."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import fuselane
from fuselane import config
from fuselane.cli.common import OK, add_fusion, say
from fuselane.explaining import OFF_NOTE
from fuselane.script import prepare_for_script, run_script


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--verify",
        action="store_true",
        help="also run every loop as XLA does, and fail where results differ",
    )
    add_fusion(parser)
    parser.add_argument(
        "--no-loops", action="store_true", help="leave loops to XLA; with --fusion, say"
    )
    parser.add_argument("script", type=Path, help="a Python file")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="what the script is given")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    # Without a flag the environment decides.
    settings = {
        **({"verify": True} if options.verify else {}),
        **({"loops": False} if options.no_loops else {}),
        **({"fusion": options.fusion} if options.fusion else {}),
    }
    prepare_for_script(options.script, **settings)
    try:
        run_script(options.script, options.arguments)
    finally:
        sys.stdout.flush()  # what the script printed comes before what is said about it
        say(OFF_NOTE if config.switch() is False else fuselane.decisions().text())
    return OK
