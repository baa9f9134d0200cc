"""Files and folders that hold a program in one form or another, and those that hold none."""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Final

import jax
import jax.numpy as jnp
import pytest
from jax import export
from jaxlib import _hlo, _jax  # type: ignore[attr-defined]

from fuselane.comparing import compare_strategies
from fuselane.errors import FuselaneError, InputError
from fuselane.xla import compilation
from fuselane.xla.capture import bytecode, capture, lower
from fuselane.xla.captured import CapturedModule
from fuselane.xla.dump import read_dump
from fuselane.xla.files import capture_path
from fuselane.xla.toolchain import Toolchain
from tests.gpu_extra import needs_gpu_extra

MAX_S = 120.0


@pytest.fixture(autouse=True)
def temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Where temporary folders are made; reading files has to leave it empty."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield
    assert not list(folder.iterdir())


def program(x: jax.Array) -> jax.Array:
    return jax.lax.fori_loop(0, 7, lambda _, y: jnp.sin(y) * 2 + x, x)


LINE = program.__code__.co_firstlineno + 1


@pytest.fixture(scope="module")
def lowered() -> Any:
    return jax.jit(program).lower(jnp.ones(100))


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory, lowered: Any) -> Path:
    """A folder that XLA filled with protos, texts and passes."""
    folder = tmp_path_factory.mktemp("dump")
    options = {
        "xla_dump_to": str(folder),
        "xla_dump_hlo_as_proto": True,
        "xla_dump_hlo_as_text": True,
        "xla_dump_hlo_pass_re": ".*",
    }
    lowered.compile(compiler_options=options)
    return folder


def find(folder: Path, end: str) -> Path:
    (path,) = folder.glob(f"*{end}")
    return path


def lines(data: bytes) -> list[str]:
    """The lines of a module's text, in no order that means anything."""
    return sorted(_hlo.HloModule.from_serialized_hlo_module_proto(data).to_string().splitlines())


def check(module: CapturedModule, name: str = "jit_program") -> None:
    """Whether XLA's way with the program is all there, source lines included."""
    assert module.name == name
    assert module.target == "cpu"
    assert "fusion" in [stage.name for stage in module.stages]
    assert not module.notes
    final = module.module()
    sines = [i for c in final.computations for i in c.instructions if i.opcode == "sine"]
    assert {str(final.source(sine)).split(" ")[0] for sine in sines} == {f"test_files.py:{LINE}"}


@pytest.mark.parametrize("end", [".before_optimizations.hlo.pb", ".before_optimizations.txt"])
def test_hlo_before_optimizations(dump: Path, tmp_path: Path, end: str) -> None:
    """As XLA writes it; what a file is called does not matter."""
    path = tmp_path / "anything"
    path.write_bytes(find(dump, end).read_bytes())
    (module,) = capture_path(path, max_s=MAX_S)
    check(module)


@pytest.mark.parametrize("end", ["cpu_after_optimizations.hlo.pb", "cpu_after_optimizations.txt"])
def test_hlo_after_optimizations_is_read_as_it_is(dump: Path, end: str) -> None:
    (module,) = capture_path(find(dump, end), max_s=MAX_S)
    assert module.notes == ("XLA had optimized this module before, so its passes are not shown.",)
    (stage,) = module.stages
    assert stage.data == module.final
    assert any(i.opcode == "fusion" for c in module.module().computations for i in c.instructions)


@pytest.mark.parametrize("end", ["cpu_after_optimizations.hlo.pb", "cpu_after_optimizations.txt"])
def test_optimized_for_cpus_is_nothing_for_a_gpu(
    dump: Path, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compilation, "find_toolchain", Toolchain)  # no compiler has to be there
    with pytest.raises(InputError, match=r"has optimized this module for CPUs.* for h100\."):
        capture_path(find(dump, end), "h100", max_s=MAX_S)


