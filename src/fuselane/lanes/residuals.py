"""Residuals that one loop stacks for another and that are cheaper to compute twice.

Reverse-mode differentiation stacks, step by step, what the backward loop will need:

    forward:   %y = f32[8] tanh(%x)       stacked, f32[50,8]       backward:  y = ys[49 - i]
               %d = f32[8] subtract(%one, %y)      stacked, too               d = ds[49 - i]
                                                                        ->    d = 1 - y

Where a stack is a cheap elementwise function of others that the reader reads as well, and serves
nothing else, the reader computes its rows. Nobody needs the stack any more, and the forward loop's
kernel leaves it out.

Numerics: bitwise-equal; the same operations on the same values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, final

from fuselane.analysis.cost import OPCODE_COST
from fuselane.analysis.opcodes import ELEMENTWISE_OPCODES
from fuselane.analysis.streams import Stream, is_fully_overwritten
from fuselane.analysis.while_loops import is_invariant
from fuselane.errors import UnsupportedError
from fuselane.hlo.instruction import HloInstruction, behind_reshapes
from fuselane.lanes.builder import ComputationBuilder, array_shape, elementwise_attributes
from fuselane.lanes.constants import transplant
from fuselane.lanes.elements import change_elements, drop_unused_parameters
from fuselane.lanes.normal_loop import NormalLoop
from fuselane.lanes.normalise import normalise

MAX_COST: Final = 20.0
"""Vector operations for which a row is computed again: about what a vector of a stack costs that is
written to memory and read from there."""

MAX_COST_CACHED: Final = 4.0
"""The same for a stack that stays in a cache."""

_CACHED_BYTES: Final = 1 << 20


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Recomputation:
    """How the rows of one stack follow from those of others.

    Attributes:
        index: The stack's number in the tuple of the loop that reads it.
        value: What is stacked, in the normal form of the loop that writes it.
        sources: What other stacks hold, in the same form -> their numbers in the reader's tuple.
    """

    index: int
    value: HloInstruction
    sources: Mapping[HloInstruction, int]


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Residuals:
    """What a loop may compute instead of reading it.

    Attributes:
        writer: The loop that stacks it.
        recomputations: What, sources first.
    """

    writer: HloInstruction
    recomputations: tuple[Recomputation, ...]


def reads_stacks(instruction: HloInstruction) -> bool:
    """Whether an instruction is a loop for which others may stack residuals."""
    return bool(_group_by_writer(instruction))


def find_residuals(
    reader: HloInstruction, normal_forms: MutableMapping[HloInstruction, NormalLoop]
) -> Residuals | None:
    """Returns what a loop may compute instead of having another stack it.

    Args:
        reader: A loop of the user's module.
        normal_forms: Those of loops that are known; gets those of all that stack for the reader.
    """
    for writer, stacks in _group_by_writer(reader).items():
        residuals = _find_in(writer, stacks, normal_forms)
        if residuals is not None:
            return residuals
    return None


def _group_by_writer(reader: HloInstruction) -> dict[HloInstruction, dict[int, int]]:
    """Returns the loops of which a loop gets results that nothing else does.

    For each of them: its tuple index -> the reader's.
    """
    if reader.opcode != "while" or reader.operands[0].opcode != "tuple":
        return {}
    groups: dict[HloInstruction, dict[int, int]] = {}
    initial = reader.operands[0]
    for index, value in enumerate(initial.operands):
        if value.opcode != "get-tuple-element" or value.operands[0].opcode != "while":
            continue
        if value.shape.dimensions and len(initial.users) == 1 and not value.is_root:
            groups.setdefault(value.operands[0], {})[value.tuple_index] = index
    return {writer: stacks for writer, stacks in groups.items() if len(stacks) > 1}


def _find_in(
    writer: HloInstruction,
    wanted: Mapping[int, int],
    normal_forms: MutableMapping[HloInstruction, NormalLoop],
) -> Residuals | None:
    """Returns what a reader may compute of a loop's results.

    Args:
        writer: The loop.
        wanted: Its tuple index -> the reader's, of what the reader gets.
        normal_forms: Those of loops that are known; gets this one's.
    """
    try:
        if writer not in normal_forms:
            normal_forms[writer] = normalise(writer)
    except UnsupportedError:
        return None
    stacks = [stack for stack in _find_stacks(normal_forms[writer]) if stack.index in wanted]
    values = {stack.value: stack for stack in stacks}
    found = []
    for stack in stacks:
        left = {
            value: other
            for value, other in values.items()
            if other is not stack and other.places == stack.places
        }
        sources: dict[HloInstruction, int] = {}
        cost = _cost(stack.value, stack.value.shape.dimensions, left, sources)
        is_large = stack.update.shape.byte_size > _CACHED_BYTES
        is_cheap = 0 < cost <= (MAX_COST if is_large else MAX_COST_CACHED)
        if is_cheap and sources and _serves_only_one(writer, stack.index):
            renumbered = {value: wanted[index] for value, index in sources.items()}
            found.append(
                Recomputation(index=wanted[stack.index], value=stack.value, sources=renumbered)
            )
            del values[stack.value]
    return Residuals(writer=writer, recomputations=tuple(found)) if found else None


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Stack:
    """An array of which a loop writes one row after the other.

    Attributes:
        index: Its number in the tuple of the user's loop.
        value: What is written.
        update: What writes it.
        places: The operands that say where, and the sizes of a row.
    """

    index: int
    value: HloInstruction
    update: HloInstruction
    places: tuple[object, ...]


def _find_stacks(normal: NormalLoop) -> list[_Stack]:
    """Returns the stacks of a loop in the order in which their rows are computed."""
    loop = normal.loop
    parameter, root = loop.body.parameters[0], loop.body.root
    order = {instruction: number for number, instruction in enumerate(loop.body.instructions)}
    found: dict[HloInstruction, _Stack] = {}
    for element in parameter.users:
        update = root.operands[element.tuple_index]
        if update.opcode != "dynamic-update-slice" or element.users != [update]:
            continue
        number = element.tuple_index
        stream = Stream(elements=[(loop, number)], versions=[element, update])
        if update.operands[0] is element and is_fully_overwritten(loop, stream):
            value = behind_reshapes(update.operands[1])
            places = (*update.operands[2:], update.operands[1].shape.dimensions)
            stack = _Stack(normal.element_indices[number], value, update, places)
            found.setdefault(value, stack)
    return sorted(found.values(), key=lambda stack: order[stack.value])


def _serves_only_one(writer: HloInstruction, index: int) -> bool:
    """Whether a result of a loop is read once, by another loop's initial tuple."""
    if writer.is_root:
        return False
    users = [user for user in writer.users if user.tuple_index == index]
    if any(user.opcode != "get-tuple-element" for user in writer.users) or len(users) != 1:
        return False
    readers = users[0].users
    return len(readers) == 1 and readers[0].operands.count(users[0]) == 1


