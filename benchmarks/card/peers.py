"""CartPole in PyTorch on the GPU, if PyTorch is there: eager, TorchScript, torch.compile.

python -m card.peers OUT.json --seconds S [--device cuda]

The peers of `fuselane.cartpole.peers` on another device: the same steps on tensors.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np

from card.sizes import QUICK_SIZES, SIZES

PEERS: Final = "fuselane.cartpole.peers"
POOL_ROWS: Final = 100
STEPS_PER_BLOCK: Final = 10
ROUNDS: Final = 3

Run = Callable[[int], Any]


def main() -> int:
    """Measures until the time is over."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    if importlib.util.find_spec("torch") is None:
        options.out.write_text(json.dumps([{"skipped": "PyTorch is not installed"}]))
        return 0
    deadline = time.monotonic() + options.seconds
    rows: list[dict[str, Any]] = []
    for num_envs, num_steps in QUICK_SIZES if options.quick else SIZES:
        for name, make in ENGINES.items():
            row: dict[str, Any] = {"engine": name, "envs": num_envs, "steps": num_steps}
            rows.append(row)
            if time.monotonic() > deadline:
                row["skipped"] = "no time left"
                continue
            try:
                row["ms"] = measure(make(num_envs, options.device), num_steps, deadline)
            except Exception as error:
                row["failed"] = f"{type(error).__name__}: {error}"[:500]
            options.out.write_text(json.dumps(rows, indent=1))
    options.out.write_text(json.dumps(rows, indent=1))
    return 0


def measure(run: Run, num_steps: int, deadline: float) -> float:
    """Returns the median milliseconds of a run."""
    run(2 * STEPS_PER_BLOCK + 2)  # compiles, and again for its own results as inputs
    run(2 * STEPS_PER_BLOCK + 2)
    times: list[float] = []
    while len(times) < ROUNDS and (not times or time.monotonic() < deadline):
        start = time.perf_counter()
        run(num_steps)
        times.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times)


def load(name: str) -> Any:
    """Returns a module that needs PyTorch, which has been looked for."""
    return importlib.import_module(name)


def prepare(num_envs: int, device: str, rollout: Callable[..., Any]) -> Run:
    """Returns how to run a rollout over tensors for a number of steps, to the very end."""
    torch = load("torch")
    random = np.random.default_rng(0)
    state = random.uniform(-0.05, 0.05, (4, num_envs)).astype(np.float32)
    resets = random.uniform(-0.05, 0.05, (POOL_ROWS, 4, num_envs)).astype(np.float32)
    actions = random.integers(0, 2, (POOL_ROWS, num_envs)).astype(np.int32)
    tensors = [torch.from_numpy(array).to(device) for array in (state, actions, resets)]

    def run(num_steps: int) -> Any:
        with torch.no_grad():
            return rollout(*tensors, num_steps).cpu()

    return run


def eager(num_envs: int, device: str) -> Run:
    """One operator after the other."""
    return prepare(num_envs, device, load(f"{PEERS}.torch_eager").rollout)


def scripted(num_envs: int, device: str) -> Run:
    """The whole loop in TorchScript."""
    torch = load("torch")
    return prepare(num_envs, device, torch.jit.script(load(f"{PEERS}.torch_eager").rollout))


def compiled(num_envs: int, device: str) -> Run:
    """Blocks of ten steps under torch.compile."""
    torch = load("torch")
    one_block = torch.compile(load(f"{PEERS}.inductor").block, fullgraph=True, dynamic=False)

    def rollout(state: Any, actions: Any, resets: Any, num_steps: int) -> Any:
        columns = state.unbind()
        for first in range(0, num_steps, STEPS_PER_BLOCK):
            row = first % POOL_ROWS
            rows = slice(row, row + STEPS_PER_BLOCK)
            columns = one_block(columns, actions[rows], resets[rows])
        return torch.stack(columns)

    return prepare(num_envs, device, rollout)


ENGINES: Final = {"torch eager": eager, "TorchScript": scripted, "torch.compile": compiled}


if __name__ == "__main__":
    sys.exit(main())
