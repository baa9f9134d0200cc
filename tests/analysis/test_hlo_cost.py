"""Costs against XLA's own analysis, and by hand where XLA and we differ on purpose."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import jax
import jax.numpy as jnp
import pytest

from fuselane.analysis.hlo_cost import compute_cost, compute_total
from fuselane.hlo.module import HloModule
from tests.hlo import xla
from tests.hlo.xla import UNOPTIMISED


def _scan(x: Any) -> Any:
    def step(carry: Any, row: Any) -> Any:
        carry = jnp.tanh(carry) * row
        return carry, carry.sum()

    return jax.lax.scan(step, x[0], x)


def _update(x: Any) -> Any:
    return jax.lax.fori_loop(0, 4, lambda i, y: y.at[i].set(y[i] * 2 + y[0]), x)


PROGRAMS: Final[dict[str, tuple[Callable[..., Any], tuple[Any, ...]]]] = {
    "elementwise": (lambda x: jnp.sin(x) * x + 1, (jnp.ones((64, 33)),)),
    "reduce": (lambda x: jnp.where(x > 0, x, 0).sum(axis=0), (jnp.ones((64, 33)),)),
    "dot": (lambda x: jnp.exp(x @ x.T), (jnp.ones((48, 32)),)),
    "slices": (lambda x: x[3:40:2] + x[:19], (jnp.ones((64, 8)),)),
    "gather": (lambda x, i: x[i] * 2, (jnp.ones((64, 8)), jnp.array([3, 1, 5]))),
    "scatter": (lambda x, i: x.at[i].add(1.0), (jnp.ones(64), jnp.array([3, 1, 5]))),
    "sort": (jnp.sort, (jnp.ones(200),)),
    "sort of two arrays": (
        lambda x, i: jax.lax.sort((x, i), num_keys=2),
        (jnp.ones(200), jnp.arange(200)),
    ),
    "scan": (_scan, (jnp.ones((10, 64)),)),
    "update in place": (_update, (jnp.ones((16, 64)),)),
    "branch": (
        lambda p, x: jax.lax.cond(p, lambda y: jnp.sin(y).sum(), lambda y: y[0], x),
        (True, jnp.ones(256)),
    ),
}


def pointer_bytes(module: HloModule) -> int:
    """Returns half of what tuples themselves take, which JAX 0.11 no longer counts."""
    instructions = [i for c in module.computations for i in c.instructions]
    return sum(4 * len(i.operands) for i in instructions if i.opcode == "tuple")


@pytest.mark.parametrize("name", PROGRAMS)
def test_totals_are_those_of_xla(name: str) -> None:
    function, arguments = PROGRAMS[name]
    compiled: Any = jax.jit(function).lower(*arguments).compile(UNOPTIMISED)
    data = compiled.runtime_executable().hlo_modules()[0].as_serialized_hlo_module_proto()
    module = HloModule.from_bytes(data)
    cost = compute_total(module.entry, count_trips=False)
    expected = compiled.cost_analysis()
    num_bytes = expected["bytes accessed"]
    if jax.__version_info__ >= (0, 11):
        num_bytes += pointer_bytes(module)
    assert cost.num_bytes == pytest.approx(num_bytes, rel=0.01)
    assert cost.flops == pytest.approx(expected.get("flops", 0), rel=0.01)
    assert cost.transcendentals == pytest.approx(expected.get("transcendentals", 0), rel=0.01)


def test_loops_count_as_often_as_they_run() -> None:
    text = """
HloModule loop
body {
  p = (s32[], f32[8]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  one = s32[] constant(1)
  next = s32[] add(i, one)
  x = f32[8] get-tuple-element(p), index=1
  y = f32[8] sine(x)
  ROOT r = (s32[], f32[8]) tuple(next, y)
}
condition {
  p = (s32[], f32[8]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  n = s32[] constant(10)
  ROOT less = pred[] compare(i, n), direction=LT
}
ENTRY main {
  x = f32[8] parameter(0)
  zero = s32[] constant(0)
  init = (s32[], f32[8]) tuple(zero, x)
  ROOT loop = (s32[], f32[8]) while(init), condition=condition, body=body
}
"""
    loop = xla.module_of(text).entry.root
    once, all_trips = compute_cost(loop, count_trips=False), compute_cost(loop)
    assert once.transcendentals == 8
    assert all_trips == once * 10


def test_a_matrix_product_and_a_convolution_by_hand() -> None:
    text = """
HloModule products
ENTRY main {
  a = f32[2,3] parameter(0)
  b = f32[3,5] parameter(1)
  d = f32[2,5] dot(a, b), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  image = f32[1,8,8,3] parameter(2)
  kernel = f32[3,3,3,4] parameter(3)
  c = f32[1,6,6,4] convolution(image, kernel), window={size=3x3}, dim_labels=b01f_01io->b01f
  ROOT r = (f32[2,5], f32[1,6,6,4]) tuple(d, c)
}
"""
    by_name = {i.name: i for i in xla.module_of(text).entry.instructions}
    dot, convolution = (compute_cost(by_name[name]) for name in ("d", "c"))
    assert dot.flops == 2 * 2 * 5 * 3
    assert (dot.bytes_read, dot.bytes_written) == (4 * (6 + 15), 4 * 10)
    assert convolution.flops == 2 * (6 * 6 * 4) * (3 * 3 * 3)
