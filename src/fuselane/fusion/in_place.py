"""Updates in place: which operands are overwritten, and what must not be fused with that.

Source: HloDataflowAnalysis::GetInPlaceInputOutputPairs and InstructionFusion::ShouldFuseInPlaceOp
of 2026.
"""

from __future__ import annotations

from typing import Final

from fuselane.boundary import BoundaryReason
from fuselane.fusion.decision import FusionDecision, refuse
from fuselane.fusion.opcodes import is_elementwise
from fuselane.hlo.computation import HloComputation
from fuselane.hlo.instruction import HloInstruction

_UPDATING: Final = frozenset({"bitcast", "dynamic-update-slice", "fusion", "scatter"})
"""Opcodes of instructions that overwrite an operand, or that may only name what does."""

MAY_UPDATE: Final = _UPDATING | {"tuple"}
"""Opcodes of a fusion's root if the fusion may overwrite an operand."""

IN_PLACE: Final = _UPDATING - {"bitcast"}
"""Opcodes of instructions that may overwrite an operand."""


def in_place_operands(instruction: HloInstruction) -> list[int]:
    """Returns the operands whose buffer a dynamic-update-slice, scatter or fusion overwrites."""
    match instruction.opcode:
        case "dynamic-update-slice":
            return [0]
        case "scatter":
            return list(range(len(instruction.operands) // 2))
        case "fusion":
            body = instruction.to_apply
            return body.fact(_overwritten_operands) if body.ends_in(MAY_UPDATE) else []
        case _:
            return []


def _overwritten_operands(body: HloComputation) -> list[int]:
    root = body.root
    roots = root.operands if root.opcode == "tuple" else [root]
    updates = [member for member in roots if member.opcode in _UPDATING]
    return [p.parameter_number for m in updates for p in overwritten_parameters(m)]


def check_in_place(producer: HloInstruction, consumer: HloInstruction) -> FusionDecision | None:
    """Refuses a producer that would read a buffer while the consumer overwrites it.

    Producers that read it element by element may; so may one slice of exactly what is updated.
    """
    for index in in_place_operands(consumer):
        buffer = consumer.operands[index]
        if consumer.operands.count(buffer) > 1:
            return _refuse(
                f"`{consumer.name}` overwrites `{buffer.name}`, which it also reads otherwise",
                "in-place buffer",
            )
        if buffer is producer or buffer in producer.operands:
            refusal = _check_reader(producer, consumer)
            if refusal is not None:
                return refusal
    return None


def members(instruction: HloInstruction) -> list[HloInstruction]:
    """Returns what a fusion computes, its parameters left out; another instruction itself."""
    if instruction.opcode != "fusion":
        return [instruction]
    return [i for i in instruction.to_apply.instructions if i.opcode != "parameter"]


def overwritten_parameters(member: HloInstruction) -> list[HloInstruction]:
    """Returns the parameters of a fused computation in whose memory an element of its result is."""
    member = without_bitcasts(member)
    buffers = [without_bitcasts(member.operands[i]) for i in in_place_operands(member)]
    return [buffer for buffer in buffers if buffer.opcode == "parameter"]


def reads_only_updated(result: HloInstruction, buffer: HloInstruction) -> bool:
    """Whether a fusion reads of a buffer only what it updates there, element by element.

    Args:
        result: An element of the fusion's result that lies in the buffer.
        buffer: The parameter for it.
    """
    update = without_bitcasts(result)
    if update.opcode != "dynamic-update-slice" or update.computation is None:
        return len(buffer.users) == 1
    reading: set[HloInstruction] = {buffer}
    for member in update.computation.post_order():
        read = [operand for operand in member.operands if operand in reading]
        if not read:
            continue
        if member is update:
            if any(operand in reading for operand in member.operands[2:]):
                return False
        elif member.opcode == "bitcast":
            reading.add(member)
        elif any(without_bitcasts(operand) is buffer for operand in read):
            if not _reads_what_is_updated(member, update, member, member):
                return False
            reading.add(member)
        elif is_elementwise(member):
            reading.add(member)
        else:
            return False
    return True


def without_bitcasts(member: HloInstruction) -> HloInstruction:
    """Returns what a chain of bitcasts starts from."""
    while member.opcode == "bitcast":
        member = member.operands[0]
    return member


def _check_reader(producer: HloInstruction, consumer: HloInstruction) -> FusionDecision | None:
    indexing = [member for member in members(producer) if _is_indexing(member)]
    if not indexing:
        return _check_other_paths(producer, consumer)
    if len(indexing) > 1:
        sentence = f"`{producer.name}` reads in {len(indexing)} ways a buffer that is overwritten"
        return _refuse(sentence, "multiple non-elementwise ops")
    updates = [member for member in members(consumer) if member.opcode == "dynamic-update-slice"]
    if not updates:
        return None
    if len(updates) > 1:
        sentence = f"`{consumer.name}` updates {len(updates)} slices in place"
        return _refuse(sentence, "multiple dus")
    if _reads_what_is_updated(indexing[0], updates[0], producer, consumer):
        return _check_other_paths(producer, consumer)
    sentence = (
        f"`{producer.name}` reads other elements of a buffer than `{consumer.name}` overwrites"
    )
    return _refuse(sentence, "DUS and slice index mismatch")


def _check_other_paths(producer: HloInstruction, consumer: HloInstruction) -> FusionDecision | None:
    """Refuses a producer whose elements a consumer fusion also reads by other indices."""
    if consumer.opcode != "fusion":
        return None
    body = consumer.to_apply
    root = body.root
    exempt = {root, *(root.operands if root.opcode == "tuple" else [])}
    start = [
        parameter
        for operand, parameter in zip(consumer.operands, body.parameters, strict=True)
        if operand is producer
    ]
    stack, seen = list(start), set(start)
    while stack:
        for user in stack.pop().users:
            if user in seen:
                continue
            seen.add(user)
            stack.append(user)
            is_other = _is_indexing(user) or user.opcode == "bitcast"
            if is_other and user not in exempt and user.opcode != "tuple":
                sentence = f"`{consumer.name}` also reads `{producer.name}` by other indices"
                return _refuse(sentence, "write-after-read")
    return None


def _is_indexing(member: HloInstruction) -> bool:
    return member.opcode not in ("bitcast", "parameter", "fusion") and not is_elementwise(member)


def _reads_what_is_updated(
    reader: HloInstruction,
    update: HloInstruction,
    producer: HloInstruction,
    consumer: HloInstruction,
) -> bool:
    """Whether a slice takes just the elements that a dynamic-update-slice replaces."""
    if reader.shape.dimensions != update.operands[1].shape.dimensions:
        return False
    indices = [_outside(index, consumer) for index in update.operands[2:]]
    if reader.opcode == "slice":
        starts = [_constant_value(index) for index in indices]
        is_dense = all(stride == 1 for stride in reader.slice_strides)
        return is_dense and starts == list(reader.slice_starts)
    if reader.opcode == "dynamic-slice":
        offsets = [_outside(index, producer) for index in reader.operands[1:]]
        return all(_is_same_index(a, b) for a, b in zip(offsets, indices, strict=True))
    return False


def _outside(instruction: HloInstruction, fusion: HloInstruction) -> HloInstruction:
    """Returns what a fusion's parameter stands for; another instruction itself."""
    if instruction.opcode == "parameter" and fusion.opcode == "fusion":
        return fusion.operands[instruction.parameter_number]
    return instruction


def _is_same_index(left: HloInstruction, right: HloInstruction) -> bool:
    value = _constant_value(left)
    return left is right or (value is not None and value == _constant_value(right))


def _constant_value(instruction: HloInstruction) -> int | None:
    return int(instruction.literal) if instruction.opcode == "constant" else None


def _refuse(sentence: str, xla: str) -> FusionDecision:
    return refuse(BoundaryReason.IN_PLACE, f"{sentence}.", xla=xla)
