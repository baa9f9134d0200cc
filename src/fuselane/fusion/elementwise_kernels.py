"""Kernels of XLA:CPU's that go through arrays element by element, in one loop: what they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from fuselane.fusion.fuse import LOOP
from fuselane.fusion.opcodes import ELEMENTWISE
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.shape import Shape

_MEMBERS: Final = ELEMENTWISE | {"bitcast", "broadcast", "constant", "iota", "parameter", "tuple"}


def is_elementwise_kernel(instruction: HloInstruction) -> bool:
    """Whether an instruction is an elementwise kernel, with one or several results."""
    if instruction.opcode != "fusion" or instruction.fusion_kind != LOOP:
        return False
    if instruction.control_predecessors or instruction.control_successors:
        return False
    return all(inner.opcode in _MEMBERS for inner in instruction.to_apply.instructions)


def index_space(kernel: HloInstruction) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns the sizes and the layout that a kernel's loop goes by."""
    shape: Shape = kernel.shape.tuple_shapes[0] if kernel.shape.is_tuple else kernel.shape
    return shape.dimensions, shape.minor_to_major


def large_arrays(kernel: HloInstruction) -> set[HloInstruction]:
    """Returns the arrays a kernel reads and writes that are as large as its results."""
    size = max(shape.num_elements for shape in _results(kernel.shape))
    made: Sequence[HloInstruction] = [kernel]
    if kernel.shape.is_tuple:
        made = [user for user in kernel.users if user.opcode == "get-tuple-element"]
    arrays = (array for array in (*kernel.operands, *made) if array.shape.is_array)
    return {array for array in arrays if array.shape.num_elements >= size}


def _results(shape: Shape) -> tuple[Shape, ...]:
    return shape.tuple_shapes or (shape,)
