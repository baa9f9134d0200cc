"""PTX for the loops that the CPU back end fuses in tests and in the suite, assembled by ptxas.

Every loop that becomes a kernel for the CPU in the tests (or the suite's programs) is turned into
PTX too, for one GPU model or several, and assembled: no GPU is needed. Where lanes may see each
other, estimates for that model decide; what XLA:GPU would not let us do counts as refused. The
table tells how many there are, why the others are not, and what registers and spills they take;
bounds below are for what is to stay as good as it is.

    python benchmarks/ptx.py --tests tests/differential --json docs/data/ptx.json
    python benchmarks/ptx.py --suite --packages PATH --gpu rtx2080ti a100 h100 b200

The tests take half an hour on two cores that do other work. A share of them can be run by itself,
and the shares put together:

    python benchmarks/ptx.py --tests tests/differential --share 1/4 --kernels 1.json
    python benchmarks/ptx.py --merge 1.json 2.json 3.json 4.json --json docs/data/ptx.json

Needs ptxas, as of the `gpu` extra.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import os
import resource
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final, final

import jax
import pytest

import fuselane
from fuselane import replacing
from fuselane.backends.backend import Backend, Planned, pick
from fuselane.backends.gpu import GpuBackend
from fuselane.codegen.llvm import compile_ptx, nvptx_target
from fuselane.codegen.nvptx import build_threads
from fuselane.config import Options
from fuselane.errors import FuselaneError, UnsupportedError
from fuselane.gpu import GPUS, GpuDescription
from fuselane.hlo.instruction import HloInstruction
from fuselane.lanes.identity import identity_of
from fuselane.lanes.program import LaneProgram
from fuselane.machine import describe_machine
from fuselane.replacing import Kernels, Place
from fuselane.xla.ptxas import assemble
from fuselane.xla.toolchain import find_toolchain
from programs import PROGRAMS
from tests.differential import harness

MANY_REGISTERS: Final = 200
"""Of the 255 there are; threads that have more have spills soon."""


PATIENCE_S: Final = 300.0
"""For ptxas, on a machine that has other work to do."""

AHEAD: Final = "It runs ahead of what XLA calls back for, which is for CPUs only."


MIN_SHARE: Final = 0.9
"""Of the loops that are to have PTX."""

MAX_MEDIAN_REGISTERS: Final = 48
"""More would leave a multiprocessor less than half of its threads (GPUs of 2,048 of them)."""

MAX_SPILL_SHARE: Final = 0.02
"""Of the loops with PTX that may spill; each that does is in the table."""

MANY_SPILL_BYTES: Final = 1024
"""Of one loop, stores and loads, in all of its code."""

MAX_MANY_SHARE: Final = 0.002
"""Of the loops with PTX that may spill more: one of 500. Of the tests' 1,249 one does, by 12,164
bytes with 32 registers: copying an array of 585 elements, a loop that ptxas seems to write out."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class KernelRow:
    """What became of one loop on one GPU.

    Attributes:
        gpu: Its name.
        key: Of its code for the CPU; other shares may have the same.
        program: Where it is from.
        refusal: Why there is no PTX; empty if there is.
        lines: Of PTX.
        llvm_s, ptxas_s: What LLVM took, and ptxas in processor time.
        registers, spill_bytes: As ptxas says; None if it refuses the PTX.
    """

    gpu: str
    key: str
    program: str
    refusal: str = ""
    lines: int = 0
    llvm_s: float = 0.0
    ptxas_s: float = 0.0
    registers: int | None = None
    spill_bytes: int | None = None


