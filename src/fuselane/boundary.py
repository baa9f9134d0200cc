"""Why two kernels are two: the fixed list of reasons for a fusion boundary.

A boundary is an edge of the dataflow graph between a producer and a consumer that run as different
kernels. `explain` gives each one a reason of this list, and the strategies of `fusion` log the same
reasons when they refuse to fuse.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import final


@final
class BoundaryReason(enum.Enum):
    """The kind of a boundary: a stable kebab-case code, and what it means in one plain sentence.

    `docs/reasons.md` lists them with an example each. UNKNOWN is a defect of ours.
    """

    ENTRY = ("entry", "The value is an argument of the program, which no kernel computes.")
    EXIT = ("exit", "The value is a result of the program, so it has to be in memory.")
    LOOP_CONTROL = (
        "loop-control",
        "The value is carried by a loop: each iteration reads it from memory and writes it back.",
    )
    CONDITIONAL = ("conditional", "The value enters or leaves a branch, which runs on its own.")
    LIBRARY_CALL = ("library-call", "A library routine computes one side, as for matrix products.")
    CUSTOM_CALL = ("custom-call", "One side is a custom call, whose code XLA cannot see.")
    RANDOM_NUMBERS = (
        "random-numbers",
        "Random bits are made by a kernel or a loop of their own.",
    )
    COLLECTIVE = ("collective", "One side communicates with other devices.")
    SIDE_EFFECT = ("side-effect", "One side has a side effect and has to stay where it is.")
    SORT = ("sort", "A sort runs as a kernel of its own.")
    CONCATENATE_USERS = (
        "concatenate-users",
        "A concatenation with several users would be computed once for each of them.",
    )
    EXPENSIVE_DUPLICATION = (
        "expensive-duplication",
        "An expensive producer with several users would be computed once for each of them.",
    )
    DUPLICATION = (
        "duplication",
        "The producer has several users and would be computed once for each of them.",
    )
    CODE_DUPLICATION = ("code-duplication", "The code of the fused kernel would grow too much.")
    REDUCTION_INTO_REDUCTION = (
        "reduction-into-reduction",
        "A reduction cannot be fused into another one: each needs all of its input first.",
    )
    REDUCTION_REUSE = (
        "reduction-reuse",
        "The consumer reads each result of a reduction many times, and would repeat the reduction.",
    )
    OPERAND_REUSE = (
        "operand-reuse",
        "The consumer reads each element of an expensive producer many times.",
    )
    LOOP_SHAPES = ("loop-shapes", "The two kernels run over different index spaces.")
    MULTI_OUTPUT = (
        "multi-output",
        "The value is also needed by others, and one kernel with several results is not allowed.",
    )
    LAYOUT = ("layout", "The value is copied into another layout, or transposed, in between.")
    COPY = ("copy", "The value is copied so that a buffer can be updated or reused.")
    IN_PLACE = ("in-place", "A buffer that is updated in place would be read and written at once.")
    BUDGET = ("budget", "The fused kernel would have too many operands, or use too much memory.")
    NOT_FUSIBLE = ("not-fusible", "XLA has no fused form of one of the two operations.")
    SLOWER = ("slower", "By XLA's cost model the fused kernel would take longer.")
    TUPLE = ("tuple", "The value passes through a tuple.")
    CONSTANT = ("constant", "The value is a constant that is kept in memory.")
    FUSELANE_KERNEL = (
        "fuselane-kernel",
        "One side is code that Fuselane runs as one kernel.",
    )
    UNKNOWN = ("unknown", "The reason is not known.")

    def __init__(self, code: str, sentence: str) -> None:
        self.code = code
        self.sentence = sentence


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class BoundaryDecision:
    """Why one edge stays a boundary.

    Attributes:
        reason: The kind of answer.
        detail: This case in one plain sentence, with its numbers.
        xla: What XLA itself said, in its own words, or "".
        numbers: What was compared, by name with its unit at the end, such as `operands`, `limit`.
    """

    reason: BoundaryReason
    detail: str
    xla: str = ""
    numbers: dict[str, float] = field(default_factory=dict)
