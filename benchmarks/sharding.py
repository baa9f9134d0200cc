"""`examples/sharded_evolution.py` over virtual devices and processes, with and without Fuselane.

    python benchmarks/sharding.py [--rounds 3] [--quick] [--markdown FILE]

Each setting runs in processes of its own, plain XLA and Fuselane in turns; printed are medians in
millions of simulator steps per second. All devices share this machine's cores: more devices can't
be faster than the cores allow, but nothing should be lost either.
"""

from __future__ import annotations

import argparse
import os
import re
import socket
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
EXAMPLE: Final = ROOT / "examples" / "sharded_evolution.py"
SETTINGS: Final = ((1, 1), (1, 2), (1, 4), (1, 8), (2, 1), (4, 1), (2, 4))
"""Processes, and devices in each."""


def measure(num_processes: int, num_devices: int, *, fused: bool) -> float:
    """Returns millions of steps per second, as the first of all processes says."""
    with socket.create_server(("localhost", 0)) as server:
        coordinator = f"localhost:{server.getsockname()[1]}"
    flags = f"--xla_force_host_platform_device_count={num_devices}"
    processes = []
    for process in range(num_processes):
        several = [coordinator, str(num_processes), str(process)] if num_processes > 1 else []
        processes.append(
            subprocess.Popen(
                [sys.executable, str(EXAMPLE), *several],
                env={**os.environ, "XLA_FLAGS": flags, "FUSELANE": "1" if fused else "0"},
                stdout=subprocess.PIPE,
                text=True,
            )
        )
    outputs = [process.communicate()[0] for process in processes]
    if any(process.returncode for process in processes):
        raise SystemExit(f"{num_processes} processes of {num_devices} devices failed")
    found = re.search(r"([\d.]+) million steps", outputs[0])
    assert found is not None, "the example says how fast it was"
    return float(found[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="two settings, once")
    parser.add_argument("--markdown", type=Path, help="write the table here too")
    arguments = parser.parse_args()
    lines = [
        "| Processes | Devices each | Plain XLA, million steps/s | Fuselane | Times |",
        "|---|---|---|---|---|",
    ]
    print("\n".join(lines))
    for num_processes, num_devices in SETTINGS[3:5] if arguments.quick else SETTINGS:
        rounds = [
            [measure(num_processes, num_devices, fused=fused) for fused in (False, True)]
            for _ in range(1 if arguments.quick else arguments.rounds)
        ]
        xla, ours = (statistics.median(column) for column in zip(*rounds, strict=True))
        line = f"| {num_processes} | {num_devices} | {xla:.1f} | {ours:.1f} | {ours / xla:.2f} |"
        lines.append(line)
        print(line, flush=True)
    if arguments.markdown:
        arguments.markdown.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
