"""What `build_module` makes of small programs, counted by hand."""

from __future__ import annotations

import dataclasses
import re
from typing import Any, Final

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from fuselane.boundary import BoundaryReason
from fuselane.cartpole.problem import make_problem
from fuselane.cartpole.variants import VARIANTS
from fuselane.explain.build import build_module
from fuselane.explain.expressions import read_expression
from fuselane.explain.model import ModuleModel
from fuselane.explain.timeline import trace
from fuselane.hlo.source_lines import SourceLine
from fuselane.xla.capture import capture, lower
from fuselane.xla.captured import CapturedModule, KernelUsage
from tests.explain.modules import capture_text, model_of
from tests.gpu_extra import needs_gpu_extra

LANES: Final = 256


def captured(function: Any, *arguments: Any) -> CapturedModule:
    (module,) = capture(jax.jit(function).lower(*arguments))
    return module


def _rollout(x: jax.Array) -> jax.Array:
    def step(x: jax.Array, _: None) -> Any:
        return jnp.sin(x) / (1 + x * x), None  # The step.

    return lax.scan(step, x, length=30)[0]


def _line_of(mark: str) -> int:
    with open(__file__, encoding="utf-8") as file:
        return next(number for number, line in enumerate(file, 1) if line.endswith(f"# {mark}\n"))


@pytest.fixture(scope="module", name="rollout")
def _rollout_model() -> ModuleModel:
    return build_module(captured(_rollout, jnp.ones(LANES)))


def test_a_loop_on_the_cpu(rollout: ModuleModel) -> None:
    (loop,) = rollout.loops
    assert (loop.trip_count, loop.parent, loop.decision) == (30, "", None)
    in_loop = [kernel for kernel in rollout.kernels if kernel.loop == loop.name]
    assert loop.launches == sum(kernel.launches or 0 for kernel in in_loop)
    assert loop.kernels_per_iteration == sum(k.launches_per_iteration for k in in_loop)
    work = next(kernel for kernel in in_loop if "sine" in kernel.opcodes)
    assert work.launches == 30
    assert (work.bytes_read, work.bytes_written) == (4 * LANES, 4 * LANES)
    assert work.flops == 4 * LANES  # sine, multiply, add, divide
    assert work.source is not None
    assert (work.source.file, work.source.line) == (__file__, _line_of("The step."))
    assert rollout.launches == sum(kernel.launches or 0 for kernel in rollout.kernels)


def test_every_boundary_has_a_reason_and_a_line(rollout: ModuleModel) -> None:
    assert rollout.boundaries
    for boundary in rollout.boundaries:
        assert boundary.decision.reason.code != "unknown", boundary
        assert boundary.source is not None, boundary
    carried = [b for b in rollout.boundaries if b.crossing == "carried" and b.num_bytes > 8]
    assert {boundary.num_bytes for boundary in carried} == {4 * LANES}
    assert any(boundary.expression.startswith("jnp.sin(x)") for boundary in rollout.boundaries)
    runs = [boundary.bytes_per_run or 0 for boundary in rollout.boundaries]
    assert runs == sorted(runs, reverse=True)


def test_the_graph_knows_the_kernel_of_each_instruction(rollout: ModuleModel) -> None:
    kernels = {kernel.name for kernel in rollout.kernels}
    by_name = {instruction.name: instruction for instruction in rollout.instructions}
    assert len(by_name) == len(rollout.instructions)
    sine = next(i for i in rollout.instructions if i.opcode == "sine")
    assert sine.kernel in kernels
    assert by_name[sine.kernel].opcode == "fusion"
    assert {i.kernel for i in rollout.instructions} - {""} <= kernels


def test_the_timeline(rollout: ModuleModel) -> None:
    first, *_, last = rollout.stages
    assert first.num_fusions == 0 and last.num_fusions > 0
    assert sum(last.opcodes.values()) == last.num_instructions
    for before, after in zip(rollout.stages, rollout.stages[1:], strict=False):
        change = len(after.added) - len(after.removed)
        assert after.num_instructions == before.num_instructions + change
    assert min(stage.bytes_moved for stage in rollout.stages) > 0


def test_where_did_my_dot_go() -> None:
    module = build_module(
        captured(lambda x, y: (x * y[:, None] @ y).sum(), jnp.ones((4, 4)), jnp.ones(4))
    )
    events = trace(module, "dot")
    assert events[0].stage == 0 and events[0].count == 1
    assert trace(module, "no-such-thing") == ()
    (name,) = events[0].added
    (came, *_) = trace(module, name)
    assert (came.stage, came.added, came.count) == (0, (name,), 1)


def test_a_loop_of_unknown_length_has_unknown_launches() -> None:
    module = build_module(
        captured(
            lambda x: lax.while_loop(lambda x: x.sum() < 9, lambda x: x * 2, x), jnp.ones(200_000)
        )
    )
    (loop,) = module.loops
    assert loop.trip_count is None and loop.launches is None and module.launches is None


