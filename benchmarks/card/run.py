"""Runs the parts of the GPU benchmark, each in a process of its own with its own time limit, and
writes what they found as JSON and as a page."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
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

from card.child import run_group

RESULTS: Final = Path(__file__).resolve().parents[1] / "results"
BENCHMARKS: Final = Path(__file__).resolve().parents[1]
TESTS: Final = BENCHMARKS.parent / "tests"
NO_GPU: Final = "There is no NVIDIA GPU here, or no driver: nvidia-smi is missing."
ONLY_CPU: Final = "JAX sees no NVIDIA GPU here. Its first device: {}."
GPU_PLATFORMS: Final = ("gpu", "cuda")
SHARES: Final = {
    "loops": 0.10,
    "cartpole": 0.22,
    "strategies": 0.14,
    "suite": 0.28,
    "peers": 0.09,
    "tests": 0.17,
}
"""Parts in order, with their shares of the time; what one leaves goes to those behind it."""

MAX_WORKERS: Final = 16
WORKER_MIB: Final = 1024
"""Of the GPU's memory that a process has which runs tests."""

MAX_NAME: Final = 40
"""Letters of a card's name in those of files: what nvidia-smi complains of can be long."""

QUERY_S: Final = 60.0
"""For a question about the machine, such as which devices JAX has."""


def main() -> int:
    """Runs everything; returns 1 if any result was wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--packages", default="", help="a folder with the suite's packages")
    parser.add_argument("--seconds", type=float, default=500, help="time for all parts together")
    parser.add_argument("--only", nargs="+", choices=sorted(SHARES), default=list(SHARES))
    parser.add_argument("--results", type=Path, help="where the files go")
    parser.add_argument(
        "--dry", action="store_true", help="every part at its smallest, on the CPU, for rehearsal"
    )
    options = parser.parse_args()
    deadline = time.monotonic() + options.seconds
    if options.packages:
        paths = (os.environ.get("PYTHONPATH"), os.path.abspath(options.packages))
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    found: dict[str, Any] = {"date": time.strftime("%Y-%m-%d %H:%M")}
    if options.dry:
        return rehearse(found, options)
    folder = options.results or RESULTS
    found["machine"] = describe()
    found |= load_parts(found, folder)
    missing = find_missing(found["machine"])
    if missing:
        found["nothing measured"] = missing
        write(found, folder)
        print(missing, file=sys.stderr)
        return 2
    run_parts(found, folder, options, deadline)
    print(make_page(found))
    return int(is_wrong(found))


def run_parts(
    found: dict[str, Any], folder: Path, options: argparse.Namespace, deadline: float
) -> None:
    """Runs the parts that were asked for, and writes all there is after each.

    Args:
        found: What there is.
        folder: Where it is written.
        options: The command line's.
        deadline: When all parts are to be over; in a rehearsal each may take as long.
    """
    with tempfile.TemporaryDirectory() as parts:
        for number, part in enumerate(options.only):
            share = SHARES[part] / sum(SHARES[p] for p in options.only[number:])
            seconds = max(deadline - time.monotonic(), 0.0) * share
            if options.dry:
                seconds = options.seconds
            out = Path(parts) / f"{part}.json"
            command = list_command(part, out, seconds, options, found["machine"]["card"])
            print(f"== {part}, at most {seconds:.0f} s", file=sys.stderr, flush=True)
            start = time.strftime("%Y-%m-%d %H:%M")
            found[part] = {"start": start} | run_part(command, out, seconds)
            write(found, folder)


def rehearse(found: dict[str, Any], options: argparse.Namespace) -> int:
    """Runs every part on the CPU, as small as it gets; returns 1 if one breaks.

    Its files stay only where `--results` says so.
    """
    os.environ |= {"JAX_PLATFORMS": "cpu", "FUSELANE_GPU": "0"}
    os.environ.pop("OUT", None)
    found["nothing measured"] = "A rehearsal on the CPU."
    found["machine"] = describe()
    with tempfile.TemporaryDirectory() as folder:
        run_parts(found, options.results or Path(folder), options, deadline=float("inf"))
    print(make_page(found))
    parts = [found[part] for part in options.only]
    return int(any(p["ended"] != "exit code 0" or p["result"] is None for p in parts))


def list_command(
    part: str, out: Path, seconds: float, options: argparse.Namespace, card: str
) -> list[str]:
    """Returns how a part is started on a card."""
    python = [sys.executable]
    if part == "tests":
        files = [str(TESTS / "differential")]
        if options.dry:
            files = [str(TESTS / "differential" / "test_comparison.py")]
        has_workers = importlib.util.find_spec("xdist") is not None and not options.dry
        workers = ["-n", str(count_workers(card))] if has_workers else []
        report = ["-q", "-p", "no:cacheprovider", "-p", "card.counting"]
        return [*python, "-m", "pytest", *report, *workers, f"--results={out}", *files]
    command = [*python, "-m", f"card.{part}", str(out), "--seconds", str(max(seconds - 10, 5))]
    if options.dry:
        command += ["--quick", *(["--device", "cpu"] if part == "peers" else [])]
    return command


def count_workers(card: str) -> int:
    """Returns how many processes run tests side by side, on a card as nvidia-smi describes it."""
    found = re.search(r"(\d+) MiB", card)
    fitting = int(found[1]) // WORKER_MIB if found else MAX_WORKERS
    return max(1, min(os.cpu_count() or 1, fitting, MAX_WORKERS))


def run_part(command: Sequence[str], out: Path, seconds: float) -> dict[str, Any]:
    """Returns what a part wrote, how it ended and the end of what it said."""
    log = out.with_suffix(".log")
    start = time.monotonic()
    with log.open("wb") as output:
        ended = run_group(command, seconds, output=output, cwd=BENCHMARKS)
    said = log.read_text(encoding="utf-8", errors="replace")
    result: Any = None
    with contextlib.suppress(OSError, ValueError):  # not there, or not whole
        result = json.loads(out.read_text(encoding="utf-8"))
    seconds = time.monotonic() - start
    return {"ended": ended, "seconds": seconds, "result": result, "said": said[-12_000:]}


def describe() -> dict[str, str]:
    """Returns the card, its driver and the versions that matter."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    versions = (
        "import jax, jaxlib, llvmlite, sys; "
        "print(jax.__version__, jaxlib.__version__, llvmlite.__version__, sys.version.split()[0])"
    )
    devices = "import jax; d = jax.devices()[0]; print(d.platform, d.device_kind, sep=', ')"
    return {
        "card": _output(query) if shutil.which("nvidia-smi") else "no NVIDIA GPU",
        "jax, jaxlib, llvmlite, Python": _output([sys.executable, "-c", versions]),
        "JAX's first device": _output([sys.executable, "-c", devices]),
    }


