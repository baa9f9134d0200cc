"""How long a kernel takes on a GPU, by XLA's performance model, in quarters of a nanosecond.

    time = computation + memory - 0.95 * min(computation, memory)

Memory is read at the rate of the GPU's memory the first time and of a cache after that, and both no
faster than the blocks at work can ask for it.

Source: xla/service/gpu/model/gpu_performance_model.cc of 2026. XLA's own type for durations counts
quarters of nanoseconds, and rounding decides ties.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache
from typing import Final, NamedTuple, final

from fuselane.fusion.decision import FusionDecision
from fuselane.fusion.gpu.costs import compute_cost, remember_cost
from fuselane.fusion.gpu.kernel_cost import (
    EXACT_IN_F32,
    NO_ROOTS,
    KernelCost,
    round_half_up,
    to_f32,
)
from fuselane.fusion.gpu.plans import SHAPING, Plan, Running
from fuselane.fusion.gpu.region import Opcodes, Region, is_custom, opcodes_of
from fuselane.fusion.gpu.rules import Demands, demands_of, is_plain
from fuselane.fusion.growing import HEAVY
from fuselane.fusion.opcodes import is_elementwise
from fuselane.gpu import GpuDescription
from fuselane.hlo.instruction import HloInstruction

TICKS_PER_S: Final = 4e9
TICKS_PER_US: Final = 4000
LAUNCH: Final = TICKS_PER_US
"""A kernel's launch takes a microsecond."""

