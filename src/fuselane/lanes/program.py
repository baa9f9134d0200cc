"""The lane program: a loop in normal form together with what is known about its lanes.

A lane program is what forming hands to code generation. Its region is a detached HLO computation:
parameters are arrays, then come cheap instructions that make initial values, one `while`, and a
root tuple of `get-tuple-element`s. Every computation is in post order and holds only the opcodes in
`fuselane.analysis.opcodes.LANE_OPCODES`; the outermost body may also hold `copy`s, of what lanes
share.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import final

from fuselane.analysis.lane_conditions import LaneCondition
from fuselane.decisions import Decision
from fuselane.hlo.computation import HloComputation
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.shape import Shape


@final
class ElementKind(enum.Enum):
    """How a loop carries one element of its tuple."""

    INVARIANT = "invariant"
    """Never changes: read where it is."""
    STATE = "state"
    """Kept in registers or scratch memory: copied in at entry, out at exit."""
    STREAM = "stream"
    """Updated in place in output memory at uniform indices."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class LoopElement:
    """One element of the tuple a loop carries.

    Attributes:
        index: Its position in the tuple.
        kind: How it is carried.
        shape: Its array shape.
        lane_dimension: The dimension along which the lanes lie, or None if it is uniform.
        is_fully_overwritten: For a stream: every position is written when the loop runs through, so
            its initial value is dead.
        combiner: If only the combination over all lanes is wanted of its final value: the opcode
            that combines two lanes; else "". Lanes come first in its shape.
    """

    index: int
    kind: ElementKind
    shape: Shape
    lane_dimension: int | None
    is_fully_overwritten: bool = False
    combiner: str = ""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class LaneLoop:
    """One `while` of the region.

    Attributes:
        instruction: The `while`.
        trip_count: Its exact number of iterations, or None if only known at run time.
        induction_index: Tuple index of the counter that decides when it ends, or None.
        elements: All tuple elements in order.
        lane_condition: If lanes may stop one by one: what tells that a lane is done.
        compared_after: After how many steps, a power of two, it is asked whether the state is what
            it was before them, so that those to come can be left out; 0 if it isn't asked. No step
            goes by the counter then.
        counted: By how much the counter has changed after all steps, where that is asked.
    """

    instruction: HloInstruction
    trip_count: int | None
    induction_index: int | None
    elements: tuple[LoopElement, ...]
    lane_condition: LaneCondition | None = None
    compared_after: int = 0
    counted: int = 0


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Epilogue:
    """What is done behind a kernel with results that reductions over lanes have left.

    Attributes:
        computation: Returns a tuple. Its parameters: first one for each output of the region that
            stands for no element of the original `while`, combined over the lanes, which are not a
            dimension any more; then one for each input.
        combiners: How these outputs are combined over the lanes; "" where they have none.
        inputs: Instructions of the user's module.
        output_indices: For each element of the computation's result the tuple index of the original
            `while` it stands for.
    """

    computation: HloComputation
    combiners: tuple[str, ...]
    inputs: tuple[HloInstruction, ...]
    output_indices: tuple[int, ...]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """Work that is needed only in lanes where a predicate has one value.

    A block of lanes in which no lane has it may skip `instructions`.

    Attributes:
        predicate: A `pred` value, per lane or the same for all; what every one of the selects
            decides by, perhaps broadcast or reshaped.
        selects: The `select`s whose guarded operand needs the work.
        side: Operand number of the guarded value: 1 (needed where the predicate is true) or 2
            (where it is false).
        instructions: The work in post order, all of it in the computation of the selects; may hold
            `while`s.
        cost: Estimated vector operations saved per block and step.
        asked: What a block asks for instead of the predicate, if anything: a part of it that is
            true in hardly more lanes.
        begins_anew: Whether most of what it makes replaces state that it does not read, as where
            an episode is over; such work is seldom needed.
        keeps_state: Whether lanes that do not need it keep the state they had.
    """

    predicate: HloInstruction
    selects: tuple[HloInstruction, ...]
    side: int
    instructions: tuple[HloInstruction, ...]
    cost: float
    asked: HloInstruction | None = None
    begins_anew: bool = False
    keeps_state: bool = False

    @property
    def question(self) -> HloInstruction:
        """What a block asks of its lanes."""
        return self.asked or self.predicate

    @property
    def parts(self) -> tuple[HloInstruction, ...]:
        """All that is emitted together."""
        return (*self.instructions, *self.selects)

    @property
    def results(self) -> tuple[HloInstruction, ...]:
        """What others may need of it."""
        return self.selects


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Piecewise:
    """Elementwise work with selects that decide by one predicate, to be emitted in two versions.

    Attributes:
        predicate: A `pred` value with lanes.
        selects: All `select`s among the instructions whose operand 0 it is.
        side: Operand number of what they all give in the usual version: 1 (the predicate is true in
            all lanes of a vector) or 2 (it is false).
        instructions: The work in post order, of one shape; others need nothing but the last.
        usual: Those of them that the usual version needs.
        saved: Estimated vector operations it saves.
    """

    predicate: HloInstruction
    selects: frozenset[HloInstruction]
    side: int
    instructions: tuple[HloInstruction, ...]
    usual: tuple[HloInstruction, ...]
    saved: float

    @property
    def parts(self) -> tuple[HloInstruction, ...]:
        """All that is emitted together."""
        return self.instructions

    @property
    def results(self) -> tuple[HloInstruction, ...]:
        """What others may need of it."""
        return self.instructions[-1:]


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LaneProgram:
    """A loop that runs lane by lane, or as a whole where it has no lanes.

    Attributes:
        name: Name of the original `while`.
        num_lanes: Size of the lane dimension; 1 if there is none and all values are uniform.
        region: The normalised computation; see `fuselane.lanes.normalise`.
        site: The instruction of the user's module that the program replaces: the `while`, or a call
            of a computation that is nothing but it.
        lane_dimensions: For each array-shaped instruction of every computation of the region the
            dimension along which the lanes lie, or None if the value is uniform.
        loops: Every `while` of the region, nested ones included.
        guards: The skippable work of each computation.
        pieces: The work of each computation that is emitted in two versions.
        mutable: Instructions that stand for an array updated in place: a stream's
            `get-tuple-element`s and the `dynamic-update-slice`s on it.
        operands: For each parameter of the region the instruction of the user's module that
            supplies it, or a constant that no computation has.
        output_indices: For each root element of the region the tuple index of the original `while`
            it stands for; -1 for those that only the epilogue needs.
        invariants: Original tuple index -> instruction of the user's module whose value passes
            through unchanged.
        cost: Estimated vector operations of one step of one block of lanes.
        obstacle: If there are no lanes, the decision that says what stands in their way.
        folds: Instructions of the outermost body from which on only the combination of all lanes is
            wanted -> the opcode that combines two lanes. They leave their operand as it is.
        late: What follows from folds in the outermost body, and what only serves that.
        epilogue: What is done with elements that have a combiner, or None.
        num_tiles: In how many parts a kernel makes the results that have a combiner.
        scratch_bytes: How much memory a kernel wants as one more result.
        num_recomputed: How many stacks of another loop it computes instead of reading them.
        meetings: Reductions over lanes in the outermost body or condition whose results the loop
            goes on with: all lanes take each step together.
        iterations: How many iterations of the original `while` are one step: they are lanes then.
        rival: Another program of the same loop, with more lanes that see each other.
    """

    name: str
    num_lanes: int
    region: HloComputation
    site: HloInstruction
    lane_dimensions: Mapping[HloInstruction, int | None]
    loops: Mapping[HloInstruction, LaneLoop]
    guards: Mapping[HloComputation, tuple[Guard, ...]]
    pieces: Mapping[HloComputation, tuple[Piecewise, ...]]
    mutable: frozenset[HloInstruction]
    operands: tuple[HloInstruction, ...]
    output_indices: tuple[int, ...]
    invariants: Mapping[int, HloInstruction]
    cost: float = 0.0
    obstacle: Decision | None = None
    folds: Mapping[HloInstruction, str] = field(default_factory=dict)
    late: frozenset[HloInstruction] = frozenset()
    epilogue: Epilogue | None = None
    num_tiles: int = 1
    scratch_bytes: int = 0
    num_recomputed: int = 0
    meetings: frozenset[HloInstruction] = frozenset()
    iterations: int = 1
    rival: LaneProgram | None = None

    @property
    def trip_count(self) -> int | None:
        """How often the original `while` runs, or None if that is only known at run time."""
        count = self.loop.trip_count
        return None if count is None else count * self.iterations

    @property
    def has_lanes(self) -> bool:
        """Whether anything differs from lane to lane; else one thread runs scalar code."""
        return self.num_lanes > 1

    @property
    def shared(self) -> tuple[HloInstruction, ...]:
        """The `copy`s in which lanes meet, so that all of them see what each has."""
        body = self.loop.instruction.body.instructions
        return tuple(i for i in body if i.opcode == "copy" and i in self.meetings)

    @property
    def is_straight(self) -> bool:
        """Whether it runs once, and reads nothing that it carries but a counter: straight-line
        code, with results instead of state."""
        loop = self.loop
        if loop.trip_count != 1 or self.meetings:
            return False
        results = {e.index for e in loop.elements if e.kind is ElementKind.STATE}
        results.discard(-1 if loop.induction_index is None else loop.induction_index)
        parameter = loop.instruction.body.parameters[0]
        return not any(u.tuple_index in results and u.users for u in parameter.users)

    @property
    def loop(self) -> LaneLoop:
        """The outermost loop."""
        return next(self.loops[i] for i in self.region.instructions if i.opcode == "while")

    @property
    def inputs(self) -> tuple[HloInstruction, ...]:
        """The region's parameters."""
        return tuple(self.region.parameters)

    @property
    def outputs(self) -> tuple[HloInstruction, ...]:
        """The operands of the region's root."""
        return tuple(self.region.root.operands)
