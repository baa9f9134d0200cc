"""All rules of advice, and what they say together."""

from __future__ import annotations

from typing import Final

from fuselane.explain.advice import (
    fuselane_loops,
    launch_bound,
    memory,
    random_in_loop,
    recomputed_values,
    small_products,
    stacked_state,
    unrolled_loops,
)
from fuselane.explain.advice.rule import Rule, View
from fuselane.explain.model import AdviceModel

RULES: Final[tuple[Rule, ...]] = (
    fuselane_loops.ENABLE,
    fuselane_loops.REFUSED,
    random_in_loop.RULE,
    stacked_state.RULE,
    recomputed_values.RULE,
    launch_bound.UNROLL,
    launch_bound.SMALL,
    memory.COPIES,
    memory.OUTPUTS,
    memory.PROMOTION,
    small_products.RULE,
    unrolled_loops.RULE,
)


def give_advice(view: View) -> tuple[AdviceModel, ...]:
    """Returns what all rules have to say, largest predicted gain first."""
    found = [advice for rule in RULES for advice in rule.find(view)]
    stacked = {advice.loop for advice in found if advice.rule == stacked_state.RULE.name}
    found = [a for a in found if a.rule != memory.COPIES.name or a.loop not in stacked]
    return tuple(sorted(found, key=lambda advice: advice.gain or 0.0, reverse=True))
