"""What a peer written in Python says and hears: the child's side of the conversation.

A peer is started with a folder, the number of environments and the rows of the pool. It reads
state.bin (f32[4, envs]), actions.bin (s32[rows, envs]) and resets.bin (f32[rows, 4, envs]) from the
folder, compiles, and says "ready" and the milliseconds that took. From then on each line it hears
is a number of steps: it runs so many from the start, writes the final states to result.bin and says
the milliseconds.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """What a run starts from.

    Attributes:
        state: f32[4, envs].
        actions: s32[rows, envs].
        resets: f32[rows, 4, envs].
    """

    state: Array
    actions: Array
    resets: Array


def read_data(folder: Path, num_envs: int, num_rows: int) -> Data:
    """Reads a run's data from a folder."""
    return Data(
        state=np.fromfile(folder / "state.bin", np.float32).reshape(4, num_envs),
        actions=np.fromfile(folder / "actions.bin", np.int32).reshape(num_rows, num_envs),
        resets=np.fromfile(folder / "resets.bin", np.float32).reshape(num_rows, 4, num_envs),
    )


def serve(prepare: Callable[[Data], Callable[[int], Array]]) -> None:
    """Answers on standard output until standard input ends.

    Args:
        prepare: From the data to a function that runs a number of steps from the start and returns
            the final states, f32[4, envs]. Compilation belongs in here.
    """
    folder = Path(sys.argv[1])
    data = read_data(folder, int(sys.argv[2]), int(sys.argv[3]))
    start = time.perf_counter()
    run = prepare(data)
    _say(f"ready {_elapsed_ms(start):.6f}")
    for line in sys.stdin:
        start = time.perf_counter()
        result = run(int(line))
        elapsed_ms = _elapsed_ms(start)
        np.ascontiguousarray(result, np.float32).tofile(folder / "result.bin")
        _say(f"{elapsed_ms:.6f}")


def _elapsed_ms(start: float) -> float:
    return (time.perf_counter() - start) * 1e3


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
