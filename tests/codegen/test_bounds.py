"""Bounds checks: what stays inside its memory runs, what leaves it ends the process."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
import pytest
from llvmlite import ir

from fuselane.codegen import memory
from fuselane.codegen.arrays import Memory
from fuselane.codegen.bounds import Region, guard
from fuselane.codegen.indexing import i64
from fuselane.codegen.literals import global_constant
from fuselane.codegen.llvm import compile_object
from fuselane.codegen.loading import load_object
from fuselane.codegen.memory import Addresses, LaneBlock
from fuselane.codegen.types import splat
from fuselane.errors import CodegenError
from fuselane.hlo.shape import PrimitiveType
from tests.codegen.kernels import NumpyArray, check, compile_loop, layouts, some
from tests.lanes.loops import counting_loop

Emit = Callable[[ir.IRBuilder, ir.Value, ir.Value], Any]

_F32: Final = PrimitiveType.F32
_POINTER: Final = ir.PointerType()
_I64: Final = ir.IntType(64)
_WIDTH: Final = 8
_ELEMENTS: Final = 40


def _block(mask: Sequence[int] | None = None) -> LaneBlock:
    """Returns a block of lanes; a mask says which exist."""
    lanes = ir.VectorType(ir.IntType(1), _WIDTH)
    return LaneBlock(
        width=_WIDTH,
        offset=i64(0),
        mask=None if mask is None else ir.Constant(lanes, list(mask)),
        is_first=ir.Constant(ir.IntType(1), 1),
    )


_ALL: Final = _block()
_FIVE: Final = _block([1, 1, 1, 1, 1, 0, 0, 0])
_VALUES: Final = ir.Constant(ir.VectorType(ir.FloatType(), _WIDTH), [1.0] * _WIDTH)


def _at(builder: ir.IRBuilder, array: ir.Value, place: ir.Value) -> ir.Value:
    return memory.element_pointer(builder, array, place, _F32)


def _everywhere(builder: ir.IRBuilder, array: ir.Value, place: ir.Value) -> Addresses:
    """Returns the addresses of the elements place, place + 2, ..., place + 14."""
    steps = ir.Constant(ir.VectorType(_I64, _WIDTH), list(range(0, 2 * _WIDTH, 2)))
    return Addresses(base=array, offsets=builder.add(splat(builder, place, _WIDTH), steps))


def _emit_scatter(b: ir.IRBuilder, array: ir.Value, place: ir.Value, block: LaneBlock) -> None:
    memory.scatter(b, _VALUES, _everywhere(b, array, place), _F32, block.mask, array)


# How elements are touched, and how many from the first one on.
_ACCESSES: Final[dict[str, tuple[Emit, int]]] = {
    "load": (lambda b, a, at: memory.load(b, _at(b, a, at), _F32), 1),
    "wide load": (lambda b, a, at: memory.load(b, _at(b, a, at), _F32, _WIDTH), 8),
    "store": (lambda b, a, at: memory.store(b, _VALUES, _at(b, a, at), _F32), 8),
    "lanes": (lambda b, a, at: memory.load_lanes(b, _at(b, a, at), _F32, 1, _ALL), 8),
    "some lanes": (lambda b, a, at: memory.load_lanes(b, _at(b, a, at), _F32, 1, _FIVE), 5),
    "strided": (lambda b, a, at: memory.load_lanes(b, _at(b, a, at), _F32, 3, _ALL), 22),
    "some strided": (lambda b, a, at: memory.load_lanes(b, _at(b, a, at), _F32, 3, _FIVE), 13),
    "stored": (lambda b, a, at: memory.store_lanes(b, _VALUES, _at(b, a, at), _F32, 3, _ALL), 22),
    "some stored": (
        lambda b, a, at: memory.store_lanes(b, _VALUES, _at(b, a, at), _F32, 1, _FIVE),
        5,
    ),
    "gather": (lambda b, a, at: memory.gather(b, _everywhere(b, a, at), _F32, _ALL), 15),
    "some gathered": (lambda b, a, at: memory.gather(b, _everywhere(b, a, at), _F32, _FIVE), 9),
    "scatter": (lambda b, a, at: _emit_scatter(b, a, at, _ALL), 15),
    "some scattered": (lambda b, a, at: _emit_scatter(b, a, at, _FIVE), 9),
}


def _make(emit: Emit) -> tuple[ir.Module, ir.Value]:
    """Returns a module with a function of an array's address and a place, and the address."""
    module = ir.Module("accesses")
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [_POINTER, _I64]), "touch")
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    array, place = function.args
    emit(builder, array, place)
    builder.ret_void()
    return module, array


def _call(module: ir.Module, array: NumpyArray, places: Sequence[int]) -> None:
    with_address = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)
    loaded = load_object(compile_object(module))
    function = with_address(loaded.address("touch"))
    for place in places:
        function(array.ctypes.data, place)


