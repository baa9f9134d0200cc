"""What a kernel computes, reads and writes, by XLA:GPU's cost analysis.

A fused instruction is computed for as many elements as its users ask for: its *utilization* is that
number over the elements it has. Users that ask for the same element in the same place share it;
all that reads elementwise from one root does.

Source: xla/service/gpu/model/gpu_hlo_cost_analysis.cc and xla/service/hlo_cost_analysis.cc.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from fuselane.fusion.gpu.kernel_cost import (
    EXACT_IN_F32,
    NO_ROOTS,
    KernelCost,
    Operand,
    Roots,
    round_half_up,
    to_f32,
)
from fuselane.fusion.gpu.profiles import flops_per_element
from fuselane.fusion.growing import RECOMPUTED_INDICES
from fuselane.fusion.opcodes import ELEMENTWISE, is_elementwise, leaf_shapes
from fuselane.hlo.computation import HloComputation
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.shape import Shape

_CONCAT_FLOPS: Final = 6
_SLOW_CONCAT_FLOPS: Final = 400


def compute_cost(instruction: HloInstruction) -> KernelCost:
    """Returns the cost of an instruction as a kernel of its own; a fusion's is remembered."""
    if instruction.opcode == "fusion" and instruction.fusion_kind != "kCustom":
        return instruction.to_apply.fact(_cost_of_body)
    if instruction.opcode in ELEMENTWISE:
        operands = [
            Operand(utilization=1.0, bytes_read=operand.shape.byte_size)
            for operand in instruction.operands
        ]
    else:
        operands = [
            Operand(
                utilization=operand_utilization(instruction, index),
                bytes_read=_operand_bytes(instruction, index),
            )
            for index in range(len(instruction.operands))
        ]
    cost = KernelCost(to_f32(_flops(instruction)), _bytes_written(instruction), operands)
    cost.flop_bits, cost.member_size = int(cost.flops), 1
    cost.branches = int(instruction.opcode in RECOMPUTED_INDICES)
    return cost


def remember_cost(instruction: HloInstruction, cost: KernelCost) -> None:
    """Takes what `compute_cost` would say of a fusion if it were asked, from `fuse_cost`."""
    if instruction.fusion_kind != "kCustom" and cost.is_fusion and cost.is_exact:
        instruction.to_apply.remember(_cost_of_body, cost)


def _cost_of_body(body: HloComputation) -> KernelCost:
    cost, members = _start(body.root), _members(body)
    is_even = all(m.opcode in ELEMENTWISE and (m.users or m is body.root) for m in members)
    if members and is_even:
        operands = [Operand(roots=_RESULT if p.users else NO_ROOTS) for p in body.parameters]
        places = dict(zip(body.parameters, operands, strict=True))
        _walk_evenly(cost, members)
    else:
        places = {body.root: Operand(0, _RESULT)}
        for parameter in body.parameters:
            places.setdefault(parameter, Operand())
        _walk(cost, members, places, _updates(body.root))
        operands = [places[parameter] for parameter in body.parameters]
    _count(cost, places, body.parameters)
    cost.settle(operands)
    return cost


