"""What happens to a fusion's body when it takes in what another instruction computes.

    a = parameter(0)                         a = parameter(0)
    ROOT b = negate(a)               ->      c = sine(a)
                                             ROOT b = negate(c)

The parameter that stood for it goes, and new ones for what it reads come last.
"""

from __future__ import annotations

from fuselane.hlo.computation import HloComputation
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.transfer import add_copies, move_all


def read_once(fusion: HloInstruction) -> None:
    """Gives a fusion one parameter for each operand, however often it has it."""
    body, inside = fusion.to_apply, dict[HloInstruction, HloInstruction]()
    for operand, parameter in zip(fusion.operands, body.parameters.copy(), strict=True):
        if inside.setdefault(operand, parameter) is not parameter:
            parameter.replace_all_uses_with(inside[operand])
            body.drop_parameter(parameter)
    if len(inside) < len(fusion.operands):
        fusion.replace_operands(list(inside))


def absorb(fusion: HloInstruction, producer: HloInstruction, *, is_last: bool) -> HloInstruction:
    """Moves a copy of an operand into a fusion's body; returns its value there.

    Args:
        fusion: What takes it in.
        producer: The operand, or a sibling.
        is_last: Whether it is needed no more, so that its body itself can be moved.
    """
    body = fusion.to_apply
    number = len(body.parameters)
    inside = dict(zip(fusion.operands, body.parameters, strict=True))
    parameter = inside.pop(producer, None)
    members, read = _contents(producer)
    new = [operand for operand in dict.fromkeys(read) if operand not in inside]
    parameters: list[HloInstruction] = []
    for operand in new:
        inside[operand] = made = HloInstruction.parameter(number + len(parameters), operand.shape)
        parameters.append(made)
    if producer.opcode == "fusion":
        callee = producer.to_apply
        outside = zip(callee.parameters, producer.operands, strict=True)
        values, root = {p: inside[o] for p, o in outside if o in inside}, callee.root
    else:
        values, root = inside, producer
    if is_last and producer.opcode == "fusion":
        move_all(body, producer.to_apply, members, values, parameters)
    else:
        add_copies(body, members, values, parameters)
    value = values.get(root, root)  # which may have moved
    if parameter is not None:  # else the two are siblings
        parameter.replace_all_uses_with(value)
        body.drop_parameter(parameter)
    fusion.exchange_operand(parameter and parameter.parameter_number, new)
    return value


def read_inside(fusion: HloInstruction, producer: HloInstruction, value: HloInstruction) -> None:
    """Makes a fusion that took a producer in read its results, elements of `value`, in there."""
    body = fusion.to_apply
    for operand in fusion.operands.copy():
        if operand.opcode == "get-tuple-element" and operand.operands[0] is producer:
            parameter = body.parameters[fusion.operands.index(operand)]
            parameter.replace_all_uses_with(value.operands[operand.tuple_index])
            body.drop_parameter(parameter)
            fusion.exchange_operand(parameter.parameter_number, [])


def _contents(
    producer: HloInstruction,
) -> tuple[list[HloInstruction], list[HloInstruction]]:
    """Returns what a producer computes, and what it reads in the order in which a consumer gets it,
    which is that of last use."""
    if producer.opcode != "fusion":
        return [producer], producer.operands
    members, numbers = producer.to_apply.fact(members_and_uses)
    operands = producer.operands
    return members, [operands[number] for number in numbers]


def members_and_uses(body: HloComputation) -> tuple[list[HloInstruction], list[int]]:
    """Returns what a body computes, in post order, and the numbers of the parameters that are read,
    the last use first."""
    members = computed_members(body)
    read = {
        operand: None
        for member in reversed(members)
        for operand in member.operands
        if operand.opcode == "parameter"
    }
    return members, [parameter.parameter_number for parameter in read]


def computed_members(body: HloComputation) -> list[HloInstruction]:
    return [member for member in body.post_order() if member.opcode != "parameter"]
