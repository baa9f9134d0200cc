"""PTX for the loops that the CPU back end fuses in tests and in the suite, assembled by ptxas.

Every lane program that the tests (or the suite's programs) turn into a kernel for the CPU is turned
into PTX too, for one GPU model, and assembled: no GPU is needed. The table tells how many there
are, why the others are not, and what registers and spills they take.

    python benchmarks/ptx.py --tests tests/differential --gpu h100 --json docs/data/ptx.json
    python benchmarks/ptx.py --packages PATH --gpu h100

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
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, final

import jax
import pytest

import fuselane
from fuselane.backends import cpu
from fuselane.codegen.kernel import KernelCode, build_planned
from fuselane.codegen.llvm import compile_ptx, nvptx_target
from fuselane.codegen.nvptx import build_threads
from fuselane.codegen.thread_plan import make_thread_plan
from fuselane.errors import FuselaneError, UnsupportedError
from fuselane.gpu import GPUS, GpuDescription
from fuselane.lanes.program import LaneProgram
from fuselane.machine import describe_machine
from fuselane.xla.captured import KernelUsage
from fuselane.xla.ptxas import assemble
from fuselane.xla.toolchain import find_toolchain
from programs import PROGRAMS
from tests.differential import harness

MANY_REGISTERS: Final = 200
"""Of the 255 there are; threads that have more have spills soon."""


@final
@dataclass(slots=True)
class Recorder:
    """Keeps the PTX of every lane program that becomes a kernel for the CPU, each once.

    Attributes:
        gpu: What the PTX is for.
        program: The program at hand; a test is its own.
        texts: PTX, and of which program.
        refusals: Sentences, each as often as it was given.
        seconds: That LLVM took for each.
    """

    gpu: GpuDescription
    program: str = ""
    texts: dict[str, str] = field(default_factory=dict)
    refusals: collections.Counter[str] = field(default_factory=collections.Counter)
    seconds: list[float] = field(default_factory=list)
    _seen: set[str] = field(default_factory=set)

    def install(self) -> None:
        """Looks over the shoulder of the CPU's back end."""

        def built(program: LaneProgram, *arguments: Any, **keywords: Any) -> KernelCode:
            code = build_planned(program, *arguments, **keywords)
            if code.ir not in self._seen:
                self._seen.add(code.ir)
                self._add(program)
            return code

        vars(cpu).update(build_planned=built)

    def _add(self, program: LaneProgram) -> None:
        start = time.perf_counter()
        try:
            code = build_threads(program, make_thread_plan(program, self.gpu), self.gpu)
            text = compile_ptx(code.ir, nvptx_target(self.gpu.compute_capability))
        except UnsupportedError as error:
            self.refusals[error.decision.sentence] += 1
        except Exception as error:
            self.refusals[f"{type(error).__name__}: {error}"[:200]] += 1
        else:
            test = os.environ.get("PYTEST_CURRENT_TEST", "").partition(" ")[0]
            self.texts[text] = self.program or test
            self.seconds.append(time.perf_counter() - start)


def summarise(recorder: Recorder, usages: list[KernelUsage | None]) -> dict[str, Any]:
    """Returns the numbers of a run."""
    good = [usage for usage in usages if usage is not None]
    refused = sum(recorder.refusals.values())
    total = len(usages) + refused
    registers = sorted(usage.registers for usage in good)
    return {
        "gpu": recorder.gpu.name,
        "loops": total,
        "assembled": len(good),
        "share": len(good) / max(total, 1),
        "rejected by ptxas": len(usages) - len(good),
        "refused": dict(recorder.refusals.most_common()),
        "median registers": statistics.median(registers) if registers else None,
        "most registers": max(registers, default=None),
        "with spills": sum(usage.spill_bytes > 0 for usage in good),
        "median seconds of LLVM": statistics.median(recorder.seconds) if good else None,
    }


def describe_worst(
    texts: Mapping[str, str], times: list[float], usages: list[KernelUsage | None]
) -> dict[str, Any]:
    """Returns how long ptxas took, for which kernels longest, and which have spills or many
    registers."""
    slowest = sorted(zip(times, texts, strict=True), reverse=True)[:10]
    fullest = [
        (usage.registers, usage.spill_bytes, program)
        for program, usage in zip(texts.values(), usages, strict=True)
        if usage is not None and (usage.spill_bytes or usage.registers > MANY_REGISTERS)
    ]
    return {
        "median seconds of ptxas": statistics.median(times) if times else None,
        "slowest [seconds, lines of PTX]": [
            (round(seconds, 2), text.count("\n"), texts[text]) for seconds, text in slowest
        ],
        "fullest [registers, bytes of spills]": sorted(fullest, reverse=True),
    }


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


def main() -> int:
    """Compiles what was asked for; returns 1 if ptxas refuses anything."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tests", nargs="*", default=[], help="what pytest is to run")
    parser.add_argument("--suite", action="store_true", help="the suite's programs")
    parser.add_argument("--packages", type=Path, help="a folder with the suite's packages")
    parser.add_argument("--gpu", choices=sorted(GPUS), default="h100")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.packages is not None:
        sys.path.append(str(options.packages))
    ptxas = find_ptxas()
    if ptxas is None:
        print("There is no ptxas: pip install 'fuselane[gpu]' brings one.", file=sys.stderr)
        return 2
    recorder = Recorder(GPUS[options.gpu])
    recorder.install()
    if options.tests:
        vars(harness).update(check=compile_only)
        pytest.main(["-q", "-p", "no:cacheprovider", *options.tests])
    if options.suite:
        compile_suite(recorder)
    times: list[float] = []
    usages: list[KernelUsage | None] = []
    for text in recorder.texts:
        start = child_s()
        usages.append(next(iter(assemble(ptxas, [text]).values()), None))
        times.append(child_s() - start)
    result = summarise(recorder, usages) | describe_worst(recorder.texts, times, usages)
    result |= {"date": time.strftime("%Y-%m-%d"), "machine": describe_machine()}
    print(json.dumps(result, indent=2))
    if options.json is not None:
        options.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return 1 if result["rejected by ptxas"] else 0


if __name__ == "__main__":
    sys.exit(main())
