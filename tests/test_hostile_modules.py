"""Modules made to hurt: each is refused with a reason, soon, and without much memory."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
from llvmlite import ir

from fuselane import budget, pipeline, replacing
from fuselane.backends import cpu
from fuselane.codegen import builder as kernel_builder
from fuselane.codegen import literals, llvm
from fuselane.codegen.entry import CpuEntry
from fuselane.codegen.frame import Frame
from fuselane.config import Options
from fuselane.decisions import DecisionLog, Reason
from fuselane.errors import InputError, OutOfTimeError, VerificationError
from fuselane.explaining import report_on
from fuselane.hlo import module as hlo_module
from fuselane.hlo.proto import HloModuleProto
from fuselane.lanes import builder
from fuselane.lanes.form import form
from fuselane.runtime import warning
from fuselane.xla.compilation import as_it_is
from fuselane.xla.files import capture_path, module_proto
from fuselane.xla.targets import find_target
from tests.hlo.xla import parse

_ROW: Final = "f32[64]"
Message = Any


@pytest.fixture(autouse=True)
def quietly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSELANE_CACHE_DIR", str(tmp_path / "kernels"))
    warning.forget_warnings()


def module_with(body: str, *, shape: str = _ROW, functions: str = "") -> bytes:
    """Returns a module with a loop that carries `x` and makes `y` of it."""
    return parse(f"""
        HloModule hostile
        {functions}
        condition {{
          p = (s32[], {shape}) parameter(0)
          i = s32[] get-tuple-element(p), index=0
          n = s32[] constant(100)
          ROOT go = pred[] compare(i, n), direction=LT
        }}
        body {{
          state = (s32[], {shape}) parameter(0)
          i = s32[] get-tuple-element(state), index=0
          x = {shape} get-tuple-element(state), index=1
          one = s32[] constant(1)
          next = s32[] add(i, one)
          {body}
          ROOT carried = (s32[], {shape}) tuple(next, y)
        }}
        ENTRY main {{
          x = {shape} parameter(0)
          z = s32[] constant(0)
          t = (s32[], {shape}) tuple(z, x)
          ROOT w = (s32[], {shape}) while(t), condition=condition, body=body
        }}""")


def plain() -> bytes:
    return module_with(f"y = {_ROW} add(x, x)")


def changed(data: bytes, change: Callable[[dict[str, Message]], None]) -> bytes:
    """Returns a module with some of its instructions, by name of computation and own, changed."""
    proto = HloModuleProto.FromString(data)
    change({f"{c.name}/{i.name}": i for c in proto.computations for i in c.instructions})
    result: bytes = proto.SerializeToString()
    return result


def decide(data: bytes, **options: Any) -> tuple[bytes | None, list[Reason]]:
    """Returns what becomes of a module, and the reasons in the log."""
    log = DecisionLog()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = pipeline.transform(data, Options(min_gain=0, cache_mib=0, **options), log)
    return result, [loop.reason for loop in log]


def test_the_plain_module_is_fused() -> None:
    assert decide(plain())[1] == [Reason.FUSED]


def calls_within_calls(depth: int) -> bytes:
    """Every function calls the next one twice: 2^depth instructions when inlined."""
    functions = f"f_0 {{ p = {_ROW} parameter(0)\n ROOT r = {_ROW} add(p, p) }}\n"
    for k in range(1, depth):
        functions += f"""f_{k} {{
          p = {_ROW} parameter(0)
          q = {_ROW} call(p), to_apply=f_{k - 1}
          ROOT r = {_ROW} call(q), to_apply=f_{k - 1}
        }}\n"""
    return module_with(f"y = {_ROW} call(x), to_apply=f_{depth - 1}", functions=functions)


def test_calls_that_multiply(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builder, "MAX_INSTRUCTIONS", 1_000)
    assert decide(calls_within_calls(40)) == (None, [Reason.TOO_MUCH_CODE])


def test_views_that_multiply(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every element of a concatenation may come from either side: 2^30 instructions of LLVM's."""
    shape = "f32[64,4096]"
    body, last = "zero = s32[] constant(0)\n", "x"
    for k in range(30):
        body += f"""
          d{k} = f32[64,2048] dynamic-slice({last}, zero, i), dynamic_slice_sizes={{64,2048}}
          c{k} = {shape} concatenate(d{k}, d{k}), dimensions={{1}}\n"""
        last = f"c{k}"
    monkeypatch.setattr(kernel_builder, "MAX_INSTRUCTIONS", 5_000)
    data = module_with(body + f"y = {shape} add({last}, {last})", shape=shape)
    assert decide(data) == (None, [Reason.TOO_MUCH_CODE])


