"""XLA's GPU compiler as it is installed: JAX's CUDA plug-in, and tools of NVIDIA's."""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import importlib.util
import logging
import mmap
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

import jax

from fuselane.errors import CaptureError

_PLUGINS: Final = {
    "jax-cuda12-plugin": ("jax_plugins.xla_cuda12", "nvidia.cuda_nvcc"),
    "jax-cuda13-plugin": ("jax_plugins.xla_cuda13", "nvidia.cu13"),
}
"""The packages that hold the compiler, where it is, and where its assembler is."""

_LIBRARY: Final = "xla_cuda_plugin.so"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Toolchain:
    """The GPU compiler as it is installed.

    Attributes:
        data_dir: A folder with CUDA's `bin/ptxas` and `nvvm/libdevice`, or None where XLA has to
            look for them itself.
        ptxas: NVIDIA's assembler, or None if there is none.
        library: The compiler itself; None for this machine's CPU.
    """

    data_dir: Path | None = None
    ptxas: Path | None = None
    library: Path | None = None

    def as_arguments(self) -> tuple[str, str]:
        """Returns what the program that compiles is told of it."""
        return str(self.data_dir or ""), str(self.library or "")


def find_toolchain() -> Toolchain:
    """Returns the GPU compiler.

    Raises:
        CaptureError: if it is not installed, or does not belong to this JAX.
    """
    versions = {name: _version(name) for name in _PLUGINS}
    plugin = next((name for name, its in versions.items() if its == jax.__version__), None)
    if plugin is None:
        raise CaptureError(_how_to_install(versions))
    folder, data_dir = map(_package_folder, _PLUGINS[plugin])
    found = shutil.which("ptxas")
    ptxas = None if found is None else Path(found)
    if data_dir is not None and (data_dir / "bin" / "ptxas").is_file():
        ptxas = data_dir / "bin" / "ptxas"
    library = None if folder is None else folder / _LIBRARY
    return Toolchain(data_dir=data_dir, ptxas=ptxas, library=library)


@functools.cache
def knows_call(name: str) -> bool:
    """Whether XLA's GPU compiler has the name of a custom call among its texts.

    True as well where the compiler is not one that `find_toolchain` finds. Calls that XLA knows by
    itself are in no registry that could be asked. Takes 10 ms, or 0.1 s if the name is not there.
    """
    try:
        library = find_toolchain().library
    except CaptureError:
        return True
    if library is None or not library.is_file():
        return True
    with (
        library.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
    ):
        return data.find(name.encode()) >= 0


@contextlib.contextmanager
def no_complaints() -> Iterator[None]:
    """Keeps JAX, should it start its backends inside a `with` block, from printing a traceback of a
    CUDA plug-in that finds no CUDA: the compiler is all that is wanted of it."""
    logger = logging.getLogger(_LOGGER)
    logger.addFilter(_is_no_complaint)
    try:
        yield
    finally:
        logger.removeFilter(_is_no_complaint)


_LOGGER: Final = "jax._src.xla_bridge"


def _is_no_complaint(record: logging.LogRecord) -> bool:
    said = record.getMessage()
    return not ("plugin configuration error" in said and "cuda" in said)


def _how_to_install(versions: Mapping[str, str]) -> str:
    plugin = next((name for name, version in versions.items() if version), None)
    if plugin is None:
        return "GPU targets need XLA's GPU compiler, but no GPU: `pip install 'fuselane[gpu]'`."
    return (
        f"GPU targets need {plugin} of JAX's own version, {jax.__version__}, not "
        f"{versions[plugin]}: `pip install '{plugin}=={jax.__version__}'`."
    )


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _package_folder(name: str) -> Path | None:
    """Returns the folder of a package, or None; the package is not imported."""
    try:
        spec = importlib.util.find_spec(name)
    except ModuleNotFoundError:
        return None
    locations = list(spec.submodule_search_locations or ()) if spec else []
    return Path(locations[0]) if locations else None
