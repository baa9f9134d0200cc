"""What XLA did to a program, captured while it compiled it."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax._src import compilation_cache
from jax._src import config as jax_config

import fuselane
from fuselane.hlo.verifier import verify
from fuselane.xla.capture import bytecode, capture, lower
from fuselane.xla.captured import CapturedModule


@pytest.fixture(autouse=True)
def temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary folders are made; capturing has to leave it empty."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def rollout(state: jax.Array) -> Any:
    def step(state: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
        angle = jnp.sin(state) * 2
        return angle + jnp.cos(state), angle.sum()

    return jax.lax.scan(step, state, None, length=10)


def captured(function: Any, *arguments: Any) -> CapturedModule:
    (module,) = capture(jax.jit(function).lower(*arguments))
    return module


def test_stages_run_from_what_came_to_what_was_scheduled(temporary_folder: Path) -> None:
    module = captured(rollout, jnp.ones(100))
    assert (module.name, module.target) == ("jit_rollout", "cpu")
    assert module.compile_s > 0
    first, *_, last = module.stages
    assert (first.pipeline, first.name) == ("", "")
    assert not any(i.opcode == "fusion" for i in instructions(first.module()))
    assert [stage.name for stage in module.stages].count("fusion") == 1
    assert any(i.opcode == "fusion" for i in instructions(last.module()))
    for before, after in zip(module.stages, module.stages[1:], strict=False):
        assert before.data != after.data, after.name
        verify(after.module())
    verify(module.module())
    assert module.module().proto.schedule.sequences
    assert not list(temporary_folder.iterdir())


def test_source_lines_survive() -> None:
    module = captured(rollout, jnp.ones(100)).module()
    sines = [i for i in instructions(module) if i.opcode == "sine"]
    assert sines
    line = rollout.__code__.co_firstlineno + 2
    assert {str(module.source(sine)).split(" ")[0] for sine in sines} == {f"test_capture.py:{line}"}


def test_no_line_is_that_of_another_program() -> None:
    """JAX keeps the function by which scans stack rows, with the lines of its first caller."""

    def other(x: jax.Array) -> Any:
        return jax.lax.scan(lambda x, _: (x * 2, x[0]), x, None, length=11)

    def program(x: jax.Array) -> Any:
        return jax.lax.scan(lambda x, _: (x * 3, x[1]), x, None, length=11)

    for function in (other, program):
        (module,) = capture(lower(jax.jit(function), "cpu", jnp.ones(23)))
    found = module.module()
    stacking = [i for i in instructions(found) if i.opcode == "dynamic-update-slice"]
    line = program.__code__.co_firstlineno + 1
    assert {str(found.source(update)).split(" ")[0] for update in stacking} == {
        f"test_capture.py:{line}"
    }


@pytest.mark.parametrize("name", ["a.0001.b.after_c.before_d", "long" * 60, "a.0002.b"])
def test_names_with_dots_and_long_ones(name: str) -> None:
    def step(x: jax.Array) -> jax.Array:
        return jnp.sin(x) * 2

    expected = captured(step, jnp.ones(3))
    step.__name__ = name
    module = captured(step, jnp.ones(3))
    assert module.name == f"jit_{name}"
    assert [stage.name for stage in module.stages] == [stage.name for stage in expected.stages]
    assert not module.notes


def test_passes_whose_names_do_not_fit_into_a_file_name_are_counted(
    capfd: pytest.CaptureFixture[str],
) -> None:
    def step(x: jax.Array) -> jax.Array:
        return jnp.sin(x) * 2

    step.__name__ = "long" * 40
    (note,) = captured(step, jnp.ones(3)).notes
    unwritten = re.findall(r"\.\d{4}\..*; File name too long", capfd.readouterr().err)
    match = re.fullmatch(r"At least (\d) of XLA's passes are not shown, .*", note)
    assert match is not None
    assert 0 < int(match[1]) <= len(unwritten)


def test_only_xla_is_captured_whether_fuselane_is_on_or_not() -> None:
    plain = captured(rollout, jnp.ones(100))
    with fuselane.enabled(min_gain=0):
        assert fuselane.explain(rollout, jnp.ones(100)).num_fused == 1
        under_fuselane = captured(rollout, jnp.ones(100))
    for module in (plain, under_fuselane):
        assert {"while"} <= {i.opcode for i in instructions(module.module())}
        assert not any(i.opcode == "custom-call" for i in instructions(module.module()))
    assert [stage.name for stage in plain.stages] == [stage.name for stage in under_fuselane.stages]


def test_a_pass_left_out_by_the_environment_stays_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_disable_hlo_passes=fusion,algsimp")
    assert not {"fusion", "algsimp"} & {stage.name for stage in captured(rollout, 1.0).stages}


@pytest.fixture
def persistent_cache(tmp_path: Path) -> Any:
    """JAX's persistent compilation cache in a folder of its own, for programs of any size."""
    folder = tmp_path / "persistent"
    compilation_cache.reset_cache()
    with (
        jax_config.compilation_cache_dir(str(folder)),
        jax_config.persistent_cache_min_compile_time_secs(0),
        jax_config.persistent_cache_min_entry_size_bytes(-1),
    ):
        yield folder
    compilation_cache.reset_cache()


def test_no_cache_is_hit_or_filled(persistent_cache: Path) -> None:
    lowered = jax.jit(rollout).lower(jnp.ones(100))
    capture(lowered)
    assert not list(persistent_cache.glob("*jit_rollout*"))
    lowered.compile()
    entries = sorted(persistent_cache.glob("*jit_rollout*"))
    assert entries
    for _ in range(2):
        (module,) = capture(lowered)
        assert len(module.stages) > 5
    assert sorted(persistent_cache.glob("*jit_rollout*")) == entries


def instructions(module: Any) -> list[Any]:
    return [i for computation in module.computations for i in computation.instructions]


def test_callbacks_are_lowered_for_a_gpu_that_is_not_there() -> None:
    def with_print(x: jax.Array) -> jax.Array:
        jax.debug.print("{}", x)
        return x + 1

    lowered = lower(jax.jit(with_print), "h100", jnp.ones(3))
    assert b"xla_ffi_python_gpu_callback" in bytecode(lowered.compiler_ir())
    jax.jit(with_print).lower(jnp.ones(3)).compile()
    with pytest.raises(ValueError, match="platform"):  # JAX's own lowering is as it was
        jax.jit(with_print).trace(jnp.ones(4)).lower(lowering_platforms=("cuda",))
