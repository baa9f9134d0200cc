"""XLA's GPU compiler without a GPU. Most of this needs the `gpu` extra."""

from __future__ import annotations

import importlib.metadata
import logging
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from fuselane.errors import CaptureError
from fuselane.gpu import GPUS
from fuselane.xla import compilation, ptxas, toolchain
from fuselane.xla.capture import capture, lower
from fuselane.xla.captured import CapturedModule
from fuselane.xla.ptxas import read_report
from fuselane.xla.targets import config_text
from fuselane.xla.toolchain import find_toolchain, no_complaints
from tests.gpu_extra import needs_gpu_extra


@pytest.fixture(autouse=True)
def temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Where temporary folders are made; capturing has to leave it empty."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield
    assert not list(folder.iterdir())


def rollout(state: jax.Array, key: jax.Array) -> Any:
    def step(state: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
        angle = jnp.sin(state) + jax.random.normal(key, state.shape)
        return angle, angle.sum()

    return jax.lax.scan(step, state, None, length=10)


def captured(target: str) -> CapturedModule:
    key = jax.eval_shape(lambda: jax.random.key(0))
    (module,) = capture(lower(jax.jit(rollout), target, jnp.ones(1000), key), target)
    return module


@needs_gpu_extra
@pytest.mark.parametrize("target", ["rtx2080ti", "h100"])
def test_everything_is_captured(target: str) -> None:
    """Stages, thunks, PTX, registers and what XLA said."""
    module = captured(target)
    assert (module.name, module.target, module.gpu) == ("jit_rollout", target, GPUS[target])
    assert not module.notes
    assert module.stages[0].name == ""
    assert {"algsimp", "priority-fusion", "copy-insertion"} <= {s.name for s in module.stages}
    major, minor = GPUS[target].compute_capability
    assert all(f".target sm_{major}{minor}" in text for text in module.ptx.values())
    fusions = {
        i.name for c in module.module().computations for i in c.instructions if i.opcode == "fusion"
    }
    assert fusions
    assert set(module.usage) <= fusions  # one that updates a slice can be a plain copy
    assert len(module.usage) == module.thunks.count("kCustomKernel") >= 3
    for usage in module.usage.values():
        assert usage.name in module.ptx
        assert f"] {usage.name} grid: [{usage.num_blocks}, 1, 1]" in module.thunks
        assert 0 < usage.registers < 256
        assert usage.block_threads > 0
    assert "kWhile" in module.thunks
    assert any(refusal.reason for refusal in module.refusals)
    prices = [refusal for refusal in module.refusals if refusal.us_fused is not None]
    assert prices
    assert all(price.consumer and not price.reason for price in prices)
    assert len({(price.producer, price.consumer) for price in prices}) == len(prices)


@needs_gpu_extra
@pytest.mark.slow
@pytest.mark.parametrize("target", GPUS)
def test_every_gpu_compiles(target: str) -> None:
    major, minor = GPUS[target].compute_capability
    ptxas = find_toolchain().ptxas
    if ptxas and f"'sm_{major}{minor}'" not in subprocess.check_output(
        [ptxas, "--help"], text=True
    ):
        pytest.skip("this ptxas does not know the GPU, as that of CUDA 13 no V100")
    (module,) = capture(lower(jax.jit(jnp.sin), target, jnp.ones(1000)), target)
    assert [usage.block_threads for usage in module.usage.values()] == [128]


@needs_gpu_extra
def test_source_lines_survive() -> None:
    module = captured("h100").module()
    line = rollout.__code__.co_firstlineno + 2
    sines = [i for c in module.computations for i in c.instructions if i.opcode == "sine"]
    assert sines
    assert {str(module.source(sine)).split(" ")[0] for sine in sines} == {f"test_gpu.py:{line}"}


@needs_gpu_extra
def test_a_gpu_of_the_users_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.txtpb"
    path.write_text(config_text(GPUS["a100"]).replace("A100-SXM4-80GB", "Mine"))
    assert captured(str(path)).target == "NVIDIA Mine"


@needs_gpu_extra
def test_two_devices() -> None:
    mesh = jax.sharding.AbstractMesh((2,), ("x",))
    spec = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
    argument = jax.ShapeDtypeStruct((8, 8), jnp.float32, sharding=spec)
    lowered = lower(jax.jit(jnp.sum), "h100", argument)
    (module,) = capture(lowered, "h100")
    opcodes = {i.opcode for c in module.module().computations for i in c.instructions}
    assert any(opcode.startswith("all-") for opcode in opcodes)


@needs_gpu_extra
def test_a_program_xla_refuses_is_one_sentence() -> None:
    def unknown(x: jax.Array) -> Any:
        return jax.ffi.ffi_call("nobody_has_this", jax.ShapeDtypeStruct(x.shape, x.dtype))(x)

    with pytest.raises(CaptureError, match=r"^XLA cannot compile this for h100: .*") as caught:
        capture(lower(jax.jit(unknown), "h100", jnp.ones(3)), "h100")
    assert "nobody_has_this" in str(caught.value)
    assert "\n" not in str(caught.value)


@needs_gpu_extra
def test_a_child_that_takes_too_long() -> None:
    lowered = lower(jax.jit(jnp.sin), "h100", jnp.ones(3))
    with pytest.raises(CaptureError, match=r"longer than 0\.1 seconds, so it was stopped\."):
        capture(lowered, "h100", max_s=0.1)


@needs_gpu_extra
def test_a_child_that_dies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compilation, "_CHILD", "fuselane.no_such_module")
    lowered = lower(jax.jit(jnp.sin), "h100", jnp.ones(3))
    with pytest.raises(CaptureError, match=r"ended with exit code 1: .*no_such_module"):
        capture(lowered, "h100")


