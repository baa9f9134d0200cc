"""Every program that a script compiles."""

from __future__ import annotations

import importlib.util
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

from jaxlib import _hlo  # type: ignore[attr-defined]

from fuselane import config
from fuselane.errors import CaptureError, InputError
from fuselane.xla.captured import CapturedModule
from fuselane.xla.child import run_child
from fuselane.xla.compilation import Source, capture_sources, one_line
from fuselane.xla.dump import read_dump
from fuselane.xla.dump_options import dump_flags
from fuselane.xla.targets import Target

_RECORDER: Final = "fuselane.xla.recorder"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptCapture:
    """What a script had compiled.

    Attributes:
        modules: In the order they were compiled; equal ones count once.
        refused: Why XLA could not compile others.
        exit_code: The script's.
    """

    modules: tuple[CapturedModule, ...]
    refused: tuple[str, ...]
    exit_code: int


def capture_script(
    command: Sequence[str],
    target: Target,
    *,
    max_s: float,
    on_progress: Callable[[str], None] = lambda _: None,
) -> ScriptCapture:
    """Runs a script as Python would, on this machine's CPU, and captures all it has compiled.

    What it prints goes to this process's standard error. For a GPU, what it lowers is lowered for
    CUDA too and compiled for that GPU afterwards.

    Args:
        command: What follows `python`: a file or `-m` and a module, and the script's arguments.
        target: What to compile for.
        max_s: Seconds the script may take, and XLA after it for a GPU.
        on_progress: Called with a line about what is being done.
    Raises:
        InputError: if there is no such script, or it compiles nothing.
        CaptureError: if the compiler is not there, or something takes too long.
    """
    _check_command(command)
    on_progress(f"running {' '.join(command)}")
    if target.gpu is not None:
        return _capture_on_gpu(command, target, max_s, on_progress)
    with tempfile.TemporaryDirectory(prefix="fuselane-xla-") as name:
        folder = Path(name)
        changes = {"XLA_FLAGS": dump_flags(folder)}
        exit_code = _run_script([sys.executable, *command], changes, folder, max_s)
        _expect(any(folder.iterdir()), exit_code, command)
        on_progress("reading what XLA did")
        modules = _different(read_dump(folder, target))
    return ScriptCapture(modules=modules, refused=(), exit_code=exit_code)


def _capture_on_gpu(
    command: Sequence[str], target: Target, max_s: float, on_progress: Callable[[str], None]
) -> ScriptCapture:
    with tempfile.TemporaryDirectory(prefix="fuselane-xla-") as name:
        folder = Path(name)
        recorder = [sys.executable, "-P", "-m", _RECORDER, name, *command]
        exit_code = _run_script(recorder, {}, folder, max_s)
        paths = sorted(folder.glob("*.mlir"), key=lambda path: int(path.stem))
        sources = [Source(form="mlir", data=path.read_bytes()) for path in paths]
        refused = folder / "refused"
        unlowered = refused.read_text(encoding="utf-8").splitlines() if refused.is_file() else []
    _expect(bool(sources), exit_code, command)
    captured, uncompiled = capture_sources(
        sources,
        target,
        max_s=max_s,
        on_progress=lambda done: on_progress(
            f"compiled {done} of {len(sources)} modules for {target.name}"
        ),
    )
    if not captured:
        raise CaptureError(f"XLA cannot compile this for {target.name}: {uncompiled[0]}.")
    reasons = (*map(one_line, unlowered), *uncompiled)
    return ScriptCapture(modules=captured, refused=reasons, exit_code=exit_code)


def _check_command(command: Sequence[str]) -> None:
    """Raises InputError if there is nothing to run."""
    if command[0] != "-m":
        if not Path(command[0]).is_file():
            raise InputError(f"There is no script {command[0]!r}.")
        return
    try:
        found = importlib.util.find_spec(command[1])
    except (ImportError, ValueError):
        found = None
    if found is None and not _is_below(Path.cwd(), command[1]):
        raise InputError(f"There is no module {command[1]!r}.")


def _is_below(folder: Path, module: str) -> bool:
    path = folder.joinpath(*module.split("."))
    return path.with_suffix(".py").is_file() or (path / "__main__.py").is_file()


def _run_script(
    command: Sequence[str], changes: Mapping[str, str | None], folder: Path, max_s: float
) -> int:
    environment = config.child_environment(
        {
            "FUSELANE": "0",
            "JAX_PLATFORMS": "cpu",
            "JAX_ENABLE_COMPILATION_CACHE": "false",
            **changes,
        }
    )
    return run_child(command, environment, log=None, folder=folder, max_s=max_s)


def _expect(has_compiled: bool, exit_code: int, command: Sequence[str]) -> None:
    if has_compiled:
        return
    if exit_code:
        end = f", and ended with exit code {exit_code}"
    elif _sets_flags(Path(command[0])):
        end = " that XLA showed: the script sets XLA_FLAGS, which it has to extend instead"
    else:
        end = ""
    raise InputError(f"The script compiled nothing with JAX{end}.")


def _sets_flags(script: Path) -> bool:
    """Whether a script names the variable by which XLA is told to show what it does."""
    try:
        return b"XLA_FLAGS" in script.read_bytes()
    except OSError:
        return False


def _different(modules: Sequence[CapturedModule]) -> tuple[CapturedModule, ...]:
    """Returns modules that differ in more than the numbers XLA gives them."""
    found: dict[tuple[str, int], CapturedModule] = {}
    for module in modules:
        found.setdefault((module.name, _hlo.XlaComputation(module.stages[0].data).hash()), module)
    return tuple(found.values())
