"""Advice about loops that Fuselane runs as one kernel, or does not, and why."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from fuselane.decisions import Reason
from fuselane.explain.advice.rule import Rule, View
from fuselane.explain.model import AdviceModel, LoopModel

_NO_ADVICE: Final = frozenset({Reason.INTERNAL_ERROR, Reason.NOT_PROFITABLE, Reason.OUT_OF_TIME})
_MIN_SHARE: Final = 0.1
"""Of the time of a run: a loop that takes less is not worth changing."""


def _find_fused(view: View) -> Iterable[AdviceModel]:
    for loop in view.module.loops:
        decision = loop.decision
        if decision is None or not decision.fused:
            continue
        gain = _gain(view, loop)
        if gain is None:
            continue
        lanes = f" over {decision.lanes:,} lanes" if decision.lanes else ""
        launches = "" if loop.launches is None else f" instead of {loop.launches:,} launches"
        sentence = f"Fuselane runs `{loop.name}` as one kernel{lanes}{launches}: switch it on."
        yield AdviceModel(
            rule=ENABLE.name, sentence=sentence, gain=gain, source=loop.source, loop=loop.name
        )


def _gain(view: View, loop: LoopModel) -> float | None:
    assert loop.decision is not None
    numbers = loop.decision.decision.numbers
    factor = numbers.get("gain", 0.0)
    time = sum(map(view.time_us, view.within(loop.name)))
    return view.gain(time * (1 - 1 / factor)) if factor > 1 else None


def _find_refused(view: View) -> Iterable[AdviceModel]:
    for loop in view.module.loops:
        entry = loop.decision
        if entry is None or entry.fused or entry.reason in _NO_ADVICE:
            continue
        decision = entry.decision
        time = sum(map(view.time_us, view.within(loop.name)))
        if not (decision.source or loop.source) or time < _MIN_SHARE * view.total_us:
            continue
        place = f" at {decision.source}" if decision.source else ""
        told = f" (`{decision.instruction}`{place})" if decision.instruction else ""
        sentence = f"Fuselane leaves `{loop.name}` to XLA{told}: {decision.sentence}"
        yield AdviceModel(
            rule=REFUSED.name, sentence=sentence, gain=None, source=loop.source, loop=loop.name
        )


ENABLE: Final = Rule(
    name="fuselane-enable",
    summary=(
        "Fuselane can run this loop, with all its iterations, as one kernel of the CPU. The gain is"
        " Fuselane's own estimate for the loop, on the share of the run that the loop takes."
    ),
    before="end = rollout(state)",
    after="fuselane.enable()\nend = rollout(state)",
    find=_find_fused,
)
REFUSED: Final = Rule(
    name="fuselane-refused",
    summary=(
        "The loop takes a good part of the time, and one instruction keeps Fuselane from running it"
        " as one kernel. The advice names it and its line. Where that line can be written without"
        " mixing lanes, or be moved out of the loop, Fuselane takes the rest."
    ),
    before="state = state - state.mean()  # every lane needs all others",
    after="state = state - mean  # computed once, before the loop",
    find=_find_refused,
)
