"""What NVIDIA's assembler says about the kernels XLA made."""

from __future__ import annotations

import re
import subprocess
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Final

from fuselane.xla.captured import KernelUsage

MAX_SECONDS: Final = 60.0
"""The most time spent on all kernels of a module; the rest go without."""

_NUM_PROCESSES: Final = 4
_ANY_NAME: Final = "any_kernel"
_ENTRY: Final = re.compile(r"\.entry\s+([\w$.]+)")
_TARGET: Final = re.compile(r"^\.target\s+(\w+)", re.MULTILINE)
_KERNEL: Final = re.compile(
    r"Compiling entry function '(?P<name>[^']+)'.*?"
    r"(?P<stores>\d+) bytes spill stores, (?P<loads>\d+) bytes spill loads.*?"
    r"Used (?P<registers>\d+) registers(?P<rest>[^\n]*)",
    re.DOTALL,
)
_SHARED: Final = re.compile(r"(\d+) bytes smem")


def assemble(
    ptxas: Path, texts: Iterable[str], max_s: float = MAX_SECONDS
) -> dict[str, KernelUsage]:
    """Returns what kernels take by XLA's names of them, without those that ptxas refuses.

    Of shared memory, it knows what is static.

    Args:
        ptxas: The program.
        texts: PTX, each with its own target.
        max_s: What is not assembled after so many seconds is left out.
    """
    deadline = time.monotonic() + max_s
    alike: dict[str, list[str]] = defaultdict(list)
    for text in dict.fromkeys(texts):
        names = _ENTRY.findall(text)
        # Kernels that differ in nothing but their name are asked about once.
        renamed = len(names) == 1 and "_" in names[0]  # as no instruction of PTX has
        alike[text.replace(names[0], _ANY_NAME) if renamed else text] += names
    kernels: dict[str, KernelUsage] = {}
    with ThreadPoolExecutor(_NUM_PROCESSES) as pool:
        reports = pool.map(lambda text: _assemble_one(ptxas, text, deadline), alike)
        for names, report in zip(alike.values(), reports, strict=True):
            for name in names:
                usage = report.get(name, report.get(_ANY_NAME))
                if usage is not None:
                    kernels[name] = replace(usage, name=name)
    return kernels


def _assemble_one(ptxas: Path, text: str, deadline: float) -> Mapping[str, KernelUsage]:
    target = _TARGET.search(text)
    left_s = deadline - time.monotonic()
    if target is None or left_s <= 0 or ".entry" not in text:
        return {}
    command = [str(ptxas), "-v", "--gpu-name", target[1], "-", "-o", "/dev/null"]
    try:
        run = subprocess.run(
            command, input=text.encode(), capture_output=True, timeout=left_s, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return {}
    return read_report(run.stderr.decode(errors="replace"))


def read_report(report: str) -> dict[str, KernelUsage]:
    """Returns what kernels take by their names, from what `ptxas -v` prints."""
    kernels: dict[str, KernelUsage] = {}
    for match in _KERNEL.finditer(report):
        shared = _SHARED.search(match["rest"])
        kernels[match["name"]] = KernelUsage(
            registers=int(match["registers"]),
            spill_bytes=int(match["stores"]) + int(match["loads"]),
            shared_bytes=int(shared[1]) if shared else 0,
            name=match["name"],
        )
    return kernels
