"""The decision to fuse a loop, in a sentence and the numbers it rests on."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from fuselane.decisions import Decision, Reason
from fuselane.lanes.ahead import Ahead
from fuselane.lanes.program import ElementKind, LaneProgram

RECOMPUTED: Final = "residuals_recomputed"
LEFT_OUT: Final = "residuals_left_out"
"""Names of numbers in decisions."""

_NO_ESTIMATES: Final[Mapping[str, float]] = MappingProxyType({})


def describe(
    program: LaneProgram,
    source: str = "",
    estimates: Mapping[str, float] = _NO_ESTIMATES,
    *,
    ahead: Ahead | None = None,
) -> Decision:
    """Returns the decision to fuse, with the numbers it rests on.

    Args:
        program: What was formed.
        source: The user's source line of the loop.
        estimates: Further numbers, by name.
        ahead: If the kernel runs ahead of steps that stay with XLA: of which.
    """
    loop = program.loop
    numbers = {
        "lanes": float(program.num_lanes),
        "cost_per_step": program.cost,
        "guards": float(sum(map(len, program.guards.values()))),
        "pieces": float(sum(map(len, program.pieces.values()))),
        "streams": float(sum(e.kind is ElementKind.STREAM for e in loop.elements)),
    }
    if program.trip_count is not None:
        numbers["trip_count"] = float(program.trip_count)
    if loop.compared_after:
        numbers["compared_after"] = float(loop.compared_after)
    if program.num_recomputed:
        numbers[RECOMPUTED] = float(program.num_recomputed)
    numbers.update(estimates)
    extent = f"over {program.num_lanes} lanes" if program.has_lanes else "without lanes"
    if program.shared:
        extent += " that see each other"
    if ahead is not None:
        what = "calls back" if ahead.calls_back else "only XLA can take"
        extent += f", up to the next step that {what}"
        numbers["quiet_steps"] = ahead.quiet_steps
    return Reason.FUSED.decide(
        instruction=program.name,
        opcode="while",
        source=source,
        numbers=numbers,
        extent=extent + _describe_residuals(numbers),
    )


def _describe_residuals(numbers: Mapping[str, float]) -> str:
    """Returns what a sentence about a loop says of stacks that it computes, or leaves out."""
    recomputed, left_out = (int(numbers.get(name, 0)) for name in (RECOMPUTED, LEFT_OUT))
    text = ""
    if recomputed:
        text += f", computing {_count_residuals(recomputed)} instead of reading"
    if left_out:
        text += f", leaving out {_count_residuals(left_out)} that the loop behind it computes"
    return text


def _count_residuals(count: int) -> str:
    return f"{count} cheap residual{'s' if count > 1 else ''}"
