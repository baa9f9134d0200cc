"""How large integers of loops become, and which are the same in two types."""

from __future__ import annotations

from typing import Final

import pytest

from fuselane.analysis.dimension_classes import DimensionClasses
from fuselane.analysis.integer_bounds import IntegerBounds, IntegerComparison, count_most_steps
from fuselane.analysis.valuation import Terms, Valuation
from fuselane.hlo.instruction import HloInstruction
from tests.hlo.xla import module_of

SHAPE: Final = "(s64[], s64[8], s64[8], pred[8])"
ELEMENTS: Final = f"""
  p = {SHAPE} parameter(0)
  i = s64[] get-tuple-element(p), index=0
  n = s64[8] get-tuple-element(p), index=1
  k = s64[8] get-tuple-element(p), index=2
  d = pred[8] get-tuple-element(p), index=3
  one = s64[] constant(1)
  ones = s64[8] broadcast(one), dimensions={{}}
  next = s64[] add(i, one)
"""
TEXT: Final = f"""
HloModule test
either {{ l = pred[] parameter(0)  r = pred[] parameter(1)  ROOT o = pred[] or(l, r) }}
inner {{{ELEMENTS}
  zero = s64[] constant(0)
  zeros = s64[8] broadcast(zero), dimensions={{}}
  low = pred[8] compare(n, zeros), direction=LT
  twenty = s64[] constant(20)
  twenties = s64[8] broadcast(twenty), dimensions={{}}
  end = s64[8] add(n, twenties)
  wide = s64[8] select(low, end, n)
  wide_narrowed = s32[8] convert(wide)
  n_narrow = s32[8] convert(n)
  zero_narrow = s32[] constant(0)
  zeros_narrow = s32[8] broadcast(zero_narrow), dimensions={{}}
  low_narrow = pred[8] compare(n_narrow, zeros_narrow), direction=LT
  twenty_narrow = s32[] constant(20)
  twenties_narrow = s32[8] broadcast(twenty_narrow), dimensions={{}}
  end_narrow = s32[8] add(n_narrow, twenties_narrow)
  narrow = s32[8] select(low_narrow, end_narrow, n_narrow)
  high_narrow = pred[8] compare(n_narrow, zeros_narrow), direction=LE
  other_narrow = s32[8] select(high_narrow, end_narrow, n_narrow)
  short = s8[8] convert(n)
  doubled = s64[8] add(k, k)
  k_narrow = s32[8] convert(k)
  grown = s64[8] add(n, ones)
  m = s64[8] select(d, grown, n)
  ROOT root = {SHAPE} tuple(next, m, doubled, d)
}}
inner_goes_on {{{ELEMENTS}
  limit = s64[] constant(20)
  few = pred[] compare(i, limit), direction=LT
  no = pred[] constant(false)
  any = pred[] reduce(d, no), dimensions={{0}}, to_apply=either
  ROOT go = pred[] and(any, few)
}}
outer {{{ELEMENTS}
  start = s64[] constant(0)
  init = {SHAPE} tuple(start, n, k, d)
  loop = {SHAPE} while(init), condition=inner_goes_on, body=inner
  n_after = s64[8] get-tuple-element(loop), index=1
  k_after = s64[8] get-tuple-element(loop), index=2
  m = s64[8] select(d, n, n_after)
  ROOT root = {SHAPE} tuple(next, m, k_after, d)
}}
goes_on {{
  p = {SHAPE} parameter(0)
  i = s64[] get-tuple-element(p), index=0
  limit = s64[] constant(LIMIT)
  ROOT go = pred[] compare(i, limit), direction=LT
}}
ENTRY main {{
  start = s64[] constant(0)
  five = s64[] constant(-5)
  fives = s64[8] broadcast(five), dimensions={{}}
  d = pred[8] parameter(0)
  init = {SHAPE} tuple(start, fives, fives, d)
  ROOT loop = {SHAPE} while(init), condition=goes_on, body=outer
}}
"""


class Loops:
    """A loop in a loop, and its values by their names."""

    def __init__(self, limit: int) -> None:
        text = TEXT.replace("LIMIT", str(limit))
        computations = module_of(text).computations
        self.whiles = [i for c in computations for i in c.instructions if i.opcode == "while"]
        self.inner = next(w for w in self.whiles if "few" in _names(w.condition.instructions))
        self.bounds = IntegerBounds(self.whiles)
        values = Valuation(Terms(DimensionClasses()), (self.inner.body.parameters[0],))
        self.comparison = IntegerComparison(values, self.bounds)

    def __getitem__(self, name: str) -> HloInstruction:
        return _names(self.inner.body.instructions)[name]


def _names(instructions: list[HloInstruction]) -> dict[str, HloInstruction]:
    return {i.name.split(".")[0]: i for i in instructions}


def test_steps_are_counted_where_a_condition_asks_for_more() -> None:
    loops = Loops(4096)
    assert sorted(count_most_steps(loop) or 0 for loop in loops.whiles) == [20, 4096]


def test_counted_in_both_loops() -> None:
    loops = Loops(4096)
    assert loops.bounds.bound(loops["n"]) == 5 + 4097 * 20
    assert loops.bounds.bound(loops["end"]) == 5 + 4097 * 20 + 20
    assert loops.bounds.bound(loops["n_narrow"]) == 5 + 4097 * 20


@pytest.mark.parametrize("name", ["k", "doubled", "k_narrow", "short"])
def test_without_a_bound(name: str) -> None:
    """What doubles, and what does not fit its type."""
    loops = Loops(4096)
    assert loops.bounds.bound(loops[name]) is None


def test_too_many_steps() -> None:
    loops = Loops(2**40)
    assert loops.bounds.bound(loops["n"]) is not None
    assert loops.bounds.bound(loops["n_narrow"]) is None


def test_the_same_in_two_types() -> None:
    loops = Loops(4096)
    assert loops.comparison.are_same(loops["wide"], loops["narrow"])
    assert loops.comparison.are_same(loops["wide_narrowed"], loops["narrow"])
    assert not loops.comparison.are_same(loops["wide"], loops["other_narrow"])
    assert not loops.comparison.are_same(loops["k"], loops["k_narrow"])
    assert not loops.comparison.are_same(loops["n"], loops["short"])


def test_not_the_same_where_it_may_wrap_around() -> None:
    loops = Loops(2**40)
    assert not loops.comparison.are_same(loops["wide"], loops["narrow"])
    assert not loops.comparison.are_same(loops["wide"], loops["wide_narrowed"])
