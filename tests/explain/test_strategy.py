"""Reports with another fusion strategy than XLA's in force."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

import fuselane
from fuselane import explaining
from fuselane.boundary import BoundaryReason
from fuselane.explain.model import ModuleModel
from fuselane.explaining import STRATEGY_NOTE


def rollout(x: jax.Array) -> Any:
    def step(c: jax.Array, _: None) -> Any:
        c = jnp.sin(c) * 2 + jnp.cos(c)
        d = c / (1 + c * c)
        return d * c, d[0]

    return jax.lax.scan(step, x, length=5)


def explained(function: Any = rollout) -> ModuleModel:
    (module,) = fuselane.explain(function, jnp.ones(500)).modules
    return module


def test_boundaries_are_the_strategys() -> None:
    plain = explained()
    with fuselane.enabled(fusion="xla-2021"):
        merged = explained()
    assert plain.notes == () and merged.notes == (STRATEGY_NOTE,)
    assert len(merged.kernels) < len(plain.kernels)
    assert [stage.pipeline for stage in merged.stages][-1] == "fuselane"
    reasons = {b.decision.reason for b in merged.boundaries}
    assert reasons <= {
        BoundaryReason.CONSTANT,
        BoundaryReason.COPY,
        BoundaryReason.ENTRY,
        BoundaryReason.EXIT,
        BoundaryReason.LOOP_CONTROL,
        BoundaryReason.LOOP_SHAPES,
        BoundaryReason.MULTI_OUTPUT,
    }


def test_a_function_compiled_by_a_strategy_is_explained_by_it() -> None:
    module = explained(fuselane.jit(rollout, fusion="instruction-fusion{may-duplicate=false}"))
    refused = [b for b in module.boundaries if b.crossing == "dataflow" and b.decision.xla]
    assert refused
    assert {b.decision.xla for b in refused} == {"pass cannot duplicate"}
    assert {b.decision.reason for b in refused} == {BoundaryReason.DUPLICATION}


def test_a_strategy_that_fails_leaves_xlas_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise ValueError("of no use")

    plain = explained()
    monkeypatch.setattr(explaining, "apply", fail)
    with fuselane.enabled(fusion="instruction-fusion"):
        module = explained()
    assert module.kernels == plain.kernels
    (note,) = module.notes
    assert note.startswith("The fusion strategy failed") and "of no use" in note
