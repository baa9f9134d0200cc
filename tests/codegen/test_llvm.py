"""Compiling, loading and refusing: whatever goes in, an exception at worst comes out."""

from __future__ import annotations

import ctypes
import gc
import re
import subprocess
import sys
import threading
import weakref
from typing import Any

import numpy as np
import pytest
from llvmlite import binding, ir
from llvmlite.binding import ffi

from fuselane.codegen.llvm import (
    HostTarget,
    Vectors,
    assembly,
    compile_object,
    optimised_ir,
)
from fuselane.codegen.loading import LoadedObject, load_object
from fuselane.errors import CodegenError

ADD_ONE = """
@table = private constant [4 x i32] [i32 1, i32 10, i32 100, i32 1000]
define i32 @add(i32 %x, i64 %i) nounwind {
  %place = getelementptr [4 x i32], ptr @table, i64 0, i64 %i
  %value = load i32, ptr %place
  %sum = add i32 %x, %value
  ret i32 %sum
}
"""
CALL = """
declare i32 @{name}(i32)
define i32 @call(i32 %x) {{
  %y = call i32 @{name}(i32 %x)
  ret i32 %y
}}
"""
VECTORS = """
define void @kernel(ptr %x, ptr %y) nounwind {
  %a = load <16 x float>, ptr %x, align 4
  %b = load <16 x float>, ptr %y, align 4
  %p = fmul contract <16 x float> %a, %b
  %s = fadd contract <16 x float> %p, %a
  store <16 x float> %s, ptr %y, align 4
  ret void
}
"""
LOOP = """
define i64 @sum(ptr %x) {
entry:
  br label %body
body:
  %i = phi i64 [ 0, %entry ], [ %next, %body ]
  %total = phi i64 [ 0, %entry ], [ %sum, %body ]
  %place = getelementptr i64, ptr %x, i64 %i
  %value = load i64, ptr %place
  %sum = add i64 %total, %value
  %next = add i64 %i, 1
  %more = icmp ult i64 %next, 8
  br i1 %more, label %body, label %exit
exit:
  ret i64 %sum
}
"""
X86 = HostTarget.host().triple.startswith("x86_64")
only_x86 = pytest.mark.skipif(not X86, reason="looks at x86-64 assembly")


def call(loaded: LoadedObject, symbol: str, x: int, i: int = 0) -> int:
    signature = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_int32, ctypes.c_int64)
    return int(signature(loaded.address(symbol))(x, i))


def x86_target(cpu: str) -> HostTarget:
    return HostTarget(triple=HostTarget.host().triple, cpu=cpu, features="")


@pytest.mark.parametrize("opt_level", [0, 1, 2, 3])
def test_compiled_code_runs_at_every_level(opt_level: int) -> None:
    loaded = load_object(compile_object(ADD_ONE, opt_level=opt_level))
    assert [call(loaded, "add", 5, i) for i in range(4)] == [6, 15, 105, 1005]
    assert loaded.address("add") == loaded.address("add")


def test_a_module_object_is_taken_too() -> None:
    module = ir.Module("m")
    function = ir.Function(module, ir.FunctionType(ir.IntType(32), [ir.IntType(32)]), "same")
    ir.IRBuilder(function.append_basic_block()).ret(function.args[0])
    assert call(load_object(compile_object(module)), "same", 7) == 7


def test_equal_input_gives_equal_objects() -> None:
    assert compile_object(VECTORS) == compile_object(VECTORS)


def test_symbols_of_the_process_are_found() -> None:
    loaded = load_object(compile_object(CALL.format(name="abs")))
    assert call(loaded, "call", -3) == 3


def test_objects_do_not_see_each_other() -> None:
    objects = [load_object(compile_object(ADD_ONE.replace("i32 10", f"i32 {n}"))) for n in (2, 3)]
    assert [call(loaded, "add", 0, 1) for loaded in objects] == [2, 3]


def test_a_closed_object_gives_no_address() -> None:
    loaded = load_object(compile_object(ADD_ONE))
    loaded.address("add")
    loaded.close()
    loaded.close()
    with pytest.raises(CodegenError, match="closed"):
        loaded.address("add")


@pytest.mark.parametrize(
    "text",
    [
        "this is no IR",
        "define i32 @f() { ret i64 0 }",
        "define i32 @f() { %a = add i32 %b, 1\n %b = add i32 %a, 1\n ret i32 %b }",
        "define void @f() { call void @undeclared() ret void }",
        "define <4 x i32> @f(<4 x float> %x) { %y = add <4 x float> %x, %x\n ret <4 x float> %y }",
    ],
)
def test_invalid_ir_is_refused(text: str) -> None:
    with pytest.raises(CodegenError, match="LLVM rejected a kernel"):
        compile_object(text)


