"""One element of every elementwise HLO instruction as LLVM IR, for scalars and vectors alike.

Source of the semantics: what XLA:CPU computes, found by running it (tests/codegen/test_elemental.py
does so for every opcode and type). XLA:CPU's threads run with denormals flushed, inputs and results
alike, and kernels run on the same threads; nothing here sets or needs any floating-point mode.
"""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from fuselane.codegen.elemental.compare import emit_compare
from fuselane.codegen.elemental.convert import emit_bitcast_convert, emit_convert
from fuselane.codegen.elemental.floating import FLOATING_OPCODES, emit_floating, emit_is_finite
from fuselane.codegen.elemental.integer import BOOLEAN_OPCODES, INTEGER_OPCODES, emit_integer
from fuselane.codegen.elemental.precision import emit_reduce_precision
from fuselane.errors import CodegenError
from fuselane.hlo.shape import PrimitiveType

_SPECIAL_OPCODES = frozenset(
    {"bitcast-convert", "compare", "convert", "copy", "is-finite", "reduce-precision", "select"}
)

ELEMENTAL_OPCODES = _SPECIAL_OPCODES | INTEGER_OPCODES | FLOATING_OPCODES
"""Every opcode `emit_elemental` knows, for some type."""


def emit_elemental(  # noqa: PLR0913  (one keyword per attribute an instruction may have)
    builder: ir.IRBuilder,
    opcode: str,
    operands: Sequence[ir.Value],
    operand_types: Sequence[PrimitiveType],
    result_type: PrimitiveType,
    *,
    direction: str = "",
    total_order: bool = False,
    mantissa_bits: int = 0,
    exponent_bits: int = 0,
) -> ir.Value:
    """Emits one element, or one vector of elements, of an elementwise HLO instruction.

    Args:
        builder: Left where the result is available, which may be another basic block
            (remainder of floats and integer power branch).
        opcode: XLA's name, such as "shift-right-logical".
        operands: Register values of `types.llvm_type`, all scalars or all vectors of one length.
        operand_types: One per operand; says how to read integers and BF16.
        result_type: Element type of the instruction.
        direction: "EQ", "NE", "LT", "LE", "GT" or "GE" of a compare.
        total_order: Whether a compare of floats is by total order (comparison type TOTALORDER).
        mantissa_bits: Of reduce-precision.
        exponent_bits: Of reduce-precision.
    Raises:
        CodegenError: if the opcode has no rule for the operand type.
    Numerics: integers, booleans, compares, selects and converts bitwise as XLA:CPU; + - * / sqrt
        and rounding too, but for FMA contraction (flag `contract`); F16 and BF16 are computed in
        F32 and rounded to nearest even after every instruction; others as `codegen.math` says.
    """
    element_type = operand_types[-1]
    match opcode:
        case "copy":
            return operands[0]
        case "select":
            return builder.select(*operands)
        case "compare":
            return emit_compare(builder, operands, element_type, direction, total_order)
        case "convert":
            return emit_convert(builder, operands[0], element_type, result_type)
        case "bitcast-convert":
            return emit_bitcast_convert(builder, operands[0], result_type)
        case "is-finite":
            return emit_is_finite(builder, operands[0], element_type)
        case "reduce-precision":
            return emit_reduce_precision(
                builder, operands[0], element_type, exponent_bits, mantissa_bits
            )
    if element_type.is_floating and opcode in FLOATING_OPCODES:
        return emit_floating(builder, opcode, operands, element_type)
    known = BOOLEAN_OPCODES if element_type is PrimitiveType.PRED else INTEGER_OPCODES
    if not element_type.is_floating and opcode in known:
        return emit_integer(builder, opcode, operands, element_type)
    raise CodegenError(f"No kernel code is known for {opcode} of {element_type.lower} values.")
