"""Hurts the kernel cache in every way we know and checks that no wrong kernel ever comes out of it.

    python benchmarks/faults.py --json docs/data/faults.json

Two hundred processes at once read, write, evict and are killed in the middle; every byte of a
file is changed, every length of it tried; the disk is full. As root also: a full file system of its
own, and a directory that may only be read.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from fuselane.codegen.llvm import HostTarget
from fuselane.errors import CacheError
from fuselane.machine import describe_machine
from fuselane.runtime.cache import KernelCache
from fuselane.runtime.kernel import Kernel, compute_key

_TARGET: Final = HostTarget(triple="t", cpu="c", features="")
_NUM_KEYS: Final = 24
_NOBODY: Final = 65534
_WRONG: Final = 7
"""Exit status of a child that got a kernel that is not the one it asked for."""


def make(number: int, size: int = 50_000) -> Kernel:
    """Returns a kernel whose content follows from its number."""
    return Kernel(
        key=compute_key(str(number)),
        symbol=f"s{number}",
        object_code=bytes([number % 251]) * size,
        num_tiles=number,
        max_threads=0,
        target=_TARGET,
    )


def in_child(action: Callable[[], None]) -> int:
    """Runs something in a process of its own, whose number it returns."""
    process = os.fork()
    if process == 0:
        status = 1
        try:
            action()
            status = 0
        except AssertionError:
            status = _WRONG
        finally:
            os._exit(status)
    return process


def use(directory: Path, seed: int, turns: int) -> None:
    """Asks for kernels again and again; every one has to be the right one."""
    generator = random.Random(seed)
    for _ in range(turns):
        cache = KernelCache(directory, disk_bytes=600_000)
        number = generator.randrange(_NUM_KEYS)
        kernel = make(number)
        found = cache.get_or_build(kernel.key, lambda kernel=kernel: kernel)  # type: ignore[misc]
        assert found == kernel


def check_files(directory: Path) -> int:
    """Fails unless every kernel's file is whole and the one its name says; returns how many."""
    files = list(directory.glob("*.kernel"))
    for path in files:
        assert Kernel.from_bytes(path.read_bytes()).key == path.stem
    return len(files)


def many_processes(directory: Path, count: int, turns: int) -> dict[str, int]:
    """Lets processes use a cache at once; every third is killed at some moment."""
    children = [in_child(lambda seed=seed: use(directory, seed, turns)) for seed in range(count)]  # type: ignore[misc]
    doomed, generator = children[::3], random.Random(0)
    for child in doomed:
        time.sleep(generator.random() * 0.02)
        os.kill(child, signal.SIGKILL)
    ends = {child: os.waitpid(child, 0)[1] for child in children}
    killed = sum(os.WIFSIGNALED(status) for status in ends.values())
    wrong = sum(bool(os.WEXITSTATUS(status)) for status in ends.values())
    assert all(not os.WIFSIGNALED(ends[c]) for c in children if c not in doomed)
    left = sum(path.name.startswith(".tmp-") for path in directory.iterdir())
    files = check_files(directory)
    return {"processes": count, "killed": killed, "wrong": wrong, "files": files, "begun": left}


def every_byte() -> dict[str, int]:
    """Changes every byte of a file, and cuts it at every length: none may be taken."""
    data, tried, taken = bytearray(make(3, 400).to_bytes()), 0, 0
    for place in range(len(data)):
        data[place] ^= 1 << (place % 8)
        tried, taken = tried + 2, taken + is_taken(bytes(data)) + is_taken(bytes(data[:place]))
        data[place] ^= 1 << (place % 8)
    return {"tried": tried, "taken": taken}


def is_taken(data: bytes) -> bool:
    """Whether bytes pass for a kernel."""
    try:
        Kernel.from_bytes(data)
    except CacheError:
        return False
    return True


@contextlib.contextmanager
def small_disk(size: str) -> Iterator[Path]:
    """Mounts a file system of little room; needs root."""
    with tempfile.TemporaryDirectory() as place:
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", place], check=True)
        try:
            yield Path(place)
        finally:
            subprocess.run(["umount", place], check=True)


def full_disk(size: str) -> dict[str, int]:
    """Writes more than fits: all kernels are usable, one warning, only whole files are left."""
    with small_disk(size) as place, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        cache = KernelCache(place / "kernels")
        for number in range(_NUM_KEYS):
            kernel = make(number)
            assert cache.get_or_build(kernel.key, lambda kernel=kernel: kernel) == kernel  # type: ignore[misc]
        begun = sum(path.name.startswith(".tmp-") for path in (place / "kernels").iterdir())
        files = check_files(place / "kernels")
        return {"kernels": _NUM_KEYS, "files": files, "begun": begun, "warnings": len(caught)}


def read_only(directory: Path) -> dict[str, int]:
    """Uses a directory that another user, or this one without permission, may only read."""
    KernelCache(directory).put(make(1))
    os.chown(directory, _NOBODY, _NOBODY)
    for path in directory.iterdir():
        os.chown(path, _NOBODY, _NOBODY)
    directory.chmod(0o500)
    directory.parent.chmod(0o755)

    def run() -> None:
        os.setgid(_NOBODY)
        os.setuid(_NOBODY)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            cache = KernelCache(directory)
            assert cache.get(make(1).key) == make(1)
            for number in (2, 3):
                cache.put(make(number))
                assert cache.get(make(number).key) == make(number)
            assert len(caught) == 1 and "Permission denied" in str(caught[0].message)

    _, status = os.waitpid(in_child(run), 0)
    return {"wrong": int(status != 0), "files": check_files(directory)}


def main() -> int:
    """Runs all; returns 1 if a wrong kernel came out, or a process died that was not killed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, default=200)
    parser.add_argument("--turns", type=int, default=200)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    results: dict[str, dict[str, int]] = {"every byte": every_byte()}
    with tempfile.TemporaryDirectory() as place:
        directory = Path(place) / "kernels"
        results["processes"] = many_processes(directory, options.processes, options.turns)
    if os.geteuid() == 0:
        results["full disk"] = full_disk("512k")
        with tempfile.TemporaryDirectory() as place:
            results["read-only"] = read_only(Path(place) / "kernels")
    for name, numbers in results.items():
        print(f"{name}: " + ", ".join(f"{key} {value}" for key, value in numbers.items()))
    if options.json is not None:
        record = {
            "date": time.strftime("%Y-%m-%d"),
            "machine": describe_machine(),
            "results": results,
        }
        options.json.write_text(json.dumps(record, indent=2) + "\n")
    is_wrong = results["every byte"]["taken"] or any(r.get("wrong") for r in results.values())
    return 1 if is_wrong else 0


if __name__ == "__main__":
    sys.exit(main())