def test_too_many_instructions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hlo_module, "MAX_INSTRUCTIONS", 10)
    with pytest.raises(VerificationError, match="instructions, more than 10"):
        decide(plain())


def test_giant_constants(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(literals, "_MAX_CONSTANT_BYTES", 1024)
    rows = ",".join("{" + ",".join(str(i + j) for j in range(64)) + "}" for i in range(100))
    body = f"""
      table = f32[100,64] constant({{{rows}}})
      zero = s32[] constant(0)
      row = f32[1,64] dynamic-slice(table, i, zero), dynamic_slice_sizes={{1,64}}
      flat = {_ROW} reshape(row)
      y = {_ROW} add(x, flat)"""
    assert decide(module_with(body)) == (None, [Reason.TOO_MUCH_CODE])


@pytest.mark.parametrize(
    ("sizes", "sentence"),
    [([-1], "negative"), ([2**62], "more than"), ([2**31, 2**31, 2**31], "more than")],
    ids=str,
)
def test_sizes_no_array_has(sizes: list[int], sentence: str) -> None:
    def change(instructions: dict[str, Message]) -> None:
        shape = instructions["body/y"].shape
        shape.dimensions[:] = sizes
        shape.layout.minor_to_major[:] = range(len(sizes))

    with pytest.raises(VerificationError, match=sentence):
        decide(changed(plain(), change))


def test_a_layout_that_is_no_order() -> None:
    data = module_with("y = f32[8,8] add(x, x)", shape="f32[8,8]")

    def change(instructions: dict[str, Message]) -> None:
        instructions["body/y"].shape.layout.minor_to_major[:] = [0, 0]

    with pytest.raises(VerificationError, match="layout"):
        decide(changed(data, change))


def test_shapes_within_shapes() -> None:
    def change(instructions: dict[str, Message]) -> None:
        shape = instructions["main/w"].shape
        for _ in range(1_000):
            shape = shape.tuple_shapes.add(element_type=13)

    with pytest.raises(VerificationError, match="not an HloModuleProto"):
        decide(changed(plain(), change))


def test_an_operand_behind_its_user() -> None:
    def change(instructions: dict[str, Message]) -> None:
        instructions["body/y"].operand_ids[:] = [instructions["body/y"].id] * 2

    with pytest.raises(VerificationError, match="before an operand"):
        decide(changed(plain(), change))


def test_a_loop_that_is_its_own_body() -> None:
    def change(instructions: dict[str, Message]) -> None:
        outer, root = instructions["main/w"], instructions["body/carried"]
        root.opcode = "while"
        root.operand_ids[:] = [instructions["body/state"].id]
        root.called_computation_ids[:] = outer.called_computation_ids

    result, reasons = decide(changed(plain(), change))
    assert result is None and set(reasons) == {Reason.INTERNAL_ERROR}


def test_fusions_within_fusions() -> None:
    functions = f"f_0 {{ p = {_ROW} parameter(0)\n ROOT r = {_ROW} add(p, p) }}\n"
    for k in range(1, 1_500):
        functions += f"""f_{k} {{ p = {_ROW} parameter(0)
          ROOT r = {_ROW} fusion(p), kind=kLoop, calls=f_{k - 1} }}\n"""
    data = module_with(f"y = {_ROW} fusion(x), kind=kLoop, calls=f_1499", functions=functions)
    assert decide(data) == (None, [Reason.INTERNAL_ERROR])


# Time.


def two_loops() -> bytes:
    """Returns a module with a loop behind a loop."""
    proto = HloModuleProto.FromString(plain())
    entry = next(c for c in proto.computations if c.id == proto.entry_computation_id)
    first = entry.instructions[-1]
    second = entry.instructions.add()
    second.CopyFrom(first)
    second.name, second.id = "second", first.id + 1
    second.operand_ids[:] = [first.id]
    entry.root_id = second.id
    data: bytes = proto.SerializeToString()
    return data


def test_what_is_done_in_time_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second loop is given up in the middle, the first one runs as a kernel."""
    seen: list[str] = []

    def slow(module: Any, loop: Any, *others: Any, **named: Any) -> Any:
        seen.append(loop.name)
        if len(seen) == 2:
            while budget.remaining_s() >= 0:
                pass
        return form(module, loop, *others, **named)

    monkeypatch.setattr(replacing, "form", slow)
    log = DecisionLog()
    with pytest.warns(warning.FuselaneWarning, match="gave up on hostile after 2 s") as caught:
        options = Options(min_gain=0, cache_mib=0, max_compile_s=2)
        result = pipeline.transform(two_loops(), options, log)
    assert len(caught) == 1 and len(seen) == 2
    assert [loop.reason for loop in log] == [Reason.FUSED, Reason.OUT_OF_TIME]
    assert result is not None and b"fuselane_kernel" in result and b"\x12\x05while" in result


def test_llvm_is_not_begun_without_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any, **__: Any) -> bytes:
        raise AssertionError("LLVM was begun")

    monkeypatch.setattr(cpu, "read_ir", never)
    monkeypatch.setattr(llvm, "_S_PER_INSTRUCTION", 100.0)
    assert decide(plain()) == (None, [Reason.OUT_OF_TIME])


def test_emission_stops_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def endless(program: Any, plan: Any, **_: Any) -> Any:
        frame = Frame(
            program,
            plan,
            CpuEntry(
                ir.Module(), "endless", len(program.inputs), len(program.outputs), num_tiles=1
            ),
        )
        while True:
            frame.builder.add(*frame.entry.function.args[2:])

    monkeypatch.setattr(cpu, "build_planned", endless)
    monkeypatch.setattr(kernel_builder, "MAX_INSTRUCTIONS", 10**9)
    assert decide(plain(), max_compile_s=0.5) == (None, [Reason.OUT_OF_TIME])


def test_no_time_even_to_read() -> None:
    with pytest.raises(OutOfTimeError):
        decide(plain(), max_compile_s=1e-9)


# Files.


@pytest.mark.parametrize("seed", range(3))
def test_files_of_damaged_modules(seed: int, tmp_path: Path) -> None:
    """Whatever bytes are changed, dropped or doubled: a report or one sentence."""
    generator, original, path = random.Random(seed), plain(), tmp_path / "module.pb"
    for _ in range(60):
        data = bytearray(original)
        for _ in range(generator.randint(1, 4)):
            place = generator.randrange(len(data))
            match generator.randrange(3):
                case 0:
                    data[place] = generator.randrange(256)
                case 1:
                    del data[place : place + generator.randint(1, 30)]
                case _:
                    data[place:place] = data[place : place + generator.randint(1, 30)]
        path.write_bytes(data)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                report_on([as_it_is(module_proto(path.read_bytes()), find_target("cpu"))])
            except VerificationError as error:
                assert "\n" not in str(error)


def test_files_too_large(tmp_path: Path) -> None:
    path = tmp_path / "sparse.pb"
    with path.open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(InputError, match="larger than 2 GiB"):
        capture_path(path, max_s=9.0)
