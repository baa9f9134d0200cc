"""Why a value is read from memory where a buffer is updated in place, for every target."""

from __future__ import annotations

from fuselane.boundary import BoundaryDecision, BoundaryReason
from fuselane.explain.same_values import SameValues
from fuselane.fusion.in_place import in_place_operands
from fuselane.hlo.instruction import HloInstruction


def explain_in_place(
    producer: HloInstruction, consumer: HloInstruction, values: SameValues
) -> BoundaryDecision | None:
    """Answers for a producer that reads what a consumer updates in place; None for others."""
    updated = [consumer.operands[n] for n in in_place_operands(consumer)]
    if not any(values.are_same(read, buffer) for read in producer.operands for buffer in updated):
        return None
    detail = (
        f"`{producer.name}` reads the array that `{consumer.name}` updates in place; in one kernel"
        " it might find it overwritten."
    )
    return BoundaryDecision(reason=BoundaryReason.IN_PLACE, detail=detail)
