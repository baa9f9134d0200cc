"""Which loops of a kernel without lanes LLVM makes vectors of, if its code is long.

LLVM writes every loop several times over that it makes vectors of, and what comes behind takes time
by the square of that: minutes for a dozen thousand instructions in loops of index arithmetic. Of
long code it looks at the loops in which the time goes, such as those over exponentials:

    each:                                   each:
      ..  20 operations on floats             ..  a load and a store
      br %again, each, exit                   br %again, each, exit, !llvm.loop !7

    !7 = distinct !{ !7, !{ !"llvm.loop.vectorize.enable", i1 false } }
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from llvmlite import ir

from fuselane.codegen.loops import LoopId

_MAX_CODE: Final = 3000
"""Instructions up to which LLVM looks at all loops."""

_MIN_WORK: Final = 12
"""Operations on floats or short integers that a heavy loop has at least."""

_MAX_BODY: Final = 300


def leave_light_loops(module: ir.Module) -> None:
    """Has LLVM leave those loops of a module as they are that do little, if its code is long.

    Args:
        module: Whole; what its functions call is counted with them.
    """
    functions = [f for f in module.functions if f.blocks]
    if sum(len(block.instructions) for f in functions for block in f.blocks) <= _MAX_CODE:
        return
    off = ["llvm.loop.vectorize.enable", ir.Constant(ir.IntType(1), 0)]
    for function in functions:
        for branch in _find_back_edges(function):
            if not _is_heavy(branch):
                branch.set_metadata("llvm.loop", LoopId(module, module.add_metadata(off)))


def _find_back_edges(function: ir.Function) -> Iterator[ir.Instruction]:
    """Yields the branches that go back to the beginning of a loop, and perhaps some that go to the
    end of one, which LLVM asks nothing."""
    number = {block: n for n, block in enumerate(function.blocks)}
    for block in function.blocks:
        end = block.terminator
        if end is not None and end.opname == "br":
            targets = [target for target in end.operands if target in number]
            if any(number[target] <= number[block] for target in targets):
                yield end


def _is_heavy(branch: ir.Instruction) -> bool:
    """Whether a loop is one block in which much is computed."""
    block = branch.parent
    if block not in branch.operands or len(block.instructions) > _MAX_BODY:
        return False
    return sum(map(_count_work, block.instructions)) >= _MIN_WORK


def _count_work(instruction: ir.Instruction) -> int:
    """Returns how many operations an instruction is; those on indices are none."""
    if not _is_narrow(instruction.type):
        return 0
    if instruction.opname != "call" or not instruction.callee.blocks:
        return 1
    return sum(len(block.instructions) for block in instruction.callee.blocks)


def _is_narrow(kind: ir.Type) -> bool:
    """Whether values of a type are floats or short integers, which indices are not."""
    if isinstance(kind, ir.IntType):
        return bool(1 < kind.width < 64)
    return isinstance(kind, ir.HalfType | ir.FloatType | ir.DoubleType)
