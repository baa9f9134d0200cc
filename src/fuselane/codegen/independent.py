"""Loops over the elements of an array, in any order: what LLVM is told of them.

An element is made of elements elsewhere, or of what has been where it goes: never of what another
iteration writes. LLVM cannot know where indices that are data lead to, so that a gather keeps it
from making vectors of a loop, and where it makes some, it compares addresses first.

    each:                                       each:
      %j = load i32, ptr %i                       %j = load i32, ptr %i, !llvm.access.group !7
      %x = load i32, ptr %at_j                    %x = load i32, ptr %at_j, !llvm.access.group !7
      store i32 %y, ptr %k                        store i32 %y, ptr %k, !llvm.access.group !7
      br %again, each, exit                       br %again, each, exit, !llvm.loop !8

    !8 = distinct !{ !8, !{ !"llvm.loop.parallel_accesses", !7 } }, of which !7 is a group
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, final

from llvmlite import ir

from fuselane.codegen.loops import LoopId

_ACCESSES: Final = frozenset({"load", "store"})
_GROUP: Final = "llvm.access.group"


def mark_independent(module: ir.Module, blocks: Iterable[ir.Block]) -> None:
    """Tells LLVM which loops of a module may take their iterations in any order.

    Args:
        module: What the blocks are part of.
        blocks: Each is where an element is stored, or taken into what is carried. Left as they are:
            those that are not all of a loop, and those that store something besides, which all
            iterations may share.
    """
    for block in dict.fromkeys(blocks):
        end = block.terminator
        accesses = [i for i in block.instructions if i.opname in _ACCESSES]
        num_stores = sum(access.opname == "store" for access in accesses)
        if end is None or block not in end.operands or num_stores > 1:
            continue
        mark_loop(module, [block], block)


def mark_loop(module: ir.Module, blocks: Iterable[ir.Block], last: ir.Block) -> None:
    """Tells LLVM that a loop may take its iterations in any order.

    Args:
        module: What it is part of.
        blocks: Those of the loop; others that read and write nothing may be among them.
        last: The one that goes back to the first.
    """
    group = _Group(module)
    for block in blocks:
        for access in block.instructions:
            if access.opname in _ACCESSES:
                access.set_metadata(_GROUP, group)
    properties = module.add_metadata(["llvm.loop.parallel_accesses", group])
    last.terminator.set_metadata("llvm.loop", LoopId(module, properties))


def is_marked(block: ir.Block) -> bool:
    """Whether a block reads or writes in a loop that may take its iterations in any order."""
    return any(_GROUP in access.metadata for access in block.instructions)


@final
class _Group(ir.MDValue):  # type: ignore[misc]
    """What loads and stores of a loop have in common: a node that is no other's."""

    def __init__(self, module: ir.Module) -> None:
        super().__init__(module, [], name=str(len(module.metadata)))

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)

    def descr(self, buffer: list[str]) -> None:
        """Writes the node as LLVM reads it."""
        buffer.append("distinct !{  }\n")
