"""What XLA launches, in order: the kernels of a scheduled module and the loops around them.

A run of the program walks the schedule of the entry computation. Loops, branches and calls walk
those of the computations they call. What XLA:CPU compiles into one function (see
`analysis.small_calls`) is walked as well: its kernels are parts of that function then, each of them
still a pass over its arrays, and starting one costs nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, final

from fuselane.analysis.opcodes import FREE_OPCODES
from fuselane.analysis.small_calls import is_small_call
from fuselane.analysis.while_loops import compute_trip_count, get_known_trip_count
from fuselane.hlo.computation import HloComputation
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.module import HloModule

UNLAUNCHED_OPCODES: Final = FREE_OPCODES | {"add-dependency", "domain"}
"""Opcodes that no kernel computes: they only say where a value is."""

CONTROL_OPCODES: Final = frozenset({"while", "conditional", "call", "async-start"})
"""Opcodes whose computations are walked, launch by launch."""

_DONE_OPCODES: Final = frozenset(
    {"async-update", "async-done", "copy-done", "send-done", "recv-done"}
    | {f"{name}-done" for name in ("all-gather", "all-reduce", "collective-permute")}
)
"""The other ends of operations that were launched by their `-start`."""

_NO_KERNELS: Final = UNLAUNCHED_OPCODES | CONTROL_OPCODES | _DONE_OPCODES


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A kernel and how often it runs.

    Attributes:
        instruction: What the kernel computes: a fusion, a copy, a call of a library, ...
        loop: The innermost `while` it runs in, or None.
        count: How often in a run, or None if only known at run time. A branch that may leave it out
            does not lessen it.
        per_iteration: How often in an iteration of `loop`, or in a run outside of all; each of
            several branches is taken to be as likely as the others.
        parts: Launches each time. A sort on a GPU is several: copies of its operands, and steps.
        function: The small call of whose function it is a part, or None.
    """

    instruction: HloInstruction
    loop: HloInstruction | None
    count: int | None
    per_iteration: float
    parts: int = 1
    function: HloInstruction | None = None

    @property
    def total(self) -> int | None:
        """Launches per run, or None if only known at run time."""
        return None if self.count is None else self.count * self.parts

    @property
    def total_per_iteration(self) -> float:
        """Launches per iteration of `loop`."""
        return self.per_iteration * self.parts


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """A `while` and how often it is entered.

    Attributes:
        instruction: The `while`.
        parent: The `while` around it, or None.
        entries: How often it starts per run, or None if only known at run time.
        per_iteration: How often it starts per iteration of `parent`.
        function: The small call of whose function it is a part, or None.
    """

    instruction: HloInstruction
    parent: HloInstruction | None
    entries: int | None
    per_iteration: float
    function: HloInstruction | None = None

    @property
    def trip_count(self) -> int | None:
        """Iterations, or None if only known at run time."""
        return compute_trip_count(self.instruction)


@final
@dataclass(slots=True)
class Launches:
    """Everything a run of a module launches.

    Attributes:
        kernels: By the instruction, in the order of the schedule.
        loops: By the `while`; outer loops before those inside them.
        callers: The instruction that runs a computation, for those that are walked.
    """

    kernels: dict[HloInstruction, Launch] = field(default_factory=dict)
    loops: dict[HloInstruction, Loop] = field(default_factory=dict)
    callers: dict[HloComputation, HloInstruction] = field(default_factory=dict)


def find_launches(module: HloModule, parts: Mapping[str, int] | None = None) -> Launches:
    """Returns what a run of a module launches, in the order of its schedule.

    Args:
        module: Scheduled.
        parts: Launches of an instruction each time, by its name; 1 where not given.
    """
    walk = _Walk(_read_schedule(module), parts or {})
    walk.computation(module.entry, _Place())
    return walk.found


def is_kernel(instruction: HloInstruction) -> bool:
    """Whether an instruction of a computation that is walked is launched as a kernel."""
    return instruction.opcode not in _NO_KERNELS


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """Where a computation runs, and how often; see `Launch`."""

    loop: HloInstruction | None = None
    count: int | None = 1
    per_iteration: float = 1.0
    function: HloInstruction | None = None


@final
class _Walk:
    """Visits computations as a run does."""

    def __init__(self, schedule: dict[int, list[HloInstruction]], parts: Mapping[str, int]) -> None:
        self.found = Launches()
        self._schedule = schedule
        self._parts = parts

    def computation(self, computation: HloComputation, place: _Place) -> None:
        for instruction in self._schedule.get(computation.id, computation.instructions):
            if is_kernel(instruction):
                self._launch(instruction, place)
            elif instruction.opcode in CONTROL_OPCODES:
                for callee in instruction.called_computations:
                    self.found.callers[callee] = instruction
                self._control(instruction, place)

    def _launch(self, instruction: HloInstruction, place: _Place) -> None:
        count, per_iteration = place.count, place.per_iteration
        before = self.found.kernels.get(instruction)
        if before is not None:
            count = None if count is None or before.count is None else count + before.count
            per_iteration += before.per_iteration
        self.found.kernels[instruction] = Launch(
            instruction=instruction,
            loop=place.loop,
            count=count,
            per_iteration=per_iteration,
            parts=self._parts.get(instruction.name, 1),
            function=place.function,
        )

    def _control(self, instruction: HloInstruction, place: _Place) -> None:
        if instruction.opcode == "while":
            self._loop(instruction, place)
            return
        if is_small_call(instruction):
            place = replace(place, function=place.function or instruction)
        share = len(instruction.called_computations) if instruction.opcode == "conditional" else 1
        place = replace(place, per_iteration=place.per_iteration / share)
        for callee in instruction.called_computations:
            self.computation(callee, place)

    def _loop(self, loop: HloInstruction, place: _Place) -> None:
        self.found.loops[loop] = Loop(
            instruction=loop,
            parent=place.loop,
            entries=place.count,
            per_iteration=place.per_iteration,
            function=place.function,
        )
        trips = compute_trip_count(loop)
        inner = replace(place, loop=loop, count=_times(place.count, trips), per_iteration=1.0)
        if place.function is not None or get_known_trip_count(loop) is None:
            checks = _times(place.count, None if trips is None else trips + 1)
            self.computation(loop.condition, replace(inner, count=checks))
        else:  # XLA counts down instead of asking the condition, but for loops in functions.
            self.computation(loop.condition, replace(inner, count=0, per_iteration=0.0))
        self.computation(loop.body, inner)


def _times(count: int | None, trips: int | None) -> int | None:
    if count == 0 or trips == 0:
        return 0
    return None if count is None or trips is None else count * trips


def _read_schedule(module: HloModule) -> dict[int, list[HloInstruction]]:
    """Returns the instructions of each scheduled computation in order, by computation id."""
    sequences = {
        entry.key: list(entry.value.instruction_ids) for entry in module.proto.schedule.sequences
    }
    return {
        computation.id: list(_in_order(computation, sequences[computation.id]))
        for computation in module.computations
        if computation.id in sequences
    }


def _in_order(computation: HloComputation, ids: list[int]) -> Iterator[HloInstruction]:
    by_id = {instruction.id: instruction for instruction in computation.instructions}
    for instruction_id in ids:
        if instruction_id in by_id:
            yield by_id[instruction_id]