def test_an_unknown_level_is_refused() -> None:
    with pytest.raises(CodegenError, match="not 4"):
        compile_object(ADD_ONE, opt_level=4)


@pytest.mark.parametrize(
    "target",
    [
        HostTarget(triple="not-a-triple", cpu="generic", features=""),
        HostTarget(triple=HostTarget.host().triple, cpu="two words", features=""),
        HostTarget(triple=HostTarget.host().triple, cpu="generic", features="+a b"),
    ],
)
def test_targets_that_do_not_exist_are_refused(target: HostTarget) -> None:
    with pytest.raises(CodegenError):
        compile_object(ADD_ONE, target)


@only_x86
@pytest.mark.parametrize("cpu", ["no-such-cpu", "i386"])
def test_a_cpu_without_64_bits_does_not_abort(cpu: str) -> None:
    # In a process of its own: LLVM's way of refusing is to end the process.
    program = (
        "from fuselane.codegen.llvm import *; target = HostTarget(triple=HostTarget.host().triple, "
        f"cpu={cpu!r}, features=''); print(len(compile_object({VECTORS!r}, target)) > 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "True", done.stderr


def test_unresolved_symbols_are_reported() -> None:
    loaded = load_object(compile_object(CALL.format(name="no_such_function_anywhere")))
    with pytest.raises(CodegenError, match="call"):
        loaded.address("call")


def test_unknown_symbols_are_reported() -> None:
    with pytest.raises(CodegenError, match="missing"):
        load_object(compile_object(ADD_ONE)).address("missing")


def test_damaged_objects_are_refused() -> None:
    whole = compile_object(ADD_ONE)
    for damaged in (b"", b"garbage", whole[:64], whole[: len(whole) // 2], whole[:-40]):
        with pytest.raises(CodegenError):
            load_object(damaged).address("add")


@only_x86
def test_wide_vectors_stay_wide() -> None:
    assert len(re.findall(r"\bv\w+\s.*%zmm", assembly(VECTORS, x86_target("skylake-avx512")))) == 3
    text = assembly(VECTORS, x86_target("haswell"))
    assert "%ymm" in text
    assert "%zmm" not in text


@only_x86
@pytest.mark.parametrize("cpu", ["skylake-avx512", "haswell"])
def test_contract_fuses_multiply_and_add(cpu: str) -> None:
    assert "vfmadd" in assembly(VECTORS, x86_target(cpu))
    assert "vfmadd" not in assembly(VECTORS.replace("contract ", ""), x86_target(cpu))


@pytest.mark.parametrize("opt_level", [1, 2, 3])
def test_loops_are_neither_vectorised_nor_unrolled(opt_level: int) -> None:
    text = optimised_ir(LOOP, opt_level=opt_level)
    assert text.count("load i64") == 1
    assert "x i64>" not in text


def test_loops_are_vectorised_in_scalar_code() -> None:
    assert "x i64>" in optimised_ir(
        LOOP.replace("%next, 8", "%next, 800"), vectorise=Vectors.EVERYWHERE
    )


def test_inlining_happens_where_asked() -> None:
    text = """
define internal i32 @twice(i32 %x) alwaysinline {
  %y = add i32 %x, %x
  ret i32 %y
}
define i32 @f(i32 %x) {
  %y = call i32 @twice(i32 %x)
  ret i32 %y
}
"""
    for opt_level in (1, 2, 3):
        assert "call" not in optimised_ir(text, opt_level=opt_level)


def test_threads_may_compile_and_load_at_once() -> None:
    results: list[int] = []

    def work(number: int) -> None:
        text = ADD_ONE.replace("i32 10", f"i32 {number}")
        results.append(call(load_object(compile_object(text)), "add", 0, 1))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == list(range(8))


@pytest.mark.parametrize("in_order", [False, True])
def test_options_of_the_process_are_put_back(
    in_order: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    current: dict[str, str] = {}
    ours: list[dict[str, str]] = []

    def set_option(_: str, option: str) -> None:
        name, _, value = option.partition("=")
        current[name] = value

    def fail(*_: Any) -> bytes:
        ours.append(dict(current))
        raise RuntimeError("No memory.")

    monkeypatch.setattr(binding, "set_option", set_option)
    monkeypatch.setattr(binding.TargetMachine, "emit_object", fail)
    with pytest.raises(CodegenError, match="No memory"):
        compile_object(ADD_ONE, in_order=in_order)
    assert ours[0]["--disable-lsr"] == "true"
    assert ("--misched-prera-direction" in ours[0]) == in_order
    assert current.keys() == ours[0].keys()
    assert not current.items() & ours[0].items()


def test_options_of_an_unknown_llvm_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binding, "llvm_version_info", (999, 0, 0))
    monkeypatch.setattr(binding, "set_option", lambda *_: pytest.fail("An option was set."))
    assert compile_object(ADD_ONE, in_order=True)


def test_emission_in_order_changes_nothing_else() -> None:
    """The order of instructions differs, results don't, nor what is compiled afterwards."""
    rounds = "\n".join(
        f"""  %s{k} = add <64 x i32> %x{k}, %y{k}
  %l{k} = shl <64 x i32> %y{k}, splat (i32 {k + 3})
  %r{k} = lshr <64 x i32> %y{k}, splat (i32 {28 - k})
  %o{k} = or <64 x i32> %l{k}, %r{k}
  %y{k + 1} = xor <64 x i32> %o{k}, %s{k}
  %x{k + 1} = add <64 x i32> %s{k}, splat (i32 {k})"""
        for k in range(20)
    )
    module = f"""
define i64 @mix(ptr %p) {{
  %x0 = load <64 x i32>, ptr %p, align 4
  %q = getelementptr i8, ptr %p, i64 256
  %y0 = load <64 x i32>, ptr %q, align 4
{rounds}
  %z = xor <64 x i32> %x20, %y20
  store <64 x i32> %z, ptr %p, align 4
  ret i64 0
}}"""
    # On some processors the usual order is this one.
    skylake = HostTarget(triple="x86_64-unknown-linux-gnu", cpu="skylake", features="")
    assert compile_object(module, skylake) != compile_object(module, skylake, in_order=True)
    usual, in_order = compile_object(module), compile_object(module, in_order=True)
    assert compile_object(module) == usual
    results = []
    for object_code in (usual, in_order):
        numbers = np.arange(128, dtype=np.int32)
        loaded = load_object(object_code)
        mix = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)(loaded.address("mix"))
        mix(numbers.ctypes.data)
        results.append(numbers)
    np.testing.assert_array_equal(results[0], results[1])


@pytest.mark.parametrize("opt_level", [1, 2, 3])
def test_every_pass_manager_is_freed(opt_level: int, monkeypatch: pytest.MonkeyPatch) -> None:
    made, freed = _count_pass_managers(monkeypatch)
    compile_object(ADD_ONE, opt_level=opt_level)
    assert made
    assert sorted(freed) == sorted(made)


def test_pass_builders_serve_many_compilations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each leaves something behind when it goes."""
    made: list[int] = []
    create = binding.create_pass_builder

    def count(*arguments: Any) -> Any:
        made.append(1)
        return create(*arguments)

    monkeypatch.setattr(binding, "create_pass_builder", count)
    objects = {compile_object(ADD_ONE) for _ in range(100)}
    assert len(objects) == 1
    assert 3 <= len(made) <= 4


def _count_pass_managers(monkeypatch: pytest.MonkeyPatch) -> tuple[list[str], list[str]]:
    """Returns lists that name the kind of each pass manager LLVM makes and frees from now on."""
    makers = {
        "LLVMPY_CreateNewModulePassManager": "Module",
        "LLVMPY_buildPerModuleDefaultPipeline": "Module",
        "LLVMPY_buildFunctionSimplificationPipeline": "Function",
    }
    made: list[str] = []
    freed: list[str] = []

    class Library:
        def __getattr__(self, name: str) -> Any:
            function = getattr(library, name)
            if name in makers:
                made.append(makers[name])
            elif name.startswith("LLVMPY_DisposeNew"):
                freed.append("Module" if "Module" in name else "Function")
            return function

    library = ffi.lib
    monkeypatch.setattr(ffi, "lib", Library())
    return made, freed


def test_jits_go_with_their_objects() -> None:
    object_code = compile_object(ADD_ONE)
    jits = set()
    for _ in range(100):
        loaded = load_object(object_code)
        assert loaded.address("add")
        jits.add(weakref.ref(loaded._jit))
        loaded.close()
    del loaded
    gc.collect()
    assert len(jits) >= 3
    # The first may hold what tests before this one loaded; the last is still to be filled.
    assert sum(jit() is not None for jit in jits) <= 2
