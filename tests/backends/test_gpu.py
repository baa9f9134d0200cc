"""Loops as PTX: the code, how it is launched, and what XLA's GPU compiler makes of it."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import jax
import jax.numpy as jnp
import pytest
from jaxlib import _jax
from jaxlib.mlir import ir

import fuselane
from fuselane import pipeline
from fuselane.backends.gpu import GpuBackend
from fuselane.cartpole.variants import VARIANTS
from fuselane.codegen.llvm import compile_ptx, nvptx_target
from fuselane.codegen.nvptx import build_threads, choose_block_threads
from fuselane.codegen.plan import make_thread_plan
from fuselane.config import Options
from fuselane.decisions import DecisionLog, Reason
from fuselane.errors import UnsupportedError
from fuselane.gpu import GPUS, describe_gpu
from fuselane.hlo.module import HloModule
from fuselane.lanes.form import form
from fuselane.lanes.program import LaneProgram
from fuselane.lanes.tupled import make_tupled
from fuselane.runtime.ptx_call import PTX_TARGET, ptx_attributes
from fuselane.xla.capture import capture, lower
from fuselane.xla.compilation import Source, capture_source
from fuselane.xla.targets import find_target
from tests.backends.programs import LOOPS
from tests.xla.test_gpu import needs_gpu_extra

H100: Final = GPUS["h100"]
PRE_FUSION: Final = ("collective-optimizations", "simplification")


def compiled(program: Any, *arguments: Any) -> bytes:
    """Returns the module that XLA:CPU makes of a program."""
    (captured,) = capture(lower(jax.jit(program), "cpu", *arguments))
    return captured.final


def lane_program(program: Any, *arguments: Any) -> LaneProgram:
    module = HloModule.from_bytes(compiled(program, *arguments))
    loop = next(
        i for c in reversed(module.computations) for i in c.instructions if i.opcode == "while"
    )
    return form(module, make_tupled(loop))


def ptx_of(program: LaneProgram, gpu_name: str = "h100") -> str:
    gpu = GPUS[gpu_name]
    code = build_threads(program, make_thread_plan(program), gpu)
    return compile_ptx(code.ir, nvptx_target(gpu.compute_capability))


def lanes(count: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((count,), jnp.float32)


@pytest.mark.parametrize("name", [name for name in LOOPS if name != "totals"])
def test_every_loop_has_ptx(name: str) -> None:
    ptx = ptx_of(lane_program(LOOPS[name], lanes(33)))
    assert ptx.count(".entry fuselane_kernel") == 1
    assert "%tid.x" in ptx and "%ctaid.x" in ptx


def test_state_stays_in_registers() -> None:
    """Lanes and counter are loaded once, in front of the loop, and stored once, behind it."""

    def program(x: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, 9, lambda i, x: x * x + 1, x)

    ptx = ptx_of(lane_program(program, lanes(64)))
    accesses = re.findall(r"\b(?:ld|st)\.global|\bmul\.(?:rn\.)?f32|fma\.rn\.f32", ptx)
    assert accesses[:2] == ["ld.global"] * 2
    assert accesses[-2:] == ["st.global"] * 2
    assert not any("global" in access for access in accesses[2:-2])
    assert ".local" not in ptx


@pytest.mark.parametrize("gpu_name", ["v100", "rtx2080ti", "a100", "l4", "h100", "b200"])
def test_code_is_for_the_gpu(gpu_name: str) -> None:
    major, minor = GPUS[gpu_name].compute_capability
    assert f".target sm_{major}{minor}" in ptx_of(lane_program(LOOPS["rows"], lanes(8)), gpu_name)


def test_code_is_the_same_each_time() -> None:
    assert ptx_of(lane_program(LOOPS["drawn"], lanes(40))) == ptx_of(
        lane_program(LOOPS["drawn"], lanes(40))
    )


@pytest.mark.parametrize(
    ("num_lanes", "grid_blocks", "block_threads"),
    [(2, 1, 32), (31, 1, 32), (33, 2, 32), (1025, 33, 32), (10**6, 7813, 128)],
)
def test_every_lane_has_a_thread(num_lanes: int, grid_blocks: int, block_threads: int) -> None:
    program = lane_program(LOOPS["angles"], lanes(num_lanes))
    code = build_threads(program, make_thread_plan(program), H100)
    assert (code.grid_blocks, code.block_threads) == (grid_blocks, block_threads)


def test_blocks_leave_no_multiprocessor_idle() -> None:
    for num_threads in (1, 1000, 2048, 10_000, 200_000):
        block = choose_block_threads(num_threads, H100)
        assert block == 32 or num_threads >= block * H100.num_multiprocessors


def test_arrays_beyond_31_bits_are_indexed_in_64() -> None:
    def program(x: jax.Array) -> Any:
        return jax.lax.scan(lambda x, _: (x + 1, x), x, None, length=40_000)

    ptx = ptx_of(lane_program(program, lanes(70_000)))
    assert re.search(r"mul\.(?:wide\.s32|lo\.s64|wide\.u32)|mad\.lo\.s64|add\.s64", ptx)


def test_lanes_that_meet_are_refused() -> None:
    """As for sums over all lanes that leave the loop in each step."""
    found = lane_program(LOOPS["totals"], lanes(64))
    assert found.meetings
    with pytest.raises(UnsupportedError) as caught:
        build_threads(found, make_thread_plan(found), H100)
    assert caught.value.decision.reason is Reason.CROSS_LANE


def test_attributes_are_what_mlir_reads() -> None:
    text = 'a "b"\\\n'
    attributes = ptx_attributes(
        text, "k", grid_blocks=3, block_threads=64, num_inputs=2, num_outputs=1
    )
    with ir.Context():
        parsed = ir.DictAttr(ir.Attribute.parse(attributes.decode()))
        assert ir.StringAttr(parsed["kernel_data"]).value == text
        assert ir.IntegerAttr(parsed["grid_x"]).value == 3
        assert ir.IntegerAttr(parsed["block_x"]).value == 64
        indices = ir.ArrayAttr(parsed["output_indices"])
        assert [ir.IntegerAttr(index).value for index in indices] == [2]


def test_unknown_gpus_are_described_by_the_closest() -> None:
    laptop = describe_gpu("NVIDIA Laptop GPU", (8, 9), 24)
    assert laptop is not None and laptop.compute_capability == (8, 9)
    assert laptop.num_multiprocessors == 24
    assert describe_gpu("NVIDIA H200", (9, 0), 132) is GPUS["h200"]
    assert describe_gpu("GeForce GTX 680", (3, 0), 8) is None


def test_modules_keep_what_is_not_a_loop() -> None:
    data = compiled(lambda x: LOOPS["angles"](x * 2) + 1, lanes(100))
    log = DecisionLog()
    options = Options(min_gain=0, cache_mib=0, verify_hlo=True)
    out = pipeline.transform(data, options, log, GpuBackend(options, H100))
    assert out is not None
    (decision,) = log
    assert decision.fused and decision.lanes == 100
    calls = [i for i in HloModule.from_bytes(out).entry.instructions if i.opcode == "custom-call"]
    assert [call.custom_call_target for call in calls] == [PTX_TARGET]


def test_short_loops_are_left_to_xla() -> None:
    data = compiled(lambda x: jax.lax.fori_loop(0, 1, lambda i, x: x * 2, x), lanes(8))
    options = Options(cache_mib=0)
    assert pipeline.transform(data, options, DecisionLog(), GpuBackend(options, H100)) is None


@needs_gpu_extra
@pytest.mark.parametrize("name", VARIANTS)
def test_cartpole_is_one_launch(name: str) -> None:
    """What thousands of launches did, XLA's own GPU compiler turns into one of our kernel."""
    struct = jax.ShapeDtypeStruct
    arguments: tuple[Any, ...] = (struct((4, 2048), jnp.float32),)
    if name == "naive":
        arguments += (struct((2,), jnp.uint32),)
    else:
        arguments += (struct((100, 2048), jnp.int32), struct((100, 4, 2048), jnp.float32))
    rollout = VARIANTS[name].make_rollout(10_000)
    (before,) = capture(lower(jax.jit(rollout), "h100", *arguments), "h100")
    stage = [stage for stage in before.stages if stage.pipeline in PRE_FUSION][-1]
    options = Options(cache_mib=0, verify_hlo=True)
    out = pipeline.transform(stage.data, options, DecisionLog(), GpuBackend(options, H100))
    assert out is not None
    source = Source(form="mlir", data=_jax.mlir.hlo_to_stablehlo(out))
    after = capture_source(source, find_target("h100"), max_s=300)
    assert "kWhile" in before.thunks
    assert "kWhile" not in after.thunks
    assert after.thunks.count("fuselane_kernel") == 1
    usage = [kernel for kernel in after.usage.values() if kernel.name == "fuselane_kernel"]
    for kernel in usage:
        assert kernel.registers <= 64
        assert kernel.spill_bytes == 0


def test_the_gpu_benchmark_says_that_there_is_no_gpu() -> None:
    script = Path(__file__).parents[2] / "benchmarks" / "gpu.sh"
    environment = {"PYTHON": sys.executable, "PATH": "/usr/bin:/bin"}
    if shutil.which("nvidia-smi", path=environment["PATH"]):
        pytest.skip("there is one")
    run = subprocess.run(
        [str(script)], env=environment, capture_output=True, text=True, check=False, timeout=120
    )
    assert run.returncode == 2
    assert run.stderr.strip().endswith("nvidia-smi is missing.")


@needs_gpu_extra
def test_explain_tells_what_becomes_of_loops_on_a_gpu() -> None:
    report = fuselane.explain(LOOPS["angles"], lanes(2048), target="h100")
    (module,) = report.modules
    (loop,) = module.loops
    assert loop.decision is not None and loop.decision.fused
    assert loop.launches is not None and loop.launches >= 20
    assert loop.fuselane_launches == 1
