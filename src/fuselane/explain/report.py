"""What became of a program's loops, as text and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, final

from fuselane.decisions import Decision, LoopDecision


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What Fuselane did with the loops of one program.

    Attributes:
        loops: One entry per loop of the HLO, outer loops before those inside them.
        note: A sentence about the whole, or "".
    """

    loops: tuple[LoopDecision, ...]
    note: str = ""

    @staticmethod
    def of(decisions: Iterable[LoopDecision], note: str = "") -> Report:
        """Returns the report of decisions in the order they were taken.

        Equal ones count once: XLA may show a module again, and programs are compiled again.
        """
        loops = {_identity(decision): decision for decision in decisions}
        return Report(loops=tuple(loops.values()), note=note)

    @property
    def num_fused(self) -> int:
        """How many loops run as kernels."""
        return sum(loop.fused for loop in self.loops)

    def text(self) -> str:
        """Returns one line per loop: name, source line, trip count, lanes, fused or why not."""
        if not self.loops:
            return self.note or "The program has no loops."
        lines = [_line(loop) for loop in self.loops]
        return "\n".join([*lines, self.note] if self.note else lines)

    def json(self) -> str:
        """Returns the report as a JSON object: `{"loops": [{"name", "source", ...}], "note"}`."""
        loops = [_fields(loop) for loop in self.loops]
        return json.dumps({"loops": loops, "note": self.note}, indent=2)

    def __str__(self) -> str:
        return self.text()


def _identity(loop: LoopDecision) -> tuple[object, ...]:
    """Returns what tells one loop's entry from another's; programs may share their names."""
    decision = loop.decision
    outcome = (loop.kernel, decision.reason, decision.sentence)
    return (loop.module, loop.name, loop.source, loop.trip_count, loop.lanes, *outcome)


def _line(loop: LoopDecision) -> str:
    steps = "? steps" if loop.trip_count is None else _count(loop.trip_count, "step")
    lanes = "no lanes" if loop.lanes is None else _count(loop.lanes, "lane")
    place = f" at {loop.source}" if loop.source else ""
    return f"{loop.name}{place}: {steps}, {lanes}: {_outcome(loop.decision)}"


def _outcome(decision: Decision) -> str:
    if decision.fused:
        return "fused"
    told = decision.instruction in decision.sentence and decision.source in decision.sentence
    culprit = f" ({_culprit(decision)})" if decision.instruction and not told else ""
    return f"not fused, {decision.reason.code}: {decision.sentence}{culprit}"


def _culprit(decision: Decision) -> str:
    place = f" at {decision.source}" if decision.source else ""
    opcode = f", a {decision.opcode}" if decision.opcode else ""
    return f"{decision.instruction}{opcode}{place}"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def _fields(loop: LoopDecision) -> dict[str, Any]:
    """Returns a loop's decision as JSON values."""
    decision = loop.decision
    return {
        "module": loop.module,
        "name": loop.name,
        "source": loop.source,
        "trip_count": loop.trip_count,
        "lanes": loop.lanes,
        "fused": loop.fused,
        "reason": loop.reason.code,
        "sentence": decision.sentence,
        "instruction": decision.instruction,
        "opcode": decision.opcode,
        "instruction_source": decision.source,
        "numbers": dict(decision.numbers),
        "kernel": loop.kernel,
    }
