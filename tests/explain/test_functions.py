"""Loops that XLA:CPU compiles into one function, and what is in them."""

from __future__ import annotations

from typing import Final

import pytest

from fuselane.analysis.machine_costs import MachineCosts
from fuselane.explain.model import ModuleModel
from fuselane.explain.report import Report
from tests.explain.modules import model_of

_TEXT: Final = """
HloModule jit_small, is_scheduled=true
work { p = f32[8] parameter(0) s = f32[8] negate(p) ROOT m = f32[8] multiply(s, p) }
more { p = f32[8] parameter(0) ROOT r = f32[8] reverse(p), dimensions={0} }
body {
  p = (s32[], f32[8]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  x = f32[8] get-tuple-element(p), index=1
  one = s32[] constant(1)
  next = s32[] add(i, one)
  first = f32[8] fusion(x), kind=kLoop, calls=work
  second = f32[8] fusion(first), kind=kLoop, calls=more
  ROOT r = (s32[], f32[8]) tuple(next, second)
}
condition {
  p = (s32[], f32[8]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  n = s32[] constant(50)
  ROOT go = pred[] compare(i, n), direction=LT
}
callee {
  p = (s32[], f32[8]) parameter(0)
  ROOT loop = (s32[], f32[8]) while(p), condition=condition, body=body,
      backend_config={"known_trip_count":{"n":"50"}}
}
ENTRY main {
  x = f32[8] parameter(0)
  zero = s32[] constant(0)
  init = (s32[], f32[8]) tuple(zero, x)
  small = (s32[], f32[8]) call(init), to_apply=calleeATTRIBUTES
  ROOT out = f32[8] get-tuple-element(small), index=1
}
"""
_SMALL: Final = ', frontend_attributes={xla_cpu_small_call="true"}'


@pytest.fixture(name="small")
def _small() -> ModuleModel:
    return model_of(_TEXT.replace("ATTRIBUTES", _SMALL))


@pytest.fixture(name="plain")
def _plain() -> ModuleModel:
    return model_of(_TEXT.replace("ATTRIBUTES", ""))


def between(model: ModuleModel) -> list[tuple[str, str, str]]:
    """Returns the boundaries between kernels, but for those to the loop's end."""
    found = [(b.producer, b.consumer, b.crossing) for b in model.boundaries]
    return sorted(edge for edge in found if "go" not in edge)


def test_kernels_and_loops_are_those_of_a_loop_of_its_own(
    small: ModuleModel, plain: ModuleModel
) -> None:
    assert [k.name for k in small.kernels] == [k.name for k in plain.kernels]
    launches = {k.name: k.launches for k in plain.kernels}
    # Only thunks count down where XLA knows the trip count.
    assert {k.name: k.launches for k in small.kernels} == launches | {"go": 51}
    assert between(small) == between(plain)
    assert {k.function for k in small.kernels} == {"small"}
    assert {k.function for k in plain.kernels} == {""}
    assert [loop.function for loop in (*small.loops, *plain.loops)] == ["small", ""]


def test_nothing_is_dispatched(small: ModuleModel, plain: ModuleModel) -> None:
    dispatch_us = MachineCosts().thunk_us
    for inside, outside in zip(small.kernels, plain.kernels, strict=True):
        assert outside.modelled_us - inside.modelled_us == pytest.approx(dispatch_us, rel=0.1)


def test_the_text_says_so(small: ModuleModel, plain: ModuleModel) -> None:
    said = "all in one function"
    assert said in Report(loops=(), modules=(small,)).text(width=100)
    assert said not in Report(loops=(), modules=(plain,)).text(width=100)


def test_no_advice_to_launch_less(small: ModuleModel, plain: ModuleModel) -> None:
    assert "scan-unroll" in {advice.rule for advice in plain.advice}
    assert "scan-unroll" not in {advice.rule for advice in small.advice}