def test_columns_and_expressions() -> None:
    line = _line_of("The step.")
    source = SourceLine(__file__, line, "", line, 15, 25)
    assert read_expression(source) == "jnp.sin(x)"
    assert read_expression(SourceLine(__file__, line)).startswith("return jnp.sin(x)")
    assert read_expression(SourceLine("/etc/passwd", 1)) == ""
    assert read_expression(SourceLine(__file__, 10**6)) == ""
    assert read_expression(None) == ""


_GPU: Final = """HloModule gpu, is_scheduled=true
sin { a = f32[262144] parameter(0)  ROOT sined = f32[262144] add(a, a) }
ENTRY main { x = f32[262144] parameter(0)  ROOT f = f32[262144] fusion(x), kind=kLoop, calls=sin }
"""


def test_a_kernel_on_a_gpu() -> None:
    (kernel,) = model_of(_GPU, "h100").kernels
    # A launch, and one MiB read and one written at 3,352 GB/s, which take longer than adding.
    assert kernel.modelled_us == pytest.approx(1 + 2 * 2**20 / 3.35232e6, rel=0.02)
    assert kernel.registers is None
    usage = KernelUsage(
        registers=40, spill_bytes=0, shared_bytes=0, block_threads=256, num_blocks=1024
    )
    module = capture_text(_GPU, target="h100")
    (kernel,) = build_module(
        CapturedModule(
            name="m",
            target="h100",
            stages=(),
            final=module.final,
            usage={"f": usage},
            gpu=module.gpu,
        )
    ).kernels
    assert (kernel.registers, kernel.block_threads) == (40, 256)
    assert kernel.occupancy == pytest.approx(0.75)


@pytest.mark.slow
@needs_gpu_extra
@pytest.mark.parametrize("name", VARIANTS)
def test_launches_are_those_of_the_thunk_sequence(name: str) -> None:
    problem = make_problem(num_envs=2048, num_steps=1000)
    variant = VARIANTS[name]
    jitted = jax.jit(variant.make_rollout(1000))
    lowered = lower(jitted, "h100", *variant.get_arguments(problem))
    (module,) = capture(lowered, "h100")
    model = build_module(module)
    (loop,) = model.loops
    assert loop.trip_count is not None
    outside, condition, body = _count_thunks(module.thunks)
    assert condition == 1  # is not launched: the trip count is known
    assert loop.kernels_per_iteration == body
    assert model.launches == outside + loop.trip_count * body


def test_what_takes_several_launches_counts_as_many() -> None:
    module = capture_text(_GPU, target="h100")
    parts = {"f": 3, "not-there": 9}
    model = build_module(dataclasses.replace(module, parts=parts))
    assert [kernel.launches for kernel in model.kernels] == [3]
    (alone,) = build_module(module).kernels
    assert model.kernels[0].modelled_us == alone.modelled_us and alone.launches == 1


@pytest.mark.slow
@needs_gpu_extra
def test_a_sort_on_a_gpu_is_several_launches() -> None:
    """It sorts in steps, the more the larger it is, after copying what is read again."""

    def sort_often(x: jax.Array) -> jax.Array:
        return lax.fori_loop(0, 5, lambda i, x: jnp.sort(x * 3 % 7), x) + 1

    x = jax.ShapeDtypeStruct((20_000,), jnp.float32)
    (module,) = capture(lower(jax.jit(sort_often), "h100", x), "h100")
    (sort,) = (k for k in build_module(module).kernels if "sort" in k.opcodes)
    steps = len(re.findall(r"kCustomKernel .*\] sort_\S* grid", module.thunks))
    assert steps > 1
    assert sort.launches == 5 * sort.launches_per_iteration == 5 * steps
    outside, _, body = _count_thunks(module.thunks)
    assert build_module(module).launches == outside + 5 * body
    assert sort.emitter == "sort"
    reasons = {b.decision.reason for b in build_module(module).boundaries}
    assert BoundaryReason.SORT in reasons and BoundaryReason.LIBRARY_CALL not in reasons


def _count_thunks(text: str) -> tuple[int, int, int]:
    """Returns the thunks that launch something: outside of the loop, in its condition, its body."""
    counts, part, depth = [0, 0, 0], 0, 0
    for line in text.splitlines():
        indent = len(line) - len(line.lstrip())
        if line.strip() in ("condition:", "body:"):
            part = 1 if line.strip() == "condition:" else 2
            depth = max(depth, indent)
        elif part and indent == 0 and re.match(r"\d+:", line):
            part = 0
        if re.match(r"\s*\d+: k(CustomKernel|Kernel|Copy|Gemm|Memset)", line):
            counts[part] += 1
    return counts[0], counts[1], counts[2]
