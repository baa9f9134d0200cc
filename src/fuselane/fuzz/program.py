"""A random program as data: what the generator draws, the builder reads, the shrinker makes smaller
and a report prints.

A program is one loop over lanes. Its body is a list of steps, each of which takes values made so
far and adds one. A step names its operands by number, and a number stands for the nearest value
the step can take, so that any list of steps is a program: steps can be left out without touching
others.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, final

COHORT: Final = 12
"""Programs whose seeds, divided by this, agree share a module, its options and its word size."""

COHORTS_PER_OPTIMISED: Final = 4
"""Of so many modules, LLVM optimises the kernels of one."""

COHORTS_PER_USUAL: Final = 8
"""Of so many modules, one is handed to Fuselane as XLA usually does: the older emitters want other
single instructions wrapped in fusions. It is among those that LLVM optimises."""

COHORTS_PER_REPEATED: Final = 3
"""Of so many modules, the kernels of one run several times at each call, and have to make the same
every time."""

MAX_DEVICES: Final = 2
MAX_PERIOD: Final = 7
MAX_ASIDE: Final = 2 * MAX_PERIOD - 1

NUMBER: Final = 0
"""The number of the value that is the number of the loop's step."""
UNIFORM: Final = 1
"""The number of the value that is carried and the same for all lanes."""
FIRST_CARRY: Final = 2
FIRST_STREAM: Final = 10
FIRST_STEP: Final = 20


@final
@dataclass(frozen=True, slots=True)
class Step:
    """One operation.

    Attributes:
        number: What others call its value by; unique in the program.
        operation: A name in `operations.OPERATIONS`.
        operands: Numbers of the values it works on.
        variant: Chooses among the forms an operation has.
        body: What the body of a loop or branch does; its own values have the numbers `number + 1`
            to `number + 3`.
    """

    number: int
    operation: str
    operands: tuple[int, int, int]
    variant: int
    body: tuple[Step, ...] = ()


@final
@dataclass(frozen=True, slots=True)
class Slot:
    """A carry or stream.

    Attributes:
        dtype: Name of its element type.
        shape: Its dimensions in one lane.
        kind: Name of the `kinds.Kind` of its values.
        place: Where its lanes stand among its dimensions, by one digit per lane dimension.
        has_lanes: Whether it has lanes; all carries do.
    """

    dtype: str
    shape: tuple[int, ...]
    kind: str
    place: int = 0
    has_lanes: bool = True


@final
@dataclass(frozen=True, slots=True)
class Program:
    """A whole program.

    Attributes:
        seed: What it was drawn from, and what its inputs are drawn from.
        lanes: Sizes of the dimensions of lanes; none for a loop without lanes.
        outer: The loop: `scan`, `gradient` for a scan and its gradient, `counted` with a trip count
            known at run time only, or `while` with one per lane.
        steps: Trip count.
        reverse: Whether a scan goes backwards.
        carries: What it carries from step to step.
        streams: What it reads a row of in each step.
        body: What a step does.
        updates: Numbers of the values that become the carries.
        results: Numbers of the values that are stacked.
        reductions: Numbers of a value and of what is done with it over all lanes; the odd ones
            are accumulated over the run.
        table: What the loop changes and all lanes read, if anything: a vector without lanes, exact.
        table_form: Chooses how it changes.
        unroll: How many steps of a scan JAX writes one after another.
        remat: Whether the gradient computes steps again instead of keeping what they made.
        aside: What a scan or counted loop does in some steps: 0 for nothing, up to MAX_PERIOD to
            call back to the host, up to MAX_ASIDE to turn its first carry round, lanes and all.
            The steps are those whose number, or whose first carry's first element if this is even,
            leaves 1 divided by a period of 2 to MAX_PERIOD.
        chained: Whether it starts from what the program in front of it in the module has left.
        donated: Whether the module's arguments are given up to it.
        devices: Over how many devices the first dimension of the lanes is spread, where it can be.
        x64: Whether JAX's 64-bit types are on.
        options: Options of Fuselane.
    """

    seed: int
    lanes: tuple[int, ...]
    outer: str
    steps: int
    reverse: bool
    carries: tuple[Slot, ...]
    streams: tuple[Slot, ...]
    body: tuple[Step, ...]
    updates: tuple[int, ...]
    results: tuple[int, ...]
    reductions: tuple[tuple[int, int], ...]
    table: Slot | None = None
    table_form: int = 0
    unroll: int = 1
    remat: bool = False
    aside: int = 0
    chained: bool = False
    donated: bool = False
    devices: int = 1
    x64: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        """Returns the program as text that `from_json` reads back."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @staticmethod
    def from_json(text: str) -> Program:
        """Returns the program that `to_json` wrote."""
        fields: dict[str, Any] = json.loads(text)
        return Program(
            **{
                **fields,
                "lanes": tuple(fields["lanes"]),
                "carries": _slots(fields["carries"]),
                "streams": _slots(fields["streams"]),
                "body": _steps(fields["body"]),
                "updates": tuple(fields["updates"]),
                "results": tuple(fields["results"]),
                "reductions": tuple(map(tuple, fields["reductions"])),
                "table": _slots([fields["table"]])[0] if fields["table"] else None,
            }
        )

    def size(self) -> tuple[int, ...]:
        """Returns numbers that get smaller, compared as tuples, as a program gets simpler."""
        slots = (*self.carries, *self.streams, *([self.table] if self.table else []))
        return (
            sum(1 for _ in all_steps(self.body)),
            len(slots) + len(self.results) + len(self.reductions),
            sum(len(slot.shape) + sum(slot.shape) + slot.place for slot in slots),
            self.steps + sum(self.lanes) + len(self.lanes) + len(self.options),
        )


def is_optimised(seed: int) -> bool:
    """Whether the kernel of a seed's program is compiled as users have it."""
    return seed // COHORT % COHORTS_PER_OPTIMISED == 0


def is_repeated(seed: int) -> bool:
    """Whether the kernel of a seed's program runs several times at each call."""
    return seed // COHORT % COHORTS_PER_REPEATED == 0


def is_usual(seed: int) -> bool:
    """Whether the program of a seed is handed to Fuselane as users have it."""
    return seed // COHORT % COHORTS_PER_USUAL == 0


def all_steps(body: Sequence[Step]) -> Iterator[Step]:
    """Yields the steps of a body and of the bodies within."""
    for step in body:
        yield step
        yield from all_steps(step.body)


def _steps(found: Sequence[dict[str, Any]]) -> tuple[Step, ...]:
    return tuple(
        Step(**{**step, "operands": tuple(step["operands"]), "body": _steps(step["body"])})
        for step in found
    )


def _slots(found: Sequence[dict[str, Any]]) -> tuple[Slot, ...]:
    return tuple(Slot(**{**slot, "shape": tuple(slot["shape"])}) for slot in found)
