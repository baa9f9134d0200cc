"""Programs of other people: every boundary explained, with its line, and bytes as XLA counts them.

Each is skipped where its package is not installed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import jax
import jax.numpy as jnp
import pytest

from fuselane.analysis.hlo_cost import compute_total
from fuselane.explain.build import build_module
from fuselane.xla.capture import capture
from programs import find_program
from tests.hlo.xla import UNOPTIMISED

Built = tuple[Callable[..., Any], tuple[Any, ...]]


def _of_suite(name: str) -> Callable[[], Built]:
    def build() -> Built:
        program = find_program(name)
        for package in program.requires:
            pytest.importorskip(package)
        return program.build(program.quick)

    return build


def _build_transformer() -> Built:
    """A train step of a transformer block of flax under optax."""
    linen, optax = pytest.importorskip("flax.linen"), pytest.importorskip("optax")

    def block(module: Any, x: Any) -> Any:
        x = x + linen.SelfAttention(4)(linen.LayerNorm()(x))
        y = linen.gelu(linen.Dense(64)(linen.LayerNorm()(x)))
        return x + linen.Dense(x.shape[-1])(y)

    model = type("Block", (linen.Module,), {"__call__": linen.compact(block)})()
    x = jnp.ones((4, 16, 32))
    parameters, optimizer = model.init(jax.random.key(0), x), optax.adamw(1e-3)

    def train(parameters: Any, state: Any, x: Any) -> Any:
        def loss(parameters: Any) -> Any:
            return jnp.mean(model.apply(parameters, x) ** 2)

        updates, state = optimizer.update(jax.grad(loss)(parameters), state, parameters)
        return optax.apply_updates(parameters, updates), state

    return train, (parameters, optimizer.init(parameters), x)


def _build_adam() -> Built:
    """Adam of optax over many small arrays."""
    optax = pytest.importorskip("optax")
    optimizer = optax.adam(1e-3)
    arrays = [jnp.ones((3 + n % 5, 2 + n % 3)) for n in range(30)]

    def update(parameters: Any, state: Any, gradients: Any) -> Any:
        updates, state = optimizer.update(gradients, state)
        return optax.apply_updates(parameters, updates), state

    return update, (arrays, optimizer.init(arrays), arrays)


PROGRAMS: Final[dict[str, Callable[[], Built]]] = {
    "gymnax CartPole": _of_suite("gymnax/CartPole-v1"),
    "gymnax MinAtar Breakout": _of_suite("gymnax/Breakout-MinAtar"),
    "diffrax": _of_suite("ode/diffrax-adaptive"),
    "blackjax HMC": _of_suite("mcmc/blackjax-hmc"),
    "flax transformer block": _build_transformer,
    "optax Adam": _build_adam,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_everything_is_explained(name: str) -> None:
    function, arguments = PROGRAMS[name]()
    lowered = jax.jit(function).lower(*arguments)
    (captured,) = capture(lowered)
    module = build_module(captured)
    unknown = [b for b in module.boundaries if b.decision.reason.code == "unknown"]
    assert not unknown
    with_line = sum(boundary.source is not None for boundary in module.boundaries)
    assert with_line >= 0.95 * len(module.boundaries)
    total = compute_total(captured.module().entry, count_trips=False)
    compiled: Any = lowered.compile(UNOPTIMISED)
    expected = compiled.cost_analysis()["bytes accessed"]
    assert total.num_bytes == pytest.approx(expected, rel=0.05)
