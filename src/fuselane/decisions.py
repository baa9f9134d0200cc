"""Why something was or was not done: reasons, decisions about loops, and the log they go into.

Every gate of the compiler answers with a `Decision`, for yes as well as for no. The log is the only
source of the report.
"""

from __future__ import annotations

import enum
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, final

MAX_LOGGED_DECISIONS: Final = 2_000
"""How many a process keeps: 2.4 MiB."""


@final
class Reason(enum.Enum):
    """What a decision rests on: a stable kebab-case code and the sentence that explains it.

    The braces of a template are filled in by `Reason.decide`; a detail that is not given reads as
    `?`.
    """

    FUSED = ("fused", "The loop runs as one native kernel {extent}.")
    NO_LANES = (
        "no-lanes",
        "The loop carries no array with a dimension of size two or more that changes{detail}.",
    )
    CROSS_LANE = ("cross-lane", "Data of different lanes is mixed: {detail}.")
    UNSUPPORTED_OPCODE = (
        "unsupported-opcode",
        "The opcode `{opcode}` has no lane-by-lane form yet{detail}.",
    )
    UNSUPPORTED_TYPE = ("unsupported-type", "The element type {type} is not supported{detail}.")
    LAYOUT = ("layout", "The layout is not one that can be read as row-major: {detail}.")
    DATA_DEPENDENT_TRIP_COUNT = (
        "data-dependent-trip-count",
        "How often {which} runs depends on the data of its lanes: {detail}.",
    )
    SIDE_EFFECT = ("side-effect", "The loop contains `{opcode}`, which has a side effect.")
    NOT_PROFITABLE = ("not-profitable", "A kernel would not be worth it: {detail}.")
    TOO_LARGE = ("too-large", "One lane needs {elements} values at once, more than {limit}.")
    TOO_MUCH_CODE = (
        "too-much-code",
        "The code of a kernel would be too large: {detail}.",
    )
    STREAM_HAZARD = (
        "stream-hazard",
        "An array that is updated in place is also needed in its older state: {detail}.",
    )
    UNSUPPORTED_STRUCTURE = ("unsupported-structure", "The loop's form is not handled: {detail}.")
    UNSUPPORTED_TARGET = ("unsupported-target", "There is no code for this processor: {detail}.")
    OUT_OF_TIME = (
        "out-of-time",
        "This loop, and what comes behind it, was given up after {seconds} s: {detail}.",
    )
    INTERNAL_ERROR = ("internal-error", "Fuselane failed on this loop: {detail}.")

    def __init__(self, code: str, template: str) -> None:
        self.code = code
        self.template = template

    def decide(
        self,
        *,
        instruction: str = "",
        opcode: str = "",
        source: str = "",
        numbers: Mapping[str, float] | None = None,
        **details: Any,
    ) -> Decision:
        """Returns the decision for this reason with its sentence filled in.

        Args:
            instruction: Name of the HLO instruction that settled it.
            opcode: Opcode of that instruction.
            source: The user's source line, as `file.py:12 (function)`.
            numbers: What was measured or estimated, by name with its unit at the end.
            details: What the template's braces stand for.
        """
        fields = _Details({"opcode": opcode, "instruction": instruction, **details})
        return Decision(
            reason=self,
            sentence=self.template.format_map(fields),
            instruction=instruction,
            opcode=opcode,
            source=source,
            numbers=dict(numbers or {}),
        )


class _Details(dict[str, Any]):
    """Details of a sentence; the optional `detail` is empty when missing, all others are `?`."""

    def __missing__(self, key: str) -> str:
        return "" if key == "detail" else "?"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """One answer with its reason, in plain words.

    Attributes:
        reason: The member that names the kind of answer.
        sentence: The reason with the details of this case filled in.
        instruction: Name of the HLO instruction that settled it, or "".
        opcode: Opcode of that instruction, or "".
        source: The user's source line as `file.py:12 (function)`, or "".
        numbers: What was measured or estimated, by name.
    """

    reason: Reason
    sentence: str
    instruction: str = ""
    opcode: str = ""
    source: str = ""
    numbers: Mapping[str, float] = field(default_factory=dict)

    @property
    def fused(self) -> bool:
        """Whether the answer is yes."""
        return self.reason is Reason.FUSED


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class LoopDecision:
    """What became of one loop of one module.

    Attributes:
        module: Name of the HLO module.
        name: Name of the `while` instruction.
        source: The user's source line of the loop, or "".
        trip_count: Number of iterations, or None if it is only known at run time.
        lanes: Number of lanes, or None if none were found.
        decision: Fused or not, and why.
        kernel: Content hash of the kernel that replaces the loop, or "".
    """

    module: str
    name: str
    source: str
    trip_count: int | None
    lanes: int | None
    decision: Decision
    kernel: str = ""

    @property
    def fused(self) -> bool:
        """Whether a kernel replaces the loop."""
        return self.decision.fused

    @property
    def reason(self) -> Reason:
        """The kind of answer; `decision.sentence` has the details."""
        return self.decision.reason

    @property
    def call(self) -> str:
        """Name of the call of its kernel, or ""."""
        return call_of(self.name) if self.fused else ""


def call_of(loop: str) -> str:
    """Returns the name of the call that takes the place of a loop of that name."""
    return f"fuselane.{loop}"


@final
class DecisionLog:
    """The decisions taken so far, oldest first; safe to share between threads."""

    def __init__(self, max_decisions: int | None = None) -> None:
        """Makes a log that keeps the last `max_decisions`, or all."""
        self._decisions: deque[LoopDecision] = deque(maxlen=max_decisions)
        self._lock = threading.Lock()

    def append(self, decision: LoopDecision) -> None:
        """Adds a decision; the oldest one is dropped when the log is full."""
        with self._lock:
            self._decisions.append(decision)

    def clear(self) -> None:
        """Forgets all decisions."""
        with self._lock:
            self._decisions.clear()

    def __iter__(self) -> Iterator[LoopDecision]:
        """Iterates over the decisions present at the time of the call."""
        with self._lock:
            return iter(tuple(self._decisions))

    def __len__(self) -> int:
        return len(self._decisions)
