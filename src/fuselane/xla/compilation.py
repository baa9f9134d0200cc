"""Compiling modules with XLA in a child process, and what it did to them.

A child, as XLA's GPU compiler registers itself once per process and reads its flags once, and as
XLA may abort on what was not made by itself.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

from fuselane import config
from fuselane.errors import CaptureError
from fuselane.hlo.container import is_scheduled_for_gpu
from fuselane.hlo.proto import HloModuleProto
from fuselane.xla.captured import CapturedModule, CapturedStage
from fuselane.xla.child import last_words, run_child
from fuselane.xla.dump import read_dump
from fuselane.xla.targets import Target
from fuselane.xla.toolchain import Toolchain, find_toolchain

_CHILD: Final = "fuselane.xla.compiler"
_OPTIMIZED: Final = "XLA had optimized this module before, so its passes are not shown."
_OTHER_TARGET: Final = {
    True: "XLA's GPU compiler has optimized this module; name the GPU as its target, such as h100.",
    False: "XLA has optimized this module for CPUs, which cannot be undone for {}. Name the program"
    " itself or the module as it was before any pass of XLA's, or leave out the target.",
}
"""By whether a GPU's compiler has optimized a module."""
_ERROR_CHARS: Final = 400


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A module to be compiled.

    Attributes:
        form: `mlir` for StableHLO in any form, `hlo` for HLO text, `pb` for an HloModuleProto,
            `fused` for one that XLA's GPU compiler had before its fusion passes and that has been
            fused since.
        data: What a file of that form holds.
    """

    form: str
    data: bytes


def capture_sources(
    sources: Sequence[Source],
    target: Target,
    *,
    max_s: float,
    with_usage: bool = True,
    on_progress: Callable[[int], None] = lambda _: None,
) -> tuple[tuple[CapturedModule, ...], tuple[str, ...]]:
    """Compiles modules and returns what XLA did to each, and for those it cannot compile, why.

    A module of HLO that XLA has optimized before is not compiled again.

    Args:
        sources: For a GPU, lowered for CUDA.
        target: What to compile for.
        max_s: Seconds all of it may take.
        with_usage: Whether to ask ptxas, where it is, what kernels take of a multiprocessor.
        on_progress: Called with the number of modules done so far, whenever one is.
    Raises:
        CaptureError: if XLA is not there, aborts, or takes too long.
    """
    toolchain = find_toolchain() if target.gpu else Toolchain()
    ptxas = toolchain.ptxas if with_usage else None
    with tempfile.TemporaryDirectory(prefix="fuselane-xla-") as name:
        folder = Path(name)
        if target.gpu:
            (folder / "target.txtpb").write_text(target.config, encoding="utf-8")
        for number, source in enumerate(sources):
            (folder / f"{number}.{source.form}").write_bytes(source.data)
        results = _Results(folder / "results", on_progress)
        exit_code = run_child(
            [sys.executable, "-m", _CHILD, str(folder), *toolchain.as_arguments()],
            _environment(target),
            log=folder / "log",
            folder=folder,
            max_s=max_s,
            watch=results.watch,
        )
        if len(results.entries) != len(sources):
            reason = last_words(folder / "log") or "it said nothing"
            raise CaptureError(f"XLA's compiler ended with exit code {exit_code}: {reason}.")
        entries = list(enumerate(results.entries))
        captured = [
            _read(folder, n, entry, target, ptxas) for n, entry in entries if not entry["error"]
        ]
        refused = [one_line(entry["error"]) for _, entry in entries if entry["error"]]
        return tuple(captured), tuple(refused)


def capture_source(
    source: Source, target: Target, *, max_s: float, with_usage: bool = True
) -> CapturedModule:
    """Compiles one module and returns what XLA did to it; see `capture_sources`.

    Raises:
        CaptureError: if XLA is not there, refuses the module, aborts, or takes too long.
    """
    captured, refused = capture_sources([source], target, max_s=max_s, with_usage=with_usage)
    if refused:
        raise CaptureError(f"XLA cannot compile this for {target.name}: {refused[0]}.")
    return captured[0]


def one_line(text: str) -> str:
    """Returns what an error of XLA's says, as the end of a sentence."""
    words = re.sub(r"\s+", " ", text.partition("\n\n")[0]).strip(" .;:")
    return words if len(words) <= _ERROR_CHARS else words[:_ERROR_CHARS] + " ..."


def _read(
    folder: Path, number: int, entry: dict[str, Any], target: Target, ptxas: Path | None
) -> CapturedModule:
    optimized = folder / "optimized" / str(number)
    if optimized.is_file():
        return as_it_is(optimized.read_bytes(), target)
    dump = folder / "dump" / str(number)
    return read_dump(dump, target, ptxas=ptxas, compile_s=entry["seconds"])[0]


def as_it_is(data: bytes, target: Target) -> CapturedModule:
    """Returns a module that XLA has optimized, without any passes.

    Args:
        data: A serialized HloModuleProto.
        target: What it was optimized for.
    Raises:
        CaptureError: if it was optimized for a CPU and the target is a GPU, or the other way round.
    """
    is_for_gpu = is_scheduled_for_gpu(data)
    if is_for_gpu is not None and is_for_gpu is not (target.gpu is not None):
        raise CaptureError(_OTHER_TARGET[is_for_gpu].format(target.name))
    return CapturedModule(
        name=HloModuleProto.FromString(data).name,
        target=target.name,
        stages=(CapturedStage(pipeline="", name="", data=data),),
        final=data,
        gpu=target.gpu,
        notes=(_OPTIMIZED,),
    )


def _environment(target: Target) -> dict[str, str]:
    return config.child_environment(
        {
            "FUSELANE": "0",
            "JAX_PLATFORMS": None if target.gpu else "cpu",
            "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1",  # NVIDIA's libraries need not be there
            "CUDA_VISIBLE_DEVICES": "",  # the same with a GPU as without
            "TF_CPP_MIN_LOG_LEVEL": "2",
        }
    )


@final
class _Results:
    """The lines a child writes, one per module."""

    def __init__(self, path: Path, on_progress: Callable[[int], None]) -> None:
        self._path = path
        self._on_progress = on_progress
        self.entries: list[dict[str, Any]] = []

    def watch(self) -> None:
        """Reads what has been written so far."""
        if not self._path.is_file():
            return
        text = self._path.read_text(encoding="utf-8")
        lines = text[: text.rfind("\n") + 1].splitlines()
        if len(lines) > len(self.entries):
            self.entries = [json.loads(line) for line in lines]
            self._on_progress(len(self.entries))