def fuse_cost(
    producer: HloInstruction,
    consumer: HloInstruction,
    of: KernelCost,
    into: KernelCost,
    *,
    is_returned: bool = False,
) -> tuple[KernelCost, dict[HloInstruction, Operand]]:
    """Returns the cost of a fusion of two, in time proportional to the producer, or to what it
    reads where its cost says all.

    Operations are summed in another order than in `compute_cost`; unless the cost `is_exact`, that
    can differ by an ulp of f32.

    Args:
        producer: An operand of `consumer`, or a sibling of it.
        consumer: A fusion or any other instruction; neither is changed.
        of: The producer's cost.
        into: The consumer's cost, which is used up: most of it becomes part of the result.
        is_returned: Whether the producer's value becomes a result as well.
    Returns:
        The cost, yet to be settled, and how each operand that the fusion will have is read.
    """
    if into.is_fusion:
        cost = into
        places = dict(zip(consumer.operands, into.operands, strict=True))
    else:
        cost = _start(consumer)
        places = {operand: Operand() for operand in consumer.operands}
        inputs = [places[operand] for operand in consumer.operands]
        is_update = consumer.opcode == "dynamic-update-slice"
        _add(cost, consumer, Operand(0, _RESULT), inputs, is_update=is_update)
        _count(cost, places, places)
    value = places.pop(producer, None)
    if value is not None and not is_returned and _take_evenly(cost, of, producer, value, places):
        return cost, places
    cost.reads_evenly = False
    value = Operand() if value is None else value.copy()
    if is_returned:
        value.roots |= _RESULT
        cost.bytes_written += producer.shape.byte_size
        if not consumer.shape.is_tuple:
            cost.member_size += 1
    for operand in dict.fromkeys(producer.operands):
        read = places.get(operand)
        places[operand] = Operand() if read is None else read.copy()
    inputs = [places[operand] for operand in producer.operands]
    if producer.opcode != "fusion":
        _add(cost, producer, value, inputs)
    else:
        body = producer.to_apply
        may_update = body.ends_in(_MAY_UPDATE) and _updates(body.root)
        is_simple = len(set(producer.operands)) == len(inputs) and not may_update
        if not (is_simple and cost.take(of, value, inputs)):
            inside = dict(zip(body.parameters, inputs, strict=True))
            inside[body.root] = value
            _walk(cost, _members(body), inside)
    _count(cost, places, producer.operands)
    return cost, places


def _take_evenly(
    cost: KernelCost,
    of: KernelCost,
    producer: HloInstruction,
    value: Operand,
    places: dict[HloInstruction, Operand],
) -> bool:
    """As the rest of `fuse_cost` where what the producer reads is read as its value is: element by
    element from the fusion's result. Returns whether it is; if not, nothing has changed."""
    operands, shape, roots = producer.operands, producer.shape, value.roots
    if len(roots) > 1 or cost.result not in roots:
        return False
    if not cost.reads_evenly and any(o in places and places[o].roots != roots for o in operands):
        return False
    if of.is_fusion:
        is_even = of.reads_evenly and not producer.to_apply.ends_in(_MAY_UPDATE)
        reads = of.operands
    else:
        is_even = producer.opcode in ELEMENTWISE and all(o.shape is shape for o in operands)
        reads = [value] * len(operands)
    if not (is_even and cost.take_evenly(of)):
        return False
    for operand, read in zip(operands, reads, strict=True):
        places.setdefault(operand, read)
    return True


_RESULT: Final[Roots] = frozenset((0,))


def _start(root: HloInstruction) -> KernelCost:
    """Returns the cost of a fusion before its members are counted."""
    results = root.operands if root.opcode == "tuple" else [root]
    updates = _updates(root)
    written = [r.operands[1] if r in updates else r for r in results]
    return KernelCost(
        flops=0.0,
        bytes_written=sum(result.shape.byte_size for result in written),
        utilization={0: 1.0},
        emissions={0: 1},
        result=0,
    )


_MAY_UPDATE: Final = frozenset({"dynamic-update-slice", "tuple"})
"""Opcodes of roots that may be updated in place, or name what is."""


def _members(body: HloComputation) -> list[HloInstruction]:
    return [member for member in body.post_order() if member.opcode != "parameter"]


def _updates(root: HloInstruction) -> set[HloInstruction]:
    """Returns the results that are updated in place: of their operand no more is read."""
    results = root.operands if root.opcode == "tuple" else [root]
    return {result for result in results if result.opcode == "dynamic-update-slice"}


