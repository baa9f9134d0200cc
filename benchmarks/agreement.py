"""Whether our fusion strategies fuse what XLA itself fuses, edge by edge.

XLA's own dumps are the reference: the module just before its fusion pass goes through our strategy,
and the result is compared with XLA's module just after that pass (see `agreement_likeness.py`).

    python benchmarks/agreement.py --packages FOLDER --docs docs/agreement.md
    python benchmarks/agreement.py --target h200 --dumps FOLDER

With `--dumps`, `FOLDER/PROGRAM` holds what `--xla_dump_to` left for a program; all others are
compiled here, for a GPU without one (see `fuselane.xla`).
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

import jax

from agreement_corpus import CORPUS
from agreement_likeness import Likeness, compare_modules, total
from fuselane.errors import FuselaneError
from fuselane.fusion.instruction_fusion import InstructionFusion
from fuselane.fusion.pipelines import FusionPass, run_pipeline
from fuselane.fusion.priority_fusion import PriorityFusion
from fuselane.xla.capture import capture, lower
from fuselane.xla.captured import CapturedModule
from fuselane.xla.dump import read_dump
from fuselane.xla.targets import Target, find_target
from programs.program import Program

BEGIN, END = "<!-- {}:begin -->", "<!-- {}:end -->"
PASS_ON_CPU: Final = "fusion"
PASS_ON_GPU: Final = "priority-fusion"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """What came of one program.

    Attributes:
        program: Its name.
        likeness: Of XLA's module and ours.
        seconds: CPU time of our strategy.
        instructions: Instructions of the module before fusion.
        cause: What the module has that our strategy does not handle, or "".
    """

    program: str
    likeness: Likeness
    seconds: float
    instructions: int
    cause: str = ""


def main(arguments: Sequence[str] | None = None) -> int:
    """Compares all programs asked for."""
    options = parse_options(arguments)
    sys.path.extend(map(str, options.packages))
    target = find_target(options.target)
    results = []
    for program in CORPUS:
        if options.only and not any(part in program.name for part in options.only):
            continue
        try:
            found = list(compare_program(program, options.target, options.dumps))
        except (FuselaneError, ImportError, OSError, ValueError) as error:
            print(f"{program.name:36} {error}", flush=True)
            continue
        for result in found:
            print(format_result(result), flush=True)
        results += found
    summary = make_summary(target, results)
    print("\n" + summary)
    if options.docs is not None:
        write_docs(options.docs, "cpu" if target.gpu is None else "gpu", summary)
    return 0


def parse_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Returns the command line's options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", default=[], metavar="PART")
    parser.add_argument("--target", default="cpu")
    parser.add_argument("--dumps", type=Path, help="dumps to read instead of compiling")
    parser.add_argument("--packages", nargs="+", type=Path, default=[], metavar="FOLDER")
    parser.add_argument("--docs", type=Path, help="put the table between a page's two marks")
    return parser.parse_args(arguments)


def compare_program(program: Program, name: str, dumps: Path | None) -> Iterator[Agreement]:
    """Yields an agreement for each module of a program that XLA's pass changed."""
    target = find_target(name)
    wanted = PASS_ON_CPU if target.gpu is None else PASS_ON_GPU
    for module in capture_program(program, name, dumps):
        for position, stage in enumerate(module.stages):
            if stage.name == wanted and position > 0:
                yield compare(program.name, module, position, strategy_for(target))


def capture_program(program: Program, name: str, dumps: Path | None) -> tuple[CapturedModule, ...]:
    """Returns what XLA did to a program; nothing if it cannot be built here."""
    if dumps is not None:
        folder = dumps / program.name.replace("/", "_")
        if folder.is_dir() and any(folder.iterdir()):
            return read_dump(folder, find_target(name))
    if program.missing():
        return ()
    return capture(lower_program(program, name), name)


def lower_program(program: Program, name: str) -> Any:
    """Returns a program lowered for a target."""
    # Checks of equinox call back into Python, which cannot be lowered for another platform.
    os.environ.setdefault("EQX_ON_ERROR", "nan")
    jax.config.update("jax_enable_x64", program.x64)  # type: ignore[no-untyped-call]
    function, arguments = program.build(program.full)
    return lower(jax.jit(function), name, *arguments)


def strategy_for(target: Target) -> FusionPass:
    """Returns ours for what XLA does for a target."""
    return InstructionFusion() if target.gpu is None else PriorityFusion(gpu=target.gpu)


def compare(program: str, module: CapturedModule, position: int, strategy: FusionPass) -> Agreement:
    """Runs our strategy on the module before a stage and compares with the stage."""
    ours = module.stages[position - 1].module()
    instructions = sum(len(c.instructions) for c in ours.computations)
    names = {i.name for c in ours.computations for i in c.instructions}
    start = time.process_time()
    run_pipeline([strategy], ours)
    seconds = time.process_time() - start
    return Agreement(
        program=program,
        likeness=compare_modules(ours, module.stages[position].module()),
        seconds=seconds,
        instructions=instructions,
        cause="Triton fusions" if any(n.startswith("triton_softmax") for n in names) else "",
    )


def format_result(result: Agreement) -> str:
    """Returns a line of text."""
    likeness = result.likeness
    return (
        f"{result.program:36} {result.instructions:6} instructions {likeness.edges:6} edges"
        f" {likeness.edges_alike():>8} {result.seconds:6.2f} s {result.cause}"
    )


def make_summary(target: Target, results: Sequence[Agreement]) -> str:
    """Returns totals, and the modules that differ, as markdown."""
    whole = total(result.likeness for result in results)
    apart = [result for result in results if not result.likeness.is_exact]
    num_exact = len(results) - len(apart)
    lines = [
        f"Target {target.name}: {len(results)} modules,"
        f" {num_exact} of them ({num_exact / max(len(results), 1):.1%}) exactly alike;"
        f" {whole.edges_alike()} of {whole.edges:,} edges and"
        f" {whole.fused_alike()} of {whole.fused:,} fused edges agree.",
    ]
    if apart:
        lines += ["", "| program | edges | alike | cause |", "|---|---:|---:|---|"]
    lines += [
        f"| {r.program} | {r.likeness.edges:,} | {r.likeness.edges_alike(1)} |"
        f" {r.cause or 'not known'} |"
        for r in apart
    ]
    return "\n".join(lines) + "\n"


def write_docs(path: Path, name: str, summary: str) -> None:
    """Puts a summary between the two marks of its name in a page."""
    text = path.read_text(encoding="utf-8")
    begin, end = BEGIN.format(name), END.format(name)
    before, _, rest = text.partition(begin)
    _, _, after = rest.partition(end)
    path.write_text(f"{before}{begin}\n{summary}{end}{after}", encoding="utf-8")


if __name__ == "__main__":
    raise SystemExit(main())
