"""The experiment of "Operator Fusion in XLA" (arXiv:2301.13062) on its CartPole, as an argument."""

from __future__ import annotations

import jax
import numpy as np
import pytest

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
        ("xla-2021", 1),
        ("xla-2023", 1),
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
