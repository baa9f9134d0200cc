"""Runs emitted elementwise code over numpy arrays: IR in, machine code called through ctypes.

Every case becomes functions `void f(ptr* operands, ptr result, i64 size)`, one per width: a loop
that loads `width` elements of each operand (one for width 0), applies the case and stores.
As on XLA:CPU's threads, denormals are flushed while a function runs unless a test asks otherwise.
"""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, final

import numpy as np
import numpy.typing as npt
from llvmlite import ir

from fuselane.codegen.llvm import compile_object
from fuselane.codegen.loading import LoadedObject, load_object
from fuselane.codegen.math import emit_math
from fuselane.codegen.types import llvm_type, memory_type, vector_of
from fuselane.hlo.shape import PrimitiveType

BINARY_MATH: Final = ("atan2", "power")

NumpyArray = npt.NDArray[Any]
Emit = Callable[[ir.IRBuilder, Sequence[ir.Value]], ir.Value]

_I8, _I32, _I64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)
_POINTER = ir.PointerType()
_FLUSH_X86 = 0x8040
_FLUSH_ARM = 1 << 24


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One piece of elementwise code: `emit` maps a builder and operands to the result."""

    name: str
    emit: Emit
    operand_types: tuple[PrimitiveType, ...]
    result_type: PrimitiveType


def math_case(opcode: str, element_type: PrimitiveType) -> Case:
    """Returns one function of numbers, of one type."""
    return Case(
        name=f"{opcode}.{element_type.lower}",
        emit=lambda builder, operands: emit_math(builder, opcode, operands),
        operand_types=(element_type,) * (2 if opcode in BINARY_MATH else 1),
        result_type=element_type,
    )


@final
class CompiledCases:
    """Cases as machine code, each for every width; call `run`."""

    def __init__(self, cases: Sequence[Case], loaded: LoadedObject) -> None:
        self._cases = {case.name: case for case in cases}
        self._loaded = loaded

    def run(self, name: str, width: int, *operands: NumpyArray) -> NumpyArray:
        """Applies a case to arrays of one size, which has to be a multiple of `width`."""
        case = self._cases[name]
        inputs = [
            np.ascontiguousarray(operand, element_type.dtype)
            for operand, element_type in zip(operands, case.operand_types, strict=True)
        ]
        size = inputs[0].size
        assert all(operand.size == size for operand in inputs)
        assert size % max(width, 1) == 0
        result = np.zeros(inputs[0].shape, case.result_type.dtype)
        pointers = (ctypes.c_void_p * len(inputs))(*(operand.ctypes.data for operand in inputs))
        signature = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
        function = signature(self._loaded.address(_symbol(name, width)))
        function(ctypes.addressof(pointers), result.ctypes.data, size)
        return result


def compile_cases(
    cases: Sequence[Case],
    widths: Sequence[int] = (0, 16),
    *,
    opt_level: int = 1,
    flush_denormals: bool = True,
) -> CompiledCases:
    """Compiles cases for widths (0 is scalar code) as one module."""
    module = build_module(cases, widths, flush_denormals=flush_denormals)
    return CompiledCases(cases, load_object(compile_object(module, opt_level=opt_level)))


def build_module(
    cases: Sequence[Case], widths: Sequence[int], *, flush_denormals: bool = True
) -> ir.Module:
    """Returns the module of `compile_cases` before LLVM has seen it."""
    module = ir.Module("cases")
    for case in cases:
        for width in widths:
            _add_function(module, case, width, flush_denormals)
    return module


def _symbol(name: str, width: int) -> str:
    return f"{name}.{width}"


def _add_function(module: ir.Module, case: Case, width: int, flush_denormals: bool) -> None:
    signature = ir.FunctionType(ir.VoidType(), [_POINTER, _POINTER, _I64])
    function = ir.Function(module, signature, _symbol(case.name, width))
    function.attributes.add("nounwind")
    operands, result, size = function.args
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    restore = _flush_denormals(builder) if flush_denormals else lambda: None
    entry, body = builder.block, builder.append_basic_block("body")
    exit_block = builder.append_basic_block("exit")
    builder.branch(body)
    builder.position_at_end(body)
    position = builder.phi(_I64)
    position.add_incoming(ir.Constant(_I64, 0), entry)
    values = [
        _load(builder, _operand(builder, operands, number), position, element_type, width)
        for number, element_type in enumerate(case.operand_types)
    ]
    _store(builder, case.emit(builder, values), result, position, case.result_type)
    following = builder.add(position, ir.Constant(_I64, max(width, 1)))
    position.add_incoming(following, builder.block)
    builder.cbranch(builder.icmp_unsigned("<", following, size), body, exit_block)
    builder.position_at_end(exit_block)
    restore()
    builder.ret_void()


def _operand(builder: ir.IRBuilder, operands: ir.Value, number: int) -> ir.Value:
    place = builder.gep(operands, [ir.Constant(_I64, number)], source_etype=_POINTER)
    return builder.load(place, typ=_POINTER)


def _load(
    builder: ir.IRBuilder, array: ir.Value, position: ir.Value, element: PrimitiveType, width: int
) -> ir.Value:
    stored = memory_type(element)
    place = builder.gep(array, [position], source_etype=stored)
    raw = builder.load(place, typ=vector_of(stored, width), align=element.byte_size)
    if element is PrimitiveType.PRED:
        return builder.trunc(raw, vector_of(llvm_type(element), width))
    return raw


def _store(
    builder: ir.IRBuilder,
    value: ir.Value,
    array: ir.Value,
    position: ir.Value,
    element: PrimitiveType,
) -> None:
    place = builder.gep(array, [position], source_etype=memory_type(element))
    if element is PrimitiveType.PRED:
        width = value.type.count if isinstance(value.type, ir.VectorType) else 0
        value = builder.zext(value, vector_of(_I8, width))
    builder.store(value, place, align=element.byte_size)


def _flush_denormals(builder: ir.IRBuilder) -> Callable[[], None]:
    """Makes the processor flush denormals and returns what emits the way back."""
    if platform.machine().lower() in ("aarch64", "arm64"):
        return _flush_denormals_arm(builder)
    module = builder.module
    to_memory = ir.FunctionType(ir.VoidType(), [_POINTER])
    save = _declare(module, "llvm.x86.sse.stmxcsr", to_memory)
    load = _declare(module, "llvm.x86.sse.ldmxcsr", to_memory)
    before, during = builder.alloca(_I32), builder.alloca(_I32)
    builder.call(save, [before])
    mode = builder.or_(builder.load(before, typ=_I32), ir.Constant(_I32, _FLUSH_X86))
    builder.store(mode, during)
    builder.call(load, [during])

    def restore() -> None:
        builder.call(load, [before])

    return restore


def _flush_denormals_arm(builder: ir.IRBuilder) -> Callable[[], None]:
    module = builder.module
    get = _declare(module, "llvm.aarch64.get.fpcr", ir.FunctionType(_I64, []))
    put = _declare(module, "llvm.aarch64.set.fpcr", ir.FunctionType(ir.VoidType(), [_I64]))
    before = builder.call(get, [])
    builder.call(put, [builder.or_(before, ir.Constant(_I64, _FLUSH_ARM))])

    def restore() -> None:
        builder.call(put, [before])

    return restore


def _declare(module: ir.Module, name: str, signature: ir.FunctionType) -> ir.Function:
    return module.globals.get(name) or ir.Function(module, signature, name)
