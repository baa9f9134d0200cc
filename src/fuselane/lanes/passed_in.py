"""Large constants are handed to a kernel, like the arguments of a program, rather than part of it.

    body: %c = f32[300,4096] constant({..})          region: %p = f32[300,4096] parameter(2)
          %x = dynamic-slice(%c, %i)             ->  body:   %c = get-tuple-element(%t), index=3
                                                             %x = dynamic-slice(%c, %i)

What a program closes over is a constant to JAX, and XLA moves constants into the loops that read
them: data of any size, which LLVM would read as text and the cache would keep with the code.

Numerics: bitwise-equal.
Does not handle: constants of a conditional's branches.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from fuselane.analysis.while_loops import loop_of
from fuselane.hlo.computation import HloComputation
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.shape import Shape
from fuselane.hlo.tuples import element_of, tuple_of
from fuselane.lanes.normal_loop import NormalLoop

_MAX_BYTES: Final = 64 * 2**10
"""Of a constant that stays part of the kernel."""

_Path = tuple[HloInstruction, ...]
"""Loops, each in the body of the one before or, the last, perhaps in its condition."""


def pass_in(normal: NormalLoop) -> NormalLoop:
    """Makes large constants of a loop, and of the loops in it, operands of the region.

    Args:
        normal: Its region is changed in place.
    Returns:
        The loop with more elements and operands; the same if it has no such constants.
    """
    region, loop = normal.region, loop_of(normal.region)
    found = list(_find_large((loop,)))
    if not found:
        return normal
    operands = list(normal.operands)
    changed: dict[HloComputation, None] = {region: None}
    for path, constant in found:
        value = region.add(HloInstruction.parameter(len(operands), constant.shape))
        operands.append(constant.clone([]))
        home = constant.computation
        for each in path:
            in_body, in_condition = _carry(each, value)
            value = in_condition if home is each.condition else in_body
            changed |= {each.body: None, each.condition: None}
        constant.replace_all_uses_with(value)
    for computation in changed:
        computation.remove_dead_instructions()
        computation.sort()
    indices = (*normal.element_indices, *(-1 for _ in found))
    return replace(normal, operands=tuple(operands), element_indices=indices)


def _find_large(path: _Path) -> Iterator[tuple[_Path, HloInstruction]]:
    """Yields large constants of a path's last loop and of loops in its body, with their paths."""
    loop = path[-1]
    for computation in (loop.body, loop.condition):
        for instruction in list(computation.instructions):
            if instruction.opcode == "constant" and instruction.shape.byte_size > _MAX_BYTES:
                yield path, instruction
            elif instruction.opcode == "while" and computation is loop.body:
                yield from _find_large((*path, instruction))


def _carry(loop: HloInstruction, value: HloInstruction) -> tuple[HloInstruction, HloInstruction]:
    """Makes a value one more element of a loop, which never changes; returns it as body and
    condition see it."""
    computation, initial, root = loop.computation, loop.operands[0], loop.body.root
    assert computation is not None
    number = len(initial.operands)
    loop.replace_operand(0, computation.add(tuple_of([*initial.operands, value])))
    seen: list[HloInstruction] = []
    for inside in (loop.body, loop.condition):
        parameter = inside.parameters[0]
        parameter.shape = Shape.tuple_of([*parameter.shape.tuple_shapes, value.shape])
        seen.append(inside.add(element_of(parameter, number)))
    loop.body.root = loop.body.add(tuple_of([*root.operands, seen[0]]))
    loop.shape = loop.operands[0].shape
    return seen[0], seen[1]
