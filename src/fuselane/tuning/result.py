"""What a search found for one program."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, final

from fuselane.tuning.candidate import Candidate


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """The best way to compile a program, and how it was found.

    Attributes:
        name: Of the program's module, such as `jit_step`.
        best: The best way; the empty candidate if that is XLA's own.
        best_us: Its time on the metric.
        xla_us: That of XLA's own.
        metric: `time` or `modelled`.
        target: What it holds for.
        num_asked: Candidates looked at, earlier runs of the same search included.
        num_measured: Different modules among them, which were measured or modelled.
        is_complete: Whether the search came to its end before its budget did.
        is_interrupted: Whether the user ended it; the same search goes on where it was.
        refusals: Why candidates could not be used, and of how many that is true.
    """

    name: str
    best: Candidate
    best_us: float
    xla_us: float
    metric: str
    target: str
    num_asked: int
    num_measured: int
    is_complete: bool
    is_interrupted: bool = False
    refusals: Mapping[str, int] = field(default_factory=dict)

    @property
    def gain(self) -> float:
        """How many times as fast as XLA's own the best is."""
        return self.xla_us / self.best_us if self.best_us else 1.0

    def text(self) -> str:
        """Returns it in a few lines."""
        kind = "measured" if self.metric == "time" else f"modelled for {self.target}"
        if self.is_complete:
            end = "nothing is left to try"
        elif self.is_interrupted:
            end = "interrupted, and goes on from here when run again"
        else:
            end = "the budget is used up"
        asked = "1 candidate" if self.num_asked == 1 else f"{self.num_asked} candidates"
        lines = [
            f"{self.name}  {self.best_us:,.4g} us {kind}, {self.gain:.3f} times as fast as XLA's"
            f" own fusions at {self.xla_us:,.4g} us",
            f"  best       {self.best}",
            f"  looked at  {asked}, {self.num_measured} different; {end}",
        ]
        lines += [f"  refused    {count}: {reason}" for reason, count in self.refusals.items()]
        if self.best.compiler_options:
            options = dict(self.best.compiler_options)
            lines.append(f"  needs      jax.jit(..., compiler_options={options!r})")
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """Returns it as JSON has it."""
        values = dataclasses.asdict(self)
        values["best"] = {
            "fusion": self.best.fusion,
            "compiler_options": dict(self.best.compiler_options),
        }
        return values | {"refusals": dict(self.refusals), "gain": self.gain}
