"""Loops that XLA makes one function of, with the loops in them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from fuselane import pipeline
from fuselane.analysis.small_calls import is_small_call, is_small_loop
from fuselane.config import Options
from fuselane.decisions import DecisionLog
from fuselane.hlo.module import HloModule
from fuselane.hlo.verifier import verify
from fuselane.lanes import sharing
from fuselane.lanes.small_calls import take_out_loops
from fuselane.runtime.ffi import TARGET
from tests.hlo.xla import module_of

# The outer loop turns the lanes round, so that it stays; the inner one's are apart.
_TEXT: Final = """
HloModule jit_small
inner {
  p = (s32[], f32[1000]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  x = f32[1000] get-tuple-element(p), index=1
  one = s32[] constant(1)
  next = s32[] add(i, one)
  y = f32[1000] sine(x)
  ROOT r = (s32[], f32[1000]) tuple(next, y)
}
inner_condition {
  p = (s32[], f32[1000]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  n = s32[] constant(10)
  ROOT go = pred[] compare(i, n), direction=LT
}
outer {
  p = (s32[], f32[1000]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  x = f32[1000] get-tuple-element(p), index=1
  one = s32[] constant(1)
  zero = s32[] constant(0)
  next = s32[] add(i, one)
  init = (s32[], f32[1000]) tuple(zero, x)
  loop = (s32[], f32[1000]) while(init), condition=inner_condition, body=inner
  y = f32[1000] get-tuple-element(loop), index=1
  z = f32[1000] reverse(y), dimensions={0}
  AROUND
  ROOT r = (s32[], f32[1000]) tuple(next, last)
}
outer_condition {
  p = (s32[], f32[1000]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  n = s32[] constant(7)
  ROOT go = pred[] compare(i, n), direction=LT
}
callee {
  p = (s32[], f32[1000]) parameter(0)
  ROOT loop = (s32[], f32[1000]) while(p), condition=outer_condition, body=outer
}
ENTRY main {
  x = f32[1000] parameter(0)
  zero = s32[] constant(0)
  init = (s32[], f32[1000]) tuple(zero, x)
  small = (s32[], f32[1000]) call(init), to_apply=callee,
      frontend_attributes={xla_cpu_small_call="true"}
  ROOT r = f32[1000] get-tuple-element(small), index=1
}
"""


_INNER: Final = "condition=inner_condition, body=inner"
ROOT: Final = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _outer_loops_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """As those do whose lanes see too much of each other."""
    monkeypatch.setattr(sharing, "MAX_SHARED", 0)


def outer(num_around: int) -> HloModule:
    """Returns the module with so many more instructions in the outer loop's body."""
    around = ["last.0 = f32[1000] negate(z)"]
    around += [f"last.{n} = f32[1000] negate(last.{n - 1})" for n in range(1, num_around)]
    around.append(f"last = f32[1000] negate(last.{len(around) - 1})")
    return module_of(_TEXT.replace("AROUND", "\n  ".join(around)))


@pytest.mark.parametrize(("min_gain", "is_fused"), [(1.0, True), (1000.0, False)])
def test_loops_in_a_small_loop_that_stays(min_gain: float, is_fused: bool) -> None:
    """A kernel cannot be called in such a function: then it is none any more."""
    log = DecisionLog()
    result = pipeline.transform(outer(1).to_bytes(), Options(min_gain=min_gain), log)
    assert (result is not None) == is_fused
    assert [(loop.trip_count, loop.fused) for loop in log] == [(7, False), (10, is_fused)]
    if result is not None:
        module = HloModule.from_bytes(result)
        verify(module)
        instructions = [i for c in module.computations for i in c.instructions]
        assert not any(map(is_small_call, instructions))
        assert [i.custom_call_target for i in instructions if i.opcode == "custom-call"] == [TARGET]


@pytest.mark.parametrize(("is_small", "is_fused"), [(False, True), (True, False)])
def test_a_function_is_not_given_up_for_too_little(is_small: bool, is_fused: bool) -> None:
    """Outside of it, each of thousands of short instructions has to be started by itself."""
    module = outer(4000)
    if not is_small:
        take_out_loops(module)
        (loop,) = (i for i in module.entry.instructions if is_small_loop(i))
        loop.proto.frontend_attributes.Clear()
    log = DecisionLog()
    pipeline.transform(module.to_bytes(), Options(), log)
    assert {loop.trip_count: loop.fused for loop in log} == {7: False, 10: is_fused}


@pytest.mark.parametrize(("size", "is_fused"), [(8, False), (1000, True)])
def test_a_function_is_not_given_up_for_nobody_knows_how_little(size: int, is_fused: bool) -> None:
    """Where the inner loop, in each step of the outer one, is over after some steps."""
    text = _TEXT.replace("init = (s32[], f32[1000]) tuple(zero, x)\n  loop", "loop")
    text = text.replace("while(init), condition=inner", "while(p), condition=inner")
    text = text.replace("AROUND", "last = f32[1000] negate(z)").replace("1000", str(size))
    log = DecisionLog()
    pipeline.transform(module_of(text).to_bytes(), Options(), log)
    assert {loop.trip_count: loop.fused for loop in log} == {7: False, None: is_fused}


def test_what_a_function_s_loop_is_compared_to_is_one_function() -> None:
    """Each step of it, as its check is none; in other code it would be rounded otherwise."""
    text = _TEXT.replace("condition=outer_condition, body=outer", _INNER).replace("last)", "z)")
    result = pipeline.transform(
        module_of(text.replace("AROUND", "")).to_bytes(),
        Options(verify=True, min_gain=0),
        DecisionLog(),
    )
    assert result is not None
    module = HloModule.from_bytes(result)
    verify(module)
    (call,) = (i for c in module.computations for i in c.instructions if is_small_call(i))
    assert "sine" in [i.opcode for i in call.to_apply.instructions]


_SMALL: Final = "--xla_backend_extra_options=xla_cpu_small_while_loop_byte_threshold=1000000000"
_RUN: Final = """
import sys
import jax, pytest
loop = jax.jit(lambda x: jax.lax.fori_loop(0, 9, lambda i, x: 2 * x, x))
assert "xla_cpu_small_call" in loop.lower(jax.numpy.ones(1000)).compile().as_text()
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", *sys.argv[1:]]))
"""
_TESTS: Final = (
    "tests/differential/test_gradients.py::test_cheap_residuals_are_computed_again",
    "tests/explain/test_build.py::test_a_loop_on_the_cpu",
    "tests/explain/test_strategy.py::test_boundaries_are_the_strategys",
    *(
        f"tests/runtime/test_verify.py::test_no_false_alarm[{name}]"
        for name in ("inner_loops", "loop_around")
    ),
)


def test_where_xla_makes_one_function_of_every_loop() -> None:
    """As it does since JAX 0.12 by itself, and before if it is told to."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} {_SMALL}"
    finished = subprocess.run(
        [sys.executable, "-c", _RUN, *_TESTS],
        cwd=ROOT,
        env=os.environ | {"XLA_FLAGS": flags},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
