"""The experiment of "Operator Fusion in XLA" (arXiv:2301.13062) on its CartPole, as an argument."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import fuselane
from fuselane.cartpole.variants import make_concat
from fuselane.fusion.pipelines import for_cpu, parse_pipeline, run_pipeline
from fuselane.hlo import HloModule
from fuselane.xla.capture import capture, lower

ENVS = 256
ARGUMENTS = (
    jax.ShapeDtypeStruct((4, ENVS), np.float32),
    jax.ShapeDtypeStruct((16, ENVS), np.int32),
    jax.ShapeDtypeStruct((16, 4, ENVS), np.float32),
)


@pytest.fixture(scope="module")
def before_fusion() -> bytes:
    """XLA:CPU's module of the concat program, just before its fusion pass."""
    (module,) = capture(lower(jax.jit(make_concat(10)), "cpu", *ARGUMENTS), "cpu")
    names = [stage.name for stage in module.stages]
    return module.stages[names.index("fusion") - 1].data


@pytest.mark.parametrize(
    ("pipeline", "num_kernels"),
    [
        ("xla-today-cpu", 2),
        ("xla-today-cpu,fusion-merger{max-consumers=3}", 1),
        ("xla-today-cpu,fusion-merger", 1),
        ("xla-2021", 1),
        ("xla-2023", 1),
        ("xla-2024", 1),
    ],
)
def test_kernels_that_simulate_a_step(
    before_fusion: bytes, pipeline: str, num_kernels: int
) -> None:
    """XLA:CPU splits the step at the angle's acceleration, which two results need."""
    module = HloModule.from_bytes(before_fusion)
    run_pipeline(for_cpu(parse_pipeline(pipeline)), module)
    kernels = [
        instruction
        for computation in module.computations
        if not computation.is_fusion
        for instruction in computation.instructions
        if instruction.opcode == "fusion" and ENVS in instruction.shape.dimensions
    ]
    assert len(kernels) == num_kernels
    if num_kernels == 2:
        assert any(kernel.to_apply.root.opcode == "divide" for kernel in kernels)


def test_one_kernel_computes_what_two_did() -> None:
    """On the real XLA:CPU, loops left to it."""
    generator = np.random.default_rng(0)
    state = generator.uniform(-0.05, 0.05, ARGUMENTS[0].shape).astype(np.float32)
    actions = generator.integers(0, 2, ARGUMENTS[1].shape).astype(np.int32)
    resets = generator.uniform(-0.05, 0.05, ARGUMENTS[2].shape).astype(np.float32)
    rollout = make_concat(50)
    expected = jax.jit(rollout)(state, actions, resets)
    text = "xla-today-cpu,fusion-merger{max-consumers=3}"
    with fuselane.enabled(loops=False, fusion=text):
        result = jax.jit(rollout)(state, actions, resets)
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)