def _dying_words(action: Callable[[], object]) -> str:
    """Returns what a child process writes to standard error before it aborts, as it must."""
    reading, writing = os.pipe()
    process = os.fork()
    if process == 0:
        faulthandler.disable()
        os.dup2(writing, 2)
        action()
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, encoding="utf-8") as stream:
        text = stream.read()
    _, status = os.waitpid(process, 0)
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGABRT, (status, text)
    return text


@pytest.mark.parametrize("name", _ACCESSES)
def test_each_kind_of_access(name: str) -> None:
    emit, size = _ACCESSES[name]
    module, address = _make(emit)
    region = Region(name="input 0", num_bytes=4 * _ELEMENTS)
    guard(module, {address: region}, "the kernel of while.1")
    # More is there than the region has, so that only the checks can tell.
    array = np.zeros(3 * _ELEMENTS, np.float32)[_ELEMENTS : 2 * _ELEMENTS]
    last = _ELEMENTS - size
    _call(module, array, [0, last // 2, last])
    for place in (-1, last + 1, -(2**40), 2**40, 2**60):
        words = _dying_words(partial(_call, module, array, [place]))
        assert "the kernel of while.1 goes outside of input 0;" in words


def test_regions_of_nothing() -> None:
    module, address = _make(_ACCESSES["load"][0])
    guard(module, {address: Region(name="input 0", num_bytes=0)}, "a kernel")
    array = np.zeros(1, np.float32)
    assert "outside of input 0" in _dying_words(lambda: _call(module, array, [0]))


def test_constants_of_the_module() -> None:
    def emit(builder: ir.IRBuilder, array: ir.Value, place: ir.Value) -> None:
        table = global_constant(builder.module, np.arange(4, dtype=np.float32))
        memory.store(builder, memory.load(builder, _at(builder, table, place), _F32), array, _F32)

    module, address = _make(emit)
    guard(module, {address: Region(name="input 0", num_bytes=4)}, "a kernel")
    array = np.zeros(1, np.float32)
    _call(module, array, [3])
    assert array[0] == 3
    assert "outside of a constant" in _dying_words(lambda: _call(module, array, [4]))


def test_nothing_is_left_unguarded() -> None:
    with pytest.raises(CodegenError, match="extent of the memory"):
        guard(_make(_ACCESSES["load"][0])[0], {}, "a kernel")

    def swap(builder: ir.IRBuilder, array: ir.Value, place: ir.Value) -> None:
        builder.atomic_rmw("xchg", array, place, "monotonic")

    module, address = _make(swap)
    with pytest.raises(CodegenError, match="no bounds check"):
        guard(module, {address: Region(name="input 0", num_bytes=8)}, "a kernel")


def _loop(lanes: int) -> Any:
    body = f"""
      y = f32[{lanes},5] add(e0, e0)
      n = s32[{lanes}] add(e1, e1)"""
    return counting_loop(body, ["y", "n"], [f"f32[{lanes},5]", f"s32[{lanes}]"], trip_count=3)


def _step(_: int, x: NumpyArray, n: NumpyArray) -> Sequence[NumpyArray]:
    return x + x, n + n


@layouts
def test_kernels_run_guarded(lanes: int, options: dict[str, Any]) -> None:
    arguments = some([lanes, 5]), some([lanes], np.int32)
    check(_loop(lanes), _step, 3, *arguments, bounds_checks=True, **options)


@pytest.mark.parametrize("trips", [0, 2])
def test_kernels_that_may_have_nothing_to_do_run_guarded(trips: int) -> None:
    """They ask whether their results have memory of their own."""
    module = counting_loop(
        "y = f32[64,5] add(e0, e0)",
        ["y", "e1"],
        ["f32[64,5]", "s32[]"],
        condition="ROOT go = pred[] compare(i, e1), direction=LT",
    )
    compiled = compile_loop(module, bounds_checks=True)
    state = some([64, 5])
    _, result, _ = compiled.run(state, np.int32(trips))
    np.testing.assert_array_equal(result, state * 2**trips)


def test_a_wrong_address_in_a_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """An emitter that is off by one element is found out, by name of the loop."""
    address_of = Memory.address

    def wrong(self: Memory, *where: Any) -> ir.Value:
        pointer = address_of(self, *where)
        return memory.element_pointer(where[0].builder, pointer, i64(1), self.shape.element_type)

    monkeypatch.setattr(Memory, "address", wrong)
    compiled = compile_loop(_loop(64), bounds_checks=True)
    arguments = some([64, 5]), some([64], np.int32)
    words = _dying_words(lambda: compiled.run(*arguments))
    assert f"the kernel of {compiled.program.name} goes outside of" in words
