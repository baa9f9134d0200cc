"""Strategies on a GPU target: what XLA's own GPU compiler makes of the kernels they form."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import jax
import jax.numpy as jnp
import pytest

from fuselane import gpu_fusion
from fuselane.comparing import XLA, compare_strategies, fuse_module, plan_module
from fuselane.fusion.dissolve import without_copies
from fuselane.fusion.pipelines import for_gpu, pipeline_text
from fuselane.fusion.plan import write_plan
from fuselane.fusion.plan_fusion import complaint
from fuselane.fusion.single_edges import SplitKernel, edges_around
from fuselane.fusion.strategies import find_strategy, is_for_cpus, names_for_gpus
from fuselane.gpu import GPUS
from fuselane.hlo.module import HloModule
from fuselane.xla.capture import capture, lower
from fuselane.xla.captured import CapturedModule
from fuselane.xla.compilation import Source, capture_sources
from fuselane.xla.targets import find_target
from tests.gpu_extra import needs_gpu_extra

H100: Final = find_target("h100")


def program(x: jax.Array) -> Any:
    """A softmax, a transpose, results that share work, a loop, and small ones of several sizes."""
    total = jax.nn.softmax(x) * jnp.log(jnp.abs(x) + 1)
    looped = jax.lax.fori_loop(0, 9, lambda i, y: jnp.sin(y) + jnp.roll(y, 1), x[0])
    small = [jnp.cos(x[0, :size]) * size for size in (3, 5, 7)]
    return total, total.sum(0), jnp.sin(total).T * 2, looped, *small


@pytest.fixture(scope="module")
def captured() -> tuple[CapturedModule, ...]:
    x = jax.ShapeDtypeStruct((64, 1000), jnp.float32)
    return capture(lower(jax.jit(program), "h100", x), "h100")


def fusions(module: HloModule) -> set[str]:
    """Returns what each fusion of a module computes, as opcodes."""
    return {
        " ".join(sorted(i.opcode for i in fusion.to_apply.instructions))
        for computation in module.computations
        for fusion in computation.instructions
        if fusion.opcode == "fusion" and fusion.fusion_kind != "kCustom"
    }


@needs_gpu_extra
def test_strategies_are_compiled(captured: tuple[CapturedModule, ...]) -> None:
    """XLA takes them all, with code and registers for each."""
    names = ["none", "xla-2021", "xla-today-gpu"]
    rows = compare_strategies(captured, names, compile_for=H100)
    assert [row.strategy for row in rows] == [XLA, *names]
    codes = {row.strategy: row.code for row in rows}
    for code in codes.values():
        assert code is not None and not code.refusal
        assert code.max_registers is not None and 8 <= code.max_registers < 256
        assert 0 < code.min_occupancy <= 1
    thunks = {name: code.num_thunks for name, code in codes.items() if code}
    assert thunks["none"] > thunks["xla-2021"]
    assert thunks["none"] > thunks["xla-today-gpu"]


@needs_gpu_extra
def test_xla_fuses_nothing_else(captured: tuple[CapturedModule, ...]) -> None:
    """The fusions of the module that XLA compiles are those it was given, and wrapped rest."""
    modules = [fuse_module(captured[0], find_strategy(name))[0] for name in ("xla-2021", "none")]
    sources = [Source(form="fused", data=module.to_bytes()) for module in modules]
    made, refused = capture_sources(sources, H100, max_s=300)
    assert not refused
    for formed, compiled in zip(modules, made, strict=True):
        found = fusions(compiled.module())
        assert fusions(formed) <= found
        wrapped = found - fusions(formed)
        assert all(len(set(opcodes.split()) - {"parameter"}) <= 1 for opcodes in wrapped)


@needs_gpu_extra
def test_xlas_own_rules_make_xlas_own_kernels(captured: tuple[CapturedModule, ...]) -> None:
    """So that nothing has to be compiled anew for them."""
    assert H100.gpu is not None
    for name, is_new in (("xla-today-gpu", False), ("none", True)):
        formed = gpu_fusion.form(captured[0].module(), H100.gpu, find_strategy(name))
        assert formed.is_new is is_new


@needs_gpu_extra
def test_a_plan_of_a_gpu_is_followed_there(
    captured: tuple[CapturedModule, ...], tmp_path: Path
) -> None:
    """It makes the kernels that it was made of, which are others than on a CPU."""
    xla_2021 = find_strategy("xla-2021")
    plan = plan_module(captured[0], xla_2021)
    write_plan(tmp_path / "plan.json", [plan])
    followed = find_strategy(str(tmp_path / "plan.json"))
    module, log = fuse_module(captured[0], followed)
    assert not complaint(log)
    assert fusions(module) == fusions(fuse_module(captured[0], xla_2021)[0])
    assert any("transpose" in str(kernel) for kernel in plan.kernels)


@needs_gpu_extra
def test_single_edges_go_on_from_xlas_fusions() -> None:
    """On a GPU, too: all of XLA's own kernels stay but for those that an edge changes."""

    def work(x: jax.Array, y: jax.Array) -> Any:
        shared, other = jnp.sin(x), jnp.exp(y)
        return (shared * 2).sum(0), shared + other, jnp.roll(shared * other, 1, 0)

    arguments = [jax.ShapeDtypeStruct((200, 200), jnp.float32)] * 2
    (module,) = capture(lower(jax.jit(work), "h100", *arguments), "h100")
    own = fusions(module.module())
    unchanged, _ = fuse_module(module, (SplitKernel(kernel=1, value=1),))
    assert fusions(unchanged) == own
    edge = next(iter(edges_around(without_copies(module.module()))))
    assert H100.gpu is not None
    formed = gpu_fusion.form(module.module(), H100.gpu, (edge,))
    assert formed.is_new
    assert len(own - fusions(HloModule.from_bytes(formed.data))) <= 2 < len(own)


