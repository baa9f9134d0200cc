"""What follows behind a kernel that leaves reductions over lanes unfinished.

Before                                        After
    %k = (f32[8,50]) custom-call(..)              %p = f32[8,50] get-tuple-element(%k), index=0
                                                  %t = f32[50] reduce(%p, %zero), dimensions={0}
    the epilogue: sqrt(the sums over all tiles)   %r = f32[50] sqrt(%t)

The rows of the 8 tiles are combined in the order of the tiles, so that results are the same in
every run, whatever thread ran which tile.
"""

from __future__ import annotations

from collections.abc import Sequence

from fuselane.hlo.combiners import identity
from fuselane.hlo.computation import HloComputation
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.shape import Shape
from fuselane.lanes.builder import combining_computation
from fuselane.lanes.program import Epilogue


def add_epilogue(
    epilogue: Epilogue,
    results: Sequence[HloInstruction],
    inputs: Sequence[HloInstruction],
    *,
    before: HloInstruction,
    has_layouts: bool,
) -> list[HloInstruction]:
    """Adds an epilogue's instructions to a computation of the user's module.

    Args:
        epilogue: What to add.
        results: What the kernel left: `[tiles, ...]` for those that have a combiner.
        inputs: The epilogue's inputs, row-major.
        before: Where, an instruction of the same computation.
        has_layouts: Whether XLA has assigned layouts, behind which a reshape is a bitcast, which
            costs nothing.
    Returns:
        What it makes of them, in order, row-major.
    """
    target = before.computation
    assert target is not None, "the call is in a computation"
    combined = [
        _combine(value, combiner, before) if combiner else value
        for value, combiner in zip(results, epilogue.combiners, strict=True)
    ]
    arguments = [*combined, *inputs]
    values: dict[HloInstruction, HloInstruction] = {}
    computation = epilogue.computation
    for instruction in computation.post_order():
        if instruction.opcode == "parameter":
            values[instruction] = arguments[instruction.parameter_number]
        elif instruction is not computation.root:
            operands = [values[operand] for operand in instruction.operands]
            callees = [_add(callee, target) for callee in instruction.called_computations]
            if instruction.opcode == "reshape" and has_layouts:
                copy = HloInstruction.create(
                    "bitcast", instruction.shape, operands, name=instruction.name
                )
            else:
                copy = instruction.clone(operands, called_computations=callees)
            values[instruction] = target.add(copy, before=before)
    return [values[result] for result in computation.root.operands]


def _add(computation: HloComputation, target: HloComputation) -> HloComputation:
    """Adds a called computation to a module, once."""
    if target.module is not None and computation.module is None:
        target.module.add(computation)
    return computation


def _combine(value: HloInstruction, combiner: str, before: HloInstruction) -> HloInstruction:
    """Combines the rows of all tiles."""
    target = before.computation
    assert target is not None, "the call is in a computation"
    element = value.shape.element_type
    start = HloInstruction.create(
        "constant", Shape.array(element, ()), literal=identity(combiner, element)
    )
    target.add(start, before=before)
    callee = combining_computation(combiner, element)
    reduce = HloInstruction.create(
        "reduce",
        Shape.array(element, value.shape.dimensions[1:]),
        [value, start],
        called_computations=[_add(callee, target)],
        dimensions=[0],
    )
    return target.add(reduce, before=before)
