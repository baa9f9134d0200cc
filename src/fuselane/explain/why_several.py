"""Why nothing reads a kernel's value on the way where that is one of several results."""

from __future__ import annotations

from fuselane.boundary import BoundaryDecision, BoundaryReason
from fuselane.explain.units import plural
from fuselane.hlo.instruction import HloInstruction


def for_several_results(producer: HloInstruction) -> BoundaryDecision:
    """Answers for a kernel of several results, of which no other kernel computes any again."""
    count = len(producer.shape.tuple_shapes)
    detail = (
        f"`{producer.name}` makes {plural(count, 'result')} at once; XLA fuses such a kernel into"
        " nothing else."
    )
    numbers = {"results": float(count)}
    return BoundaryDecision(reason=BoundaryReason.MULTI_OUTPUT, detail=detail, numbers=numbers)
