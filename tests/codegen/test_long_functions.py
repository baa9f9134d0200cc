"""Long math routines are called where they are used often, not copied."""

from __future__ import annotations

import pytest
from llvmlite import ir

from fuselane.codegen.llvm import assembly
from fuselane.codegen.math import emit_math
from fuselane.codegen.math.rare import call_long_functions
from fuselane.codegen.types import vector_of


@pytest.mark.parametrize(
    ("scalar", "opcode", "calls", "is_called"),
    [
        (ir.DoubleType(), "power", 6, True),
        (ir.DoubleType(), "power", 2, False),
        (ir.FloatType(), "exponential", 6, False),
        (ir.FloatType(), "exponential", 200, True),
    ],
)
def test_long_functions_are_called(
    scalar: ir.Type, opcode: str, calls: int, is_called: bool
) -> None:
    module = ir.Module("test")
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [ir.PointerType()]), "f")
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    type_ = vector_of(scalar, 4)
    value = builder.load(function.args[0], typ=type_)
    for _ in range(calls):
        operands = [value, value] if opcode == "power" else [value]
        value = emit_math(builder, opcode, operands)
    builder.store(value, function.args[0])
    builder.ret_void()
    call_long_functions(module)
    number = assembly(module).count(f'"fuselane.{opcode}.<4x{scalar}>"\n')
    assert (number >= calls) == is_called
