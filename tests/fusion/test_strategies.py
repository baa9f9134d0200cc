"""All strategies on whole programs: results stay, and so do decisions."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fuselane.cartpole.variants import make_concat
from fuselane.fusion.pipelines import PIPELINES, for_cpu, parse_pipeline, run_pipeline
from fuselane.fusion.running import apply
from fuselane.hlo import HloModule
from tests.hlo.xla import lowered, parse, run_module

Array = np.ndarray[Any, Any]

STRATEGIES: Final = (
    *(name for name in PIPELINES if name != "none"),
    "multi-output-fusion",
    "xla-today-cpu,horizontal-loop-fusion,horizontal-input-fusion,fusion-cse",
    "fixed-point(gpu-instruction-fusion{may-duplicate=false},fusion-merger{max-consumers=9})",
)


def softmax(x: jax.Array) -> Any:
    scores = jax.nn.softmax(x @ x.T)
    return scores, jnp.sin(x), x.sum(0), x.max(1), scores.T


def optimizer(parameters: list[jax.Array], gradients: list[jax.Array]) -> Any:
    """Adam's first step, over arrays of several shapes."""
    results = []
    for parameter, gradient in zip(parameters, gradients, strict=True):
        first, second = 0.1 * gradient, 0.01 * gradient**2
        results.append((parameter - first / (jnp.sqrt(second) + 1e-3), first, second))
    return results


def several(x: jax.Array) -> Any:
    shared = jnp.sin(x)
    both = jnp.concatenate([shared, jnp.exp(x)])
    return both, both[1:] * 2, shared + 1, jnp.flip(both), jnp.cumsum(shared, 0), jnp.sort(x, 0)


def updates(x: jax.Array) -> Any:
    y = x.at[2].set(jnp.tanh(x[2]))
    z = jax.lax.dynamic_update_slice(y, y[:2] * 2, (1, 0))
    return y.sum(), z, jnp.where(z > 0, z, 0).sum(1)


X: Final = np.linspace(-2, 2, 96, dtype=np.float32).reshape(16, 6)
TREE: Final = [
    np.linspace(0.1, 1, n, dtype=np.float32).reshape(s)
    for n, s in ((12, (4, 3)), (3, (3,)), (12, (4, 3)), (5, (5,)), (3, (3,)))
]
STATE: Final = np.linspace(-0.05, 0.05, 32, dtype=np.float32).reshape(4, 8)

PROGRAMS: Final[dict[str, tuple[Callable[..., Any], tuple[Any, ...]]]] = {
    "softmax": (softmax, (X,)),
    "optimizer": (optimizer, (TREE, TREE)),
    "several": (several, (X,)),
    "updates": (updates, (X,)),
    "gradient": (jax.grad(lambda w: (jnp.tanh(X @ w) ** 2).mean()), (X.T.copy(),)),
    "cartpole": (
        make_concat(20),
        (STATE, np.ones((3, 8), np.int32), np.stack([STATE, -STATE, STATE])),
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("is_cpu", [False, True], ids=["gpu", "cpu"])
def test_results_stay(name: str, is_cpu: bool) -> None:
    """XLA computes the same from the module before and after each strategy."""
    function, arguments = PROGRAMS[name]
    data = lowered(function, *arguments)
    inputs = jax.tree.leaves(arguments)
    run = functools.cache(lambda data: run_module(data, *inputs))  # some strategies do the same
    expected = run(data)
    for text in STRATEGIES:
        pipeline = parse_pipeline(text)
        module = HloModule.from_bytes(data)
        log = run_pipeline(for_cpu(pipeline) if is_cpu else pipeline, module)
        results = run(module.to_bytes())
        for result, wanted in zip(results, expected, strict=True):
            np.testing.assert_allclose(result, wanted, rtol=1e-5, atol=1e-6, err_msg=text)
        again = HloModule.from_bytes(data)
        assert run_pipeline(for_cpu(pipeline) if is_cpu else pipeline, again).steps == log.steps
        if is_cpu:
            check_kernels(module)


@pytest.mark.parametrize("text", [*PIPELINES, "fusion-merger", "split-kernel"])
def test_fusions_that_share_a_body(text: str) -> None:
    """As in HLO written by hand; XLA gives each its own."""
    data = parse(
        """HloModule m
        twice { p = f32[64] parameter(0) q = f32[64] parameter(1) s = f32[64] sine(p)
          ROOT r = f32[64] add(s, q) }
        ENTRY main { x = f32[64] parameter(0) y = f32[64] parameter(1)
          a = f32[64] fusion(x, y), kind=kLoop, calls=twice
          b = f32[64] fusion(y, x), kind=kLoop, calls=twice
          c = f32[64] fusion(a, b), kind=kLoop, calls=twice
          ROOT t = (f32[64], f32[64]) tuple(b, c) }"""
    )
    inputs = [np.linspace(low, 2, 64, dtype=np.float32) for low in (-2, 1)]
    module = HloModule.from_bytes(data)
    apply(module, parse_pipeline(text))
    bodies = [i.to_apply for i in module.entry.instructions if i.opcode == "fusion"]
    assert len(set(bodies)) == len(bodies) > 0
    for result, wanted in zip(
        run_module(module.to_bytes(), *inputs), run_module(data, *inputs), strict=True
    ):
        np.testing.assert_allclose(result, wanted, rtol=1e-5)


def check_kernels(module: HloModule) -> None:
    """What XLA:CPU can compile: loops whose results have one shape."""
    for computation in module.computations:
        for fusion in computation.instructions:
            if fusion.opcode == "fusion":
                assert fusion.fusion_kind in ("kLoop", "kOutput")
                shapes = {shape.dimensions for shape in fusion.shape.tuple_shapes}
                assert len(shapes) <= 1
