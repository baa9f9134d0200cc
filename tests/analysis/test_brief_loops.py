"""Loops that are left to XLA on sight: which, why, and that they take no longer than is said."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import jax
import jax.numpy as jnp
import pytest

from fuselane import pipeline
from fuselane.analysis.brief_loops import find_brief_loops
from fuselane.analysis.machine_costs import MachineCosts
from fuselane.analysis.while_loops import compute_trip_count
from fuselane.analysis.xla_time import estimate_step_us
from fuselane.config import Options
from fuselane.decisions import DecisionLog, LoopDecision, Reason
from fuselane.hlo.module import HloModule, read_message
from fuselane.lanes.small_calls import take_out_loops
from tests.hlo.xla import compiled, parse

COSTS: Final = MachineCosts()
TEXT: Final = """
HloModule jit_brief
sum {
  a = SHAPE parameter(0)
  b = SHAPE parameter(1)
  ROOT s = SHAPE add(a, b)
}
body {
  p = (s32[], SHAPE, f32[100]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  x = SHAPE get-tuple-element(p), index=1
  z = f32[100] get-tuple-element(p), index=2
  one = s32[] constant(1)
  next = s32[] add(i, one)
  y = SHAPE OPCODE
  ROOT r = (s32[], SHAPE, f32[100]) tuple(next, y, z)
}
condition {
  p = (s32[], SHAPE, f32[100]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  n = s32[] constant(3)
  ROOT go = pred[] compare(i, n), direction=LT
}
callee {
  p = (s32[], SHAPE, f32[100]) parameter(0)
  ROOT loop = (s32[], SHAPE, f32[100]) while(p), condition=condition, body=body,
      backend_config={"known_trip_count":{"n":"STEPS"}}
}
ENTRY main {
  x = SHAPE parameter(0)
  z = f32[100] parameter(1)
  zero = s32[] constant(0)
  init = (s32[], SHAPE, f32[100]) tuple(zero, x, z)
  small = (s32[], SHAPE, f32[100]) call(init), to_apply=callee,
      frontend_attributes={xla_cpu_small_call="true"}
  ROOT r = SHAPE get-tuple-element(small), index=1
}
"""

ANOTHER: Final = "again = (s32[], f32[], f32[100]) while(init), condition=condition, body=body"


def brief(
    shape: str = "f32[]", opcode: str = "sine(x)", steps: str = "3", old: str = "", new: str = ""
) -> Sequence[LoopDecision] | None:
    """Returns what is found of the module, with one text in the place of another."""
    text = TEXT.replace("SHAPE", shape).replace("OPCODE", opcode).replace("STEPS", steps)
    assert old in text
    return find_brief_loops(read_message(parse(text.replace(old or "\0", new))), COSTS)


def test_a_loop_of_few_steps_on_few_elements_is_left_on_sight() -> None:
    (loop,) = brief() or ()
    assert (loop.module, loop.trip_count, loop.reason) == ("jit_brief", 3, Reason.NOT_PROFITABLE)
    assert loop.decision.sentence == (
        "A kernel would not be worth it: XLA takes at most 0.0936 microseconds for all its 3"
        " iterations."
    )
    assert loop.decision.numbers == {"xla_us": pytest.approx(0.0936)}
    assert loop.decision.instruction == loop.name


@pytest.mark.parametrize(
    ("shape", "opcode", "steps", "old", "new"),
    [
        ("f32[]", "sine(x)", "300", "", ""),
        ("f32[17]", "sine(x)", "3", "", ""),
        ("f32[17]", "reverse(x), dimensions={0}", "3", "", ""),
        ("f32[]", "reduce(z, x), dimensions={0}, to_apply=sum", "3", "", ""),
        ("c64[]", "negate(x)", "3", "", ""),
        ("f32[2]", 'custom-call(x), custom_call_target="any"', "3", "", ""),
        ("f32[]", "sine(x)", "3", "known_trip_count", "other"),
        ("f32[]", "sine(x)", "3", 'call="true"', 'call="false"'),
        ("f32[]", "sine(x)", "3", "  small =", f"  {ANOTHER}\n  small ="),
    ],
    ids=["steps", "size", "moved", "read", "complex", "called", "uncounted", "thunks", "another"],
)
def test_of_others_more_has_to_be_found_out(
    shape: str, opcode: str, steps: str, old: str, new: str
) -> None:
    assert brief(shape, opcode, steps, old, new) is None


def add_keys(key: jax.Array) -> Any:
    return jax.random.key_data(jax.random.fold_in(jax.random.split(key)[0], 7))


def nest(x: jax.Array) -> jax.Array:
    def inner(_: Any, y: jax.Array) -> jax.Array:
        return jnp.sin(y) ** 1.5 / (1 + y * y)

    def outer(_: Any, y: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, 3, inner, y) + 1

    result: jax.Array = jax.lax.fori_loop(0, 4, outer, x)
    return result


def mix(x: jax.Array, n: jax.Array) -> Any:
    def step(k: jax.Array, carry: Any) -> Any:
        y, m = carry
        return jnp.roll(y, 1) * y[k] + jnp.tanh(y[::-1]), m // (k + 2) + m % 7

    return jax.lax.fori_loop(0, 5, step, (x, n))


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (add_keys, (jax.random.key(3),)),
        (nest, (jnp.float32(0.3),)),
        (mix, (jnp.arange(8.0), jnp.int32(1 << 30))),
    ],
)
def test_no_loop_takes_longer_by_estimate(
    function: Callable[..., Any], arguments: Sequence[Any]
) -> None:
    data = compiled(function, *arguments)
    loops = {loop.name: loop for loop in find_brief_loops(read_message(data), COSTS) or ()}
    module = HloModule.from_bytes(data)
    take_out_loops(module)
    estimated = {
        i.name: estimate_step_us(i, COSTS, is_compiled=True) * (compute_trip_count(i) or 0)
        for computation in module.computations
        for i in computation.instructions
        if i.opcode == "while"
    }
    assert estimated
    assert loops.keys() == estimated.keys()
    for name, xla_us in estimated.items():
        assert xla_us <= loops[name].decision.numbers["xla_us"]


@pytest.mark.parametrize(
    ("options", "is_read"),
    [(Options(), False), (Options(min_gain=0), True), (Options(verify_hlo=True), True)],
)
def test_of_a_module_of_such_loops_only_the_message_is_read(
    monkeypatch: pytest.MonkeyPatch, options: Options, is_read: bool
) -> None:
    read = []

    def note(message: Any) -> HloModule:
        read.append(message)
        return from_proto(message)

    from_proto = HloModule.from_proto
    monkeypatch.setattr(HloModule, "from_proto", note)
    log = DecisionLog()
    result = pipeline.transform(compiled(add_keys, jax.random.key(3)), options, log)
    assert bool(read) == is_read
    assert len(log) > 0
    assert (result is None) == all(not loop.fused for loop in log)
