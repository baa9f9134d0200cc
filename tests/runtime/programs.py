"""A program with a loop, run in processes of its own; prints what a test wants to know as JSON.

    python -m tests.runtime.programs MODE...

`plain` runs the program as it stands; `enabled` inside `fuselane.enabled()`; `explain` explains it;
`save=FILE` serializes the executable and `load=FILE` runs it, `fork` and `spawn` run it in a child
process and then here, all after `fuselane.enable()`. Each mode has a line.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import serialize_executable

import fuselane

LANES = 1000
STEPS = 300


def program(x: jax.Array) -> jax.Array:
    """Integers only, so that all ways of compiling it agree to the bit."""

    def step(i: jax.Array, x: jax.Array) -> jax.Array:
        return (x * 3 + i) ^ (x >> 2)

    return lax.fori_loop(0, STEPS, step, x)


def argument() -> jax.Array:
    return jnp.arange(LANES, dtype=jnp.int32)


def expected() -> np.ndarray[Any, Any]:
    x = np.arange(LANES, dtype=np.int32)
    for i in range(STEPS):
        x = (x * np.int32(3) + np.int32(i)) ^ (x >> np.int32(2))
    return x


def runs_as_kernel() -> bool:
    """Runs the program after `fuselane.enable()`; whether it is right and a kernel did it."""
    fuselane.enable()
    result = jax.jit(program)(argument())
    kernels: Any = sys.modules["fuselane.runtime.table"]
    return bool(np.array_equal(result, expected())) and len(kernels.table) == 1


def fork(action: Callable[[], bool]) -> None:
    """Does something in a copy of this process; fails unless it returns True there."""
    with warnings.catch_warnings(action="ignore"):  # JAX warns of forks
        child = os.fork()
    if child == 0:
        os._exit(0 if action() else 1)
    assert os.waitpid(child, 0)[1] == 0


def tell(mode: str, path: str, events: list[str]) -> dict[str, Any]:
    """Runs the program in one mode; returns what there is to tell of it alone."""
    jax.clear_caches()
    events.clear()
    num_loops = len(decided())
    num_kernels = count_kernels()
    if mode in ("save", "load", "fork", "spawn"):
        fuselane.enable()
    match mode:
        case "plain":
            result = jax.jit(program)(argument())
        case "enabled":
            with fuselane.enabled():
                result = jax.jit(program)(argument())
        case "explain":
            assert fuselane.explain(program, argument()).num_fused == 1
            result = jnp.asarray(expected())
        case "save":
            compiled = jax.jit(program).lower(argument()).compile()
            Path(path).write_bytes(pickle.dumps(serialize_executable.serialize(compiled)))
            result = compiled(argument())
        case "load":
            parts = pickle.loads(Path(path).read_bytes())
            result = serialize_executable.deserialize_and_load(*parts)(argument())
        case "fork":
            fork(runs_as_kernel)
            result = jax.jit(program)(argument())
            fork(lambda: True)
            result = jax.jit(program)(result * 0 + argument())
        case "spawn":
            result = jax.jit(program)(argument())
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                assert pool.apply(runs_as_kernel)
    return {
        "is_right": bool(np.array_equal(result, expected())),
        "num_fused": sum(loop.decision.fused for loop in decided()[num_loops:]),
        "num_kernels": count_kernels() - num_kernels,
        "cache_hits": sum(name.endswith("/cache_hits") for name in events),
        "is_imported": "fuselane.api" in sys.modules,
    }


def decided() -> Sequence[Any]:
    """Returns what has been decided about loops until now."""
    return fuselane.decisions().loops if "fuselane.api" in sys.modules else ()


def count_kernels() -> int:
    """Returns how many kernels this process has loaded."""
    kernels: Any = sys.modules.get("fuselane.runtime.table")
    return 0 if kernels is None else len(kernels.table)


def main(*modes: str) -> None:
    events: list[str] = []
    jax.monitoring.register_event_listener(lambda event, **_: events.append(event))
    for mode in modes:
        name, _, path = mode.partition("=")
        sys.stdout.write(f"{json.dumps(tell(name, path, events))}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