def _walk(
    cost: KernelCost,
    members: Sequence[HloInstruction],
    places: Mapping[HloInstruction, Operand],
    updates: Collection[HloInstruction] = (),
) -> None:
    """Adds members, operands before users, to a fusion's cost.

    Args:
        cost: The fusion's.
        members: What it computes.
        places: How it uses what they read from outside, which is brought up to date, and what was
            an operand so far.
        updates: See `_updates`.
    """
    utilization, emissions = cost.utilization, cost.emissions
    read = {instruction: place.roots for instruction, place in places.items()}
    value_of = {i: place.value for i, place in places.items() if place.value >= 0}
    roots, used, times = NO_ROOTS, 0.0, 0
    for member in reversed(members):
        asking = read.get(member, NO_ROOTS)
        if asking is not roots:
            roots = asking
            used = to_f32(sum([utilization[root] for root in roots]))
            times = sum([emissions[root] for root in roots])
        cost.member_size += times
        flops = _flops(member)
        if flops:
            cost.compute(flops, used)
        if member.opcode in ELEMENTWISE or _passes_on(member):
            for operand in member.operands:
                known = read.get(operand)
                if known is not roots:
                    read[operand] = known | roots if known else roots
            continue
        if member.opcode in RECOMPUTED_INDICES:
            cost.branches += times
        for index, operand in enumerate(member.operands):
            value = value_of.get(operand, -1)
            if value < 0:
                value = value_of[operand] = cost.new_value()
                read[operand] = read.get(operand, NO_ROOTS) | {value}
            asked = 0.0 if not index and member in updates else used
            _ask(cost, value, member, index, asked, times)
    cost.flops = to_f32(cost.flops)
    for instruction, place in places.items():
        place.roots, place.value = read[instruction], value_of.get(instruction, -1)


def _walk_evenly(cost: KernelCost, members: Sequence[HloInstruction]) -> None:
    """As `_walk` where each member is computed once for each element of the result."""
    known: dict[tuple[str, Shape], float] = {}
    for member in reversed(members):
        key = member.opcode, member.shape
        flops = known.get(key)
        if flops is None:
            flops = known[key] = _flops(member)
        if flops:
            cost.compute(flops, 1.0)
    cost.member_size += len(members)
    cost.flops = to_f32(cost.flops)


def _add(
    cost: KernelCost,
    member: HloInstruction,
    value: Operand,
    inputs: Sequence[Operand],
    *,
    is_update: bool = False,
) -> None:
    """Adds one member to a fusion's cost, as `_walk` does.

    Args:
        cost: The fusion's.
        member: What it computes.
        value: How it uses the result.
        inputs: How it uses each of the member's operands, which is brought up to date.
        is_update: Whether the first operand is updated in place.
    """
    roots = value.roots
    used = to_f32(sum([cost.utilization[root] for root in roots]))
    times = sum([cost.emissions[root] for root in roots])
    cost.member_size += times
    flops = _flops(member)
    if flops:
        cost.compute(flops, used)
        cost.flops = to_f32(cost.flops)
    if member.opcode in ELEMENTWISE or _passes_on(member):
        for read in inputs:
            if read.roots is not roots:
                read.roots = read.roots | roots if read.roots else roots
        return
    if member.opcode in RECOMPUTED_INDICES:
        cost.branches += times
    for index, read in enumerate(inputs):
        if read.value < 0:
            read.value = cost.new_value()
            read.roots |= {read.value}
        _ask(cost, read.value, member, index, 0.0 if is_update and not index else used, times)


def _ask(
    cost: KernelCost, value: int, member: HloInstruction, index: int, used: float, times: int
) -> None:
    """Counts what a member, computed so often, reads of an operand by indices of its own."""
    asked = to_f32(used * operand_utilization(member, index))
    count = member.operands[index].shape.num_elements
    share = to_f32(math.ceil(to_f32(asked * count)) / count) if count else 0.0
    if share != int(share):
        cost.has_fractions = True
    cost.utilization[value] = to_f32(cost.utilization[value] + share)
    cost.emissions[value] += times


def _count(
    cost: KernelCost,
    places: Mapping[HloInstruction, Operand],
    operands: Iterable[HloInstruction],
) -> None:
    """Sums up how much of some operands a fusion reads."""
    roots, used = NO_ROOTS, 0.0
    for operand in operands:
        read, size = places[operand], operand.shape.byte_size
        if read.roots is not roots:
            roots = read.roots
            used = to_f32(sum([cost.utilization[root] for root in roots]))
        is_whole = used == 1.0 and size < EXACT_IN_F32
        read.utilization = used
        read.bytes_read = size if is_whole else round_half_up(to_f32(size * used))


