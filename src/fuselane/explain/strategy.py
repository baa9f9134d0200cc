"""Every answer of a fusion strategy's passes, yes and no, as `explain` lists it.

Passes that are repeated ask again; equal answers are one. Of each pass and reason the first are
listed and all are counted, so that the report on a large module stays readable.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final, final

from fuselane.boundary import BoundaryReason
from fuselane.explain.model import AnswerCountModel, AnswerModel, ModuleModel, StrategyModel
from fuselane.explain.provenance import Provenance
from fuselane.explain.units import format_count, format_place, printable
from fuselane.explain.why_strategy import StrategyRun
from fuselane.fusion.decision import FusionStep
from fuselane.hlo.module import HloModule
from fuselane.hlo.source_lines import SourceLine

MAX_LISTED: Final = 500
"""Answers listed of each pass and reason."""


def describe_strategy(run: StrategyRun) -> StrategyModel:
    """Returns what the passes of a strategy asked, and decided."""
    asked: Counter[tuple[object, ...]] = Counter()
    counts: Counter[tuple[str, BoundaryReason | None]] = Counter()
    listed: list[tuple[FusionStep, tuple[object, ...], SourceLine | None]] = []
    places = _Places(run.unfused)
    for step in run.log:
        places.follow(step)
        decision = step.decision
        kind = (step.pass_name, decision.reason)
        question = (*kind, step.producer, step.consumer, step.fusion, decision.detail)
        asked[question] += 1
        if asked[question] > 1:
            continue
        counts[kind] += 1
        if counts[kind] <= MAX_LISTED:
            listed.append((step, question, places.line(step.producer or step.consumer)))
    return StrategyModel(
        answers=tuple(
            AnswerModel(
                pass_name=step.pass_name,
                producer=step.producer,
                consumer=step.consumer,
                reason=step.decision.reason,
                detail=step.decision.detail,
                xla=step.decision.xla,
                numbers=dict(step.decision.numbers),
                fusion=step.fusion,
                times=asked[question],
                source=source,
            )
            for step, question, source in listed
        ),
        counts=tuple(
            AnswerCountModel(pass_name=pass_name, reason=reason, count=count)
            for (pass_name, reason), count in counts.items()
        ),
    )


@final
class _Places:
    """The lines of what passes name: instructions they were given, and fusions they made, which
    are where the instruction is that they end in."""

    def __init__(self, unfused: HloModule) -> None:
        self._provenance = Provenance(unfused, {})
        self._given = {i.name: i for c in unfused.computations for i in c.instructions}
        self._roots: dict[str, str] = {}

    def follow(self, step: FusionStep) -> None:
        """Remembers what a fusion that is made ends in."""
        if step.fusion:
            end = step.consumer or step.producer
            self._roots[step.fusion] = self._roots.get(end, end)

    def line(self, name: str) -> SourceLine | None:
        """Returns the line of something by its name at that time, or None if it has none."""
        instruction = self._given.get(name) or self._given.get(self._roots.get(name, ""))
        return None if instruction is None else self._provenance.line(instruction)


def describe_answers(module: ModuleModel) -> Iterator[str]:
    """Yields the lines that tell all that a strategy decided about a module."""
    yield printable(f"{module.name} on {module.target}")
    if module.strategy is None or not module.strategy.answers:
        yield "  No fusion strategy decided anything."
        return
    yield from map(_line, module.strategy.answers)
    if module.strategy.num_left_out:
        yield f"  and {module.strategy.num_left_out:,} more"


def answers_about(module: ModuleModel, name: str) -> Iterator[str]:
    """Yields a line for each answer about an instruction, by its name at that time."""
    for answer in module.strategy.answers if module.strategy else ():
        if name in (answer.producer, answer.consumer, answer.fusion):
            yield _line(answer)


def _line(answer: AnswerModel) -> str:
    ends = " → ".join(filter(None, (answer.producer, answer.consumer)))
    head = "  ".join(filter(None, (answer.pass_name, ends, format_place(answer.source))))
    verdict = "yes" if answer.reason is None else f"no, {answer.reason.code}"
    made = f", in {answer.fusion}" if answer.fusion else ""
    numbers = ", ".join(f"{key} {format_count(x)}" for key, x in answer.numbers.items())
    told = f" ({numbers})" if numbers else ""
    times = f" ({answer.times} times)" if answer.times > 1 else ""
    return printable(f"  {head}: {verdict}{made}: {answer.detail}{told}{times}")
