"""What neighbours have in common is computed once; what nothing uses is dropped."""

from __future__ import annotations

from llvmlite import ir

from fuselane.codegen import indexing
from fuselane.codegen.memory import element_pointer
from fuselane.codegen.unused import remove_unused
from fuselane.hlo.shape import PrimitiveType

_I64 = ir.IntType(64)


def _function(*arguments: ir.Type) -> tuple[ir.Function, ir.IRBuilder]:
    module = ir.Module("test")
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), arguments), "f")
    return function, ir.IRBuilder(function.append_basic_block("entry"))


def _count(function: ir.Function, opcode: str) -> int:
    return sum(i.opname == opcode for block in function.blocks for i in block.instructions)


def test_neighbours_share_their_address_but_for_a_constant() -> None:
    function, builder = _function(ir.PointerType(), _I64)
    base, start = function.args
    for column in range(6):
        at = indexing.add(builder, indexing.multiply(builder, start, 6), column)
        offset = indexing.add(builder, indexing.multiply(builder, at, 16), 2)
        pointer = element_pointer(builder, base, indexing.i64(offset), PrimitiveType.F32)
        builder.store(ir.Constant(ir.FloatType(), 1.0), pointer)
    builder.ret_void()
    remove_unused(function)
    assert _count(function, "mul") == 2
    assert _count(function, "add") == 0
    assert _count(function, "getelementptr") == 7
    assert _count(function, "store") == 6


def test_blocks_do_not_share() -> None:
    function, builder = _function(_I64)
    first = indexing.multiply(builder, function.args[0], 6)
    following = builder.append_basic_block("following")
    builder.branch(following)
    builder.position_at_end(following)
    assert indexing.multiply(builder, function.args[0], 6) is not first


def test_what_a_loop_carries_is_kept() -> None:
    function, builder = _function(_I64)
    entry, loop = builder.block, builder.append_basic_block("loop")
    builder.branch(loop)
    builder.position_at_end(loop)
    counter = builder.phi(_I64)
    counter.add_incoming(ir.Constant(_I64, 0), entry)
    counter.add_incoming(builder.add(counter, function.args[0]), loop)
    builder.mul(counter, counter)
    builder.branch(loop)
    remove_unused(function)
    assert _count(function, "add") == 1
    assert _count(function, "mul") == 0