_L2_SPEEDUP: Final = 2.5
_L1_SPEEDUP: Final = 8.0
_OVERLAP: Final = 0.95
_L1_BYTES: Final = 2 * 1024
_TRANSACTION_BYTES: Final = 64
_BYTES_PER_CLOCK: Final = 32


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
class Kernel:
    """What is known of an instruction as a kernel of its own, until it changes.

    Attributes:
        instruction: Which.
        opcodes: Of what it computes.
        is_shaping: Whether any of them may decide how a kernel that holds it is made.
        is_plain: See `rules.is_plain`.
        width: Operands, repetitions included, and arrays among the results.
        cost: What it computes, reads and writes; this and all below is None until asked for.
        demands: What its reductions and transposes ask for.
        plan: How it is made.
        time: How long it takes.
        places: Where it has each operand first.
        even: What pairs with it are priced by where both read evenly, see `ticks_won`.
        readings: What reading them takes in other kernels, by launch and share of the elements.
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
        self.cost: KernelCost | None = None
        self.demands: Demands | None = None
        self.plan: Plan | None = None
        self.time: KernelTime | None = None
        self.places: dict[HloInstruction, int] | None = None
        self.even: _Even | None = None
        self.readings: dict[tuple[int, float | None], _Reading] = {}
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


@final
class PerformanceModel:
    """The model for one GPU; remembers what it knows of instructions until told to forget."""

    def __init__(self, gpu: GpuDescription) -> None:
        self.gpu = gpu
        self._bandwidth = to_f32(gpu.memory_bytes_per_s)
        self._block_bandwidth = to_f32(to_f32(to_f32(gpu.clock_ghz) * 1e9) * _BYTES_PER_CLOCK)
        self._kernels: dict[HloInstruction, Kernel] = {}
        self._ticks: dict[tuple[int, int, int, int], int] = {}
        self._writes: dict[int, int] = {}
        self._loops: dict[tuple[int, int], Plan] = {}
        """How kernels are made in which nothing but the size of their result decides, by that."""

    def forget(self, instruction: HloInstruction) -> None:
        """Drops what is known of an instruction that was changed, or is gone."""
        self._kernels.pop(instruction, None)
        for user in instruction.users:
            kernel = self._kernels.get(user)
            if kernel is not None and instruction in kernel.won:
                del kernel.won[instruction]
            if kernel is not None and (kernel.plans or kernel.refusals):
                kernel.plans.pop(instruction, None)
                kernel.refusals.pop(instruction, None)

    def forget_operands(self, instruction: HloInstruction) -> None:
        """Drops what depends on which instructions, equal in shape, are the operands of one."""
        kernel = self._kernels.get(instruction)
        if kernel is not None:
            kernel.places = kernel.even = None
            kernel.readings.clear()

    def exchange_operand(
        self, instruction: HloInstruction, old: HloInstruction, new: HloInstruction
    ) -> None:
        """Takes note that an operand of an instruction gave way to another of the same shape."""
        kernel = self._kernels.get(instruction)
        if kernel is not None:
            kernel.even = None
            if kernel.places is not None:
                kernel.places[new] = kernel.places.pop(old)

    def learn(
        self,
        instruction: HloInstruction,
        cost: KernelCost,
        opcodes: Opcodes,
        plan: Plan | None = None,
        demands: Demands | None = None,
    ) -> Kernel:
        """Takes what is known of an instruction instead of looking for itself, and returns it."""
        kernel = self._kernels[instruction] = Kernel(instruction, opcodes)
        kernel.cost, kernel.plan, kernel.demands = cost, plan, demands
        return kernel

    def may_share(self, fusion: HloInstruction) -> bool:
        """Whether what a fusion repeats is known to make no difference but for its cost, which is
        known and need not be summed up again."""
        kernel = self._kernels.get(fusion)
        if kernel is None or kernel.cost is None:
            return False
        return kernel.cost.is_exact and HEAVY.isdisjoint(kernel.opcodes)

    def leave_costs(self) -> None:
        """Leaves the costs of fusions that are final to who asks next, where they are exact."""
        for instruction, kernel in self._kernels.items():
            if instruction.opcode == "fusion" and kernel.cost is not None:
                remember_cost(instruction, kernel.cost)

    def kernel(self, instruction: HloInstruction) -> Kernel:
        """Returns what is known of an instruction."""
        kernel = self._kernels.get(instruction)
        if kernel is None:
            kernel = self._kernels[instruction] = Kernel(instruction, opcodes_of(instruction))
        return kernel

    def opcodes(self, instruction: HloInstruction) -> Opcodes:
        """Returns the opcodes of what an instruction computes."""
        return self.kernel(instruction).opcodes

    def plan(self, consumer: HloInstruction, producer: HloInstruction | None = None) -> Plan:
        """Returns how a kernel of an instruction, and of a producer in it, would be made."""
        kernel = self.kernel(consumer)
        return self.plan_of(kernel, None if producer is None else self.kernel(producer))

    def plan_of(self, into: Kernel, of: Kernel | None = None) -> Plan:
        """As `plan`."""
        alone = into.plan
        if alone is None:
            alone = into.plan = self._plan_alone(into)
        if of is None or (alone.is_steady and not of.is_shaping):
            return alone
        if alone.is_kept and not of.is_shaping:
            return alone.feeding(into.instruction, of.instruction, of.plan or self.plan_of(of))
        plan = into.plans.get(of.instruction)
        if plan is None:
            region = Region(into.instruction, of.instruction, into.opcodes | of.opcodes)
            plan = into.plans[of.instruction] = Plan(region, (self.plan_of(of), alone))
        return plan

    def _plan_alone(self, kernel: Kernel) -> Plan:
        instruction, shape = kernel.instruction, kernel.instruction.shape
        if kernel.is_shaping or shape.is_tuple or is_custom(instruction):
            return Plan(Region(instruction, None, kernel.opcodes))
        size = shape.num_elements, shape.element_type.bits
        plan = self._loops.get(size)
        if plan is None:
            plan = self._loops[size] = Plan(Region(instruction, None, kernel.opcodes))
            plan.running(self.gpu)
        return plan

    def cost(self, instruction: HloInstruction) -> KernelCost:
        """Returns what a kernel of its own computes, reads and writes."""
        return self.cost_of(self.kernel(instruction))

    def cost_of(self, kernel: Kernel) -> KernelCost:
        """As `cost`."""
        if kernel.cost is None:
            kernel.cost = compute_cost(kernel.instruction)
        return kernel.cost

    def demands_of(self, kernel: Kernel) -> Demands:
        """Returns what a kernel of its own asks for."""
        if kernel.demands is None:
            kernel.demands = demands_of(kernel.instruction, kernel.opcodes)
        return kernel.demands

    def time(self, instruction: HloInstruction) -> KernelTime:
        """Returns the time of an instruction as a kernel of its own."""
        return self.time_of(self.kernel(instruction))

    def time_of(self, kernel: Kernel) -> KernelTime:
        """As `time`."""
        if kernel.time is None:
            self._look(kernel)
        assert kernel.time is not None
        return kernel.time

    def fused_ticks(
        self, of: Kernel, into: Kernel, plan: Plan, *, is_multi_output: bool = False
    ) -> int:
        """Returns the time of a consumer that computes an operand of it itself, and may also
        return it. The plan is that of both."""
        flops, write, _ = into.time or self.time_of(into)
        flops_of, write_of, _ = of.time or self.time_of(of)
        running = plan.known or plan.running(self.gpu)
        cost, places = into.cost or self.cost_of(into), into.places or places_in(into)
        operands, operands_of = cost.operands, of.instruction.operands
        place = places[of.instruction]
        share = operands[place].utilization
        total, ticks, _ = self._reading(into, running)
        reading = of.readings.get((running.reading, share)) or self._reading(of, running, share)
        total_of, ticks_of, num_bytes_of = reading
        memory = total - ticks[place] + total_of + write
        if is_multi_output:
            memory += write_of
        for place_of, here, common in _shared(of, into):
            num_bytes, operand = num_bytes_of[place_of], operands_of[place_of]
            if common:
                size = operand.shape.byte_size
                is_whole = common == 1.0 and size < EXACT_IN_F32
                num_bytes -= size if is_whole else _share(size, common)
            if num_bytes:  # else the consumer reads all of it anyway
                total = operands[here].bytes_read + num_bytes
                memory += self._read_ticks(operand, total, running) - ticks[here]
            memory -= ticks_of[place_of]
        if len(places) < len(operands):
            share *= into.instruction.operands.count(of.instruction)
        computed = flops + (flops_of if share == 1.0 else to_f32(flops_of * share))
        computing = _compute_ticks(int(to_f32(computed)), running.flops_per_ns)
        return _overlap(computing, memory)

    def ticks_won(self, of: Kernel, users: Iterable[HloInstruction]) -> int:
        """Returns how many ticks users of a kernel take longer alone than with it computed inside.

        Most kernels read evenly: they have arrays of one shape, each once, and read for each
        element of their result the same one of each. Where both do, the producer's are read as the
        user's are, once, and the rest of `fused_ticks` is the same for all of a user's operands.
        """
        kernels, producer, total_won = self._kernels, of.instruction, 0
        operands_of, flops_of, _, _, whole_of, each_of, running_of = of.even or self._even(of)
        for user in users:
            into = kernels.get(user) or self.kernel(user)
            won = into.won.get(producer)
            if won is not None:
                total_won += won
                continue
            operands, flops, total, others, _, _, running = into.even or self._even(into)
            if not (operands and operands_of):
                total = (into.time or self.time_of(into)).total
                ticks = self.fused_ticks(of, into, self.plan_of(into, of))
            else:
                whole, each = whole_of, each_of
                if running_of is not running:
                    operand = producer.operands[0]
                    each = self._read_ticks(operand, operand.shape.byte_size, running)
                    whole = each * len(operands_of)
                memory = others + whole
                if not operands.isdisjoint(operands_of):
                    memory -= len(operands & operands_of) * each
                computing = _compute_ticks(flops + flops_of, running.flops_per_ns)
                ticks = _overlap(computing, memory)
            won = into.won[producer] = total - ticks
            total_won += won
        return total_won

    def _even(self, kernel: Kernel) -> _Even:
        """Returns what `ticks_won` asks of a kernel."""
        if kernel.even is None:
            self._look(kernel)
        assert kernel.even is not None
        return kernel.even

    def _look(self, kernel: Kernel) -> None:
        """Finds out how long a kernel takes, and whether it reads evenly."""
        cost, plan = self.cost_of(kernel), self.plan_of(kernel)
        running = plan.known or plan.running(self.gpu)
        operands, places = kernel.instruction.operands, places_in(kernel)
        is_simple = kernel.is_plain and not kernel.is_shaping and plan.is_steady
        is_even = is_simple and _reads_evenly(kernel, cost)
        each = 0
        if is_even:
            each = self._read_ticks(operands[0], operands[0].shape.byte_size, running)
            memory = each * len(operands)
        else:
            memory, ticks, _ = self._reading(kernel, running)
            if len(places) < len(operands):  # what occurs twice is read twice
                memory = sum([ticks[places[operand]] for operand in operands])
        flops, write = int(cost.flops), self._write_ticks(cost.bytes_written)
        total = _overlap(_compute_ticks(flops, running.flops_per_ns), memory + write)
        kernel.time = KernelTime(flops, write, total)
        kernel.even = _UNEVEN
        if is_even:
            others = memory - each + write
            kernel.even = _Even(frozenset(operands), flops, total, others, memory, each, running)

    def common_utilizations(
        self, producer: HloInstruction, consumer: HloInstruction
    ) -> dict[int, float]:
        """Returns how much of the operands of a producer that a consumer reads as well is read in
        the same places, by the first place where the producer has each."""
        of, into = self.kernel(producer), self.kernel(consumer)
        self.cost_of(of)
        self.cost_of(into)
        return {place_of: common for place_of, _, common in _shared(of, into)}

    def _reading(self, kernel: Kernel, running: Running, share: float | None = None) -> _Reading:
        """Returns what it takes to read all distinct operands, all of what is read or a share."""
        key = running.reading, share
        reading = kernel.readings.get(key)
        if reading is None:
            operands = self.cost_of(kernel).operands
            num_bytes = [0] * len(operands)
            ticks = num_bytes.copy()
            shape, before, read, taken = None, -1, 0, 0
            for operand, place in places_in(kernel).items():
                total = operands[place].bytes_read
                if total != before or operand.shape is not shape:  # most are alike
                    shape, before = operand.shape, total
                    if share is not None and (share != 1.0 or total >= EXACT_IN_F32):
                        total = _share(total, share)
                    read, taken = total, self._read_ticks(operand, total, running)
                num_bytes[place], ticks[place] = read, taken
            reading = kernel.readings[key] = _Reading(sum(ticks), ticks, num_bytes)
            if share is None and max(num_bytes, default=0) < EXACT_IN_F32:
                kernel.readings[running.reading, 1.0] = reading
        return reading

    def _write_ticks(self, num_bytes: int) -> int:
        ticks = self._writes.get(num_bytes)
        if ticks is None:
            ticks = _ticks_of_s(to_f32(to_f32(num_bytes) / self._bandwidth))
            self._writes[num_bytes] = ticks
        return ticks

    def _read_ticks(self, operand: HloInstruction, total: int, running: Running) -> int:
        """Returns the time to read `total` bytes, repetitions included, of an operand."""
        shape = operand.shape
        size = shape.byte_size
        element = 0
        if not running.is_coalesced and shape.is_array:
            element = shape.element_type.byte_size
        key = (size, element, total, running.blocks)
        ticks = self._ticks.get(key)
        if ticks is None:
            ticks = self._ticks[key] = self._compute_read_ticks(*key)
        return ticks

    def _compute_read_ticks(self, size: int, element: int, total: int, blocks: int) -> int:
        gpu = self.gpu
        net = min(size, total)
        share = element / _TRANSACTION_BYTES if element else 1.0
        first = to_f32(gpu.memory_bytes_per_s * share)
        again = self._bandwidth
        if net < gpu.l2_bytes:
            again = to_f32(again * _L2_SPEEDUP)
            if net < _L1_BYTES * gpu.num_multiprocessors:
                again = to_f32(again * _L1_SPEEDUP)
        else:
            again = to_f32(again * share)
        most = to_f32(blocks * self._block_bandwidth)
        ticks = _ticks_of_s(to_f32(to_f32(net) / min(first, most)))
        if total > net:
            ticks += _ticks_of_s(to_f32(to_f32(total - net) / min(again, most)))
        return ticks


@final
class _Even(NamedTuple):
    """What is the same for all pairs of a kernel and one that reads evenly, as it does itself.

    Attributes:
        operands: Of the kernel; none if it does not read evenly.
        flops: Operations.
        total: Ticks of the kernel alone.
        others: Ticks to write its result and to read all operands but one.
        whole: Ticks to read all operands.
        each: Ticks to read one of them.
        running: What its time depends on.
    """

    operands: frozenset[HloInstruction]
    flops: int
    total: int
    others: int
    whole: int
    each: int
    running: Running


_UNEVEN: Final = _Even(frozenset(), 0, 0, 0, 0, 0, Running(0, 0, True, 0))


@final
class _Reading(NamedTuple):
    """What reading an instruction's operands takes, in sum and by the place where each is first."""

    total: int
    ticks: list[int]
    num_bytes: list[int]


