"""Advice: each rule finds what it is about, says nothing where that is not, and gains what it
says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import fuselane
from fuselane.explain import costs
from fuselane.explain.advice.rules import RULES
from fuselane.explain.build import build_module
from fuselane.explain.model import AdviceModel, ModuleModel
from fuselane.xla.capture import capture
from tests.explain.modules import model_of

LANES: Final = 512
STEPS: Final = 50


def compiled(function: Callable[..., Any], *arguments: Any) -> ModuleModel:
    (captured,) = capture(jax.jit(function).lower(*arguments))
    return build_module(captured)


def advice(module: ModuleModel) -> dict[str, AdviceModel]:
    return {found.rule: found for found in module.advice}


def _draws(x: jax.Array, key: jax.Array) -> jax.Array:
    def step(carry: Any, _: None) -> Any:
        x, key = carry
        key, draw = jax.random.split(key)
        return (x + jax.random.uniform(draw, x.shape), key), None  # The draw.

    return lax.scan(step, (x, key), length=STEPS)[0][0]


def _drawn(x: jax.Array, key: jax.Array) -> jax.Array:
    noise = jax.random.uniform(key, (STEPS, *x.shape))
    return lax.scan(lambda x, row: (x + row, None), x, noise)[0]


def test_random_numbers_in_a_loop() -> None:
    key = jax.random.key(0)
    module = compiled(_draws, jnp.ones(LANES), key)
    found = advice(module)["random-numbers-in-loop"]
    assert found.gain is not None and found.gain > 1.5
    assert found.source is not None and found.source.file == __file__
    assert found.loop == module.loops[0].name
    assert "random-numbers-in-loop" not in advice(compiled(_drawn, jnp.ones(LANES), key))


def _stacked(state: jax.Array) -> jax.Array:
    def step(state: jax.Array, _: None) -> Any:
        x, v = state[0], state[1]
        return jnp.stack([x + 0.1 * v, v - 0.1 * x]), None  # The stack.

    return lax.scan(step, state, length=STEPS)[0]


def _tuple(x: jax.Array, v: jax.Array) -> Any:
    def step(state: Any, _: None) -> Any:
        x, v = state
        return (x + 0.1 * v, v - 0.1 * x), None

    return lax.scan(step, (x, v), length=STEPS)[0]


def _rolled_state(x: jax.Array) -> jax.Array:
    """Concatenates to roll, but its state is no stack."""

    def step(x: jax.Array, _: None) -> Any:
        return x + 0.1 * (jnp.roll(x, 1) + jnp.roll(x, -1)), None

    return lax.scan(step, x, length=STEPS)[0]


def test_stacked_state() -> None:
    found = advice(compiled(_stacked, jnp.ones((2, 4096))))["stacked-state"]
    assert found.gain is not None and found.gain > 1.01
    assert found.source is not None and found.source.file == __file__
    assert "concatenates 2 arrays" in found.sentence
    assert "stacked-state" not in advice(compiled(_rolled_state, jnp.ones(4096)))
    assert "stacked-state" not in advice(compiled(_tuple, jnp.ones(4096), jnp.ones(4096)))


def test_what_is_computed_at_each_place_it_is_read() -> None:
    def around(x: jax.Array) -> jax.Array:
        y = jnp.tanh(x)  # At three places.
        return y + jnp.roll(y, 1) + jnp.roll(y, -1)

    def kept(x: jax.Array) -> Any:
        y = jnp.tanh(x)
        return y + jnp.roll(y, 1) + jnp.roll(y, -1), y

    def cheap(x: jax.Array) -> jax.Array:
        y = x + 1
        return y + jnp.roll(y, 1) + jnp.roll(y, -1)

    x = jnp.ones(50_000)
    recomputed, once = compiled(around, x), compiled(kept, x)
    found = advice(recomputed)["recomputed-value"]
    assert "about 3 times" in found.sentence and "a result of the jitted function" in found.sentence
    assert found.source is not None and found.source.file == __file__
    gain = costs.time_us(recomputed) / costs.time_us(once)
    assert found.gain == pytest.approx(gain, rel=0.3)
    assert "recomputed-value" not in advice(once)
    assert "recomputed-value" not in advice(compiled(cheap, x))


def _python_loop(x: jax.Array) -> jax.Array:
    for _ in range(40):
        x = jnp.sin(x) * x + x.sum()  # The body.
    return x


def _rolled(x: jax.Array) -> jax.Array:
    return lax.fori_loop(0, 40, lambda _, x: jnp.sin(x) * x + x.sum(), x)


def test_a_loop_of_python() -> None:
    found = advice(compiled(_python_loop, jnp.ones(64)))["python-unrolled-loop"]
    assert found.gain is None
    assert found.sentence.startswith("40 copies of the same ")
    assert found.source is not None and found.source.file == __file__
    assert "python-unrolled-loop" not in advice(compiled(_rolled, jnp.ones(64)))


def test_layers_are_copies_of_one_though_some_of_their_operations_are_alike() -> None:
    def loss(weights: list[jax.Array], x: jax.Array) -> jax.Array:
        for w in weights:
            x = x + jnp.tanh((x - x.mean()) @ w) * 0.5
        return (x**2).sum()

    weights = [jnp.ones((8, 8)) for _ in range(14)]
    found = advice(compiled(jax.grad(loss), weights, jnp.ones((4, 8))))["python-unrolled-loop"]
    assert found.sentence.startswith("14 copies of the same ")


def test_many_arrays_alike_are_no_loop() -> None:
    arrays = [jnp.ones(5) for _ in range(40)]
    module = compiled(lambda xs: [jnp.sin(x) * x + x.sum() for x in xs], arrays)
    assert "python-unrolled-loop" not in advice(module)


def test_types_that_widen() -> None:
    with jax.enable_x64(True):
        x = jnp.ones((512, 512), jnp.float32)
        wide = compiled(lambda x: jnp.sin(x * np.float64(0.5)) + 1, x)
        narrow = compiled(lambda x: jnp.sin(x * 0.5) + 1, x)
    found = advice(wide)["dtype-promotion"]
    assert found.gain is not None and found.gain > 1.2
    assert "dtype-promotion" not in advice(narrow)


def test_outputs_of_every_step() -> None:
    def keep(x: jax.Array) -> Any:
        return lax.scan(lambda x, _: (x + 1, x), x, length=STEPS)

    def forget(x: jax.Array) -> Any:
        return lax.scan(lambda x, _: (x + 1, x[0]), x, length=STEPS)

    found = advice(compiled(keep, jnp.ones(20_000)))["per-step-outputs"]
    assert found.gain is not None and found.gain > 1.05
    assert "per-step-outputs" not in advice(compiled(forget, jnp.ones(20_000)))


def test_elements_that_change_places() -> None:
    def swap(a: jax.Array, b: jax.Array) -> Any:
        return lax.scan(lambda c, _: ((c[1], c[0] + c[1]), None), (a, b), length=STEPS)[0]

    found = advice(compiled(swap, jnp.ones(4096), jnp.ones(4096)))["loop-state-copies"]
    assert found.gain is not None and found.gain > 1.05
    still = compiled(lambda a: lax.fori_loop(0, STEPS, lambda _, a: a + 1, a), jnp.ones(4096))
    assert "loop-state-copies" not in advice(still)


_LOOP: Final = """
HloModule small, is_scheduled=true
step { a = f32[8] parameter(0)  ROOT sined = f32[8] sine(a) }
up { a = s32[] parameter(0)  one = s32[] constant(1)  ROOT plus = s32[] add(a, one) }
body {
  p = (s32[], f32[8]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  next = s32[] fusion(i), kind=kLoop, calls=up
  v = f32[8] get-tuple-element(p), index=1
  f = f32[8] fusion(v), kind=kLoop, calls=step
  ROOT r = (s32[], f32[8]) tuple(next, f)
}
condition {
  p = (s32[], f32[8]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  n = s32[] constant(1000)
  ROOT test = pred[] compare(i, n), direction=LT
}
ENTRY main {
  x = f32[8] parameter(0)
  zero = s32[] constant(0)
  init = (s32[], f32[8]) tuple(zero, x)
  w = (s32[], f32[8]) while(init), condition=condition, body=body,
      backend_config={"known_trip_count":{"n":"1000"}}
  ROOT y = f32[8] get-tuple-element(w), index=1
}
"""


def test_a_loop_bound_by_launches_is_unrolled_on_a_gpu() -> None:
    found = advice(model_of(_LOOP, "h100"))["scan-unroll"]
    assert found.gain == pytest.approx(1 / 0.12, rel=0.2)  # ten iterations share two launches
    assert "scan-unroll" not in advice(model_of(_LOOP.replace("8]", "8000000]"), "h100"))


def test_many_small_kernels_on_a_gpu() -> None:
    calls = "\n".join(f"  k{n} = f32[8] fusion(x), kind=kLoop, calls=step" for n in range(30))
    results = ", ".join(f"k{n}" for n in range(30))
    shape = ", ".join(["f32[8]"] * 30)
    text = f"""HloModule many, is_scheduled=true
step {{ a = f32[8] parameter(0)  ROOT sined = f32[8] sine(a) }}
ENTRY main {{
  x = f32[8] parameter(0)
{calls}
  ROOT r = ({shape}) tuple({results})
}}"""
    found = advice(model_of(text, "h100"))["launch-bound"]
    assert found.gain is not None and found.gain > 2
    assert len(found.kernels) == 30
    large = text.replace("f32[8]", "f32[8000000]")
    assert "launch-bound" not in advice(model_of(large, "h100"))


def test_small_products_in_a_loop() -> None:
    text = _LOOP.replace(
        "  f = f32[8] fusion(v), kind=kLoop, calls=step",
        "  g = f32[8] fusion(v), kind=kLoop, calls=step\n"
        "  m = f32[8,8] broadcast(g), dimensions={0}\n"
        "  d = f32[8] dot(g, m), lhs_contracting_dims={0}, rhs_contracting_dims={0}\n"
        "  f = f32[8] fusion(d), kind=kLoop, calls=step",
    )
    found = advice(model_of(text, "h100"))["library-call-splits-work"]
    assert found.gain is not None and found.kernels == ("d",)
    assert "library-call-splits-work" not in advice(model_of(_LOOP, "h100"))


def test_loops_for_fuselane_and_loops_it_refuses() -> None:
    def mixes(x: jax.Array) -> jax.Array:
        return lax.scan(lambda x, _: (jnp.fft.fft(x).real, None), x, length=200)[0]

    (module,) = fuselane.explain(_drawn, jnp.ones(20_000), jax.random.key(0)).modules
    enable = advice(module).get("fuselane-enable")
    assert (enable is not None) == any(
        loop.decision.fused for loop in module.loops if loop.decision
    )
    (module,) = fuselane.explain(mixes, jnp.ones(4096)).modules
    refused = advice(module)["fuselane-refused"]
    assert refused.gain is None and refused.source is not None
    assert "leaves `while" in refused.sentence


def test_rules_have_names_of_their_own() -> None:
    assert len({rule.name for rule in RULES}) == len(RULES)
