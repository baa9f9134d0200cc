"""What a measurement or a bug report has to say about the machine and the software on it."""

from __future__ import annotations

import platform
from importlib import metadata
from typing import Final

from fuselane.device import host_device

_PACKAGES: Final = ("jax", "jaxlib", "llvmlite", "numpy", "protobuf")


def package_version(name: str) -> str:
    """Returns the version of an installed package, or "not installed"."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"


def describe_versions() -> dict[str, str]:
    """Returns the versions of Fuselane, Python and the packages that matter, by name."""
    return {
        "fuselane": package_version("fuselane"),
        "python": platform.python_version(),
        **{name: package_version(name) for name in _PACKAGES},
    }


def describe_machine() -> dict[str, str | int]:
    """Returns what belongs beside a measured number: CPU, cores, system and versions."""
    device = host_device()
    return {
        "cpu": device.name,
        "cores": device.num_cores,
        "vector_bits": device.vector_bits,
        "l1_bytes": device.l1_bytes,
        "l2_bytes": device.l2_bytes,
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        **describe_versions(),
    }
