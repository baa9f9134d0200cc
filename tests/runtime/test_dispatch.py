"""Whether calls of programs with kernels return at once, as XLA decides by what it counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import fuselane
from fuselane import pipeline
from fuselane.analysis.dispatch import DISPATCH_MARK, is_asynchronous, remove_dispatch_mark
from fuselane.config import Options
from fuselane.decisions import DecisionLog
from fuselane.hlo.module import HloModule
from fuselane.lanes import sharing
from fuselane.lanes.dispatch import add_dispatch_mark
from tests.hlo.xla import module_of

INLINE_FLOPS: Final = 1000
"""XLA runs programs in which it counts fewer in the caller's thread."""

_TEXT: Final = """HloModule jit_module
sine {
  x = f32[SIZE] parameter(0)
  ROOT y = f32[SIZE] sine(x)
}
sum {
  x = f32[SIZE] parameter(0)
  ROOT y = f32[SIZE] add(x, x)
}
step {
  p = (s32[], f32[SIZE]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  x = f32[SIZE] get-tuple-element(p), index=1
  one = s32[] constant(1)
  next = s32[] add(i, one)
  y = f32[SIZE] fusion(x), kind=kLoop, calls=BODY
  ROOT r = (s32[], f32[SIZE]) tuple(next, y)
}
condition {
  p = (s32[], f32[SIZE]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  n = s32[] constant(100000)
  ROOT go = pred[] compare(i, n), direction=LT
}
ENTRY main {
  x = f32[SIZE] parameter(0)
  zero = s32[] constant(0)
  init = (s32[], f32[SIZE]) tuple(zero, x)
  loop = (s32[], f32[SIZE]) while(init), condition=condition, body=step
  ROOT r = f32[SIZE] get-tuple-element(loop), index=1
}
"""


def module(size: int, body: str = "sum") -> HloModule:
    return module_of(_TEXT.replace("SIZE", str(size)).replace("BODY", body))


def transform(before: HloModule) -> HloModule:
    """Returns the module with kernels."""
    log = DecisionLog()
    data = pipeline.transform(before.to_bytes(), Options(min_gain=0), log)
    assert data is not None, [loop.decision.sentence for loop in log]
    return HloModule.from_bytes(data)


def compiled(function: Callable[..., Any], *arguments: Any) -> jax.stages.Compiled:
    with fuselane.enabled(min_gain=0):
        before = len(fuselane.decisions().loops)
        result = jax.jit(function).lower(*arguments).compile()
    assert any(loop.fused for loop in fuselane.decisions().loops[before:])
    return result


def count_flops(executable: jax.stages.Compiled) -> float:
    """Returns what XLA counts."""
    cost: Any = executable.cost_analysis()
    return float(cost["flops"])


def turn(steps: int, is_stacked: bool = False) -> Callable[[jax.Array], Any]:
    def step(x: jax.Array, _: None) -> tuple[jax.Array, jax.Array | None]:
        x = jnp.sin(x) * 1.5
        return x, x if is_stacked else None

    return lambda x: lax.scan(step, x, length=steps)


@pytest.mark.parametrize(
    ("function", "is_long"),
    [
        (turn(200_000), True),
        (turn(20), False),
        (turn(400, is_stacked=True), True),  # 1.6 MB are allocated
        (lambda x: lax.while_loop(lambda x: (x < 9).any(), lambda x: x + 1, x), True),
    ],
    ids=["long", "short", "large", "nobody-knows"],
)
def test_what_xla_counts(function: Callable[..., Any], is_long: bool) -> None:
    x = jnp.linspace(0.1, 1, 1024)
    executable = compiled(function, x)
    assert (count_flops(executable) >= INLINE_FLOPS) is is_long
    expected, actual = jax.jit(function)(x), executable(x)
    for a, b in zip(jax.tree.leaves(expected), jax.tree.leaves(actual), strict=True):
        np.testing.assert_allclose(a[:20], b[:20], rtol=1e-3)


def test_a_call_returns_at_once() -> None:
    """While a loop runs whose state never comes back, so that all of its steps are done."""

    def step(x: jax.Array, _: None) -> tuple[jax.Array, None]:
        return x * 1664525 + 1013904223, None

    x = jnp.arange(4096, dtype=jnp.uint32)
    executable = compiled(lambda x: lax.scan(step, x, length=5_000_000)[0], x)
    result = executable(x)
    assert not result.is_ready()
    result.block_until_ready()


@pytest.mark.parametrize(("size", "body"), [(16, "sum"), (100_000, "sine")])
def test_what_xla_runs_in_the_callers_thread_stays_there(size: int, body: str) -> None:
    before = module(size, body)
    assert not is_asynchronous(before)
    assert not is_asynchronous(transform(before))


def test_a_loop_in_a_loop_counts_as_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody knows how often it runs."""
    monkeypatch.setattr(sharing, "MAX_SHARED", 0)  # the outer loop stays

    def step(_: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.flip(lax.fori_loop(0, 30, lambda _, x: jnp.sin(x) * 1.5, x))

    x = jnp.linspace(0.1, 1, 1024)
    executable = compiled(lambda x: lax.fori_loop(0, 7, step, x), x)
    assert count_flops(executable) >= INLINE_FLOPS


def test_the_mark_leaves_no_trace() -> None:
    changed = transform(module(1024))
    assert is_asynchronous(changed)
    remove_dispatch_mark(changed)
    assert not is_asynchronous(changed)
    assert DISPATCH_MARK.encode() not in changed.to_bytes()
    before = changed.to_bytes()
    add_dispatch_mark(changed)
    assert is_asynchronous(changed)
    remove_dispatch_mark(changed)
    assert len(HloModule.from_bytes(before).entry.instructions) == len(changed.entry.instructions)


def test_a_module_that_returns_an_argument_has_none() -> None:
    text = "HloModule m\nENTRY main {\n  ROOT x = f32[8] parameter(0)\n}\n"
    argument = module_of(text)
    add_dispatch_mark(argument)
    assert len(argument.entry.instructions) == 1


def test_kernels_of_straight_line_code_count() -> None:
    """Where there is no loop, too."""

    def function(x: jax.Array) -> jax.Array:
        for _ in range(12):
            x = jnp.sin(x) * jnp.exp(-x * x)
        return x

    x = jnp.linspace(0.1, 1, 400_000)
    with fuselane.enabled(min_gain=0, fusion="fuselane"):
        executable = jax.jit(function).lower(x).compile()
    assert count_flops(executable) >= INLINE_FLOPS
    assert not all(executable(x).is_ready() for _ in range(9))  # the test may be held up, too