MARKS: Final = {
    "attribute": ('frontend_attributes={fingerprint_before_lhs="1"}', "kLoop", ""),
    "metadata": ("", "kLoop", ', metadata={scheduling_name="f"}'),
    "kind": ("", "kInput", ""),
    "none": ("", "kLoop", ""),
}


@pytest.mark.parametrize("mark", MARKS)
def test_optimized_for_a_gpu(mark: str, tmp_path: Path) -> None:
    """Told by what XLA's GPU compiler leaves on modules; the target has to be one then."""
    attribute, kind, metadata = MARKS[mark]
    path = tmp_path / "module.hlo"
    path.write_text(
        f"HloModule {', '.join(filter(None, ('m', 'is_scheduled=true', attribute)))}\n"
        "sin { a = f32[8] parameter(0)  ROOT s = f32[8] sine(a) }\n"
        "ENTRY main {\n  x = f32[8] parameter(0)\n"
        f"  ROOT f = f32[8] fusion(x), kind={kind}, calls=sin{metadata}\n}}"
    )
    is_for_gpu = mark != "none"
    with nullcontext() if not is_for_gpu else pytest.raises(InputError, match="name the GPU"):
        capture_path(path, max_s=MAX_S)


@pytest.mark.parametrize("form", ["text", "bytecode", "artifact"])
def test_stablehlo(lowered: Any, tmp_path: Path, form: str) -> None:
    module = lowered.compiler_ir()
    path = tmp_path / "program.mlir"
    if form == "text":
        path.write_text(module.operation.get_asm(enable_debug_info=True))
    elif form == "bytecode":
        path.write_bytes(bytecode(module))
    else:
        path.write_bytes(_jax.mlir.serialize_portable_artifact(module, "1.0.0"))
    (captured,) = capture_path(path, max_s=MAX_S)
    check(captured)


def test_exported(tmp_path: Path) -> None:
    pytest.importorskip("flatbuffers")
    path = tmp_path / "program.bin"
    shape = jax.ShapeDtypeStruct((100,), jnp.float32)
    path.write_bytes(export.export(jax.jit(program))(shape).serialize())
    (module,) = capture_path(path, max_s=MAX_S)
    check(module)


def test_exported_for_something_else(tmp_path: Path) -> None:
    pytest.importorskip("flatbuffers")
    path = tmp_path / "program.bin"
    shape = jax.ShapeDtypeStruct((100,), jnp.float32)
    path.write_bytes(export.export(jax.jit(program), platforms=["tpu"])(shape).serialize())
    with pytest.raises(FuselaneError, match="was exported for platforms"):
        capture_path(path, max_s=MAX_S)


def count_kernels(path: Path) -> list[tuple[int, float]]:
    """Returns the kernels and launches of XLA's fusions, and of other strategies'."""
    rows = compare_strategies(capture_path(path, max_s=MAX_S), ["none", "xla-2023"])
    return [(row.num_kernels, row.num_launches) for row in rows]


def test_strategies_start_from_the_same_module(dump: Path, tmp_path: Path) -> None:
    """Whichever stages XLA wrote down: all, the first and the last, or the last one."""
    for end in ("before_optimizations.hlo.pb", "cpu_after_optimizations.hlo.pb"):
        shutil.copy(find(dump, end), tmp_path)
    expected = count_kernels(dump)
    assert expected[1] > expected[0]
    assert count_kernels(tmp_path) == expected
    assert count_kernels(find(dump, "cpu_after_optimizations.txt")) == expected


def test_a_dump_of_protos(dump: Path) -> None:
    (module,) = capture_path(dump, max_s=MAX_S)
    check(module)