def _cost(
    value: HloInstruction,
    sizes: tuple[int, ...],
    stacks: Mapping[HloInstruction, _Stack],
    sources: dict[HloInstruction, int],
) -> float:
    """Returns the cost of computing a value from what is stacked; adds that to `sources`."""
    if value in stacks:
        sources[value] = stacks[value].index
        return 0
    if _is_scalar_constant(value):
        return 0
    if value.opcode not in ELEMENTWISE_OPCODES or value.shape.dimensions != sizes:
        return math.inf
    inner = sum(_cost(o, sizes, stacks, sources) for o in dict.fromkeys(value.operands))
    return OPCODE_COST[value.opcode] + inner


def _is_scalar_constant(value: HloInstruction) -> bool:
    if value.opcode == "broadcast":
        value = value.operands[0]
    return value.opcode == "constant" and not value.shape.dimensions


# In the loop that reads.


def recompute(normal: NormalLoop, residuals: Residuals) -> tuple[NormalLoop, int]:
    """Makes a loop compute residuals where it read them; its region is changed in place.

    Returns:
        The loop, and how many stacks it does not need any more.
    """
    loop = normal.loop
    builder = ComputationBuilder.extending(loop.body)
    elements = _invariants(loop, normal)
    removed = []
    for recomputation in residuals.recomputations:
        stack = elements.get(recomputation.index)
        sources = {v: elements.get(i) for v, i in recomputation.sources.items()}
        readers = [] if stack is None else list(stack.users)
        if stack is None or None in sources.values() or not _are_rows(readers, stack, loop):
            continue
        for reader in readers:
            if reader is not loop.body.root:
                rows = {v: _row(builder, s, reader) for v, s in sources.items() if s is not None}
                value = _emit(builder, recomputation.value, reader.shape.dimensions, rows)
                reader.replace_all_uses_with(value)
        removed.append(stack.tuple_index)
    if not removed:
        return normal, 0
    numbers = change_elements(normal.region, removed, (), builder)
    loop.body.sort()
    indices = tuple(normal.element_indices[old] for old in numbers)
    operands = drop_unused_parameters(normal.region, normal.operands)
    return replace(normal, element_indices=indices, operands=operands), len(removed)


def _invariants(loop: HloInstruction, normal: NormalLoop) -> dict[int, HloInstruction]:
    """Returns the user's tuple index -> what stands for the element in a loop's body, of those that
    never change and that its condition does not read."""
    in_condition = {user.tuple_index for user in loop.condition.parameters[0].users}
    return {
        normal.element_indices[element.tuple_index]: element
        for element in loop.body.parameters[0].users
        if is_invariant(loop, element.tuple_index) and element.tuple_index not in in_condition
    }


def _are_rows(
    readers: Sequence[HloInstruction], stack: HloInstruction, loop: HloInstruction
) -> bool:
    """Whether all that a body does with a stack is to read one row of it, or some."""
    sizes = stack.shape.dimensions
    return all(
        reader is loop.body.root
        or (
            reader.opcode == "dynamic-slice"
            and reader.operands[0] is stack
            and sum(n != size for n, size in zip(reader.dynamic_slice_sizes, sizes, strict=True))
            <= 1
        )
        for reader in readers
    )


def _row(
    builder: ComputationBuilder, stack: HloInstruction, like: HloInstruction
) -> HloInstruction:
    """Returns the row of a stack at the same place as a row of another one: what is read there
    already, if anything is."""
    for reader in stack.users:
        if reader.opcode == "dynamic-slice" and reader.operands[0] is stack:
            is_there = reader.operands[1:] == like.operands[1:]
            if is_there and reader.dynamic_slice_sizes == like.dynamic_slice_sizes:
                return reader
    return builder.dynamic_slice(stack, like.operands[1:], like.dynamic_slice_sizes, origin=like)


def _emit(
    builder: ComputationBuilder,
    value: HloInstruction,
    sizes: tuple[int, ...],
    rows: Mapping[HloInstruction, HloInstruction],
) -> HloInstruction:
    """Emits a value of the writer's body, for a row, given rows of what it follows from."""
    if value in rows:
        return rows[value]
    if _is_scalar_constant(value):
        scalar = value.operands[0] if value.opcode == "broadcast" else value
        return builder.broadcast(transplant(scalar, builder), sizes, ())
    operands = [_emit(builder, operand, sizes, rows) for operand in value.operands]
    shape = array_shape(value.shape.element_type, sizes)
    attributes = elementwise_attributes(value)
    return builder.emit(value.opcode, shape, operands, attributes, origin=value)
