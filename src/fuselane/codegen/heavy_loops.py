"""Which loops of a kernel LLVM makes vectors of.

Those over elements of arrays that all lanes share: a kernel of numbers only has none, and what LLVM
finds there takes longer to look for than it saves.

LLVM writes every loop several times over that it makes vectors of, and what comes behind takes time
by the square of that: minutes for a dozen thousand instructions in loops of index arithmetic. So of
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

from fuselane.codegen.independent import is_marked
from fuselane.codegen.llvm import Vectors
from fuselane.codegen.loops import LoopId

_MAX_CODE: Final = 3000
"""Instructions up to which LLVM looks at all loops."""

_MIN_WORK: Final = 12
"""Operations on floats or short integers that a heavy loop has at least."""

_MAX_BODY: Final = 300


_NO_BUILTINS: Final = '"no-builtins"'
_OUTER_LOOPS: Final = 2
"""Over tiles, of which there is one, and over steps, each of which needs the one before."""


def find_vectors(module: ir.Module, *, has_lanes: bool) -> Vectors:
    """Returns where LLVM is to look for vectors in a kernel.

    Args:
        module: The kernel's.
        has_lanes: Whether its code is of vectors already, but for loops over elements of arrays
            that all lanes share, which are marked; see `codegen.independent`. Else all its loops
            are such, but for those that every kernel has.
    """
    functions = [f for f in module.functions if f.blocks]
    if has_lanes:
        is_any = any(is_marked(block) for f in functions for block in f.blocks)
        return Vectors.IN_LOOPS if is_any else Vectors.NOWHERE
    num_loops = sum(len(list(_find_back_edges(function))) for function in functions)
    return Vectors.EVERYWHERE if num_loops > _OUTER_LOOPS else Vectors.NOWHERE


def keep_copying_loops(module: ir.Module) -> None:
    """Has LLVM leave loops that copy what they are.

    It would make calls of `memcpy` of them and take these apart: where an array moves up by one in
    each step, into its elements. Where lanes copy arrays of their own, the calls are faster.
    """
    for function in module.functions:
        if function.blocks:
            set.add(function.attributes, _NO_BUILTINS)  # llvmlite knows no attributes in quotes


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
    """Yields the branches that go back to the beginning of a loop."""
    entry = function.entry_basic_block
    path = [(entry, iter(_successors(entry)))]
    seen, entered = {entry}, {entry}
    while path:
        block, rest = path[-1]
        for target in rest:
            if target in entered:
                yield block.terminator
            elif target not in seen:
                seen.add(target)
                entered.add(target)
                path.append((target, iter(_successors(target))))
                break
        else:
            path.pop()
            entered.remove(block)


def _successors(block: ir.Block) -> list[ir.Block]:
    operands = [] if block.terminator is None else block.terminator.operands
    return [operand for operand in operands if isinstance(operand, ir.Block)]


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