@pytest.mark.parametrize(
    ("versions", "sentence"),
    [
        ({}, r"GPU targets need XLA's GPU compiler, but no GPU: `pip install 'fuselane\[gpu\]'`\."),
        (
            {"jax-cuda13-plugin": "0.1"},
            "need jax-cuda13-plugin of JAX's own version, .*, not 0.1: "
            f"`pip install 'jax-cuda13-plugin=={re.escape(jax.__version__)}'`",
        ),
    ],
)
def test_what_to_install(
    versions: dict[str, str], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def version(package: str) -> str:
        if package not in versions:
            raise importlib.metadata.PackageNotFoundError
        return versions[package]

    monkeypatch.setattr(importlib.metadata, "version", version)
    lowered = lower(jax.jit(jnp.sin), "h100", jnp.ones(3))  # lowering needs nothing
    with pytest.raises(CaptureError, match=sentence):
        capture(lowered, "h100")


def test_of_two_plug_ins_the_one_of_jaxs_version_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {"jax-cuda12-plugin": "0.1", "jax-cuda13-plugin": jax.__version__}
    monkeypatch.setattr(toolchain, "_version", versions.__getitem__)
    monkeypatch.setattr(toolchain, "_package_folder", Path)
    assert find_toolchain().library == Path("jax_plugins.xla_cuda13/xla_cuda_plugin.so")


def test_a_plug_in_without_cuda_is_no_news(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("jax._src.xla_bridge")
    error = "Jax plugin configuration error: Exception when calling %s.initialize()"
    with no_complaints():
        logger.error(error, "jax_plugins.xla_cuda12")
        logger.error(error, "jax_plugins.mine")
    logger.error(error, "jax_plugins.xla_cuda12")
    assert [record.args for record in caplog.records] == [
        ("jax_plugins.mine",),
        ("jax_plugins.xla_cuda12",),
    ]


def test_what_ptxas_prints() -> None:
    """Two kernels, one that spills and has static shared memory."""
    report = """\
ptxas info    : 24 bytes gmem
ptxas info    : Compiling entry function 'first' for 'sm_90a'
ptxas info    : Function properties for first
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 30 registers, used 0 barriers
ptxas info    : Compiling entry function 'second_1' for 'sm_90a'
ptxas info    : Function properties for second_1
    48 bytes stack frame, 40 bytes spill stores, 44 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 48 bytes cumulative stack size, 4224 bytes smem
ptxas info    : Compile time = 22.990 ms
"""
    usages = read_report(report)
    assert list(usages) == ["first", "second_1"]
    assert (usages["first"].registers, usages["first"].spill_bytes) == (30, 0)
    second = usages["second_1"]
    assert (second.registers, second.spill_bytes, second.shared_bytes) == (255, 84, 4224)


@needs_gpu_extra
def test_kernels_alike_are_assembled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three kernels, two of which differ in their names alone."""
    ptx = """\
.version 8.0
.target sm_80
.address_size 64
.visible .entry {name}(.param .u64 {name}_param_0)
.reqntid 1, 1, 1
{{
    .reg .b64 %rd<3>;
    ld.param.u64 %rd1, [{name}_param_0];
    st.global.u32 [%rd1], {value};
    ret;
}}
"""
    asked: list[str] = []
    inner = ptxas._assemble_one

    def count(program: Path, text: str, deadline: float) -> Any:
        asked.append(text)
        return inner(program, text, deadline)

    monkeypatch.setattr(ptxas, "_assemble_one", count)
    texts = [
        ptx.format(name=name, value=value)
        for name, value in [("loop_add_fusion", 1), ("loop_add_fusion_1", 1), ("copy", 2)]
    ]
    program = find_toolchain().ptxas
    assert program is not None
    usages = ptxas.assemble(program, texts)
    assert len(asked) == 2
    assert list(usages) == ["loop_add_fusion", "loop_add_fusion_1", "copy"]
    assert all(usage.name == name and usage.registers > 0 for name, usage in usages.items())
