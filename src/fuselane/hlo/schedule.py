"""The order of execution that a scheduled module prescribes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fuselane.hlo.computation import HloComputation
from fuselane.hlo.proto import HloScheduleProto, Message


def update_schedule(schedule: Message, computations: Iterable[HloComputation]) -> None:
    """Makes a HloScheduleProto one of `computations` as they are now.

    A sequence that still orders its computation's instructions stays; others become post orders.
    XLA wants a sequence for every computation but the bodies of fusions.
    """
    sequences = {entry.key: list(entry.value.instruction_ids) for entry in schedule.sequences}
    updated = HloScheduleProto()
    for computation in computations:
        sequence = sequences.get(computation.id, ())
        if computation.is_fusion and not sequence:
            continue
        entry = updated.sequences.add(key=computation.id)
        entry.value.instruction_ids.extend(
            sequence if is_schedule(sequence, computation) else _default_sequence(computation)
        )
    schedule.ClearField("sequences")
    schedule.MergeFrom(updated)


def is_schedule(sequence: Sequence[int], computation: HloComputation) -> bool:
    """Whether `sequence` has the id of each instruction once, behind those it depends on."""
    position = {instruction_id: number for number, instruction_id in enumerate(sequence)}
    if len(sequence) != len(computation.instructions) or len(position) != len(sequence):
        return False
    return all(
        position.get(before.id, len(sequence)) < position.get(instruction.id, -1)
        for instruction in computation.instructions
        for before in instruction.operands + instruction.control_predecessors
    ) and all(instruction.id in position for instruction in computation.instructions)


def _default_sequence(computation: HloComputation) -> list[int]:
    return [instruction.id for instruction in computation.post_order()]
