"""Runs the parts of the GPU benchmark, each in a process of its own with its own time limit, and
writes what they found as JSON and as a page."""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

RESULTS: Final = Path(__file__).resolve().parents[1] / "results"
BENCHMARKS: Final = Path(__file__).resolve().parents[1]
TESTS: Final = BENCHMARKS.parent / "tests"
SHARES: Final = {"loops": 0.08, "cartpole": 0.30, "suite": 0.37, "tests": 0.25}
SUITE: Final = ("gymnax/", "monte-carlo/", "ode/", "mcmc/", "roots/", "recurrent/")


def main() -> int:
    """Runs everything; returns 1 if any result was wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--packages", default="", help="a folder with the suite's packages")
    parser.add_argument("--seconds", type=float, default=500, help="time for all parts together")
    parser.add_argument("--only", nargs="+", choices=sorted(SHARES), default=list(SHARES))
    options = parser.parse_args()
    if shutil.which("nvidia-smi") is None:
        print("There is no NVIDIA GPU here, or no driver: nvidia-smi is missing.", file=sys.stderr)
        return 2
    found: dict[str, Any] = {"date": time.strftime("%Y-%m-%d %H:%M"), "machine": describe()}
    with tempfile.TemporaryDirectory() as folder:
        for part in options.only:
            seconds = options.seconds * SHARES[part]
            out = Path(folder) / f"{part}.json"
            command = list_command(part, out, seconds, options.packages)
            print(f"== {part}, at most {seconds:.0f} s", file=sys.stderr, flush=True)
            found[part] = run_part(command, out, seconds)
            write(found)
    print((RESULTS / f"{stem(found)}.md").read_text(encoding="utf-8"))
    return int(is_wrong(found))


def list_command(part: str, out: Path, seconds: float, packages: str) -> list[str]:
    """Returns how a part is started."""
    python = [sys.executable]
    if part == "tests":
        files = [str(TESTS / "differential"), "-n", "8", "--maxfail=40"]
        report = [f"--junitxml={out}.xml", "-q", "-p", "no:cacheprovider"]
        return [*python, "-m", "pytest", *report, *files]
    if part == "suite":
        chosen = ["--only", *SUITE, "--seconds", "0.5", "--compile-rounds", "1"]
        given = ["--packages", packages] if packages else []
        return [*python, str(BENCHMARKS / "suite.py"), "--json", str(out), *chosen, *given]
    return [*python, "-m", f"card.{part}", str(out), "--seconds", str(seconds - 10)]


def run_part(command: Sequence[str], out: Path, seconds: float) -> dict[str, Any]:
    """Returns what a part wrote, how it ended and the end of what it said."""
    log = out.with_suffix(".log")
    start = time.monotonic()
    with log.open("wb") as output:
        try:
            run = subprocess.run(
                command,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=seconds,
                check=False,
                cwd=BENCHMARKS,
            )
            ended = f"exit code {run.returncode}"
        except subprocess.TimeoutExpired:
            ended = f"stopped after {seconds:.0f} s"
    said = log.read_text(encoding="utf-8", errors="replace")
    result: Any = None
    if out.is_file():
        result = json.loads(out.read_text(encoding="utf-8"))
    seconds = time.monotonic() - start
    return {"ended": ended, "seconds": seconds, "result": result, "said": said[-12_000:]}


def describe() -> dict[str, str]:
    """Returns the card, its driver and the versions that matter."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    program = (
        "import jax, jaxlib, llvmlite, sys; "
        "print(jax.__version__, jaxlib.__version__, llvmlite.__version__, sys.version.split()[0], "
        "jax.devices()[0].device_kind)"
    )
    return {
        "card": _output(query),
        "jax, jaxlib, llvmlite, Python, device": _output([sys.executable, "-c", program]),
    }


def _output(command: Sequence[str]) -> str:
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return (run.stdout.strip() or run.stderr.strip()[-300:]).replace("\n", "; ")


def is_wrong(found: Mapping[str, Any]) -> bool:
    """Whether any part saw a wrong result."""
    rows = (found.get("cartpole") or {}).get("result") or []
    loops = (found.get("loops") or {}).get("result") or []
    return any(row.get("wrong") for row in [*rows, *loops])


def stem(found: Mapping[str, Any]) -> str:
    """Returns the name of the files."""
    card = re.sub(r"[^a-z0-9]+", "-", found["machine"]["card"].partition(",")[0].lower())
    return f"gpu-{found['date'][:10]}-{card.strip('-') or 'unknown'}"


def write(found: Mapping[str, Any]) -> None:
    """Writes what there is so far."""
    RESULTS.mkdir(exist_ok=True)
    page = make_page(found)
    for suffix, text in (("json", json.dumps(found, indent=1)), ("md", page)):
        path = RESULTS / f"{stem(found)}.{suffix}"
        path.write_text(text + "\n", encoding="utf-8")
        if os.environ.get("OUT"):
            shutil.copy(path, os.environ["OUT"])


def make_page(found: Mapping[str, Any]) -> str:
    """Returns the results as Markdown."""
    lines = [f"# {found['machine']['card']}, {found['date']}", ""]
    lines += [f"- {name}: {value}" for name, value in found["machine"].items()]
    for part in SHARES:
        if part not in found:
            continue
        entry = found[part]
        lines += ["", f"## {part}", "", f"{entry['ended']}, {entry['seconds']:.0f} s", ""]
        lines += _TABLES[part](entry)
    return "\n".join(lines)


def _list_cartpole(entry: Mapping[str, Any]) -> list[str]:
    lines = [
        "| Variant | Envs x steps | XLA, ms | Command buffers | Fuselane | CUDA by hand"
        " | Times XLA | Times CUDA |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in entry["result"] or []:
        if "skipped" in row:
            continue
        ms = row["ms"]
        cells = [_ms(ms.get(name)) for name in ("xla", "command buffers", "fuselane")]
        cells += [_ms(ms.get("cuda by hand"))]
        cells += [_ratio(ms, "xla"), _ratio(ms, "cuda by hand")]
        size = f"{row['envs']} x {row['steps']}"
        lines.append(f"| {row['variant']} | {size} | {' | '.join(cells)} |")
        lines += [f"\n{name} failed: {text}\n" for name, text in row["failed"].items()]
        lines += [f"\n{name} is off by {off}\n" for name, off in row["wrong"].items()]
    return lines


def _ms(time_ms: float | None) -> str:
    return "" if time_ms is None else f"{time_ms:.2f}"


def _ratio(ms: Mapping[str, float], other: str) -> str:
    return f"{ms[other] / ms['fuselane']:.2f}" if other in ms and "fuselane" in ms else ""


def _list_loops(entry: Mapping[str, Any]) -> list[str]:
    return [f"- {row['name']}: {row['wrong'] or row['said']}" for row in entry["result"] or []]


def _list_end(entry: Mapping[str, Any]) -> list[str]:
    return ["```", *entry["said"].splitlines()[-80:], "```"]


_TABLES: Final = {
    "loops": _list_loops,
    "cartpole": _list_cartpole,
    "suite": _list_end,
    "tests": _list_end,
}


if __name__ == "__main__":
    sys.exit(main())
