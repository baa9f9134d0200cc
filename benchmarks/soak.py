"""Compiles and runs ever new programs under Fuselane, and watches what the process holds on to.

    python benchmarks/soak.py [--cycles 10000] [--json FILE]     one after another
    python benchmarks/soak.py --threads 16 [--cycles 2000]       from threads, each on any device
    python benchmarks/soak.py --off                              plain XLA, to compare with

Programs differ in form, sizes and constants, so that each has kernels of its own; every result is
compared with NumPy's. Kernels of programs that are gone stay loaded up to a number of them, so a
process grows until it has unloaded some for the first time. From there on it should not: memory
(RSS), file descriptors, threads and loaded kernels are compared between the first tenth of the
rest and the last one, by medians. The exit status is 1 if memory has grown by more than 5% or
anything else at all, and 2 if the run was too short to tell.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import os
import random
import statistics
import sys
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, final

import jax
import numpy as np
from jax import lax
from jax._src import pjit

import fuselane
from fuselane.runtime.table import table

_NUM_DEVICES: Final = 8
_MAX_GROWTH: Final = 0.05
_CLEARED_EVERY: Final = 20
_SAMPLES: Final = 200
_MIN_READINGS: Final = 40

Made = tuple[Callable[[Any], Any], np.ndarray[Any, Any], np.ndarray[Any, Any]]
"""A program, its argument, and its result by NumPy."""


@final
@dataclass(frozen=True, slots=True)
class Holding:
    """What a process holds: memory in MiB, and numbers."""

    memory_mib: float
    file_descriptors: int
    threads: int
    kernels: int


def clear_caches() -> None:
    """Empties JAX's caches, and one that its own function for that leaves as it is.

    In JAX 0.10, `x * y` and the like keep an entry for each pair of shapes that they have ever met:
    about five of every program here, 2 KiB, whether Fuselane is on or off.
    """
    jax.clear_caches()  # type: ignore[no-untyped-call]
    getattr(pjit, "_seen_qdds", {}).clear()


def look() -> Holding:
    """Returns what this process holds at the moment."""
    status = Path("/proc/self/status").read_text().split("\n")
    fields = dict(line.split(":", 1) for line in status if ":" in line)
    return Holding(
        memory_mib=int(fields["VmRSS"].split()[0]) / 1024,
        file_descriptors=len(os.listdir("/proc/self/fd")),
        threads=int(fields["Threads"]),
        kernels=len(table),
    )


def make(generator: random.Random) -> Made:
    """Returns a program of integers with one to three loops."""
    lanes, steps = generator.randrange(16, 4096), generator.randrange(2, 40)
    a, b, c = (generator.randrange(1, 1 << 20) for _ in range(3))
    form = generator.choice(("one", "nested", "rows", "several"))
    start = np.arange(lanes, dtype=np.int32) * b

    def step(x: Any, i: Any) -> Any:
        return x * a + (x >> 3) + i * c

    def run(x: Any, steps: int, loop: Callable[..., Any]) -> Any:
        if form == "nested":
            return loop(steps, lambda i, x: loop(3, lambda j, x: step(x, j) ^ i, x), x)
        if form == "several":
            return loop(steps, lambda i, x: step(x, i), loop(7, lambda i, x: x ^ (x << 5), x))
        return loop(steps, lambda i, x: step(x, i), x)

    def jax_loop(count: int, body: Callable[..., Any], x: Any) -> Any:
        return lax.fori_loop(0, count, body, x)

    def numpy_loop(count: int, body: Callable[..., Any], x: Any) -> Any:
        for i in range(count):
            x = body(np.int32(i), x)
        return x

    def stack(x: Any) -> Any:
        return lax.scan(lambda x, i: (step(x, i),) * 2, x, np.arange(steps, dtype=np.int32))[1]

    if form == "rows":
        rows = itertools.accumulate(map(np.int32, range(steps)), step, initial=start)
        return stack, start, np.stack(list(rows)[1:])
    return lambda x: run(x, steps, jax_loop), start, run(start, steps, numpy_loop)


def cycle(seed: int) -> None:
    """Compiles and runs one program on some device."""
    generator = random.Random(seed)
    with np.errstate(over="ignore"):
        program, argument, expected = make(generator)
    device = generator.choice(jax.devices())
    actual = jax.jit(program)(jax.device_put(argument, device))
    np.testing.assert_array_equal(np.asarray(actual), expected)


def soak(cycles: int, num_threads: int) -> list[Holding]:
    """Runs all cycles; returns what was held on the way."""
    seen: list[Holding] = []
    lock = threading.Lock()

    def visit(seed: int) -> None:
        cycle(seed)
        if seed % _CLEARED_EVERY == 0:
            with lock:
                clear_caches()
                gc.collect()
        if seed % max(1, cycles // _SAMPLES) == 0:
            seen.append(look())
            if seed % max(1, cycles // 10) == 0:
                print(f"{seed:6}  {seen[-1]}", flush=True)

    if num_threads == 1:
        for seed in range(cycles):
            visit(seed)
    else:
        with ThreadPoolExecutor(num_threads) as pool:
            list(pool.map(visit, range(cycles)))
    return seen


def find_first_and_last(seen: list[Holding], is_settled: bool) -> tuple[Holding, Holding] | None:
    """Returns what was held in the first and the last tenth of a run, by medians.

    Args:
        seen: Readings in order.
        is_settled: Whether there is nothing to wait for; otherwise the run counts from where
            kernels were unloaded for the first time.
    Returns:
        None if that never happened or too late to compare anything.
    """
    pairs = enumerate(itertools.pairwise(seen), start=1)
    drops = (n for n, (one, other) in pairs if other.kernels < one.kernels)
    start = 0 if is_settled else next(drops, len(seen))
    rest = seen[start:]
    if len(rest) < _MIN_READINGS:
        return None
    tenth = len(rest) // 10
    return _median(rest[:tenth]), _median(rest[-tenth:])


def _median(several: list[Holding]) -> Holding:
    rows = zip(*(asdict(one).values() for one in several), strict=True)
    memory, *counts = (statistics.median(row) for row in rows)
    return Holding(memory, *map(int, counts))


def has_grown(before: Holding, after: Holding) -> bool:
    """Whether a process holds more than it did, but for kernels, which come and go."""
    return (
        after.memory_mib > before.memory_mib * (1 + _MAX_GROWTH)
        or after.file_descriptors > before.file_descriptors
        or after.threads > before.threads
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--cycles", type=int, default=10_000)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--off", action="store_true", help="without Fuselane")
    parser.add_argument("--json", type=Path, help="write both readings")
    arguments = parser.parse_args()
    configuration: Any = jax.config
    configuration.update("jax_num_cpu_devices", _NUM_DEVICES if arguments.threads > 1 else 1)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["FUSELANE_CACHE_DIR"] = folder
        if not arguments.off:
            fuselane.enable(min_gain=0)
        seen = soak(arguments.cycles, arguments.threads)
        fuselane.disable()
    fused = sum(loop.fused for loop in fuselane.decisions().loops)
    print(f"of the last loops {fused} were fused")
    found = find_first_and_last(seen, is_settled=arguments.off)
    if found is None:
        print(f"too short to tell: {len(table)} kernels are loaded, none has long been unloaded")
        return 2
    before, after = found
    print(f"early {before}\nlate  {after}")
    if arguments.json:
        readings = {"early": asdict(before), "late": asdict(after)}
        arguments.json.write_text(json.dumps(readings, indent=1) + "\n")
    return int(has_grown(before, after))


if __name__ == "__main__":
    sys.exit(main())
