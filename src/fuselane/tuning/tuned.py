"""What was found for programs before, at hand where XLA hands over its modules.

Most modules were never tuned. Their names, at the very front of their bytes, tell: only a module
whose name is known is read and fingerprinted.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Final, final

from fuselane import config
from fuselane.device import DeviceDescription, host_device
from fuselane.errors import OptionError
from fuselane.fusion.pipelines import Pipeline, parse_pipeline
from fuselane.hlo.module import HloModule
from fuselane.hlo.proto import HloModuleProto
from fuselane.tuning.fingerprint import fingerprint
from fuselane.tuning.store import Found, Store

METRICS: Final = ("time", "modelled")
"""Those measured before those modelled."""

_NAME_FIELD: Final = 0x0A
"""How a serialized HloModuleProto begins: field 1, its name."""

_MAX_SHORT: Final = 0x80


def versions() -> str:
    """Returns the versions that results hold for."""
    return f"fuselane {config.VERSION} jaxlib {metadata.version('jaxlib')}"


def device_key(device: DeviceDescription) -> str:
    """Returns what results of one CPU are kept under: its name and a hash of all else."""
    return f"{device.name} {hashlib.sha256(repr(device).encode()).hexdigest()[:12]}"


def load_tuned() -> Tuned:
    """Returns what is kept for this machine's CPU; read again only after the file has changed."""
    store = Store(config.cache_dir())
    try:
        status = store.path.stat()
    except OSError:
        return Tuned(())
    return _load(store.path.parent, status.st_ino, status.st_mtime_ns, status.st_size)


@functools.lru_cache(maxsize=8)
def _load(directory: Path, *_: int) -> Tuned:
    return Tuned(Store(directory).found(device_key(host_device()), versions()))


def module_name(data: bytes) -> str:
    """Returns the name of a serialized module, without reading all of it where that can be."""
    if data[:1] == bytes([_NAME_FIELD]) and len(data) > 1 and data[1] < _MAX_SHORT:
        return data[2 : 2 + data[1]].decode(errors="replace")
    name: str = HloModuleProto.FromString(data).name
    return name


@final
class Tuned:
    """The results for one device, as they were when this was made."""

    def __init__(self, found: Iterable[Found]) -> None:
        """Takes results; those by which XLA's own fusions are best are passed over."""
        self._found: dict[str, list[tuple[Found, Pipeline]]] = {}
        for one in found:
            pipeline = _read(one.candidate.fusion)
            if pipeline is not None:
                self._found.setdefault(one.name, []).append((one, pipeline))
        text = repr(sorted(self._found.items()))
        self.key = hashlib.sha256(text.encode()).hexdigest()[:16]
        """Equal for equal results."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tuned) and other.key == self.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __len__(self) -> int:
        return sum(map(len, self._found.values()))

    def find(self, data: bytes, *, loops: bool) -> Pipeline | None:
        """Returns the strategy for a serialized module, or None if none is known.

        Args:
            data: As XLA hands it over.
            loops: Whether loops become lane kernels; a result for the other case is better than
                none.
        """
        named = self._found.get(module_name(data)) if self._found else None
        if not named:
            return None
        own = fingerprint(HloModule.from_bytes(data))
        known = [(found, pipeline) for found, pipeline in named if found.fingerprint == own]
        known.sort(key=lambda k: (k[0].place.loops != loops, METRICS.index(k[0].place.metric)))
        return known[0][1] if known else None


def _read(text: str) -> Pipeline | None:
    """Returns the pipeline of a result; None for XLA's own fusions, and for text that is none."""
    try:
        return parse_pipeline(text) if text else None
    except OptionError:
        return None
