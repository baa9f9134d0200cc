"""Multiply-adds of floats, fused as XLA:CPU's code has them.

    %p = multiply(%a, %b)       its only user
    %s = subtract(%p, %q)       fmuladd(a, b, -q)

XLA leaves it to LLVM, which fuses a product and its only user where both are in one basic block, as
they are in XLA's kernels, and of two products the first. Kernels have more basic blocks, for what
is rare or guarded, and which instructions share one depends on LLVM's passes; so those that HLO has
side by side are fused here. Others, such as products that are summed up, are left to LLVM. Of two
products of the same factors LLVM makes one, which is rounded, and so it is made here: `x * y - y *
x` stays zero, and so does the imaginary part of a number times its conjugate.
"""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from fuselane.codegen.types import call_intrinsic
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.shape import PrimitiveType


def contract(
    builder: ir.IRBuilder, instruction: HloInstruction, values: Sequence[ir.Value]
) -> ir.Value | None:
    """Returns a sum or difference with one operand a product, None if there is none to be fused.

    Args:
        builder: Where it is needed.
        instruction: Which instruction an element is made of.
        values: That element's operands.
    Numerics: rounded once where the machine has such an instruction.
    """
    if instruction.opcode not in ("add", "subtract"):
        return None
    if _are_one_product(*instruction.operands):
        return _combine_with_itself(builder, instruction, values[0])
    for number, operand in enumerate(instruction.operands):
        product = values[number]
        if not (_is_for_one(operand) and _is_product(product)):
            continue
        left, right = product.operands
        other = values[1 - number]
        if instruction.opcode == "subtract":
            if number == 0:
                other = builder.fneg(other)
            else:
                left = builder.fneg(left)
        return call_intrinsic(builder, "llvm.fmuladd", [left, right, other])
    return None


def _is_for_one(product: HloInstruction) -> bool:
    """Whether an instruction multiplies for one other, which needs it once."""
    if product.opcode != "multiply" or len(product.users) != 1:
        return False
    computation = product.computation
    is_root = computation is not None and computation.root is product
    return not is_root and product.users[0].operands.count(product) == 1


def _are_one_product(left: HloInstruction, right: HloInstruction) -> bool:
    """Whether both multiply the same floats, but for their signs."""
    if left.opcode != "multiply" or right.opcode != "multiply":
        return False
    if left.shape.element_type not in (PrimitiveType.F32, PrimitiveType.F64):
        return False
    first, second = ([_unsigned(f)[0] for f in product.operands] for product in (left, right))
    return first in (second, second[::-1])


def _combine_with_itself(
    builder: ir.IRBuilder, instruction: HloInstruction, product: ir.Value
) -> ir.Value:
    """Returns the sum or difference of products that differ in nothing but their signs."""
    factors = [factor for operand in instruction.operands for factor in operand.operands]
    num_signs = sum(_unsigned(factor)[1] for factor in factors)
    if (num_signs + (instruction.opcode == "subtract")) % 2:
        return builder.fsub(product, product)
    return builder.fadd(product, product)


def _unsigned(factor: HloInstruction) -> tuple[HloInstruction, int]:
    """Returns what is left of a factor without its negations, and how many these are."""
    if factor.opcode != "negate":
        return factor, 0
    inner, num_signs = _unsigned(factor.operands[0])
    return inner, num_signs + 1


def _is_product(value: ir.Value) -> bool:
    return isinstance(value, ir.Instruction) and value.opname == "fmul"
