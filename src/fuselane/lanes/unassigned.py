"""Modules whose layouts XLA has yet to assign: there the order of arrays in memory means nothing.

XLA:GPU shows its modules before it assigns layouts and fuses. What their shapes say of layouts is
left over from rewriting, and need not fit together:

    %t = u32[300,8,2]{2,0,1} transpose(%keys), ...      carried by a `while` whose body has
    %p = (s32[], u32[300,8,2]{2,1,0}) parameter(0)

All arrays become row-major. A kernel's call then insists on that order, and XLA brings arrays into
it where it had chosen another one.
"""

from __future__ import annotations

from typing import Final

from fuselane.hlo.module import HloModule
from fuselane.hlo.shape import Shape

_ONLY_WITH_LAYOUTS: Final = frozenset({"bitcast", "fusion"})


def has_layouts(module: HloModule) -> bool:
    """Whether XLA has assigned layouts to a module: whether it has what only comes with them."""
    return any(
        instruction.opcode in _ONLY_WITH_LAYOUTS
        for computation in module.computations
        for instruction in computation.instructions
    )


def has_given_layouts(module: HloModule) -> bool:
    """Whether whoever calls a module has asked for arguments or results in another order in memory
    than row-major, as `jax.jit` does with a `Format`."""
    signature = module.proto.host_program_shape
    shapes = [Shape.from_proto(shape) for shape in (*signature.parameters, signature.result)]
    return any(_row_major(shape) != shape for shape in shapes)


def forget_layouts(module: HloModule) -> None:
    """Makes all arrays of a module row-major but those of calls that insist on another order."""
    for computation in module.computations:
        for instruction in computation.instructions:
            if instruction.opcode != "custom-call":
                instruction.shape = _row_major(instruction.shape)


def _row_major(shape: Shape) -> Shape:
    """Returns a shape with row-major arrays; details that this package does not know stay."""
    if not shape.is_plain:
        return shape
    if shape.is_tuple:
        elements = [_row_major(element) for element in shape.tuple_shapes]
        return shape if tuple(elements) == shape.tuple_shapes else Shape.tuple_of(elements)
    if shape.is_row_major or not shape.is_array:
        return shape
    return Shape.array(shape.element_type, shape.dimensions)
