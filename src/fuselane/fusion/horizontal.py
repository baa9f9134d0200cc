"""What horizontal fusions share: kernels that feed one consumer and nothing else."""

from __future__ import annotations

from collections.abc import Iterator

from fuselane.boundary import BoundaryReason
from fuselane.fusion.decision import FusionDecision, refuse
from fuselane.fusion.in_place import in_place_operands
from fuselane.hlo.instruction import HloInstruction


def feeders(consumer: HloInstruction) -> Iterator[HloInstruction]:
    """Yields what makes a consumer's operands, each once; tuples' elements are looked through."""
    seen: set[HloInstruction] = set()
    for operand in consumer.operands:
        producer = operand
        if operand.opcode == "get-tuple-element":
            producer = operand.operands[0]
        if producer not in seen:
            seen.add(producer)
            yield producer


def check_feeder(feeder: HloInstruction, consumer: HloInstruction) -> FusionDecision | None:
    """Refuses what others need as well, so that two of them could depend on each other."""
    if feeder.control_predecessors or feeder.control_successors:
        detail = f"`{feeder.name}` must run before or after others."
        return refuse(BoundaryReason.SIDE_EFFECT, detail)
    if _has_other_readers(feeder, consumer):
        others = [reader for reader in readers(feeder) if reader is not consumer]
        return refuse(
            BoundaryReason.MULTI_OUTPUT,
            f"`{feeder.name}` is also read by `{others[0].name}`, besides `{consumer.name}`.",
            users=len(others) + 1,
        )
    if in_place_operands(feeder):
        detail = f"`{feeder.name}` updates an operand in place."
        return refuse(BoundaryReason.IN_PLACE, detail)
    return None


def _has_other_readers(feeder: HloInstruction, consumer: HloInstruction) -> bool:
    """Whether anything reads a feeder but a consumer and a tuple that is the program's result."""
    computation = feeder.computation
    root = consumer if computation is None else computation.root
    result = root if root.opcode == "tuple" else consumer
    for user in feeder.users:
        for reader in user.users if user.opcode == "get-tuple-element" else (user,):
            if reader is not consumer and reader is not result:
                return True
    return False


def readers(instruction: HloInstruction) -> Iterator[HloInstruction]:
    """Yields what reads an instruction or elements of it."""
    for user in instruction.users:
        if user.opcode == "get-tuple-element":
            yield from user.users
        else:
            yield user
