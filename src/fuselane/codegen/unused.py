"""Drops what nothing uses from a function before LLVM has to read it.

Rules of data movement work out whole indices, of which addresses then use a part (see
`codegen.indexing`); multiply-adds and rotations take the place of what they join.
"""

from __future__ import annotations

from typing import Final

from llvmlite import ir

_ADDRESSES: Final = frozenset({"add", "sub", "mul", "udiv", "urem", "getelementptr"})
_VECTORS: Final = frozenset({"insertelement", "shufflevector"})
_JOINED: Final = frozenset({"fmul", "shl", "lshr"})
"""What multiply-adds and rotations are made of."""
_PURE: Final = _ADDRESSES | _VECTORS | _JOINED


def remove_unused(function: ir.Function) -> None:
    """Removes the address arithmetic, shuffles, products and shifts that nothing uses."""
    instructions = [i for block in function.blocks for i in block.instructions]
    unused = {id(instruction) for instruction in instructions if instruction.opname in _PURE}
    waiting = [instruction for instruction in instructions if id(instruction) not in unused]
    while waiting:
        for operand in _operands(waiting.pop()):
            if id(operand) in unused:
                unused.remove(id(operand))
                waiting.append(operand)
    for block in function.blocks:
        block.instructions[:] = [i for i in block.instructions if id(i) not in unused]


def _operands(instruction: ir.Instruction) -> list[ir.Value]:
    if isinstance(instruction, ir.PhiInstr):
        return [value for value, _ in instruction.incomings]
    return list(instruction.operands)
