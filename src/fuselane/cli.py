"""What `fuselane ...` does: reads the command line, calls the library, prints.

Exit codes: 0 if all is well, 1 if something measured or checked is wrong, 2 for bad input.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import secrets
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NoReturn, final

import jax
from rich.console import Console

import fuselane
from fuselane import config
from fuselane.calibration import calibrate
from fuselane.cartpole.bench import run_benchmark
from fuselane.cartpole.results import Settings
from fuselane.cartpole.table import make_table
from fuselane.cartpole.variants import PEER_VARIANT, VARIANTS
from fuselane.doctor import diagnose
from fuselane.errors import FuselaneError, InputError
from fuselane.explain.report import Report
from fuselane.explain.support_table import support_table
from fuselane.explaining import OFF_NOTE, report_on
from fuselane.fuzz.campaign import Settings as CampaignSettings
from fuselane.fuzz.campaign import make_choice, run_campaign
from fuselane.runtime.costs import costs_path, write_costs
from fuselane.script import prepare_for_script, run_script
from fuselane.xla.capture import MAX_SECONDS
from fuselane.xla.inputs import capture_input
from fuselane.xla.targets import NAMES as TARGETS

OK: Final = 0
WRONG: Final = 1
BAD_INPUT: Final = 2
INTERRUPTED: Final = 130

_STDOUT: Final = Path("-")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit code.

    Args:
        arguments: The command line without the program's name; None takes that of the process.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    for_script: list[str] = []
    if arguments[:1] == ["explain"] and "--" in arguments:
        place = arguments.index("--")
        arguments, for_script = arguments[:place], arguments[place + 1 :]
    options = _make_parser().parse_args(arguments)
    if for_script:
        options.arguments = for_script
    try:
        exit_code: int = options.run(options)
    except FuselaneError as error:
        _complain(str(error))
        return BAD_INPUT
    except KeyboardInterrupt:
        return INTERRUPTED
    return exit_code


@final
class _Parser(argparse.ArgumentParser):
    """A parser that answers bad input with one sentence."""

    def error(self, message: str) -> NoReturn:
        _complain(f"{message[:1].upper()}{message[1:]}; `{self.prog} --help` says what there is.")
        self.exit(BAD_INPUT)


def _make_parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="fuselane", description="Runs loops of jax.jit programs as native kernels."
    )
    parser.add_argument("--version", action="version", version=f"fuselane {fuselane.__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", title="commands")
    _add_cartpole(commands.add_parser("cartpole", help="time CartPole with and without Fuselane"))
    _add_run(commands.add_parser("run", help="run a script under Fuselane and list its loops"))
    _add_explain(
        commands.add_parser("explain", help="show the kernels and loops of a program, and why")
    )
    support = commands.add_parser("support", help="list the HLO opcodes that can be fused")
    support.set_defaults(run=_print_support)
    doctor = commands.add_parser("doctor", help="check the installation")
    doctor.set_defaults(run=_doctor)
    _add_fuzz(commands.add_parser("fuzz", help="compare random programs with plain XLA"))
    calibration = commands.add_parser("calibrate", help="measure what things cost on this machine")
    calibration.set_defaults(run=_calibrate)
    return parser


def _add_cartpole(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--envs", type=_positive, default=2048, metavar="N", help="default 2048")
    parser.add_argument("--steps", type=_natural, default=10_000, metavar="T", help="default 10000")
    parser.add_argument("--repeats", type=_positive, default=5, metavar="R", help="default 5")
    parser.add_argument(
        "--variants",
        type=_variant_names,
        default=tuple(VARIANTS),
        metavar="NAMES",
        help=f"some of {','.join(VARIANTS)}; default all",
    )
    parser.add_argument(
        "--peers", action="store_true", help="also time PyTorch, Numba and C where they are there"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there")
    parser.set_defaults(run=_cartpole)


def _add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--verify",
        action="store_true",
        help="also run every loop as XLA does, and fail where results differ",
    )
    parser.add_argument("script", type=Path, help="a Python file")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="what the script is given")
    parser.set_defaults(run=_run)


def _add_explain(parser: argparse.ArgumentParser) -> None:
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
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page for a browser")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write it there; - prints it")
    parser.add_argument("--annotate", action="store_true", help="print the source, line by line")
    parser.add_argument(
        "--trace",
        metavar="NAME",
        help="print which passes made or removed an instruction, or opcode",
    )
    parser.add_argument("--diff", metavar="OTHER", help="compare with another input, or target")
    parser.add_argument(
        "--max-seconds",
        type=_seconds,
        default=MAX_SECONDS,
        metavar="N",
        help=f"how long the script, and XLA, may take; default {MAX_SECONDS:g}",
    )
    parser.set_defaults(run=_explain, arguments=[])


def _add_fuzz(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--minutes", type=_minutes, metavar="N", help="how long; default 1")
    parser.add_argument("--programs", type=_positive, metavar="N", help="how many, instead")
    parser.add_argument(
        "--seed", type=_natural, metavar="S", help="of the first program; default a fresh one"
    )
    parser.add_argument(
        "--opcodes", type=_names, default=(), metavar="NAMES", help="what steps do; default all"
    )
    parser.add_argument(
        "--dtypes", type=_names, default=(), metavar="NAMES", help="of carries; default all"
    )
    parser.add_argument(
        "--jobs", type=_positive, metavar="N", help="processes; default one per core"
    )
    parser.add_argument(
        "--folder",
        type=Path,
        default=Path("fuzz-failures"),
        help="where reproducers are written; default fuzz-failures",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all numbers there")
    parser.set_defaults(run=_fuzz)


def _cartpole(options: argparse.Namespace) -> int:
    if config.switch() is False:
        raise InputError(f"{OFF_NOTE} There is nothing to compare.")
    if options.peers and PEER_VARIANT not in options.variants:
        raise InputError(f"Peers run the variant {PEER_VARIANT!r}, which is not among the chosen.")
    if options.json is not None:
        _write(options.json, "")  # rather now than after minutes of measuring
    settings = Settings(
        num_envs=options.envs,
        num_steps=options.steps,
        num_repeats=options.repeats,
        variants=options.variants,
        with_peers=options.peers,
    )
    results = run_benchmark(settings, say=_say)
    Console().print(make_table(results))
    if options.json is not None:
        _write(options.json, json.dumps(results.to_json(), indent=2) + "\n")
    return WRONG if results.disagreements else OK


def _run(options: argparse.Namespace) -> int:
    # Without the flag the environment decides.
    prepare_for_script(options.script, **({"verify": True} if options.verify else {}))
    try:
        run_script(options.script, options.arguments)
    finally:
        sys.stdout.flush()  # what the script printed comes before what is said about it
        _say(OFF_NOTE if config.switch() is False else fuselane.decisions().text())
    return OK


def _explain(options: argparse.Namespace) -> int:
    if (options.input is None) == (options.module is None):
        raise InputError("Name one script, module, file or folder to explain.")
    for path in (options.html, options.json):
        if path not in (None, _STDOUT):
            _write(path, "")  # rather now than after minutes of compiling
    _stay_on_the_cpu()
    command = ["-m", options.module] if options.input is None else [options.input]
    command += options.arguments
    report, exit_code = _explain_input(command, options.target, options.max_seconds)
    if options.html is not None:
        report.html(options.html)
    if options.json == _STDOUT:
        print(report.json())
    elif options.json is not None:
        _write(options.json, report.json() + "\n")
    if options.diff is not None:
        is_target = options.diff in TARGETS
        other, other_code = _explain_input(
            command if is_target else [options.diff],
            options.diff if is_target else options.target,
            options.max_seconds,
        )
        print(report.diff(other))
        return max(exit_code, other_code)
    if options.annotate:
        print(report.annotated())
    elif options.trace:
        print(report.trace(options.trace))
    elif options.json != _STDOUT:
        Console().print(report)
    return exit_code


def _explain_input(
    command: Sequence[str], target: str | None, max_seconds: float
) -> tuple[Report, int]:
    """Returns the report on an input, and the exit code that it makes."""
    captured = capture_input(command, target, max_s=max_seconds, on_progress=_progress)
    for reason in captured.refused:
        _say(f"XLA could not compile a module: {reason}.")
    if captured.exit_code:
        _say(f"The script ended with exit code {captured.exit_code}.")
    return report_on(captured.modules), WRONG if captured.exit_code else OK


def _stay_on_the_cpu() -> None:
    """Keeps JAX from looking for a GPU, where the user does not name a platform."""
    settings: Any = jax.config
    if settings.jax_platforms is None:
        settings.update("jax_platforms", "cpu")


def _fuzz(options: argparse.Namespace) -> int:
    if config.switch() is False:
        raise InputError(f"{OFF_NOTE} There is nothing to compare.")
    choice = make_choice(options.opcodes, options.dtypes)
    if options.json is not None:
        _write(options.json, "")
    seed = secrets.randbelow(10**12) if options.seed is None else options.seed
    _say(f"seed {seed}")
    minutes = options.minutes or (None if options.programs else 1.0)
    results = run_campaign(
        CampaignSettings(
            seed=seed,
            minutes=minutes,
            num_programs=options.programs,
            jobs=options.jobs or os.cpu_count() or 1,
            folder=options.folder,
            choice=choice,
        ),
        say=_say,
    )
    for line in results.lines():
        print(line)
    if options.json is not None:
        _write(options.json, json.dumps(results.to_json(), indent=2) + "\n")
    return OK if results.is_good else WRONG


def _print_support(_: argparse.Namespace) -> int:
    print(support_table())
    return OK


def _doctor(_: argparse.Namespace) -> int:
    diagnosis = diagnose()
    width = max(len(name) for name, _ in diagnosis.lines)
    for name, value in diagnosis.lines:
        print(f"{name:{width}}  {value}")
    return WRONG if diagnosis.problem else OK


def _calibrate(_: argparse.Namespace) -> int:
    costs = calibrate()
    path = costs_path(config.cache_dir())
    write_costs(path, costs)
    for field in dataclasses.fields(costs):
        print(f"{field.name:22}  {getattr(costs, field.name):.4g}")
    _say(f"Kept in {path}.")
    return OK


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"{str(path)!r} cannot be written: {error.strerror}.") from None


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _progress(line: str) -> None:
    """Tells somebody who waits at a terminal what is being done."""
    if sys.stderr.isatty():
        _say(line)


def _complain(sentence: str) -> None:
    _say(f"fuselane: {sentence}")


def _positive(text: str) -> int:
    number = _natural(text)
    if number == 0:
        raise argparse.ArgumentTypeError("it has to be at least 1")
    return number


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")
    return seconds


def _minutes(text: str) -> float:
    try:
        minutes = float(text)
    except ValueError:
        minutes = 0.0
    if not 0 < minutes < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of minutes")
    return minutes


def _names(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(text.split(",")))


def _natural(text: str) -> int:
    if not (text.isascii() and text.replace("_", "").isdigit()):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number")
    return int(text)


def _variant_names(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(text.split(",")))
    for name in names:
        if name not in VARIANTS:
            known = ", ".join(VARIANTS)
            raise argparse.ArgumentTypeError(f"there is no variant {name!r}, only {known}")
    return names


if __name__ == "__main__":
    sys.exit(main())
