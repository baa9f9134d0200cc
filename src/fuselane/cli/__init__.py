"""What `fuselane ...` does: reads the command line, calls the library, prints; a file a command.

Exit codes: 0 if all is well, 1 if something measured or checked is wrong, 2 for bad input.
"""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Sequence
from typing import NoReturn, final

import fuselane
from fuselane.cli import cartpole, explain, fuse, fuzz, run, small, tune
from fuselane.cli.common import BAD_INPUT, INTERRUPTED, OK, WRONG, complain, show_warnings
from fuselane.errors import FuselaneError

__all__ = ["BAD_INPUT", "INTERRUPTED", "OK", "WRONG", "main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit code.

    Args:
        arguments: The command line without the program's name; None takes that of the process.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    for_script: list[str] = []
    if arguments[:1] in (["explain"], ["tune"]) and "--" in arguments:
        place = arguments.index("--")
        arguments, for_script = arguments[:place], arguments[place + 1 :]
    options = _make_parser().parse_args(arguments)
    if for_script:
        options.arguments = for_script
    if arguments[:1] != ["run"] and isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # of signs that a terminal does not know
    show_warnings()
    try:
        exit_code: int = options.run(options)
    except FuselaneError as error:
        complain(str(error))
        return BAD_INPUT
    except KeyboardInterrupt:
        return INTERRUPTED
    return exit_code


@final
class _Parser(argparse.ArgumentParser):
    """A parser that answers bad input with one sentence."""

    def error(self, message: str) -> NoReturn:
        complain(f"{message[:1].upper()}{message[1:]}; `{self.prog} --help` says what there is.")
        self.exit(BAD_INPUT)


def _make_parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="fuselane", description="Runs loops of jax.jit programs as native kernels."
    )
    parser.add_argument("--version", action="version", version=f"fuselane {fuselane.__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", title="commands")
    cartpole.add_arguments(
        commands.add_parser("cartpole", help="time CartPole with and without Fuselane")
    )
    run.add_arguments(
        commands.add_parser("run", help="run a script under Fuselane and list its loops")
    )
    explain.add_arguments(
        commands.add_parser("explain", help="show the kernels and loops of a program, and why")
    )
    fuse.add_arguments(
        commands.add_parser("fuse", help="compare fusion strategies on a program, save one's plan")
    )
    tune.add_arguments(commands.add_parser("tune", help="search for the best fusions of a program"))
    support = commands.add_parser("support", help="list the HLO opcodes that can be fused")
    support.set_defaults(run=small.print_support)
    doctor = commands.add_parser("doctor", help="check the installation")
    doctor.set_defaults(run=small.print_diagnosis)
    fuzz.add_arguments(commands.add_parser("fuzz", help="compare random programs with plain XLA"))
    calibration = commands.add_parser("calibrate", help="measure what things cost on this machine")
    calibration.set_defaults(run=small.measure_costs)
    return parser
