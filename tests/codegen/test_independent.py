"""LLVM makes vectors of loops that gather, once it is told that no iteration waits for another."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from llvmlite import ir

from fuselane.codegen.independent import mark_independent
from fuselane.codegen.llvm import Vectors, optimised_ir
from fuselane.codegen.loops import counted_loop

_I32 = ir.IntType(32)


def _element(builder: ir.IRBuilder, array: ir.Value, index: ir.Value) -> ir.Value:
    return builder.gep(array, [index], source_etype=_I32)


def _compile(also: Callable[[ir.IRBuilder, ir.Value], None], *, is_marked: bool) -> str:
    """Returns what LLVM makes of two loops that fill arrays by a gather each."""
    module = ir.Module("test")
    kind = ir.FunctionType(ir.VoidType(), [ir.PointerType()] * 3)
    function = ir.Function(module, kind, "f")
    target, table, indices = function.args
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    filled = []
    for _ in range(2):
        with counted_loop(builder, 0, 800) as index:
            place = builder.load(_element(builder, indices, index), typ=_I32)
            value = builder.load(_element(builder, table, place), typ=_I32)
            also(builder, value)
            builder.store(value, _element(builder, target, index))
            filled.append(builder.block)
    builder.ret_void()
    if is_marked:
        mark_independent(module, filled)
    return optimised_ir(module, vectorise=Vectors.EVERYWHERE)


def _nothing(_: ir.IRBuilder, __: ir.Value) -> None:
    pass


def _store_besides(builder: ir.IRBuilder, value: ir.Value) -> None:
    with builder.goto_entry_block():
        shared = builder.alloca(_I32)
    builder.store(value, shared)


def _branch(builder: ir.IRBuilder, value: ir.Value) -> None:
    with builder.if_then(builder.icmp_signed("<", value, ir.Constant(_I32, 0))):
        builder.call(builder.module.declare_intrinsic("llvm.donothing", (), _VOID), [])


_VOID = ir.FunctionType(ir.VoidType(), [])


def test_gathers_become_vectors() -> None:
    assert "x i32>" not in _compile(_nothing, is_marked=False)
    assert _compile(_nothing, is_marked=True).count("llvm.loop.parallel_accesses") >= 2


@pytest.mark.parametrize("also", [_store_besides, _branch])
def test_what_iterations_may_share_stays_in_order(
    also: Callable[[ir.IRBuilder, ir.Value], None],
) -> None:
    assert "parallel_accesses" not in _compile(also, is_marked=True)
