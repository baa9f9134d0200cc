"""What the option `fusion` stands for: a pipeline by name or as text, or a plan in a file."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from fuselane.fusion.lane_kernels import LaneKernels
from fuselane.fusion.pipelines import PIPELINES, Pipeline, parse_pipeline, passes_in
from fuselane.fusion.plan import read_plan
from fuselane.fusion.plan_fusion import PlanFusion
from fuselane.fusion.priced_merger import PricedMerger
from fuselane.fusion.shared_work import SharedWork

_PLAN_ENDING: Final = ".json"


def find_strategy(text: str) -> Pipeline:
    """Returns the passes that the option's text stands for.

    Raises:
        OptionError: for an unknown name, bad text, or a file that is not there or holds no plan.
    """
    if text.strip().endswith(_PLAN_ENDING):
        return (PlanFusion(modules=read_plan(Path(text.strip()).expanduser())),)
    return parse_pipeline(text)


_FOR_CPUS: Final = (LaneKernels, PricedMerger, SharedWork)


def is_for_cpus(strategy: Pipeline) -> bool:
    """Whether a strategy goes on from XLA:CPU's fusions."""
    return any(isinstance(fusion_pass, _FOR_CPUS) for fusion_pass in passes_in(strategy))


def names_for_gpus() -> list[str]:
    """Returns the named pipelines that make kernels for GPUs."""
    return [name for name, pipeline in PIPELINES.items() if not is_for_cpus(pipeline)]


def split_strategies(text: str) -> list[str]:
    """Returns the strategies of a list, separated by semicolons, or else by commas outside of
    braces and parentheses: `none,xla-2021`, `none;xla-today-cpu,fusion-merger`."""
    if ";" in text:
        return [part.strip() for part in text.split(";") if part.strip()]
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "({") - (letter in ")}")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts if part.strip()]
