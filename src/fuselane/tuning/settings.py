"""How to search for the best way to compile a program."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, final

from fuselane.errors import OptionError
from fuselane.fusion.pipelines import parse_pipeline
from fuselane.tuning.searches import SEARCHES
from fuselane.tuning.tuned import METRICS

XLA_OPTIONS: Final[dict[str, tuple[str, ...]]] = {
    "xla_backend_optimization_level": ("2",),
    "xla_cpu_prefer_vector_width": ("128", "512"),
    "xla_llvm_disable_expensive_passes": ("True",),
}
"""Options of XLA:CPU that change its code and not what it computes, with values to try."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class TuneSettings:
    """What `tune` can be told.

    Attributes:
        metric: `time`, on this machine, or `modelled`.
        target: `cpu`, or for modelled times a GPU such as `h100`.
        budget_s: Seconds it may all take, compiling included.
        questions: New candidates to look at, if less; None for no limit.
        search: `greedy`, `beam` or `annealing`.
        starts: Pipelines a search begins at; none for all named ones.
        loops: Whether loops become lane kernels meanwhile.
        xla_options: Whether options of XLA are part of the space.
        seed: Of the search's chance.
        fresh: Forget what the same search found before, rather than go on from it.
    """

    metric: str = "time"
    target: str = "cpu"
    budget_s: float = 60.0
    questions: int | None = None
    search: str = "annealing"
    starts: tuple[str, ...] = ()
    loops: bool = False
    xla_options: bool = False
    seed: int = 0
    fresh: bool = False

    def __post_init__(self) -> None:
        """Raises OptionError for a value that is not allowed."""
        if self.metric not in METRICS:
            raise OptionError(f"The metric is {' or '.join(METRICS)}, not {self.metric!r}.")
        if self.search not in SEARCHES:
            raise OptionError(f"There is no search {self.search!r}, only {', '.join(SEARCHES)}.")
        if not 0 < self.budget_s < math.inf:
            raise OptionError("The budget has to be a number of seconds above zero.")
        if self.metric == "time" and self.target != "cpu":
            raise OptionError(
                f"Times are measured on this machine's CPU; for {self.target} they are modelled."
            )
        if self.xla_options and self.metric != "time":
            raise OptionError("No model knows what options of XLA change; times have to be taken.")
        for start in self.starts:
            parse_pipeline(start)
