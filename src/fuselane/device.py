"""What a kernel's machine looks like: vector width, registers, caches, cores.

Nothing here depends on LLVM; the machine code's own target is `codegen.llvm.HostTarget`.
"""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import final

_CPU_INFO = Path("/proc/cpuinfo")
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_DEFAULT_L1_BYTES = 32 * 1024
_DEFAULT_L2_BYTES = 256 * 1024
_SIZE_SUFFIXES = {"K": 1024, "M": 1024 * 1024}
_AVX512 = frozenset({"avx512f", "avx512dq", "avx512bw", "avx512vl"})
_AVX2 = frozenset({"avx2", "fma"})
_AMD, _SINCE_ZEN_5 = "sse4a", "avx_vnni"
_ARM_BITS = 128
_HALF_BITS = 256
"""Of the units of AMD's Zen 4, through which registers of 512 bits go twice. Those of Zen 5 take
them at once, as Intel's do."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceDescription:
    """A CPU as a target of kernels.

    Attributes:
        name: Model name for people.
        vector_bits: Width of the widest vector register worth using: 512, 256 or 128.
        unit_bits: Width of the units that compute; wider registers go through them several times.
        num_vector_registers: Architectural vector registers.
        has_masked_memory: Masked loads and stores exist for every element width.
        has_fast_gathers: A gather is faster than a load for each lane.
        l1_bytes: L1 data cache of one core.
        l2_bytes: L2 cache of one core.
        num_cores: Cores this process may run on.
        features: Instruction set extensions, sorted, separated by spaces.
    """

    name: str
    vector_bits: int
    unit_bits: int
    num_vector_registers: int
    has_masked_memory: bool
    has_fast_gathers: bool
    l1_bytes: int
    l2_bytes: int
    num_cores: int
    features: str

    @property
    def has_equal_zeros(self) -> bool:
        """Whether its maximum of two takes -0 and +0 for equal; that of ARM's vectors does not."""
        return self.vector_bits > _ARM_BITS

    @property
    def library_bits(self) -> float:
        """Width of a vector in terms of how long libraries take, which use the widest registers:
        half of their time goes by how many instructions there are, and half by how often these go
        through the units."""
        return 2 / (1 / self.vector_bits + 1 / self.unit_bits)


@lru_cache(maxsize=1)
def host_device() -> DeviceDescription:
    """Returns the description of this process's machine; sizes not found are guessed low."""
    name, features = parse_cpu_info(_read(_CPU_INFO))
    return describe(
        machine=platform.machine(),
        name=name or platform.processor() or platform.machine(),
        features=features,
        l1_bytes=_cache_bytes(level=1) or _DEFAULT_L1_BYTES,
        l2_bytes=_cache_bytes(level=2) or _DEFAULT_L2_BYTES,
        num_cores=_usable_cores(),
    )


def describe(
    *,
    machine: str,
    name: str,
    features: frozenset[str],
    l1_bytes: int,
    l2_bytes: int,
    num_cores: int,
) -> DeviceDescription:
    """Returns the description that follows from an architecture and its extensions."""
    vector_bits, num_registers, has_masks = _vector_unit(machine.lower(), features)
    return DeviceDescription(
        name=name,
        vector_bits=vector_bits,
        unit_bits=_HALF_BITS if _has_half_units(features) else vector_bits,
        num_vector_registers=num_registers,
        has_masked_memory=has_masks,
        has_fast_gathers=_has_fast_gathers(features),
        l1_bytes=l1_bytes,
        l2_bytes=l2_bytes,
        num_cores=num_cores,
        features=" ".join(sorted(features)),
    )


def parse_cpu_info(text: str) -> tuple[str, frozenset[str]]:
    """Returns model name and feature flags of the first processor in the text of /proc/cpuinfo."""
    fields: dict[str, str] = {}
    for line in text.splitlines():
        key, separator, value = line.partition(":")
        if separator:
            fields.setdefault(key.strip(), value.strip())
    flags = fields.get("flags") or fields.get("Features") or ""
    return fields.get("model name", ""), frozenset(flags.split())


def _vector_unit(machine: str, features: frozenset[str]) -> tuple[int, int, bool]:
    if machine in ("aarch64", "arm64"):
        return _ARM_BITS, 32, False
    if features >= _AVX512:
        return 512, 32, True
    return (256 if features >= _AVX2 else 128), 16, False


def _has_half_units(features: frozenset[str]) -> bool:
    return features >= _AVX512 | {_AMD} and _SINCE_ZEN_5 not in features


def _has_fast_gathers(features: frozenset[str]) -> bool:
    """Until Zen 3, AMD's take as long as loads of their own; Arm's NEON has none."""
    return features >= _AVX512 or (features >= _AVX2 and _AMD not in features)


def _cache_bytes(level: int) -> int:
    """Returns the size of cpu0's data or unified cache of a level, 0 if unknown."""
    for index in sorted(_CACHES.glob("index*")):
        kind = _read(index / "type").strip()
        if kind in ("Data", "Unified") and _read(index / "level").strip() == str(level):
            return parse_cache_size(_read(index / "size"))
    return 0


def parse_cache_size(text: str) -> int:
    """Returns the bytes of a size as sysfs writes it ("32K"), 0 if it is not one."""
    text = text.strip()
    scale = _SIZE_SUFFIXES.get(text[-1:], 1)
    digits = text.rstrip("KM")
    return int(digits) * scale if digits.isdigit() else 0


def _usable_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