def test_a_dump_of_texts(dump: Path, tmp_path: Path) -> None:
    """XLA reads its own text, and shows the same, but for passes that only put instructions in
    another order: texts have one of their own. What is dead JAX 0.11 does not read at all."""
    for path in dump.glob("*.txt"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (module,) = capture_path(tmp_path, max_s=MAX_S)
    check(module)
    (expected,) = capture_path(dump, max_s=MAX_S)
    before, *stages = expected.stages
    changes = [before.name]
    for stage in stages:
        if lines(stage.data) != lines(before.data):
            changes.append(stage.name)
        before = stage
    named = [stage.name for stage in module.stages]
    assert [name for name in named if name != "dce"] == [name for name in changes if name != "dce"]


@needs_gpu_extra
def test_a_dump_of_a_gpus_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says itself for which GPU it is."""
    kept = tmp_path / "kept"

    def read_and_keep(folder: Path, *arguments: Any, **keywords: Any) -> Any:
        shutil.copytree(folder, kept)
        return read_dump(folder, *arguments, **keywords)

    monkeypatch.setattr(compilation, "read_dump", read_and_keep)
    lowered = lower(jax.jit(jnp.sin), "rtx2080ti", jnp.ones(1000))
    (expected,) = capture(lowered, "rtx2080ti")
    (module,) = capture_path(kept, max_s=MAX_S)
    assert dataclasses.replace(module, compile_s=expected.compile_s) == expected
    with pytest.raises(FuselaneError, match="was compiled for a GPU, not for cpu"):
        capture_path(kept, "cpu", max_s=MAX_S)
    (described,) = kept.glob("*gpu_target_config.pbtxt")
    described.unlink()
    with pytest.raises(FuselaneError, match="does not say for which GPU; name it with --target"):
        capture_path(kept, max_s=MAX_S)
    (module,) = capture_path(kept, "rtx2080ti", max_s=MAX_S)
    assert module.target == "rtx2080ti"


def test_a_folder_compiled_for_something_else(dump: Path) -> None:
    with pytest.raises(FuselaneError, match="was compiled for a CPU, not for h100"):
        capture_path(dump, "h100", max_s=MAX_S)


TRUNCATED = "truncated"


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"", "is empty"),
        (b"hello, world\n", "is text, but neither HLO nor StableHLO"),
        (b"\x7fELF\x02\x01\x01\x00\xff\xfe", "holds no serialized HLO module"),
        (b"HloModule m\nENTRY e { ROOT x = f32[ parameter(0) }", "XLA cannot compile this"),
        (b"HloModule", "XLA cannot compile this"),
        (b"module { func.func @main( }", "XLA cannot compile this"),
        (b"ML\xefR\rStableHLO_v1.15.0\x00\x01", "XLA cannot compile this"),
        (b"module { func.func @f() { return } }", "XLA cannot compile this"),
        (TRUNCATED, "holds no serialized HLO module"),
    ],
)
def test_bad_files(data: bytes | str, sentence: str, dump: Path, tmp_path: Path) -> None:
    if isinstance(data, str):
        data = find(dump, ".before_optimizations.hlo.pb").read_bytes()[:-100]
    path = tmp_path / "bad"
    path.write_bytes(data)
    with pytest.raises(FuselaneError, match=sentence) as caught:
        capture_path(path, max_s=MAX_S)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 700


def test_folders_without_modules(tmp_path: Path, dump: Path) -> None:
    with pytest.raises(FuselaneError, match="holds no HLO module that XLA dumped"):
        capture_path(tmp_path, max_s=MAX_S)
    first = find(dump, ".before_optimizations.hlo.pb")
    (tmp_path / first.name).write_bytes(first.read_bytes())  # XLA did not get to the end
    with pytest.raises(FuselaneError, match="holds no HLO module that XLA dumped"):
        capture_path(tmp_path, max_s=MAX_S)


def test_a_folder_with_damaged_files(tmp_path: Path, dump: Path) -> None:
    for path in dump.glob("*.hlo.pb"):
        (tmp_path / path.name).write_bytes(path.read_bytes()[:99])
    with pytest.raises(FuselaneError, match="hold") as caught:
        capture_path(tmp_path, max_s=MAX_S)
    assert "\n" not in str(caught.value)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(FuselaneError, match="cannot be read: No such file or directory"):
        capture_path(tmp_path / "nothing", max_s=MAX_S)
