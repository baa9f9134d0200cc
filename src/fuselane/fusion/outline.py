"""Straight-line code as a loop of one step, so that it can become a kernel as loops do.

    %a = f32[8] fusion(%x)           ->    %t = tuple(0, broadcast(0), broadcast(0), %x)
    %b = f32[8] fusion(%x, %a)             %w = while(%t), one iteration, in which
                                             %a = f32[8] fusion(%x)    %b = f32[8] fusion(%x, %a)
                                             %s = f32[1,8] dynamic-update-slice(%old, %a, %i, 0)
                                           %c = f32[8] bitcast(get-tuple-element(%w), index=1)

Each result is stacked, as `lax.scan` stacks what its steps return; what stood in its place before
is never read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, final

import numpy as np

from fuselane.errors import VerificationError
from fuselane.hlo.computation import HloComputation
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.module import HloModule
from fuselane.hlo.shape import PrimitiveType, Shape
from fuselane.hlo.tuples import element_of, tuple_of

_COUNTER: Final = Shape.array(PrimitiveType.S32, ())
_ONCE: Final = b'{"known_trip_count":{"n":"1"}}'
_Add = Callable[[HloInstruction], HloInstruction]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Outlined:
    """Instructions that a loop stands for, which nobody needs while it is there.

    Attributes:
        loop: The `while`.
        members: The instructions, operands first.
        values: What is used instead of each of their results.
    """

    loop: HloInstruction
    members: tuple[HloInstruction, ...]
    values: dict[HloInstruction, HloInstruction]

    def put_back(self) -> None:
        """Makes users of the loop's results use the instructions again, and removes the loop."""
        computation = _computation_of(self.loop)
        for result, value in self.values.items():
            value.replace_all_uses_with(result)
        computation.remove_dead_instructions()

    def drop(self) -> None:
        """Removes the instructions for good, and what only they needed."""
        _computation_of(self.members[0]).remove_dead_instructions()


def outline(module: HloModule, members: Sequence[HloInstruction]) -> Outlined:
    """Puts a loop of one step in the place of some instructions.

    Args:
        module: Their module.
        members: Instructions of one computation, operands first. Nothing that is not among them
            lies on a way from one of them to another; all are arrays or tuples of arrays, the
            latter read by members alone.
    """
    computation = _computation_of(members[0])
    inside = set(members)
    results = [m for m in members if m.is_root or any(user not in inside for user in m.users)]
    inputs = list(dict.fromkeys(o for m in members for o in m.operands if o not in inside))
    anchor = members[-1]

    def add(instruction: HloInstruction) -> HloInstruction:
        return computation.add(instruction, before=anchor)

    stacks = [add(_nothing(add, _stacked(result.shape))) for result in results]
    start = add(tuple_of([add(_number(0)), *stacks, *inputs]))
    loop = HloInstruction.create(
        "while",
        start.shape,
        [start],
        name=f"straight.{members[-1].name}",
        called_computations=[
            module.add(_body(start.shape, members, results, inputs)),
            module.add(_condition(start.shape)),
        ],
        backend_config=_ONCE,
    )
    loop.proto.metadata.CopyFrom(results[-1].metadata)
    add(loop)
    values = {}
    for number, result in enumerate(results):
        element = add(element_of(loop, 1 + number))
        values[result] = add(HloInstruction.create("bitcast", result.shape, [element]))
    for result, value in values.items():
        _redirect(result, value, inside)
    computation.sort()
    return Outlined(loop=loop, members=tuple(members), values=values)


def _body(
    shape: Shape,
    members: Sequence[HloInstruction],
    results: Sequence[HloInstruction],
    inputs: Sequence[HloInstruction],
) -> HloComputation:
    body = HloComputation.create("straight_body")
    parameter = body.add(HloInstruction.create("parameter", shape, parameter_number=0))
    elements = [body.add(element_of(parameter, i)) for i in range(len(shape.tuple_shapes))]
    counter, old, rest = elements[0], elements[1 : 1 + len(results)], elements[1 + len(results) :]
    copies = dict(zip(inputs, rest, strict=True))
    for member in members:
        copies[member] = body.add(member.clone([copies[o] for o in member.operands]))
    first = body.add(_number(0))
    stacks = []
    for stack, result in zip(old, results, strict=True):
        row = body.add(HloInstruction.create("bitcast", stack.shape, [copies[result]]))
        at = [counter] + [first] * (stack.shape.rank - 1)
        update = HloInstruction.create("dynamic-update-slice", stack.shape, [stack, row, *at])
        stacks.append(body.add(update))
    following = HloInstruction.create("add", _COUNTER, [counter, body.add(_number(1))])
    body.root = body.add(tuple_of([body.add(following), *stacks, *rest]))
    return body


def _condition(shape: Shape) -> HloComputation:
    condition = HloComputation.create("straight_condition")
    parameter = condition.add(HloInstruction.create("parameter", shape, parameter_number=0))
    operands = [condition.add(element_of(parameter, 0)), condition.add(_number(1))]
    boolean = Shape.array(PrimitiveType.PRED, ())
    compare = HloInstruction.create("compare", boolean, operands, comparison_direction="LT")
    condition.root = condition.add(compare)
    return condition


def _redirect(result: HloInstruction, value: HloInstruction, inside: set[HloInstruction]) -> None:
    for user in list(result.users):
        if user in inside:
            continue
        for position, operand in enumerate(user.operands):
            if operand is result:
                user.replace_operand(position, value)
    if result.is_root:
        _computation_of(result).root = value


def _stacked(shape: Shape) -> Shape:
    """Returns the shape of a stack of one array."""
    layout = (*(dimension + 1 for dimension in shape.minor_to_major), 0)
    return Shape(shape.element_type, (1, *shape.dimensions), (), layout)


def _nothing(add: _Add, shape: Shape) -> HloInstruction:
    zero = shape.element_type.dtype.type(0)
    scalar = Shape.array(shape.element_type, ())
    constant = add(HloInstruction.create("constant", scalar, literal=zero))
    return HloInstruction.create("broadcast", shape, [constant])


def _number(value: int) -> HloInstruction:
    return HloInstruction.create("constant", _COUNTER, literal=np.int32(value))


def _computation_of(instruction: HloInstruction) -> HloComputation:
    if instruction.computation is None:
        raise VerificationError(f"{instruction.name} is in no computation.")
    return instruction.computation