@final
@dataclass(slots=True)
class Recorder:
    """Assembles the PTX of every loop that becomes a kernel for the CPU, each once.

    Attributes:
        gpus: What the PTX is for.
        ptxas: NVIDIA's assembler.
        program: The program at hand; a test is its own.
        rows: What became of each loop on each GPU, by key.
    """

    gpus: Sequence[GpuDescription]
    ptxas: Path
    program: str = ""
    rows: dict[str, list[KernelRow]] = field(default_factory=dict)
    _formed: LaneProgram | None = None

    def install(self) -> None:
        """Looks over the shoulder of who replaces loops."""

        def picked(program: LaneProgram, backend: Backend) -> Planned:
            self._formed = self._formed or program
            return pick(program, backend)

        replace_loop = Kernels.replace

        def replaced(kernels: Kernels, loop: HloInstruction, place: Place, *rest: Any) -> Any:
            self._formed = None
            refused = replace_loop(kernels, loop, place, *rest)
            formed = self._formed
            if refused is None and formed is not None:
                key = identity_of(formed)
                if key not in self.rows:
                    self.rows[key] = [self._assembled(formed, key, place, g) for g in self.gpus]
            return refused

        vars(replacing).update(pick=picked)
        Kernels.replace = replaced  # type: ignore[method-assign, assignment]

    def _assembled(
        self, program: LaneProgram, key: str, place: Place, gpu: GpuDescription
    ) -> KernelRow:
        test = os.environ.get("PYTEST_CURRENT_TEST", "").partition(" ")[0]
        row = KernelRow(gpu=gpu.name, key=key, program=self.program or test)
        if place.ahead is not None:
            return replace(row, refusal=AHEAD)
        start = time.perf_counter()
        try:
            planned = pick(program, GpuBackend(Options(), gpu))
            code = build_threads(planned.program, planned.plan, gpu)
            text = compile_ptx(code.ir, nvptx_target(gpu.compute_capability))
        except UnsupportedError as error:
            return replace(row, refusal=error.decision.sentence)
        except Exception as error:
            return replace(row, refusal=f"{type(error).__name__}: {error}"[:200])
        row = replace(row, lines=text.count("\n"), llvm_s=time.perf_counter() - start)
        start = child_s()
        usage = next(iter(assemble(self.ptxas, [text], PATIENCE_S).values()), None)
        row = replace(row, ptxas_s=child_s() - start)
        if usage is None:
            return row
        return replace(row, registers=usage.registers, spill_bytes=usage.spill_bytes)


def summarise(rows: Sequence[KernelRow]) -> dict[str, Any]:
    """Returns the numbers of a GPU: how many there are, what they take, and the worst."""
    refused = collections.Counter(row.refusal for row in rows if row.refusal)
    tried = [row for row in rows if not row.refusal]
    good = [row for row in tried if row.registers is not None]
    registers = sorted(row.registers or 0 for row in good)
    slowest = sorted(tried, key=lambda row: -row.ptxas_s)[:10]
    fullest = [
        (row.registers or 0, row.spill_bytes or 0, row.program)
        for row in good
        if row.spill_bytes or (row.registers or 0) > MANY_REGISTERS
    ]
    return {
        "loops": len(rows),
        "assembled": len(good),
        "share": len(good) / max(len(rows), 1),
        "rejected by ptxas": len(tried) - len(good),
        "refused": dict(refused.most_common()),
        "median registers": statistics.median(registers) if registers else None,
        "most registers": max(registers, default=None),
        "with spills": sum(bool(row.spill_bytes) for row in good),
        "with many spills": sum((row.spill_bytes or 0) > MANY_SPILL_BYTES for row in good),
        "median seconds of LLVM": statistics.median(r.llvm_s for r in good) if good else None,
        "median seconds of ptxas": statistics.median(r.ptxas_s for r in tried) if tried else None,
        "slowest [seconds, lines of PTX]": [
            (round(row.ptxas_s, 2), row.lines, row.program) for row in slowest
        ],
        "fullest [registers, bytes of spills]": sorted(fullest, reverse=True),
    }


def find_broken(numbers: Mapping[str, Any]) -> list[str]:
    """Returns which bounds the numbers of a GPU break, as `summarise` returns them."""
    with_ptx = max(numbers["assembled"], 1)
    measured = {
        "rejected by ptxas": (numbers["rejected by ptxas"], 0),
        "without PTX": (1 - numbers["share"], 1 - MIN_SHARE),
        "median registers": (numbers["median registers"] or 0, MAX_MEDIAN_REGISTERS),
        "share with spills": (numbers["with spills"] / with_ptx, MAX_SPILL_SHARE),
        "share with many spills": (numbers["with many spills"] / with_ptx, MAX_MANY_SHARE),
    }
    return [
        f"{name}: {value:.4g}, more than {most:.4g}"
        for name, (value, most) in measured.items()
        if value > most + 1e-9
    ]


