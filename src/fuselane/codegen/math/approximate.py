"""Elementary functions of f32 by a GPU's own approximate instructions, where a user wants them.

    exponential(x)   ex2.approx(x * log2(e))          sine(x)   sin.approx(x)
    log(x)           lg2.approx(x) * ln(2)            tanh(x)   tanh.approx(x)

They take the names of our own routines in the module, which are then never made. What has no such
instruction (powers, tangents, error functions) stays as it is.

Numerics: bounds of the instructions from the PTX ISA, "Floating Point Instructions"; those of the
products around them are in docs/gpu.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from llvmlite import ir

from fuselane.codegen.math import routine_name
from fuselane.codegen.math.rare import internal_function
from fuselane.codegen.types import vector_of

_FLOAT: Final = ir.FloatType()
_TANH_CAPABILITY: Final = (7, 5)
"""The first compute capability that has `tanh.approx`."""

_Body = Callable[..., ir.Value]


def define_approximations(
    module: ir.Module, width: int, compute_capability: tuple[int, int]
) -> None:
    """Makes a module's elementary functions of f32 approximate.

    Args:
        module: One in which no code has been emitted yet.
        width: Lanes of its vectors.
        compute_capability: Of the GPU that it is for.
    """
    for opcode, body in _BODIES.items():
        if opcode == "tanh" and compute_capability < _TANH_CAPABILITY:
            continue
        count = 2 if opcode == "divide" else 1
        for type_ in {_FLOAT, vector_of(_FLOAT, width)}:
            signature = ir.FunctionType(type_, [type_] * count)
            name = routine_name(opcode, type_)
            internal_function(module, name, signature, of_each(body), is_inlined=True)


def of_each(body: _Body) -> _Body:
    """Returns what applies a function of scalars to scalars, or to the entries of vectors."""

    def run(builder: ir.IRBuilder, *operands: ir.Value) -> ir.Value:
        type_ = operands[0].type
        if not isinstance(type_, ir.VectorType):
            return body(builder, *operands)
        result = ir.Constant(type_, ir.Undefined)
        for lane in range(type_.count):
            number = ir.Constant(ir.IntType(32), lane)
            entries = [builder.extract_element(operand, number) for operand in operands]
            result = builder.insert_element(result, body(builder, *entries), number)
        return result

    return run


def _instruction(name: str) -> _Body:
    def emit(builder: ir.IRBuilder, *operands: ir.Value) -> ir.Value:
        places = ", ".join(f"${number}" for number in range(len(operands) + 1))
        signature = ir.FunctionType(_FLOAT, [_FLOAT] * len(operands))
        constraint = ",".join(["=f", *["f"] * len(operands)])
        return builder.asm(signature, f"{name} {places};", constraint, operands, side_effect=False)

    return emit


def _scaled(builder: ir.IRBuilder, x: ir.Value, factor: float) -> ir.Value:
    return builder.fmul(x, ir.Constant(_FLOAT, factor))


def _exponential(builder: ir.IRBuilder, x: ir.Value) -> ir.Value:
    return _instruction("ex2.approx.f32")(builder, _scaled(builder, x, math.log2(math.e)))


def _log(builder: ir.IRBuilder, x: ir.Value) -> ir.Value:
    return _scaled(builder, _instruction("lg2.approx.f32")(builder, x), math.log(2))


def _logistic(builder: ir.IRBuilder, x: ir.Value) -> ir.Value:
    """1 / (1 + e**-x): 0 where e**-x is infinite."""
    power = _instruction("ex2.approx.f32")(builder, _scaled(builder, x, -math.log2(math.e)))
    one = ir.Constant(_FLOAT, 1.0)
    return _instruction("rcp.approx.f32")(builder, builder.fadd(one, power))


_BODIES: Final[dict[str, _Body]] = {
    "cosine": _instruction("cos.approx.f32"),
    "divide": _instruction("div.approx.f32"),
    "exponential": _exponential,
    "log": _log,
    "logistic": _logistic,
    "rsqrt": _instruction("rsqrt.approx.f32"),
    "sine": _instruction("sin.approx.f32"),
    "sqrt": _instruction("sqrt.approx.f32"),
    "tanh": _instruction("tanh.approx.f32"),
}
