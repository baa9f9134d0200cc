"""Loops of so many steps whose lanes freeze: they go on while any lane changes.

Before                                            After
    c: ROOT compare(i, n), direction=LT               c: p = compare(x, four), direction=LT
    b: p = compare(x, four), direction=LT                any = reduce(p, false), or
       y = select(p, f(x), x)                            more = compare(i, n), direction=LT
       ROOT tuple(i + 1, y, ..)                          ROOT and(more, any)

A lane in which `p` is false keeps all that is needed of it, `p` too: it stays as it is to the end.
`p` becomes part of the condition, and lanes leave the loop as they do after `vmap` of `while_loop`
(see `analysis.lane_conditions`, which proves it again).

Does not handle: loops that read or write rows, or nest others; work that all lanes share, which
blocks of lanes that leave by themselves would each do.
Numerics: bitwise-equal.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from fuselane.analysis.cost import OPCODE_COST
from fuselane.analysis.loop_ends import cone, cone_in_order
from fuselane.analysis.opcodes import ELEMENTWISE_OPCODES
from fuselane.analysis.while_loops import get_induction_index, is_invariant, loop_of
from fuselane.hlo.computation import HloComputation
from fuselane.hlo.instruction import HloInstruction
from fuselane.lanes.builder import ComputationBuilder
from fuselane.lanes.guards import see_through

_MOVEMENT: Final = frozenset(
    {"broadcast", "concatenate", "constant", "iota", "reshape", "slice", "transpose"}
)
_CARRYING: Final = frozenset({"get-tuple-element", "parameter", "tuple"})
_MAX_SHARED_COST: Final = 4.0
"""Operations a step may do for all lanes together: each block of lanes does them anew."""

_MIN_COST: Final = 10.0
"""Operations per lane from which on a step is worth asking whether it is needed at all. That is
about one operation: a step of ten in which no lane freezes takes some 10% longer for it."""


def end_when_frozen(region: HloComputation) -> bool:
    """Makes the loop of a region end once all its lanes are frozen; returns whether it did.

    Args:
        region: In normal form; its outermost loop's condition is changed.
    """
    loop = loop_of(region)
    if get_induction_index(loop) is None:
        return False
    predicate = next((p for p in _candidates(loop) if _freezes(loop, p)), None)
    if predicate is None or not _is_worth(loop.body, predicate):
        return False
    _add_end(loop, predicate)
    return True


def _candidates(loop: HloInstruction) -> Iterator[HloInstruction]:
    """Yields what the first elements that change are selected by."""
    for root in loop.body.root.operands:
        if root.opcode == "select":
            predicate = see_through(root.operands[0])
            yield predicate.operands[0] if predicate.opcode == "not" else predicate
            return


def _freezes(loop: HloInstruction, predicate: HloInstruction) -> bool:
    """Whether all that is needed of a lane in which a predicate is false stays as it is."""
    if not predicate.shape.dimensions or predicate.opcode == "constant":
        return False
    parameter = loop.body.parameters[0]
    needed = {value.tuple_index for value in cone(predicate) if parameter in value.operands}
    for user in loop.users:
        if user.opcode != "get-tuple-element":
            return False
        needed.add(user.tuple_index)
    roots = loop.body.root.operands
    return all(
        is_invariant(loop, index) or _is_kept(roots[index], index, parameter, predicate)
        for index in needed
    )


def _is_kept(
    value: HloInstruction, index: int, parameter: HloInstruction, predicate: HloInstruction
) -> bool:
    """Whether a value is an old element wherever a predicate is false."""
    if value.opcode == "get-tuple-element":
        return value.operands[0] is parameter and value.tuple_index == index
    if value.opcode == "select":
        chosen = see_through(value.operands[0])
        if chosen is predicate:
            return _is_kept(value.operands[2], index, parameter, predicate)
        is_opposite = chosen.opcode == "not" and see_through(chosen.operands[0]) is predicate
        return is_opposite and _is_kept(value.operands[1], index, parameter, predicate)
    if value.opcode == "and" and predicate in value.operands:
        return _is_kept(predicate, index, parameter, predicate)
    if value.opcode == "add":
        left, right = value.operands
        for kept, added in ((left, right), (right, left)):
            if _is_count(added, predicate):
                return _is_kept(kept, index, parameter, predicate)
    return False


def _is_count(value: HloInstruction, predicate: HloInstruction) -> bool:
    """Whether a value is 1 where a predicate is true and 0 elsewhere."""
    is_integer = value.opcode == "convert" and value.shape.element_type.is_integral
    return is_integer and see_through(value.operands[0]) is predicate


def _is_worth(body: HloComputation, predicate: HloInstruction) -> bool:
    """Whether a step does enough for each lane, and next to nothing for all together."""
    own = shared = 0.0
    for value in body.instructions:
        if value.opcode in _CARRYING or value.opcode in _MOVEMENT:
            continue
        if value.opcode not in ELEMENTWISE_OPCODES:
            return False
        cost = OPCODE_COST[value.opcode] * value.shape.num_elements
        if value.shape.num_elements < predicate.shape.num_elements:
            shared += cost
        else:
            own += cost
    return shared <= _MAX_SHARED_COST and own >= _MIN_COST * predicate.shape.num_elements


def _add_end(loop: HloInstruction, predicate: HloInstruction) -> None:
    """Lets a loop go on only as long as a predicate of its body holds somewhere."""
    builder = ComputationBuilder.extending(loop.condition)
    copies = {loop.body.parameters[0]: loop.condition.parameters[0]}
    for value in cone_in_order(predicate):
        if value not in copies:
            operands = [copies[operand] for operand in value.operands]
            copies[value] = loop.condition.add(value.clone(operands))
    everywhere = tuple(range(predicate.shape.rank))
    goes_on = builder.fold("or", copies[predicate], everywhere, predicate)
    loop.condition.root = builder.emit("and", goes_on.shape, (loop.condition.root, goes_on))
    loop.proto.ClearField("backend_config")
