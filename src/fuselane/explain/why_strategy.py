"""What the passes of a fusion strategy said about two kernels they left apart.

Passes log every question they ask, under the names instructions have then. Fusions keep theirs
while they grow; what was left alone is wrapped into one of its own last, so its name is looked for
by its value.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from fuselane.boundary import BoundaryDecision, BoundaryReason
from fuselane.explain.edges import Edge
from fuselane.explain.same_values import SameValues
from fuselane.explain.why import Rules
from fuselane.fusion.decision import FusionDecision, FusionLog
from fuselane.hlo.module import HloModule


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyRun:
    """A strategy that was run on a module.

    Attributes:
        log: What its passes asked and decided.
        unfused: What they were given.
        has_xlas: Whether that were XLA's fusions.
        is_in_force: Whether the module is as it fused it, not as XLA did after all.
    """

    log: FusionLog
    unfused: HloModule
    has_xlas: bool = False
    is_in_force: bool = True

    def kernel_us(self, name: str) -> float | None:
        """Returns the modelled time of a kernel that it made with Fuselane, or None for others."""
        made = (step.decision for step in self.log if step.fusion == name)
        return next((d.numbers["kernel_us"] for d in made if "kernel_us" in d.numbers), None)


@final
class StrategyRefusals:
    """Answers of a strategy for the kernels of one module."""

    def __init__(self, run: StrategyRun, module: HloModule, rest: Rules | None = None) -> None:
        """Sorts what the passes said.

        Args:
            run: Of the strategy.
            module: What came of it, whose edges are asked about.
            rest: Answers for what the passes said nothing about.
        """
        self._values = SameValues(module, run.unfused)
        self._rest = rest
        self._pairs = run.log.refusals()
        self._of_producer: dict[str, FusionDecision] = {}
        for (producer, _), decision in self._pairs.items():
            self._of_producer[producer] = decision

    def why(self, edge: Edge) -> BoundaryDecision:
        """Returns why no pass fused a kernel into another."""
        former = self._values.former(edge.producer)
        names = [edge.producer.name] + ([] if former is None else [former.name])
        found = [
            *(self._pairs.get((name, edge.consumer.name)) for name in names),
            *map(self._of_producer.get, names),
        ]
        decision = next((d for d in found if d is not None), None)
        if decision is not None:
            return decision.boundary()
        answer = None if self._rest is None else self._rest(edge)
        if answer is not None:
            return answer
        detail = f"No pass tried to fuse `{edge.producer.name}` into `{edge.consumer.name}`."
        return BoundaryDecision(reason=BoundaryReason.NOT_FUSIBLE, detail=detail)
