"""Whether `xla-2024` fuses what XLA of June 2024 did without priority fusion, pass by pass.

Before and after each of its fusion passes, a module goes through ours as it was before, and what
comes out is compared with what came after (see `agreement_likeness.py`). Last, the whole pipeline
is compared. `xla_2024.py` says how dumps are made.

    python benchmarks/agreement_2024.py --modules FOLDER
    python benchmarks/agreement_2024.py --dumps DUMPS --docs docs/agreement.md
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, final

from agreement import lower_program, write_docs
from agreement_corpus import CORPUS
from agreement_likeness import Likeness, compare_modules, total
from fuselane.fusion.pipelines import PIPELINES, FusionPass, passes_in, run_pipeline
from fuselane.hlo import HloModule
from fuselane.hlo.container import module_in
from fuselane.hlo.proto import HloModuleProto

NAME: Final = "xla-2024"
GPU: Final = "h100"
MARK: Final = "gpu-2024"
WHOLE: Final = "all of them"
_STAGE: Final = re.compile(
    r"module_\d+\.p_(?P<program>\w+)\.(?P<number>\d{4})\.(?P<pipeline>[\w-]+)"
    r"\.after_(?P<ran>.+?)\.before_(?P<next>.+)\.hlo\.pb"
)
_PASSES: Final = {
    "fusion": "gpu-instruction-fusion",
    "fusion_merger": "fusion-merger",
    "multi_output_fusion": "multi-output-fusion",
    "gpu_horizontal_loop_fusion": "horizontal-loop-fusion",
    "gpu_horizontal_input_fusion": "horizontal-input-fusion",
}
_PIPELINES: Final = ("fusion", "horizontal_fusion")
_AFTER: Final = "post-fusion_optimization"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """What came of one pass of one module.

    Attributes:
        program: Whose it is, letters and digits only.
        label: Which of our passes, and which run of it.
        likeness: Of XLA's module and ours.
    """

    program: str
    label: str
    likeness: Likeness


@final
@dataclass(frozen=True, slots=True, order=True)
class Stage:
    """A module between two passes."""

    number: int
    pipeline: str
    ran: str
    next: str
    path: Path

    def module(self) -> HloModule:
        """Reads it."""
        return HloModule.from_bytes(module_in(self.path.read_bytes()))


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes modules, or compares dumps."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    task = parser.add_mutually_exclusive_group(required=True)
    task.add_argument("--modules", type=Path, help="where the corpus' modules are written")
    task.add_argument("--dumps", type=Path, help="what XLA left")
    parser.add_argument("--packages", nargs="+", type=Path, default=[], metavar="FOLDER")
    parser.add_argument("--docs", type=Path, help="put the table between a page's two marks")
    options = parser.parse_args(arguments)
    sys.path.extend(map(str, options.packages))
    if options.modules is not None:
        return write_modules(options.modules)
    results: list[Agreement] = []
    for program, stages in sorted(find_stages(options.dumps).items()):
        for result in compare_stages(program, stages):
            results.append(result)
            if not result.likeness.is_exact:
                print(result, flush=True)
    summary = make_summary(results)
    print("\n" + summary)
    if options.docs is not None:
        write_docs(options.docs, MARK, summary)
    return 0


def write_modules(folder: Path) -> int:
    """Writes the corpus' modules, with small numbers for instructions, as XLA had them then."""
    folder.mkdir(parents=True, exist_ok=True)
    for program in CORPUS:
        if program.missing():
            print(f"{program.name:36} {program.missing()}", flush=True)
            continue
        lowered = lower_program(program, GPU).compiler_ir("hlo")
        module = HloModuleProto.FromString(lowered.as_serialized_hlo_module_proto())
        renumber(module)
        module.name = "p_" + re.sub(r"\W", "_", program.name)
        (folder / f"{module.name}.pb").write_bytes(module.SerializeToString())
    return 0


def renumber(module: Any) -> None:
    """Numbers a module's instructions and computations from one on."""
    numbers: dict[int, int] = {}
    places: dict[int, int] = {}
    for computation in module.computations:
        places[computation.id] = len(places) + 1
        for instruction in computation.instructions:
            numbers[instruction.id] = len(numbers) + 1
    for computation in module.computations:
        computation.id = places[computation.id]
        computation.root_id = numbers[computation.root_id]
        for instruction in computation.instructions:
            instruction.id = numbers[instruction.id]
            for field, new in (
                (instruction.operand_ids, numbers),
                (instruction.control_predecessor_ids, numbers),
                (instruction.called_computation_ids, places),
            ):
                field[:] = [new[number] for number in field]
    module.entry_computation_id = places[module.entry_computation_id]


def find_stages(dumps: Path) -> dict[str, list[Stage]]:
    """Returns the stages of each program's module, in order."""
    found: dict[str, list[Stage]] = {}
    for path in dumps.rglob("*.hlo.pb"):
        match = _STAGE.fullmatch(path.name)
        if match is not None:
            pipeline, ran, following = match["pipeline"], match["ran"], match["next"]
            stage = Stage(int(match["number"]), pipeline, ran, following, path)
            found.setdefault(match["program"], []).append(stage)
    return {program: sorted(stages) for program, stages in found.items()}


def compare_stages(program: str, stages: Sequence[Stage]) -> Iterator[Agreement]:
    """Yields an agreement for each fusion pass that ran, and one for all of them."""
    ours = {each.name: each for each in passes_in(PIPELINES[NAME])}
    twice = [each for each in passes_in(PIPELINES[NAME]) if each.name == _PASSES["fusion"]]
    num_fusions = 0
    for before, after in pairwise(stages):
        if before.pipeline not in _PIPELINES or before.next not in _PASSES:
            continue
        fusion_pass, label = ours[_PASSES[before.next]], _PASSES[before.next]
        if before.next == "fusion":
            fusion_pass = twice[num_fusions % 2]
            label += " again" if num_fusions % 2 else ""
            num_fusions += 1
        ran = after if after.ran == before.next else before
        yield compare(program, label, before, ran, [fusion_pass])
    first = next((stage for stage in stages if stage.pipeline in _PIPELINES), None)
    last = next((stage for stage in stages if stage.pipeline == _AFTER), None)
    if first is not None and last is not None:
        yield compare(program, WHOLE, first, last, PIPELINES[NAME])


def compare(
    program: str, label: str, before: Stage, after: Stage, pipeline: Sequence[FusionPass]
) -> Agreement:
    """Runs a pipeline on the module before a pass and compares with the module after it."""
    module = before.module()
    run_pipeline(pipeline, module)
    return Agreement(program=program, label=label, likeness=compare_modules(module, after.module()))


def make_summary(results: Sequence[Agreement]) -> str:
    """Returns a table of the passes, as markdown."""
    lines = [
        f"| pass of `{NAME}` | modules | exactly alike | edges | alike | pairs | alike |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for label in dict.fromkeys(result.label for result in results):
        found = [result.likeness for result in results if result.label == label]
        exact, whole = sum(likeness.is_exact for likeness in found), total(found)
        lines.append(
            f"| {label} | {len(found)} | {exact} ({exact / len(found):.1%}) | {whole.edges:,} |"
            f" {whole.edges_alike()} | {whole.pairs:,} | {whole.pairs_alike()} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    raise SystemExit(main())
