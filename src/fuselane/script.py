"""Running somebody's script under Fuselane, as `python script.py` would run it."""

from __future__ import annotations

import contextlib
import runpy
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, final

import fuselane
from fuselane.errors import InputError


@final
class ScriptFailedError(SystemExit):
    """A script raised an exception, which has been shown."""


def prepare_for_script(path: Path, **options: Any) -> None:
    """Switches Fuselane on for a script.

    Args:
        path: The script.
        options: Options as for `fuselane.enable`.
    Raises:
        InputError: if there is no such file.
        OptionError: if the environment sets an option to what it does not allow.
    """
    if not path.is_file():
        raise InputError(f"There is no script {str(path)!r}.")
    fuselane.enable(**options)


def run_script(path: Path, arguments: Sequence[str]) -> None:
    """Runs a Python file as `__main__`.

    `fuselane.decisions()` tells afterwards what became of its loops.

    Args:
        path: The script.
        arguments: What it finds in `sys.argv` after its own name.
    Raises:
        SystemExit: if the script raises that.
        ScriptFailedError: if it raises anything else, which is shown as Python shows it.
    """
    with _as_main_program(path, arguments):
        try:
            runpy.run_path(str(path), run_name="__main__")
        except Exception as error:
            trace = _from_file(error.__traceback__, str(path))
            sys.excepthook(type(error), error.with_traceback(trace), trace)
            raise ScriptFailedError(1) from None


def _from_file(trace: TracebackType | None, file: str) -> TracebackType | None:
    """Returns a traceback from the first line of a file on, without those who ran that."""
    while trace is not None and trace.tb_frame.f_code.co_filename != file:
        trace = trace.tb_next
    return trace


@contextlib.contextmanager
def _as_main_program(path: Path, arguments: Sequence[str]) -> Iterator[None]:
    """Gives `sys.argv` and `sys.path` the values they have when Python runs a script."""
    argv, search_path = sys.argv, sys.path
    sys.argv = [str(path), *arguments]
    sys.path = [str(path.resolve().parent), *search_path]
    try:
        yield
    finally:
        sys.argv, sys.path = argv, search_path
