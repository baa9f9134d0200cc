"""What functions write is what llvmlite would."""

from __future__ import annotations

from llvmlite import ir

from fuselane.codegen.function import KernelFunction

_F32 = ir.VectorType(ir.FloatType(), 8)
_I64 = ir.IntType(64)


def _text(kind: type[ir.Function]) -> str:
    module = ir.Module("test")
    signature = ir.FunctionType(ir.VoidType(), [ir.PointerType(), _I64])
    function = kind(module, signature, "f")
    pointer, start = function.args
    builder = ir.IRBuilder(function.append_basic_block('odd "name\\'))
    behind = function.append_basic_block("behind.1")
    place = builder.gep(
        pointer, [builder.mul(start, _I64(3), flags=("nsw", "nuw"))], source_etype=_F32
    )
    value = builder.load(place, typ=_F32)
    value.set_metadata("invariant.load", module.add_metadata([]))
    total = builder.fadd(value, builder.fneg(value), flags=("contract",))
    total.set_metadata("fpmath", module.add_metadata([ir.Constant(ir.FloatType(), 2.5)]))
    builder.store(builder.select(builder.fcmp_unordered("<", total, value), total, value), place)
    is_more = builder.icmp_signed(">", builder.add(start, _I64(1)), _I64(9))
    builder.cbranch(is_more, behind, behind)
    builder.position_at_end(behind)
    phi = builder.phi(_I64)
    phi.add_incoming(start, function.entry_basic_block)
    builder.trunc(phi, ir.IntType(8), name="narrow")
    builder.ret_void()
    return str(module)


def test_text_is_llvmlites() -> None:
    assert _text(KernelFunction) == _text(ir.Function)
