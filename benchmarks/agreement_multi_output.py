"""Whether our multi-output fusion makes the kernels with several results that XLA:GPU's makes.

The module just before XLA's pass goes through ours; the result is compared with the module after
XLA's pass (see `agreement_likeness.py`). Modules that XLA's pass leaves as they are count, too.
XLA:GPU's horizontal fusions, gone since 2025-07, have no counterpart to be compared with.

    python benchmarks/agreement_multi_output.py --dumps FOLDER --docs docs/agreement.md
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

from agreement import capture_program, write_docs
from agreement_corpus import CORPUS
from agreement_likeness import Likeness, compare_modules, total
from fuselane.errors import FuselaneError
from fuselane.fusion.multi_output_fusion import MultiOutputFusion
from fuselane.fusion.pipelines import run_pipeline
from fuselane.gpu import GpuDescription
from fuselane.hlo import HloModule
from fuselane.xla.captured import CapturedModule
from fuselane.xla.targets import Target, find_target
from programs.program import Program

PASS: Final = "multi_output_fusion"
PIPELINE: Final = "fusion"
MARK: Final = "gpu-multi-output"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """What came of one module.

    Attributes:
        program: Whose it is.
        has_changed: Whether XLA's pass changed it.
        likeness: Of XLA's module and ours.
        seconds: CPU time of our pass.
    """

    program: str
    has_changed: bool
    likeness: Likeness
    seconds: float


def main(arguments: Sequence[str] | None = None) -> int:
    """Compares all programs asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", default=[], metavar="PART")
    parser.add_argument("--target", default="h200")
    parser.add_argument("--dumps", type=Path, help="only programs whose dumps are there")
    parser.add_argument("--packages", nargs="+", type=Path, default=[], metavar="FOLDER")
    parser.add_argument("--docs", type=Path, help="put the table between a page's two marks")
    options = parser.parse_args(arguments)
    sys.path.extend(map(str, options.packages))
    target = find_target(options.target)
    results: list[Agreement] = []
    for program in CORPUS:
        if options.only and not any(part in program.name for part in options.only):
            continue
        if options.dumps and not (options.dumps / program.name.replace("/", "_")).is_dir():
            continue
        try:
            results += compare_program(program, options.target, options.dumps)
        except (FuselaneError, OSError, ValueError) as error:
            print(f"{program.name:36} {error}", flush=True)
    summary = make_summary(target, results)
    print(summary)
    if options.docs is not None:
        write_docs(options.docs, MARK, summary)
    return 0


def compare_program(program: Program, name: str, dumps: Path | None) -> Iterator[Agreement]:
    """Yields an agreement for each module of a program that came to XLA's pass."""
    gpu = find_target(name).gpu
    assert gpu is not None
    for module in capture_program(program, name, dumps):
        found = stages_around(module)
        if found is not None:
            yield compare(program.name, *found, gpu)


def stages_around(module: CapturedModule) -> tuple[bytes, bytes] | None:
    """Returns the module before and after XLA's pass; the same twice if that changed nothing."""
    for position, stage in enumerate(module.stages):
        if stage.name == PASS:
            return module.stages[position - 1].data, stage.data
    last = [stage for stage in module.stages if stage.pipeline == PIPELINE]
    return (last[-1].data, last[-1].data) if last else None


def compare(program: str, before: bytes, after: bytes, gpu: GpuDescription) -> Agreement:
    """Runs our pass on a module and compares with what XLA's made of it."""
    ours = HloModule.from_bytes(before)
    start = time.process_time()
    run_pipeline([MultiOutputFusion(gpu=gpu)], ours)
    seconds = time.process_time() - start
    likeness = compare_modules(ours, HloModule.from_bytes(after))
    print(
        f"{program:36} {likeness.pairs:6} pairs {likeness.same_pairs:6} alike"
        f" {likeness.edges:7} edges {likeness.same_edges:7} alike {seconds:6.2f} s",
        flush=True,
    )
    return Agreement(
        program=program, has_changed=before is not after, likeness=likeness, seconds=seconds
    )


def make_summary(target: Target, results: Sequence[Agreement]) -> str:
    """Returns totals, and the modules that differ, as markdown."""
    whole = total(result.likeness for result in results)
    apart = [result for result in results if not result.likeness.is_exact]
    num_exact = len(results) - len(apart)
    lines = [
        f"Target {target.name}: {len(results)} modules, of which XLA's pass changes"
        f" {sum(result.has_changed for result in results)}. {num_exact}"
        f" ({num_exact / max(len(results), 1):.1%}) are exactly alike; {whole.edges_alike()} of"
        f" {whole.edges:,} edges and {whole.pairs_alike()} of {whole.pairs:,} pairs of results of"
        " one kernel agree."
    ]
    if apart:
        lines += ["", "| program | edges | alike | pairs | alike |", "|---|---:|---:|---:|---:|"]
    lines += [
        f"| {r.program} | {r.likeness.edges:,} | {r.likeness.edges_alike(1)} |"
        f" {r.likeness.pairs:,} | {r.likeness.pairs_alike(1)} |"
        for r in apart
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    raise SystemExit(main())
