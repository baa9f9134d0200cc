"""LLVM makes vectors of the heavy loops of long code, and of all loops of short code."""

from __future__ import annotations

import pytest
from llvmlite import ir

from fuselane.codegen.heavy_loops import find_vectors, leave_light_loops
from fuselane.codegen.indexing import I64
from fuselane.codegen.llvm import Vectors, optimised_ir
from fuselane.codegen.loops import counted_loop

_F32 = ir.FloatType()


def _add_loop(builder: ir.IRBuilder, table: ir.Value, operations: int) -> None:
    """Emits a loop over 800 numbers, each of which goes through so many operations."""
    with counted_loop(builder, 0, 800) as index:
        pointer = builder.gep(table, [index], source_etype=_F32)
        value = builder.load(pointer, typ=_F32)
        for number in range(operations):
            value = builder.fadd(builder.fmul(value, value), ir.Constant(_F32, number + 0.5))
        builder.store(value, pointer)


def _vectors_in(num_light: int, operations: int) -> tuple[bool, bool]:
    """Returns whether LLVM makes vectors of light loops and of another, of so many operations."""
    module = ir.Module("test")
    pointer = ir.PointerType()
    functions = []
    for name, count, steps in (("light", num_light, 1), ("other", 1, operations)):
        function = ir.Function(module, ir.FunctionType(ir.VoidType(), [pointer]), name)
        builder = ir.IRBuilder(function.append_basic_block("entry"))
        for _ in range(count):
            _add_loop(builder, function.args[0], steps)
        builder.ret_void()
        functions.append(function)
    leave_light_loops(module)
    text = optimised_ir(module, vectorise=Vectors.EVERYWHERE)
    light, other = text.split("@other(")
    return "x float>" in light, "x float>" in other


@pytest.mark.parametrize(
    ("num_light", "operations", "expected"),
    [(2, 1, (True, True)), (500, 20, (False, True)), (500, 2, (False, False))],
    ids=["short", "long", "long_and_light"],
)
def test_which_loops_become_vectors(
    num_light: int, operations: int, expected: tuple[bool, bool]
) -> None:
    assert _vectors_in(num_light, operations) == expected


def test_loops_of_several_blocks_are_light() -> None:
    module = ir.Module("test")
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [ir.PointerType()]), "f")
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    with (
        counted_loop(builder, 0, 800) as index,
        builder.if_then(builder.icmp_signed("<", index, ir.Constant(I64, 7))),
    ):
        _add_loop(builder, function.args[0], 2000)
    builder.ret_void()
    leave_light_loops(module)
    ends = [block.terminator for block in function.blocks]
    latches = [e for e in ends if any(o.name in ("loop", "loop.1") for o in e.operands[1:2])]
    assert len(latches) == 2  # the inner one is too long
    assert all("llvm.loop" in latch.metadata for latch in latches)


@pytest.mark.parametrize(
    ("has_inner", "expected"), [(False, Vectors.NOWHERE), (True, Vectors.EVERYWHERE)]
)
def test_loops_over_elements_are_found(has_inner: bool, expected: Vectors) -> None:
    module = ir.Module("test")
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [ir.PointerType()]), "f")
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    with counted_loop(builder, 0, 1), counted_loop(builder, 0, 100) as step:
        with builder.if_else(builder.icmp_signed("<", step, ir.Constant(I64, 7))) as branches:
            for branch in branches:
                with branch:
                    builder.store(step, function.args[0])
        if has_inner:
            _add_loop(builder, function.args[0], 1)
    builder.ret_void()
    assert find_vectors(module, has_lanes=False) is expected
    assert find_vectors(module, has_lanes=True) is Vectors.NOWHERE  # nothing is known of any
