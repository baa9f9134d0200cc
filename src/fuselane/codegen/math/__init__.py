"""Elementary functions as LLVM IR, for scalars and for vectors of any length.

Only IEEE operations, fused multiply-adds, comparisons and shifts: no tables, no calls to a math
library. What few lanes need (huge angles, zeros and infinities of logarithms) is an internal
function of the same module, called only when some lane needs it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llvmlite import ir

from fuselane.codegen.math.arctangent import emit_atan2
from fuselane.codegen.math.emitter import FloatEmitter
from fuselane.codegen.math.error_function import emit_erf
from fuselane.codegen.math.exponential import emit_expm1, emit_exponential, emit_logistic
from fuselane.codegen.math.half_power import (
    emit_half_power,
    half_power_name,
    is_half_power,
)
from fuselane.codegen.math.hyperbolic import emit_tanh
from fuselane.codegen.math.logarithm import emit_log, emit_log1p
from fuselane.codegen.math.power import emit_power
from fuselane.codegen.math.rare import internal_function
from fuselane.codegen.math.roots import (
    emit_cbrt,
    emit_rsqrt,
    emit_short_rsqrt,
    emit_sqrt,
)
from fuselane.codegen.math.trigonometric import emit_cosine, emit_sine, emit_tan
from fuselane.codegen.types import constant_value
from fuselane.errors import CodegenError

_EMITTERS: dict[str, Callable[..., ir.Value]] = {
    "atan2": emit_atan2,
    "cbrt": emit_cbrt,
    "cosine": emit_cosine,
    "erf": emit_erf,
    "exponential": emit_exponential,
    "exponential-minus-one": emit_expm1,
    "log": emit_log,
    "log-plus-one": emit_log1p,
    "logistic": emit_logistic,
    "power": emit_power,
    "rsqrt": emit_rsqrt,
    "sine": emit_sine,
    "sqrt": emit_sqrt,
    "tan": emit_tan,
    "tanh": emit_tanh,
}

MATH_OPCODES = frozenset(_EMITTERS)


def emit_math(builder: ir.IRBuilder, opcode: str, operands: Sequence[ir.Value]) -> ir.Value:
    """Returns an elementary function of float or double values.

    The code becomes an internal function of the module, once for every opcode and type, that LLVM
    has to inline: a call costs little Python, and kernels share what routines have in common.

    Args:
        builder: Positioned in a function of a module.
        opcode: HLO's name, one of MATH_OPCODES.
        operands: One value (two for atan2 and power), of one type: `float`, `double` or a vector.
    Raises:
        CodegenError: if the opcode is none of ours.
    Numerics: float <= 2 ulp for every argument (power 3), double <= 2 ulp; docs/accuracy.md has the
        measured errors. Denormal operands and results follow the machine's mode.
    """
    emit = _EMITTERS.get(opcode)
    if emit is None:
        raise CodegenError(f"There is no code for the elementary function {opcode}.")
    type_ = operands[0].type
    name = routine_name(opcode, type_)
    exponent = constant_value(operands[1]) if opcode == "power" else None
    if is_half_power(exponent):
        name, operands = routine_name(half_power_name(exponent), type_), operands[:1]

    def body(inner: ir.IRBuilder, *arguments: ir.Value) -> ir.Value:
        emitter = FloatEmitter(inner, type_)
        if is_half_power(exponent):
            return emit_half_power(emitter, arguments[0], exponent)
        return emit(emitter, *arguments)

    signature = ir.FunctionType(type_, [type_] * len(operands))
    function = internal_function(builder.module, name, signature, body, is_inlined=True)
    return builder.call(function, operands)


def define_short_roots(module: ir.Module) -> None:
    """Has a module's inverse roots of scalars take the shortest time, rather than the least work:
    for chains of operations that wait for each other, on a CPU.

    Args:
        module: One in which no code has been emitted yet.
    """
    for type_ in (ir.FloatType(), ir.DoubleType()):

        def body(builder: ir.IRBuilder, x: ir.Value) -> ir.Value:
            return emit_short_rsqrt(FloatEmitter(builder, x.type), x)

        name = routine_name("rsqrt", type_)
        signature = ir.FunctionType(type_, [type_])
        internal_function(module, name, signature, body, is_inlined=True)


def routine_name(opcode: str, type_: ir.Type) -> str:
    """Returns what a module calls its function for an opcode and a type."""
    return f"fuselane.{opcode}.{str(type_).replace(' ', '')}"
