"""Whether our multi-output fusion makes the kernels with several results that XLA:GPU's makes.

The module just before XLA's pass goes through ours; the result is compared with the module after
XLA's pass. Compared are edges, as `agreement.py` does, and pairs of values that one kernel returns.
Modules that XLA's pass leaves as they are count, too. XLA:GPU's horizontal fusions, gone since
2025-07, have no counterpart to be compared with.

    python benchmarks/agreement_multi_output.py --dumps FOLDER --docs docs/agreement.md
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Final, final

from agreement import capture_program, write_docs
from agreement_corpus import CORPUS
from fuselane.errors import FuselaneError
from fuselane.fusion.edges import Values, find_edges
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
        edges: Edges in XLA's module or ours.
        same_edges: Edges in both.
        pairs: Pairs of results of one kernel, in XLA's module or ours.
        same_pairs: Pairs in both.
        seconds: CPU time of our pass.
    """

    program: str
    has_changed: bool
    edges: int
    same_edges: int
    pairs: int
    same_pairs: int
    seconds: float

    @property
    def is_exact(self) -> bool:
        """Whether both modules are alike."""
        return self.edges == self.same_edges and self.pairs == self.same_pairs


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
    values = Values()
    my_edges, mine = find_edges(ours, values)
    its_edges, its = find_edges(HloModule.from_bytes(after), values)
    my_pairs, its_pairs = pairs_of(mine), pairs_of(its)
    result = Agreement(
        program=program,
        has_changed=before is not after,
        edges=len(my_edges | its_edges),
        same_edges=len(my_edges & its_edges),
        pairs=len(my_pairs | its_pairs),
        same_pairs=len(my_pairs & its_pairs),
        seconds=seconds,
    )
    print(
        f"{program:36} {result.pairs:6} pairs {result.same_pairs:6} alike"
        f" {result.edges:7} edges {result.same_edges:7} alike {seconds:6.2f} s",
        flush=True,
    )
    return result


def pairs_of(kernels: set[frozenset[int]]) -> set[tuple[int, int]]:
    """Returns all pairs of results of one kernel."""
    return {pair for results in kernels for pair in combinations(sorted(results), 2)}


def make_summary(target: Target, results: Sequence[Agreement]) -> str:
    """Returns totals, and the modules that differ, as markdown."""
    total: Counter[str] = Counter()
    for result in results:
        total.update(changed=result.has_changed, exact=result.is_exact)
        total.update(edges=result.edges, same_edges=result.same_edges)
        total.update(pairs=result.pairs, same_pairs=result.same_pairs)
    lines = [
        f"Target {target.name}: {len(results)} modules, of which XLA's pass changes"
        f" {total['changed']}. {total['exact']} ({total['exact'] / max(len(results), 1):.1%}) are"
        f" exactly alike; {total['same_edges'] / max(total['edges'], 1):.2%} of"
        f" {total['edges']:,} edges and {total['same_pairs'] / max(total['pairs'], 1):.2%} of"
        f" {total['pairs']:,} pairs of results of one kernel agree."
    ]
    apart = [result for result in results if not result.is_exact]
    if apart:
        lines += ["", "| program | edges | alike | pairs | alike |", "|---|---:|---:|---:|---:|"]
    lines += [
        f"| {r.program} | {r.edges:,} | {r.same_edges / max(r.edges, 1):.1%} | {r.pairs:,} |"
        f" {r.same_pairs / max(r.pairs, 1):.1%} |"
        for r in apart
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    raise SystemExit(main())
