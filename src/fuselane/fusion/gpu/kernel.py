"""What is known of an instruction as a kernel of its own on a GPU, until it changes."""

from __future__ import annotations

from typing import Final, NamedTuple, final

from fuselane.fusion.decision import FusionDecision
from fuselane.fusion.gpu.durations import Ticks
from fuselane.fusion.gpu.kernel_cost import KernelCost
from fuselane.fusion.gpu.plans import SHAPING, Plan, Running
from fuselane.fusion.gpu.region import Opcodes
from fuselane.fusion.gpu.rules import Demands, is_plain
from fuselane.fusion.opcodes import is_elementwise
from fuselane.hlo.instruction import HloInstruction


@final
class KernelTime(NamedTuple):
    """What the model says of one kernel.

    Attributes:
        flops: Operations.
        write: Ticks for its results.
        total: Ticks for all, its launch excepted.
    """

    flops: int
    write: int
    total: int


@final
class Even(NamedTuple):
    """What is the same for all pairs of a kernel and one that reads evenly, as it does itself.

    Attributes:
        operands: Of the kernel; none if it does not read evenly.
        flops: Operations.
        total: Ticks of the kernel alone.
        others: Ticks to write its result and to read all operands but one.
        whole: Ticks to read all operands.
        each: Ticks to read one of them.
        running: What its time depends on.
        computing: How long so many operations take it.
    """

    operands: frozenset[HloInstruction]
    flops: int
    total: int
    others: int
    whole: int
    each: int
    running: Running
    computing: Ticks[float]


UNEVEN: Final = Even(frozenset(), 0, 0, 0, 0, 0, Running(0, 0, 0, True, 0), Ticks(int))


@final
class Reading(NamedTuple):
    """What reading an instruction's operands takes, in sum and by the place where each is first."""

    total: int
    ticks: list[int]
    num_bytes: list[int]


@final
class Kernel:
    """What is known of an instruction as a kernel of its own, until it changes.

    Attributes:
        instruction: Which.
        opcodes: Of what it computes.
        is_shaping: Whether any of them may decide how a kernel that holds it is made.
        is_plain: See `rules.is_plain`.
        is_light: Whether nothing but the gain speaks against fusing it and another such kernel, as
            far as somebody found that out.
        is_open: Whether nothing but the gain speaks against computing a light kernel in it, by the
            same.
        width: Operands, repetitions included, and arrays among the results.
        cost: What it computes, reads and writes; this and all below is None until asked for.
        demands: What its reductions and transposes ask for.
        plan: How it is made.
        time: How long it takes.
        places: Where it has each operand first.
        even: What pairs with it are priced by where both read evenly, see `ticks_won`.
        readings: What reading its operands takes, by launch and share of the elements.
        won: How many ticks it takes longer alone than with one of its operands computed inside, by
            operand, as far as was asked.
        plans: How it is made with one of its operands computed inside, as far as was asked.
        refusals: Why an operand cannot be, or None, as far as was asked.
    """

    __slots__ = (
        "cost",
        "demands",
        "even",
        "instruction",
        "is_light",
        "is_open",
        "is_plain",
        "is_shaping",
        "opcodes",
        "places",
        "plan",
        "plans",
        "readings",
        "refusals",
        "time",
        "width",
        "won",
    )

    def __init__(self, instruction: HloInstruction, opcodes: Opcodes) -> None:
        self.instruction = instruction
        self.opcodes = opcodes
        self.is_shaping = not opcodes.isdisjoint(SHAPING)
        self.is_plain = is_plain(instruction, opcodes)
        self.is_light = self.is_open = False
        self.cost: KernelCost | None = None
        self.demands: Demands | None = None
        self.plan: Plan | None = None
        self.time: KernelTime | None = None
        self.places: dict[HloInstruction, int] | None = None
        self.even: Even | None = None
        self.readings: dict[tuple[int, float | None], Reading] = {}
        self.width = len(instruction.operands) + instruction.shape.num_leaves
        self.won: dict[HloInstruction, int] = {}
        self.plans: dict[HloInstruction, Plan] = {}
        self.refusals: dict[HloInstruction, FusionDecision | None] = {}


def places_in(kernel: Kernel) -> dict[HloInstruction, int]:
    """Returns where a kernel has each operand first."""
    places = kernel.places
    if places is None:
        operands = kernel.instruction.operands
        backwards = range(len(operands) - 1, -1, -1)
        places = kernel.places = dict(zip(reversed(operands), backwards, strict=True))
    return places


def shared_operands(of: Kernel, into: Kernel) -> list[tuple[int, int, float]]:
    """Returns the operands of a kernel that a user of it reads as well: where each has them first,
    and how much of them the two read in the same places. Costs of both are known."""
    cost_of, cost = of.cost, into.cost
    assert cost_of is not None
    assert cost is not None
    places = into.places or places_in(into)
    operands_of, operands = cost_of.operands, cost.operands
    value = operands[places[of.instruction]]
    result = cost_of.result
    shared: list[tuple[int, int, float]] = []
    places_of = of.places or places_in(of)
    if places_of.keys().isdisjoint(places):
        return shared
    is_read = result >= 0 or is_elementwise(of.instruction)
    for operand, place_of in places_of.items():
        if operand not in places:
            continue
        here, common = places[operand], 0.0
        if is_read and (result < 0 or result in operands_of[place_of].roots):
            read = operands[here]
            if cost.result < 0:
                common = 1.0 if is_elementwise(into.instruction) else 0.0
            else:
                common = read.utilization if read.roots is value.roots else cost.common(read, value)
        shared.append((place_of, here, common))
    return shared
