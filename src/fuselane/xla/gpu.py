"""XLA's GPU compiler, which needs no GPU, run in a child process.

The compiler comes with JAX's CUDA plug-in. It registers itself once per process and reads its flags
once, so each capture gets a process of its own; that process also holds what an abort inside it
would break.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

import jax

from fuselane import config
from fuselane.errors import CaptureError
from fuselane.xla.captured import CapturedModule
from fuselane.xla.child import last_words, run_child
from fuselane.xla.dump import read_dump
from fuselane.xla.targets import Target

_PLUGINS: Final = {"jax-cuda12-plugin": "cuda_nvcc", "jax-cuda13-plugin": "cu13"}
"""The packages that hold the compiler, and below `nvidia` the folder with its assembler."""

_CHILD: Final = "fuselane.xla.gpu_compiler"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Toolchain:
    """The GPU compiler as it is installed.

    Attributes:
        data_dir: A folder with CUDA's `bin/ptxas` and `nvvm/libdevice`, or None where XLA has to
            look for them itself.
        ptxas: NVIDIA's assembler, or None if there is none.
    """

    data_dir: Path | None
    ptxas: Path | None


def find_toolchain() -> Toolchain:
    """Returns the GPU compiler.

    Raises:
        CaptureError: if it is not installed, or does not belong to this JAX.
    """
    plugin = next((name for name in _PLUGINS if _version(name)), None)
    if plugin is None or _version(plugin) != jax.__version__:
        raise CaptureError(_how_to_install(plugin))
    data_dir = _nvidia_folder(_PLUGINS[plugin])
    found = shutil.which("ptxas")
    ptxas = None if found is None else Path(found)
    if data_dir is not None and (data_dir / "bin" / "ptxas").is_file():
        ptxas = data_dir / "bin" / "ptxas"
    return Toolchain(data_dir=data_dir, ptxas=ptxas)


def _how_to_install(plugin: str | None) -> str:
    wanted = plugin or "jax-cuda12-plugin"
    what = f"`pip install 'fuselane[gpu]' '{wanted}=={jax.__version__}'`"
    if plugin is None:
        return f"GPU targets need XLA's GPU compiler, but no GPU: {what}."
    return (
        f"GPU targets need {plugin} of JAX's own version, {jax.__version__}, not "
        f"{_version(plugin)}: {what}."
    )


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _nvidia_folder(name: str) -> Path | None:
    """Returns the folder of one of NVIDIA's packages, or None."""
    try:
        spec = importlib.util.find_spec(f"nvidia.{name}")
    except ModuleNotFoundError:
        return None
    locations = list(spec.submodule_search_locations or ()) if spec else []
    return Path(locations[0]) if locations else None


def capture_on_gpu(
    modules: Sequence[bytes],
    target: Target,
    *,
    max_s: float,
    on_progress: Callable[[int], None] = lambda _: None,
) -> tuple[CapturedModule, ...]:
    """Compiles modules for a GPU and returns what XLA did to each.

    Args:
        modules: StableHLO in any form MLIR reads, lowered for CUDA.
        target: A GPU.
        max_s: Seconds all of it may take.
        on_progress: Called with the number of modules done so far, whenever one is.
    Raises:
        CaptureError: if XLA is not there, fails on one of them, or takes too long.
    """
    toolchain = find_toolchain()
    with tempfile.TemporaryDirectory(prefix="fuselane-xla-") as name:
        folder = Path(name)
        (folder / "target.txtpb").write_text(target.config, encoding="utf-8")
        for number, module in enumerate(modules):
            (folder / f"{number}.mlir").write_bytes(module)
        results = _Results(folder / "results", on_progress)
        exit_code = run_child(
            [sys.executable, "-m", _CHILD, str(folder), str(toolchain.data_dir or "")],
            _environment(),
            log=folder / "log",
            folder=folder,
            max_s=max_s,
            watch=results.watch,
        )
        captured: list[CapturedModule] = []
        for number, result in enumerate(results.entries):
            if result["error"]:
                raise CaptureError(f"XLA cannot compile this for {target.name}: {_first(result)}.")
            dump = folder / "dump" / str(number)
            captured += read_dump(dump, target, ptxas=toolchain.ptxas, compile_s=result["seconds"])[
                :1
            ]
        if len(results.entries) != len(modules):
            reason = last_words(folder / "log") or "it said nothing"
            raise CaptureError(f"XLA's GPU compiler ended with exit code {exit_code}: {reason}.")
        return tuple(captured)


def _environment() -> dict[str, str]:
    return config.child_environment(
        {
            "FUSELANE": "0",
            "JAX_PLATFORMS": None,
            "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1",  # NVIDIA's libraries need not be there
            "CUDA_VISIBLE_DEVICES": "",  # the same with a GPU as without
            "TF_CPP_MIN_LOG_LEVEL": "2",
        }
    )


def _first(result: dict[str, Any]) -> str:
    """Returns the first line of what went wrong, as the end of a sentence."""
    return str(result["error"]).partition("\n")[0].rstrip(". ;")[:500]


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