@needs_gpu_extra
def test_what_xla_does_not_read_is_refused() -> None:
    """With its own words; what comes behind is compiled all the same."""
    made, refused = capture_sources([Source(form="fused", data=b"none")], H100, max_s=300)
    assert not made
    assert len(refused) == 1 and "roto" in refused[0]


def test_kernels_of_ours_are_priced() -> None:
    """By their own estimate, and what they read and write; what stays with XLA has a reason."""

    def work(x: jax.Array, y: jax.Array) -> Any:
        shared = jnp.sin(x) * jnp.cos(x)
        return shared, shared * jnp.exp(shared), y + 1

    arguments = [jax.ShapeDtypeStruct((size,), jnp.float32) for size in (100_000, 8)]
    captured = capture(lower(jax.jit(work), "cpu", *arguments), "cpu")
    own, ours = compare_strategies(captured, ["fuselane"])
    assert ours.num_kernels < own.num_kernels
    assert 0 < ours.modelled_us < own.modelled_us
    assert 3 * 400_000 <= ours.num_bytes < own.num_bytes
    assert not own.refusals
    assert ours.refusals[0].startswith("No kernel of Fuselane's for `")


def test_slices_of_one_array_are_not_for_gpus() -> None:
    """XLA:GPU has lost the emitter for them; the rest of a pipeline stays."""
    horizontal = find_strategy("horizontal-input-fusion,horizontal-loop-fusion")
    text = pipeline_text(for_gpu(horizontal, GPUS["h100"]))
    assert text == "horizontal-input-fusion,horizontal-loop-fusion{tiled-emitters=false}"
    assert "tiled-emitters=false" in pipeline_text(for_gpu(find_strategy("xla-2021"), GPUS["h100"]))


def test_kernels_are_priced_for_the_gpu_at_hand() -> None:
    """In every pass that asks what a kernel costs, inner ones included."""
    for name in ("xla-2021", "xla-today-gpu"):
        text = repr(for_gpu(find_strategy(name), GPUS["v100"]))
        assert GPUS["v100"].name in text and GPUS["h100"].name not in text


def test_what_is_for_cpus() -> None:
    """Kernels of ours, and what goes on from XLA:CPU's fusions."""
    assert names_for_gpus() == [
        "none",
        "xla-today-cpu",
        "xla-today-gpu",
        "xla-2021",
        "xla-2023",
        "xla-2024",
    ]
    assert is_for_cpus(find_strategy("xla-2021,shared-work"))
    assert is_for_cpus(find_strategy("lane-kernels"))
    assert is_for_cpus(find_strategy("fixed-point(fixed-point(lane-kernels))"))
    assert not is_for_cpus(find_strategy("none"))
