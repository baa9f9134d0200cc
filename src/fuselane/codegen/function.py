"""Functions that write their text in less time than llvmlite's, but the same text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

from llvmlite import ir

from fuselane.codegen.bounds import Region


@final
class KernelFunction(ir.Function):  # type: ignore[misc]
    """A function of a module; see the module's head.

    Attributes:
        regions: The memory that its arguments are addresses of.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.regions: dict[ir.Value, Region] = {}

    def descr_body(self, buf: list[str]) -> None:
        """Adds the text of all blocks to a list."""
        for block in self.blocks:
            buf.append(f"{block._format_name()}:\n")
            buf += map(_describe, block.instructions)


def own_function(module: ir.Module, name: str, argument_types: Sequence[ir.Type]) -> KernelFunction:
    """Adds a function that works on memory, and that places of the kernel call; its body is empty.

    Args:
        module: The kernel's.
        name: Of no other function of it.
        argument_types: What it is given, addresses of memory that do not overlap among it; it
            returns nothing.
    """
    function = KernelFunction(module, ir.FunctionType(ir.VoidType(), argument_types), name)
    function.linkage = "internal"
    function.attributes.add("noinline")
    function.attributes.add("nounwind")
    for argument in function.args:
        if isinstance(argument.type, ir.PointerType):
            argument.add_attribute("noalias")
    return function


def _describe(instruction: ir.Instruction) -> str:
    """Returns the line of an instruction."""
    if type(instruction) is ir.Instruction and not instruction.metadata:  # on numbers
        opcode = " ".join((instruction.opname, *instruction.flags))
        operands = ", ".join([operand.get_reference() for operand in instruction.operands])
        return f"  {instruction.get_reference()} = {opcode} {instruction.type} {operands}\n"
    parts: list[str] = []
    instruction.descr(parts)
    text = "".join(parts).rstrip()
    if isinstance(instruction.type, ir.VoidType):
        return f"  {text}\n"
    return f"  {instruction.get_reference()} = {text}\n"
