"""What `fuselane explain` is handed on its command line."""

from __future__ import annotations

import contextlib
import inspect
import re
import runpy
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import jax

from fuselane.errors import InputError
from fuselane.xla.capture import MAX_SECONDS, capture, lower
from fuselane.xla.compilation import one_line
from fuselane.xla.files import capture_path
from fuselane.xla.scripts import ScriptCapture, capture_script
from fuselane.xla.targets import CPU, find_target

_FUNCTION: Final = re.compile(r"(?P<file>.+\.py):(?P<name>[A-Za-z_]\w*)")


def capture_input(
    command: Sequence[str],
    target: str | None = None,
    *,
    max_s: float = MAX_SECONDS,
    on_progress: Callable[[str], None] = lambda _: None,
) -> ScriptCapture:
    """Returns all the modules that an input of any kind holds or has compiled.

    Args:
        command: `FILE.py ARGUMENTS...` or `-m MODULE ARGUMENTS...`, run as Python runs it;
            `FILE.py:FUNCTION`, a function that takes nothing and returns a function to compile and
            a tuple of its arguments; or a file or folder as for `capture_path`.
        target: As for `capture`; None is what a folder was compiled for, or else the CPU.
        max_s: Seconds that each step may take.
        on_progress: Called with a line about what is being done.
    Raises:
        InputError: if there is no such input, or it holds no program.
        CaptureError: if XLA is not there, fails or takes too long.
    """
    found = find_target(target or CPU)
    if command[0] == "-m" or command[0].endswith(".py"):
        return capture_script(command, found, max_s=max_s, on_progress=on_progress)
    if len(command) > 1:
        raise InputError(f"Only scripts take arguments, not {command[0]!r}.")
    function = split_function(command[0])
    if function is not None:
        on_progress(f"calling {function[1]} of {function[0]}")
        jitted, arguments = load_function(*function)
        on_progress(f"compiling it for {found.name}")
        modules = capture(lower(jitted, target or CPU, *arguments), target or CPU, max_s=max_s)
    else:
        on_progress(f"reading {command[0]}")
        modules = capture_path(Path(command[0]), target, max_s=max_s)
    return ScriptCapture(modules=modules, refused=(), exit_code=0)


def split_function(text: str) -> tuple[Path, str] | None:
    """Returns file and function of `FILE.py:FUNCTION`, or None for any other text."""
    match = _FUNCTION.fullmatch(text)
    return None if match is None else (Path(match["file"]), match["name"])


def load_function(path: Path, name: str) -> tuple[Any, tuple[Any, ...]]:
    """Returns what a function in a Python file returns: something to compile, and its arguments.

    The file is imported rather than run: its `__name__` is not `__main__`. What it prints goes to
    standard error.

    Args:
        path: The file.
        name: Of a function that takes nothing and returns `(function, arguments)`.
    Raises:
        InputError: if there is no such thing, it raises something, or JAX cannot trace it.
    """
    if not path.is_file():
        raise InputError(f"There is no script {str(path)!r}.")
    sys.path.insert(0, str(path.resolve().parent))
    where = f"{name} of {str(path)!r}"
    with contextlib.redirect_stdout(sys.stderr):
        with _telling(f"Importing {str(path)!r}", path):
            function = runpy.run_path(str(path), {}, path.stem).get(name)
        if not callable(function):
            raise InputError(f"{str(path)!r} has no function {name!r}.")
        needed = ", ".join(_needed_arguments(function))
        if needed:
            raise InputError(
                f"{where} takes arguments ({needed}). Name a function that takes none and returns"
                " what to compile and a tuple of what to call it with, such as"
                f" `def example(): return {name}, ({needed},)`."
            )
        with _telling(where, path):
            result = function()
        match result:
            case (compiled, tuple() | list() as arguments) if callable(compiled):
                jitted = compiled if hasattr(compiled, "lower") else jax.jit(compiled)
                with _telling(f"Tracing what {where} returns", path):
                    jitted.trace(*arguments)
                return jitted, tuple(arguments)
    raise InputError(f"{where} has to return a function and a tuple of its arguments.")


def _needed_arguments(function: Callable[..., Any]) -> list[str]:
    """Returns the names of the arguments that a function cannot be called without."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # written in C, perhaps
        return []
    collected = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p.name for p in parameters if p.kind not in collected and p.default is p.empty]


@contextlib.contextmanager
def _telling(what: str, path: Path) -> Iterator[None]:
    """Runs something of the user's.

    Raises:
        InputError: with what it raises, and the last line of the file that led there.
    """
    try:
        yield
    except (Exception, SystemExit) as error:
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if frame.filename == str(path)]
        place = f" in line {lines[-1]}" if lines else ""
        words = one_line(str(error))
        raise InputError(f"{what} raised {type(error).__name__}{place}: {words}.") from error