def _shared(of: Kernel, into: Kernel) -> list[tuple[int, int, float]]:
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


def _reads_evenly(kernel: Kernel, cost: KernelCost) -> bool:
    """Whether a kernel reads evenly, see `ticks_won`; the cost is its own."""
    operands = kernel.instruction.operands
    if not operands or len(places_in(kernel)) < len(operands):
        return False
    shape = operands[0].shape
    if shape.byte_size >= EXACT_IN_F32:
        return False
    for operand in operands:
        if operand.shape is not shape:
            return False
    if cost.result < 0:
        return is_elementwise(kernel.instruction)
    roots = NO_ROOTS
    for read in cost.operands:
        if read.roots is not roots:
            roots = read.roots
            if len(roots) > 1 or cost.result not in roots:
                return False
    return cost.utilization[cost.result] == 1.0


def _share(num_bytes: int, share: float) -> int:
    return round_half_up(to_f32(num_bytes * share))


@lru_cache(maxsize=1 << 16)
def _compute_ticks(flops: int, flops_per_ns: int) -> int:
    return _scale(4, to_f32(to_f32(flops) / flops_per_ns))


@lru_cache(maxsize=1 << 16)
def _hidden(ticks: int) -> int:
    """Returns how much of the shorter of computation and memory runs beside the other."""
    return _scale(ticks, _OVERLAP)


def _overlap(computing: int, memory: int) -> int:
    return computing + memory - _hidden(computing if computing < memory else memory)


def _ticks_of_s(seconds: float) -> int:
    """Returns the ticks of a number of seconds, halves rounded up."""
    if seconds < 1.0:
        return math.floor(seconds * TICKS_PER_S + 0.5)
    whole = int(seconds)
    return int(whole * TICKS_PER_S) + round_half_up((seconds - whole) * TICKS_PER_S)


def _scale(ticks: int, factor: float) -> int:
    """Returns a multiple of a duration, by the detour over seconds that XLA's durations take."""
    return _ticks_of_s(ticks * factor / TICKS_PER_S)