@final
@dataclass(frozen=True, slots=True)
class Share:
    """A plug-in of pytest's that leaves a share of the tests: every `of`-th.

    Attributes:
        number: Which share, from 1.
        of: How many there are.
    """

    number: int
    of: int

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        """Drops the tests of other shares."""
        items[:] = items[self.number - 1 :: self.of]


def compile_suite(recorder: Recorder) -> None:
    """Compiles every program of the suite with Fuselane on, and runs none."""
    for program in PROGRAMS:
        recorder.program = program.name
        try:
            with jax.enable_x64(program.x64):
                function, arguments = program.build(program.full)
                with fuselane.enabled(min_gain=0, cache_mib=0):
                    jax.jit(function).lower(*arguments).compile()
        except ImportError as error:
            print(f"{program.name}: {error}", file=sys.stderr)


def child_s() -> float:
    """Returns the processor time of the processes that this one has started."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def compile_only(program: Callable[..., Any], *arguments: Any, x64: bool = False, **_: Any) -> None:
    """What tests call to compare results: compiles with Fuselane on, and runs nothing."""
    with jax.enable_x64(x64), fuselane.enabled():
        jax.jit(program).lower(*arguments).compile()


def find_ptxas() -> Path | None:
    """Returns NVIDIA's assembler, if it is installed."""
    with contextlib.suppress(FuselaneError):
        return find_toolchain().ptxas
    return None


def run(options: argparse.Namespace, ptxas: Path) -> list[KernelRow]:
    """Compiles what was asked for."""
    recorder = Recorder([GPUS[name] for name in options.gpu], ptxas)
    recorder.install()
    if options.tests:
        vars(harness).update(check=compile_only)
        share = Share(*map(int, options.share.split("/")))
        pytest.main(["-q", "-p", "no:cacheprovider", *options.tests], plugins=[share])
    if options.suite:
        compile_suite(recorder)
    return [row for rows in recorder.rows.values() for row in rows]


def merge(paths: Sequence[Path]) -> list[KernelRow]:
    """Returns the rows of several runs, each once."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
    rows = [KernelRow(**row) for part in found for row in part]
    return list({(row.gpu, row.key): row for row in rows}.values())


def main() -> int:
    """Compiles what was asked for; returns 1 if a bound is broken."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tests", nargs="*", default=[], help="what pytest is to run")
    parser.add_argument("--share", default="1/1", help="1/4: every fourth test from the first")
    parser.add_argument("--suite", action="store_true", help="the suite's programs")
    parser.add_argument("--packages", type=Path, help="a folder with the suite's packages")
    parser.add_argument("--merge", nargs="*", type=Path, default=[], help="what --kernels wrote")
    parser.add_argument("--gpu", choices=sorted(GPUS), nargs="+", default=["h100"])
    parser.add_argument("--kernels", type=Path, help="where all kernels go, for --merge")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.packages is not None:
        sys.path.append(str(options.packages))
    ptxas = find_ptxas()
    if ptxas is None:
        print("There is no ptxas: pip install 'fuselane[gpu]' brings one.", file=sys.stderr)
        return 2
    rows = merge(options.merge) if options.merge else run(options, ptxas)
    if options.kernels is not None:
        options.kernels.write_text(json.dumps([asdict(row) for row in rows]), encoding="utf-8")
    by_gpu = {name: [row for row in rows if row.gpu == name] for name in {r.gpu: 0 for r in rows}}
    tables = {name: summarise(of_gpu) for name, of_gpu in by_gpu.items()}
    result = {"date": time.strftime("%Y-%m-%d"), "machine": describe_machine(), "gpus": tables}
    print(json.dumps(result, indent=2))
    if options.json is not None:
        options.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    broken = [f"{name}: {text}" for name in tables for text in find_broken(tables[name])]
    print("\n".join(broken), file=sys.stderr)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
