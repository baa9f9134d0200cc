"""What became of one program, in a form that goes through a file."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, final

from programs.program import Program

MAX_SLOWDOWN: Final = 0.05
MAX_COMPILE_RATIO: Final = 1.5


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """What Fuselane did with one loop: the fields are those of its report."""

    name: str
    source: str
    trip_count: int | None
    lanes: int | None
    fused: bool
    reason: str
    sentence: str
    instruction: str
    opcode: str
    instruction_source: str
    numbers: Mapping[str, float] = field(default_factory=dict)

    def describe(self) -> str:
        """Returns one line about it."""
        place = f" at {self.source}" if self.source else ""
        if self.fused:
            return f"{self.name}{place}: fused, {self.lanes} lanes"
        culprit = f" ({self.instruction} at {self.instruction_source})" if self.instruction else ""
        return f"{self.name}{place}: {self.reason}: {self.sentence}{culprit}"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One program measured, skipped or failed.

    Attributes:
        name: The program's.
        skipped: Why it was not run, or "".
        error: How its process ended if it did not finish, or "".
        xla_ms: Median time of a run under plain XLA.
        fuselane_ms: The same with Fuselane.
        xla_cpu_ms: Median time spent on all cores together under plain XLA, which tells more than
            the time that passed when other processes keep the cores busy.
        fuselane_cpu_ms: The same with Fuselane.
        num_rounds: How many runs of each.
        lower_ms: Median time to trace and lower it, which Fuselane has no part in.
        xla_compile_ms: Median time to compile it under plain XLA.
        fuselane_compile_ms: The same with Fuselane, no kernel cached.
        compile_ratios: How many times as long as plain XLA it takes to compile, of each two
            compilations that follow each other: what slows a machine down for a while hits both.
        compile_cpu_ratios: The same of the time spent on all cores together.
        loops: What became of its loops.
        agrees: Whether the results agree under the program's rule.
        difference: The largest relative difference of a float.
        share_apart: The share of elements off by more than the rule's tolerance.
        disagreement: What is wrong, or "".
    """

    name: str
    skipped: str = ""
    error: str = ""
    xla_ms: float = 0.0
    fuselane_ms: float = 0.0
    xla_cpu_ms: float = 0.0
    fuselane_cpu_ms: float = 0.0
    num_rounds: int = 0
    lower_ms: float = 0.0
    xla_compile_ms: float = 0.0
    fuselane_compile_ms: float = 0.0
    compile_ratios: tuple[float, ...] = (1.0,)
    compile_cpu_ratios: tuple[float, ...] = (1.0,)
    loops: tuple[Loop, ...] = ()
    agrees: bool = True
    difference: float = 0.0
    share_apart: float = 0.0
    disagreement: str = ""

    @staticmethod
    def from_json(values: Mapping[str, Any]) -> Outcome:
        """Returns what `to_json` or `dataclasses.asdict` made a dictionary of."""
        own = {field.name: values[field.name] for field in dataclasses.fields(Outcome)}
        loops = tuple(Loop(**loop) for loop in values["loops"])
        ratios = {name: tuple(own[name]) for name in ("compile_ratios", "compile_cpu_ratios")}
        return Outcome(**{**own, **ratios, "loops": loops})

    @property
    def is_measured(self) -> bool:
        """Whether there are numbers."""
        return not self.skipped and not self.error

    @property
    def times(self) -> float:
        """How many times as fast as plain XLA."""
        return self.xla_ms / self.fuselane_ms

    @property
    def compile_ratio(self) -> float:
        """How many times as long as plain XLA it takes to compile."""
        return statistics.median(self.compile_ratios)

    @property
    def compile_cpu_ratio(self) -> float:
        """How many times as much time compiling takes on all cores together."""
        return statistics.median(self.compile_cpu_ratios)

    @property
    def num_fused(self) -> int:
        """How many loops became kernels."""
        return sum(loop.fused for loop in self.loops)

    def judge(self, program: Program) -> str:
        """Returns "yes" if all targets are reached, or what is not."""
        if self.skipped:
            return "skipped"
        if self.error:
            return "failed"
        if not self.agrees:
            return "wrong"
        missed = []
        if program.target is not None and self.times < program.target:
            missed.append("speed")
        elif self.times < 1.0 - MAX_SLOWDOWN:
            missed.append("slower")
        if self.compile_ratio > MAX_COMPILE_RATIO:
            missed.append("compile time")
        return " and ".join(missed) or "yes"

    def to_json(self, program: Program) -> dict[str, Any]:
        """Returns everything that belongs into a results file, with what the program asks for."""
        values = dataclasses.asdict(self)
        settings = {
            "category": program.category,
            "target": program.target,
            "size": dataclasses.asdict(program.full),
            "rule": program.rule.describe(),
        }
        if not self.is_measured:
            return {**settings, **values, "reached": self.judge(program)}
        numbers = {
            "times": self.times,
            "compile_ratio": self.compile_ratio,
            "compile_cpu_ratio": self.compile_cpu_ratio,
            "num_fused": self.num_fused,
            "reached": self.judge(program),
        }
        return {**settings, **values, **numbers}