def find_missing(machine: Mapping[str, str]) -> str:
    """Returns a sentence about why nothing can be measured on a machine, or "".

    Args:
        machine: As `describe` tells.
    """
    device = machine["JAX's first device"]
    if device.partition(",")[0] in GPU_PLATFORMS:
        return ""
    return NO_GPU if shutil.which("nvidia-smi") is None else ONLY_CPU.format(device)


def _output(command: Sequence[str]) -> str:
    """Returns what a command prints, or else the end of what it complains of, on one line."""
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=QUERY_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    said = run.stdout.strip() if run.returncode == 0 else run.stderr.strip()[-300:]
    return said.replace("\n", "; ")


def is_wrong(found: Mapping[str, Any]) -> bool:
    """Whether any part saw a wrong result."""

    def rows(part: str) -> list[Any]:
        result = (found.get(part) or {}).get("result") or []
        return list(result["rows"] if isinstance(result, dict) else result)

    parts = ("loops", "cartpole", "strategies")
    wrong = any(row.get("wrong") for part in parts for row in rows(part))
    return wrong or any(row.get("agrees") is False for row in rows("suite"))


def stem(found: Mapping[str, Any]) -> str:
    """Returns the name of the files."""
    card = re.sub(r"[^a-z0-9]+", "-", found["machine"]["card"].partition(",")[0].lower())
    return f"gpu-{found['date'][:10]}-{card.strip('-')[:MAX_NAME] or 'unknown'}"


