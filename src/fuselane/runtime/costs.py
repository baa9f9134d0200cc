"""The costs of this machine, measured by `fuselane calibrate` and kept beside the kernels.

They decide which loops are worth a kernel, never what a kernel computes. Nothing here measures:
without a file, or with one that cannot be used, the costs built in hold.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import math
from importlib import metadata
from pathlib import Path
from typing import Final

from fuselane import config
from fuselane.analysis.machine_costs import MachineCosts
from fuselane.device import DeviceDescription, host_device
from fuselane.errors import CacheError
from fuselane.runtime.private_directory import open_private

_USUAL_BITS: Final = 256
"""Vectors of the machine of the built-in costs. Measured, a softmax by XLA's library took 2.15 ms
of processor time there, and 1.57 and 0.85 with AVX-512, on AMD's Zen 4 and Zen 5. XLA's own loops,
whose vectors have 256 bits anywhere, took about as long on Zen 4, and 0.7 of it on Zen 5."""

_PREFIX: Final = "costs-"
_MAX_BYTES: Final = 1 << 20


def costs_path(directory: Path) -> Path:
    """Returns where the costs of this machine, under these versions, are kept."""
    return directory / f"{_PREFIX}{_machine_key(host_device())}.json"


@functools.lru_cache(maxsize=8)
def load_costs(directory: Path) -> MachineCosts:
    """Returns the costs measured on this machine, or those built in; the same until
    `write_costs`."""
    measured = read_costs(costs_path(directory))
    return built_in_costs(host_device()) if measured is None else measured


def built_in_costs(device: DeviceDescription) -> MachineCosts:
    """Returns the costs of a machine that nobody has measured."""
    usual, scale = MachineCosts(), _USUAL_BITS / device.library_bits
    return dataclasses.replace(
        usual,
        library_operation_us=usual.library_operation_us * scale,
        library_function_us=usual.library_function_us * scale,
    )


def read_costs(path: Path) -> MachineCosts | None:
    """Returns the costs a file holds; None if there is none, or it is damaged or others' to
    write."""
    try:
        with open_private(path.parent) as directory:
            values = json.loads(directory.read(path.name, _MAX_BYTES))
        names = {field.name for field in dataclasses.fields(MachineCosts)}
        if not isinstance(values, dict) or set(values) != names:
            return None
        numbers = {name: float(value) for name, value in values.items()}
    except (OSError, ValueError, TypeError):
        return None
    if not all(math.isfinite(number) and number > 0 for number in numbers.values()):
        return None
    return MachineCosts(**numbers)


def write_costs(path: Path, costs: MachineCosts) -> None:
    """Keeps costs for this process and those to come.

    Raises:
        CacheError: if the directory cannot be written.
    """
    text = json.dumps(dataclasses.asdict(costs), indent=2) + "\n"
    try:
        with open_private(path.parent, create=True) as directory:
            directory.write(path.name, text.encode())
    except OSError as error:
        reason = error.strerror or str(error)
        raise CacheError(f"The costs cannot be kept in {str(path.parent)!r}: {reason}.") from None
    load_costs.cache_clear()


def _machine_key(device: DeviceDescription) -> str:
    versions = (config.VERSION, metadata.version("jaxlib"))
    text = repr((device, versions))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
