"""Runs small pieces of emitted code: a builder and arguments in, a call through ctypes."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any, final

import numpy as np
import numpy.typing as npt
from llvmlite import ir

from fuselane.codegen.arrays import Place
from fuselane.codegen.indexing import I64, Index, i64
from fuselane.codegen.llvm import compile_object
from fuselane.codegen.loading import load_object
from fuselane.codegen.memory import LaneBlock, lane_numbers
from fuselane.codegen.types import splat

NumpyArray = npt.NDArray[Any]
Emit = Callable[..., None]

_POINTER = ir.PointerType()
_SYMBOL = "function"


@final
class Function:
    """A function of pointers and integers under construction.

    Attributes:
        builder: In its body.
        arguments: One value for each argument.
    """

    def __init__(self, types: Sequence[ir.Type]) -> None:
        module = ir.Module("test")
        self._function = ir.Function(module, ir.FunctionType(ir.VoidType(), types), _SYMBOL)
        self._entry = self._function.append_basic_block("entry")
        self._body = self._function.append_basic_block("body")
        self.builder = ir.IRBuilder(self._body)
        self.arguments = self._function.args

    def allocate(self, element: ir.Type, count: int) -> ir.Value:
        """Returns the address of memory of the function's own."""
        slot = ir.IRBuilder(self._entry).alloca(element, size=count)
        slot.type = _POINTER
        return slot

    def finish(self) -> ir.Module:
        """Ends the function and returns its module."""
        self.builder.ret_void()
        ir.IRBuilder(self._entry).branch(self._body)
        return self._function.module


def run(emit: Emit, *arguments: NumpyArray | int) -> str:
    """Emits a function, calls it and returns its IR.

    Args:
        emit: Called with the function and a value for each argument.
        arguments: Arrays, which the function gets the addresses of, and integers.
    """
    types = [I64 if isinstance(argument, int) else _POINTER for argument in arguments]
    function = Function(types)
    emit(function, *function.arguments)
    module = function.finish()
    loaded = load_object(compile_object(module, opt_level=1))
    native_types = [ctypes.c_int64 if isinstance(a, int) else ctypes.c_void_p for a in arguments]
    native = ctypes.CFUNCTYPE(None, *native_types)(loaded.address(_SYMBOL))
    native(*(a if isinstance(a, int) else a.ctypes.data for a in arguments))
    return str(module)


def put(function: Function, array: ir.Value, position: int, value: Index | bool) -> None:
    """Stores an index, or a condition, to an element of an i64 array."""
    builder = function.builder
    wide = i64(int(value) if isinstance(value, bool) else value)
    if wide.type.width != I64.width:
        wide = builder.zext(wide, I64)
    builder.store(wide, builder.gep(array, [i64(position)], source_etype=I64))


def make_block(
    function: Function,
    width: int,
    *,
    offset: ir.Value | int = 0,
    lanes: int | None = None,
    is_first: ir.Value | None = None,
    is_whole: ir.Value | None = None,
) -> LaneBlock:
    """Returns a block of lanes, masked if not all `width` of them need exist."""
    mask = None
    if lanes is not None:
        limit = splat(function.builder, i64(lanes), width)
        mask = function.builder.icmp_signed("<", lane_numbers(width), limit)
    first = ir.Constant(ir.IntType(1), 1) if is_first is None else is_first
    return LaneBlock(width=width, offset=i64(offset), mask=mask, is_first=first, is_whole=is_whole)


def make_place(function: Function, block: LaneBlock) -> Place:
    """Returns a place in a function."""
    return Place(builder=function.builder, block=block, allocate=function.allocate)


def evaluate(indices: Callable[..., Sequence[Index | bool]], *arguments: int) -> list[int]:
    """Returns the indices that emitted code works out for arguments known only at run time."""
    results = np.full(16, -1, np.int64)
    counts: list[int] = []

    def emit(function: Function, array: ir.Value, *values: ir.Value) -> None:
        computed = indices(function.builder, *values)
        counts.append(len(computed))
        for position, value in enumerate(computed):
            put(function, array, position, value)

    run(emit, results, *arguments)
    return results[: counts[0]].tolist()