def load_parts(found: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Returns the parts that were measured on the same card earlier that day."""
    path = folder / f"{stem(found)}.json"
    earlier = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return {part: earlier[part] for part in SHARES if part in earlier}


def write(found: Mapping[str, Any], folder: Path) -> None:
    """Writes what there is so far."""
    folder.mkdir(parents=True, exist_ok=True)
    page = make_page(found)
    for suffix, text in (("json", json.dumps(found, indent=1)), ("md", page)):
        path = folder / f"{stem(found)}.{suffix}"
        path.write_text(text + "\n", encoding="utf-8")
        if os.environ.get("OUT"):
            with contextlib.suppress(OSError):
                shutil.copy(path, os.environ["OUT"])


def make_page(found: Mapping[str, Any]) -> str:
    """Returns the results as Markdown."""
    lines = [f"# {found['machine']['card']}, {found['date']}", ""]
    lines += [f"- {name}: {value}" for name, value in found["machine"].items()]
    if "nothing measured" in found:
        lines += ["", f"Nothing was measured. {found['nothing measured']}"]
    for part in SHARES:
        if part not in found:
            continue
        entry = found[part]
        ended = f"{entry['ended']}, {entry['seconds']:.0f} s from {entry['start'][-5:]} on"
        lines += ["", f"## {part}", "", ended, ""]
        lines += _TABLES[part](entry)
        if entry["ended"] != "exit code 0":
            lines += ["", "```", *entry["said"].splitlines()[-5:], "```"]
    return "\n".join(lines)


def _list_cartpole(entry: Mapping[str, Any]) -> list[str]:
    lines = [
        "| Variant | Envs x steps | XLA, ms | Command buffers | Fuselane | CUDA by hand"
        " | Times XLA | Times CUDA | Share of peak |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    remarks: list[str] = []
    for row in entry["result"] or []:
        if "error" in row:
            remarks.append(f"- {row['name']}: {row['error']}")
            continue
        ms = row["ms"]
        cells = [_ms(ms.get(name)) for name in ("xla", "command buffers", "fuselane")]
        cells += [_ms(ms.get("cuda by hand"))]
        cells += [_ratio(ms, "xla"), _ratio(ms, "cuda by hand"), _share(row.get("share of peak"))]
        size = f"{row['envs']} x {row['steps']}"
        lines.append(f"| {row['variant']} | {size} | {' | '.join(cells)} |")
        where = f"{row['variant']}, {size}"
        remarks += [f"- {where}: {name} failed: {text}" for name, text in row["failed"].items()]
        remarks += [f"- {where}: {name} is off by {off}" for name, off in row["wrong"].items()]
        remarks += [f"- {where}: {text}" for text in row["remarks"]]
    return [*lines, "", *remarks]


def _list_strategies(entry: Mapping[str, Any]) -> list[str]:
    rows = [row for row in entry["result"] or [] if "ms" in row]
    names = list(dict.fromkeys(name for row in rows for name in row["ms"]))
    lines = [
        f"| Program | {' | '.join(f'{name}, ms' for name in names)} |",
        "|---" * (len(names) + 1) + "|",
    ]
    remarks: list[str] = []
    for row in entry["result"] or []:
        if "error" in row:
            remarks.append(f"- {row['name']}: {row['error']}")
            continue
        cells = " | ".join(_ms(row["ms"].get(name)) for name in names)
        lines.append(f"| {row['name']} | {cells} |")
        for what in ("failed", "wrong", "said"):
            remarks += [f"- {row['name']}, {k}: {what}: {v}" for k, v in row[what].items()]
    return [*lines, "", *remarks]


def _list_suite(entry: Mapping[str, Any]) -> list[str]:
    lines = [
        "| Program | XLA, ms | Fuselane, ms | Times | Compiling | Fused | Agrees |",
        "|---|---|---|---|---|---|---|",
    ]
    result = entry["result"] or {"rows": [], "missing": [], "no time for": []}
    remarks = [*result["missing"], f"No time for {len(result['no time for'])} more."]
    for row in result["rows"]:
        if "times" not in row:
            remarks.append(f"{row['name']}: {row.get('error') or row.get('skipped')}")
            continue
        cells = [row["name"], _ms(row["xla_ms"]), _ms(row["fuselane_ms"]), f"{row['times']:.2f}"]
        cells += [f"{row['compile_ratio']:.2f}", f"{row['num_fused']} of {len(row['loops'])}"]
        cells += ["yes" if row["agrees"] else f"no: {row['disagreement']}"]
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, "", *(f"- {remark}" for remark in remarks)]


def _list_peers(entry: Mapping[str, Any]) -> list[str]:
    lines = ["| Engine | Envs x steps | ms |", "|---|---|---|"]
    for row in entry["result"] or []:
        if "engine" not in row:
            return [row["skipped"]]
        said = _ms(row.get("ms")) or row.get("failed") or row.get("skipped") or "not done"
        lines.append(f"| {row['engine']} | {row['envs']} x {row['steps']} | {said} |")
    return lines


def _list_tests(entry: Mapping[str, Any]) -> list[str]:
    result = entry["result"] or {}
    counts = ", ".join(f"{count} {name}" for name, count in result.get("counts", {}).items())
    failed = [f"- {name}: {text}" for name, text in result.get("failed", {}).items()]
    return [counts or "No counts.", "", *failed]


def _list_loops(entry: Mapping[str, Any]) -> list[str]:
    return [
        f"- {row['name']}: {row.get('error') or row['wrong'] or row['said']}"
        for row in entry["result"] or []
    ]


def _ms(time_ms: float | None) -> str:
    return "" if time_ms is None else f"{time_ms:.2f}"


def _share(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f}%"


def _ratio(ms: Mapping[str, float], other: str) -> str:
    return f"{ms[other] / ms['fuselane']:.2f}" if other in ms and "fuselane" in ms else ""


_TABLES: Final = {
    "loops": _list_loops,
    "cartpole": _list_cartpole,
    "strategies": _list_strategies,
    "suite": _list_suite,
    "peers": _list_peers,
    "tests": _list_tests,
}


if __name__ == "__main__":
    sys.exit(main())