def _passes_on(member: HloInstruction) -> bool:
    """Whether elements of operands are asked for as those of the member are."""
    match member.opcode:
        case "tuple" | "get-tuple-element":
            return True
        case "bitcast":
            return member.shape.dimensions == member.operands[0].shape.dimensions
        case _:
            return is_elementwise(member)


def operand_utilization(instruction: HloInstruction, index: int) -> float:
    """Returns how often each element of an operand is read by an instruction that is no fusion."""
    return to_f32(_operand_utilization(instruction, index))


def _operand_utilization(instruction: HloInstruction, index: int) -> float:
    out, read = instruction.shape, instruction.operands[index].shape
    if not read.num_elements or read.is_tuple:
        return 1.0
    match instruction.opcode:
        case "broadcast" | "slice":
            return out.num_elements / read.num_elements
        case "dynamic-slice" | "gather" if index == 0:
            return out.num_elements / read.num_elements
        case "dynamic-update-slice" if index == 0:
            update = instruction.operands[1].shape.num_elements
            return (out.num_elements - update) / out.num_elements
        case "reduce" if index >= len(instruction.operands) // 2:
            return float(_first(out).num_elements)
        case "reduce-window" if index == 0:
            return out.num_elements * _window_size(instruction) / read.num_elements
        case _:
            return 1.0


def _operand_bytes(instruction: HloInstruction, index: int) -> int:
    operand = instruction.operands[index].shape
    match instruction.opcode:
        case "broadcast" | "slice":
            return instruction.shape.byte_size
        case "dynamic-slice" | "gather" if index == 0:
            return instruction.shape.byte_size
        case "dynamic-update-slice" if index == 0:
            return 0
        case "bitcast":
            return 0
        case "reduce" if index >= len(instruction.operands) // 2:
            return operand.byte_size * _first(instruction.shape).num_elements
        case "reduce-window" if index == 0:
            per_element = operand.element_type.byte_size
            return instruction.shape.num_elements * _window_size(instruction) * per_element
        case _:
            return operand.byte_size


def _bytes_written(instruction: HloInstruction) -> int:
    match instruction.opcode:
        case "dynamic-update-slice":
            return instruction.operands[1].shape.byte_size
        case "bitcast":
            return 0
        case _:
            return instruction.shape.byte_size


def _flops(instruction: HloInstruction) -> float:
    """Returns the operations of computing all elements of an instruction that is no fusion once."""
    opcode = instruction.opcode
    if opcode in _COMPUTING:
        return instruction.shape.num_elements * flops_per_element(instruction)
    elements = _first(instruction.shape).num_elements
    match opcode:
        case "copy" | "constant":
            return 0
        case "reduce":
            count = instruction.operands[0].shape.num_elements - elements
            return count * _flops_of_applied(instruction)
        case "reduce-window":
            count = (_window_size(instruction) - 1) * elements
            return count * _flops_of_applied(instruction)
        case "concatenate":
            return elements * _concat_flops(instruction)
        case "scatter":
            return instruction.operands[-1].shape.num_elements * _flops_of_applied(instruction)
        case "sort":
            count = instruction.operands[0].shape.num_elements
            return count * math.ceil(math.log2(count)) if count > 1 else 0
        case _ if is_elementwise(instruction):
            return elements * flops_per_element(instruction)
        case _:
            return 0


_COMPUTING: Final = ELEMENTWISE - {"copy", "constant"}


def _concat_flops(concatenate: HloInstruction) -> int:
    """Returns XLA's penalty for a branch inside of warps: 400 instead of 6 per element."""
    (dimension,) = concatenate.dimensions
    extent = concatenate.operands[0].shape.dimensions[dimension]
    return _SLOW_CONCAT_FLOPS if dimension > 0 and extent % 32 else _CONCAT_FLOPS


def _flops_of_applied(instruction: HloInstruction) -> float:
    return sum(_flops(i) for i in instruction.to_apply.instructions)


def _window_size(instruction: HloInstruction) -> int:
    return math.prod(dimension.size for dimension in instruction.proto.window.dimensions)


def _first(shape: Shape) -> Shape:
    return leaf_shapes(shape)[0] if shape.is_tuple else shape
