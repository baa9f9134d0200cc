"""The order of execution that a scheduled module prescribes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fuselane.hlo.computation import HloComputation
from fuselane.hlo.proto import Message


def update_schedule(schedule: Message, computations: Iterable[HloComputation]) -> None:
    """Makes a HloScheduleProto one of `computations` as they are now.

    A sequence that still orders its computation's instructions stays; others become post orders.
    XLA wants a sequence for every computation but the bodies of fusions.
    """
    by_id = {computation.id: computation for computation in computations}
    for number in reversed(range(len(schedule.sequences))):
        entry = schedule.sequences[number]
        computation = by_id.pop(entry.key, None)
        if computation is None:
            del schedule.sequences[number]
        elif not is_schedule(list(entry.value.instruction_ids), computation):
            _schedule_in_post_order(entry, computation)
    for computation in by_id.values():
        if not computation.is_fusion:
            _schedule_in_post_order(schedule.sequences.add(key=computation.id), computation)


def is_schedule(sequence: Sequence[int], computation: HloComputation) -> bool:
    """Whether `sequence` has the id of each instruction once, behind those it depends on."""
    position = {instruction_id: number for number, instruction_id in enumerate(sequence)}
    if len(sequence) != len(computation.instructions) or len(position) != len(sequence):
        return False
    return all(
        position.get(before.id, len(sequence)) < position.get(instruction.id, -1)
        for instruction in computation.instructions
        for before in (*instruction.operands, *instruction.control_predecessors)
    ) and all(instruction.id in position for instruction in computation.instructions)


def _schedule_in_post_order(entry: Message, computation: HloComputation) -> None:
    entry.value.instruction_ids[:] = [instruction.id for instruction in computation.post_order()]
