"""Loops of any structure as loops over a tuple that a `tuple` instruction makes.

    %w = f32[8] while(%x)           ->  %t = (f32[8]) tuple(%x)   %v = (f32[8]) while(%t)
                                        %w = f32[8] get-tuple-element(%v), index=0
    %w = (f32[8], s32[]) while(%p)  ->  %t = (f32[8], s32[]) tuple(get-tuple-element(%p), index=0,
                                            get-tuple-element(%p), index=1)
                                        %w = (f32[8], s32[]) while(%t)

Such a loop has the same value, in the same memory. It is made to have a try, and taken back if it
stays with XLA. Does not handle: tuples in tuples.
"""

from __future__ import annotations

from fuselane.hlo.computation import HloComputation
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.shape import Shape
from fuselane.hlo.tuples import element_of, tuple_of


def make_tupled(loop: HloInstruction) -> HloInstruction:
    """Puts a loop over a tuple of arrays in the place of a `while`, if it is not one already.

    Returns:
        The loop to go on with, in the same computation; the one given has lost its users if that is
        another.
    """
    initial, computation = loop.operands[0], loop.computation
    if computation is None or (loop.shape.is_tuple and initial.opcode == "tuple"):
        return loop
    if loop.shape.is_tuple:
        values = [
            computation.add(element_of(initial, index), before=loop)
            for index in range(len(loop.shape.tuple_shapes))
        ]
        tupled = loop.clone([computation.add(tuple_of(values), before=loop)])
        return _take_place(loop, computation.add(tupled, before=loop), tupled)
    start = computation.add(tuple_of([initial]), before=loop)
    called = [_with_tuple(loop.body, is_body=True), _with_tuple(loop.condition, is_body=False)]
    tupled = loop.clone([start], shape=start.shape, called_computations=called)
    computation.add(tupled, before=loop)
    return _take_place(loop, tupled, computation.add(element_of(tupled, 0), before=loop))


def undo_tupled(loop: HloInstruction, tupled: HloInstruction) -> None:
    """Undoes `make_tupled`."""
    computation = loop.computation
    if tupled is loop or computation is None:
        return
    values = [tupled] if loop.shape.is_tuple else list(tupled.users)
    tupled.move_control_edges_to(loop)
    for value in values:
        value.replace_all_uses_with(loop)
    start = tupled.operands[0]
    if not loop.shape.is_tuple:
        computation.remove(values[0])
    computation.remove(tupled)
    added = start.operands if loop.shape.is_tuple else []
    computation.remove(start)
    for element in list(added):
        computation.remove(element)


def _take_place(
    loop: HloInstruction, tupled: HloInstruction, value: HloInstruction
) -> HloInstruction:
    tupled.name = loop.name
    loop.move_control_edges_to(tupled)
    loop.replace_all_uses_with(value)
    return tupled


def _with_tuple(original: HloComputation, *, is_body: bool) -> HloComputation:
    """Returns a body or condition that takes, and a body that returns, a tuple of one array."""
    result = HloComputation.create(original.name)
    array = original.parameters[0]
    parameter = result.add(
        HloInstruction.create("parameter", Shape.tuple_of([array.shape]), parameter_number=0)
    )
    copies = {array: result.add(element_of(parameter, 0))}
    for instruction in original.post_order():
        if instruction is not array:
            operands = [copies[operand] for operand in instruction.operands]
            copies[instruction] = result.add(instruction.clone(operands))
    root = copies[original.root]
    result.root = result.add(tuple_of([root])) if is_body else root
    return result
