"""What the commands share: exit codes, output, and what arguments may look like."""

from __future__ import annotations

import argparse
import sys
import warnings
from pathlib import Path
from typing import Any, Final

import jax
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

import fuselane
from fuselane.config import is_own_file
from fuselane.errors import InputError
from fuselane.files import write_whole

OK: Final = 0
WRONG: Final = 1
BAD_INPUT: Final = 2
INTERRUPTED: Final = 130

_COMMAND: Final = sys.argv[0]
"""The file that the console's `fuselane` is."""

_format_usually: Final = warnings.formatwarning

_WIDE: Final = 1000
"""Columns in which any table fits."""

STDOUT: Final = Path("-")
"""As the name of a file: standard output."""


def write(path: Path, text: str) -> None:
    """Writes a file; what is wrong with it is bad input."""
    try:
        write_whole(path, text)
    except OSError as error:
        raise _unwritable(path, error) from None


def check_writable(path: Path) -> None:
    """Finds out now, rather than after minutes, whether a file can be written; leaves it as it is.

    Raises:
        InputError: if it cannot be written.
    """
    is_new = not path.exists()
    try:
        path.open("a").close()
        if is_new:
            path.unlink()
    except OSError as error:
        raise _unwritable(path, error) from None


def _unwritable(path: Path, error: OSError) -> InputError:
    return InputError(f"{str(path)!r} cannot be written: {error.strerror}.")


def add_fusion(parser: argparse.ArgumentParser) -> None:
    """Adds the option that names a fusion strategy."""
    parser.add_argument(
        "--fusion",
        default="",
        metavar="STRATEGY",
        help="a pipeline by name or as text, or a plan, instead of XLA's own fusions",
    )


def show(table: Table) -> None:
    """Prints a table, wider than the terminal rather than with numbers cut off."""
    console = Console()
    wide = console.options.update(width=_WIDE)
    least = Measurement.get(console, wide, table).minimum
    Console(width=max(console.width, least)).print(table)


def say(line: str) -> None:
    """Prints a line about what is going on."""
    print(line, file=sys.stderr, flush=True)


def progress(line: str) -> None:
    """Tells somebody who waits at a terminal what is being done."""
    if sys.stderr.isatty():
        say(line)


def complain(sentence: str) -> None:
    """Prints what is wrong with the input."""
    say(f"fuselane: {sentence}")


def show_warnings() -> None:
    """Has warnings of ours that point at no line of the user's printed as a sentence."""
    warnings.formatwarning = _format_warning


def _format_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    line: str | None = None,
) -> str:
    is_own = is_own_file(filename) or filename == _COMMAND
    if issubclass(category, fuselane.FuselaneWarning) and is_own:
        return f"fuselane: {message}\n"
    return _format_usually(message, category, filename, lineno, line)


def stay_on_the_cpu() -> None:
    """Keeps JAX from looking for a GPU, where the user does not name a platform."""
    settings: Any = jax.config
    if settings.jax_platforms is None:
        settings.update("jax_platforms", "cpu")


def positive(text: str) -> int:
    """Reads a number of at least one."""
    number = natural(text)
    if number == 0:
        raise argparse.ArgumentTypeError("it has to be at least 1")
    return number


def natural(text: str) -> int:
    """Reads a whole number."""
    if not (text.isascii() and text.replace("_", "").isdigit()):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number")
    return int(text)


def seconds(text: str) -> float:
    """Reads a number of seconds."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")
    return seconds


def minutes(text: str) -> float:
    """Reads a number of minutes."""
    try:
        minutes = float(text)
    except ValueError:
        minutes = 0.0
    if not 0 < minutes < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of minutes")
    return minutes


def names(text: str) -> tuple[str, ...]:
    """Reads names separated by commas."""
    return tuple(dict.fromkeys(text.split(",")))
