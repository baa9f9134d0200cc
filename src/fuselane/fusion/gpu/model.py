"""How long a kernel takes on a GPU, by XLA's performance model, in quarters of a nanosecond.

    time = computation + memory - 0.95 * min(computation, memory)

Memory is read at the rate of the GPU's memory the first time and of a cache after that, and both no
faster than the blocks at work can ask for it.

Source: xla/service/gpu/model/gpu_performance_model.cc of 2026, by `xla_fusion_facts.md` sections
3.8, 3.10. XLA's own type for durations counts quarters of nanoseconds, and rounding decides ties.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, NamedTuple, final

from fuselane.fusion.gpu.costs import (
    EXACT_IN_F32,
    KernelCost,
    Operand,
    compute_cost,
    round_half_up,
    to_f32,
)
from fuselane.fusion.gpu.emitters import HEROIC, Emission, Emitter, choose_emitter
from fuselane.fusion.gpu.launch import HOSTILE, compute_launch
from fuselane.fusion.gpu.region import Opcodes, Region, opcodes_of
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
class Plan:
    """How a region becomes a kernel.

    Attributes:
        region: What is computed.
        emission: By which code generator.
        is_steady: Whether it stays as it is if a producer is computed in the region as well, unless
            that has any of the opcodes that decide.
    """

    __slots__ = ("_running", "_sides", "emission", "is_steady", "region")

    def __init__(self, region: Region, sides: tuple[Plan, Plan] | None = None) -> None:
        self.region = region
        kept: Emission | None = _kept_emission(*sides) if sides is not None else None
        self.emission = kept or choose_emitter(region)
        self.is_steady = self.emission.emitter in _STEADY and region.opcodes.isdisjoint(_WATCHING)
        self._sides = sides
        """Those of the producer and of the consumer alone, if known."""
        self._running: Running | None = None

    def running(self, gpu: GpuDescription) -> Running:
        """Returns what its time depends on, for the GPU it is always asked about."""
        if self._running is None:
            launch = compute_launch(self.region, self.emission, gpu)
            cores = min(launch.blocks, gpu.num_multiprocessors)
            units = cores * min(launch.threads, gpu.fp32_units)
            flops_per_ns = int(to_f32(gpu.clock_ghz) * 2 * units)
            self._running = Running(launch.blocks, flops_per_ns, self._is_coalesced())
        return self._running

    def _is_coalesced(self) -> bool:
        """Whether neighbouring threads read neighbouring elements, by XLA's rule of thumb."""
        region, emitter = self.region, self.emission.emitter
        if emitter is not Emitter.TRANSPOSE and not region.opcodes.isdisjoint(_MOVES):
            for member in region.members():
                if _transposes_minor(member) and not _starts_at_broadcast(region, member):
                    return False
        if emitter is Emitter.REDUCTION and region.producer is not None:
            sides = self._sides or (Plan(Region(region.producer)), Plan(Region(region.consumer)))
            return any(side.emission.emitter is not Emitter.REDUCTION for side in sides)
        return True


def _kept_emission(of: Plan, into: Plan) -> Emission | None:
    """Returns that of a reduction if it surely stays with a producer in it: what the producer
    computes comes before the heroes, and neither hides one of them nor is another."""
    if into.emission.emitter is not Emitter.REDUCTION or "transpose" in into.region.opcodes:
        return None
    return into.emission if of.region.opcodes.isdisjoint(_SHAPING) else None


@final
class Running(NamedTuple):
    """What the time of a kernel depends on, besides operations and bytes."""

    blocks: int
    flops_per_ns: int
    is_coalesced: bool


@final
@dataclass(slots=True)
class _Known:
    """What is known of an instruction as a kernel of its own."""

    opcodes: Opcodes | None = None
    cost: KernelCost | None = None
    plan: Plan | None = None
    time: KernelTime | None = None
    reads: _Reads | None = None


@final
class PerformanceModel:
    """The model for one GPU; remembers what it knows of instructions until told to forget."""

    def __init__(self, gpu: GpuDescription) -> None:
        self.gpu = gpu
        self._bandwidth = to_f32(gpu.memory_bytes_per_s)
        self._block_bandwidth = to_f32(to_f32(to_f32(gpu.clock_ghz) * 1e9) * _BYTES_PER_CLOCK)
        self._known: dict[HloInstruction, _Known] = {}
        self._ticks: dict[tuple[int, int, int, int], int] = {}

    def forget(self, instruction: HloInstruction) -> None:
        """Drops what is known of an instruction that was changed."""
        self._known.pop(instruction, None)

    def forget_operands(self, instruction: HloInstruction) -> None:
        """Drops what depends on which instructions, equal in shape, are the operands of one."""
        known = self._known.get(instruction)
        if known is not None:
            known.reads = None

    def learn(
        self,
        instruction: HloInstruction,
        cost: KernelCost,
        opcodes: Opcodes,
        plan: Plan | None = None,
    ) -> None:
        """Takes what is known of an instruction instead of looking for itself."""
        known = self._of(instruction)
        known.cost, known.opcodes, known.plan, known.reads = cost, opcodes, plan, None

    def _of(self, instruction: HloInstruction) -> _Known:
        known = self._known.get(instruction)
        if known is None:
            known = self._known[instruction] = _Known()
        return known

    def opcodes(self, instruction: HloInstruction) -> Opcodes:
        """Returns the opcodes of what an instruction computes."""
        known = self._of(instruction)
        if known.opcodes is None:
            known.opcodes = opcodes_of(instruction)
        return known.opcodes

    def plan(self, consumer: HloInstruction, producer: HloInstruction | None = None) -> Plan:
        """Returns how a kernel of an instruction, and of a producer in it, would be made."""
        known = self._of(consumer)
        alone = known.plan
        if alone is None:
            alone = known.plan = Plan(Region(consumer, None, self.opcodes(consumer)))
        if producer is None:
            return alone
        opcodes = self.opcodes(producer)
        if alone.is_steady and opcodes.isdisjoint(_SHAPING):
            return alone
        region = Region(consumer, producer, self.opcodes(consumer) | opcodes)
        return Plan(region, (self.plan(producer), alone))

    def cost(self, instruction: HloInstruction) -> KernelCost:
        """Returns what a kernel of its own computes, reads and writes."""
        known = self._known.get(instruction)
        if known is None or known.cost is None:
            known = self._of(instruction)
            known.cost = compute_cost(instruction)
        return known.cost

    def time(self, instruction: HloInstruction) -> KernelTime:
        """Returns the time of an instruction as a kernel of its own."""
        known = self._known.get(instruction)
        if known is None or known.time is None:
            known = self._of(instruction)
            known.time = self._compute_time(instruction)
        return known.time

    def fused_ticks(
        self,
        producer: HloInstruction,
        consumer: HloInstruction,
        plan: Plan,
        *,
        is_multi_output: bool = False,
    ) -> int:
        """Returns the time of a consumer that computes an operand of it itself, and may also
        return it. The plan is that of both."""
        time, time_of = self.time(consumer), self.time(producer)
        into, of = self._reads(consumer), self._reads(producer)
        running = plan.running(self.gpu)
        place = into.places[producer]
        share = into.operands[place].utilization
        flops = to_f32(time_of.flops * (share * consumer.operands.count(producer))) + time.flops
        reading = self._reading(into, running)
        inside = self._reading(of, running, share)
        memory = reading.total - reading.ticks[place] + inside.total + time.write
        for operand, place_of in of.places.items():
            place = into.places.get(operand, -1)
            if place < 0:
                continue
            total = into.operands[place].bytes_read + inside.num_bytes[place_of]
            common = _common_utilization(operand, producer, consumer, of, into)
            if common:
                total -= round_half_up(to_f32(operand.shape.byte_size * common))
            memory -= reading.ticks[place] + inside.ticks[place_of]
            memory += self._read_ticks(operand, total, running)
        if is_multi_output:
            memory += time_of.write
        return _overlap(_compute_ticks(int(to_f32(flops)), running.flops_per_ns), memory)

    def common_utilization(
        self, operand: HloInstruction, producer: HloInstruction, consumer: HloInstruction
    ) -> float:
        """Returns how much of a producer's operand the consumer reads in the same places."""
        of, into = self._reads(producer), self._reads(consumer)
        if operand not in into.places:
            return 0.0
        return _common_utilization(operand, producer, consumer, of, into)

    def _compute_time(self, instruction: HloInstruction) -> KernelTime:
        cost = self.cost(instruction)
        running = self.plan(instruction).running(self.gpu)
        reads = self._reads(instruction)
        reading = self._reading(reads, running)
        memory, places = reading.total, reads.places
        if len(places) < len(instruction.operands):  # what occurs twice is read twice
            memory = sum([reading.ticks[places[operand]] for operand in instruction.operands])
        flops = int(cost.flops)
        write = _ticks_of_s(to_f32(to_f32(cost.bytes_written) / self._bandwidth))
        computing = _compute_ticks(flops, running.flops_per_ns)
        return KernelTime(flops, write, _overlap(computing, memory + write))

    def _reads(self, instruction: HloInstruction) -> _Reads:
        known = self._known.get(instruction)
        if known is None or known.reads is None:
            known = self._of(instruction)
            cost = self.cost(instruction)
            known.reads = _Reads(cost, cost.operands, _first_places(instruction.operands))
        return known.reads

    def _reading(self, reads: _Reads, running: Running, share: float | None = None) -> _Reading:
        """Returns what it takes to read all distinct operands, all of what is read or a share."""
        key = (running.blocks, running.is_coalesced, share)
        reading = reads.readings.get(key)
        if reading is None:
            operands = reads.cost.operands
            num_bytes = [0] * len(operands)
            ticks = num_bytes.copy()
            for operand, place in reads.places.items():
                total = operands[place].bytes_read
                if share is not None and (share != 1.0 or total >= EXACT_IN_F32):
                    total = round_half_up(to_f32(total * share))
                num_bytes[place] = total
                ticks[place] = self._read_ticks(operand, total, running)
            reading = reads.readings[key] = _Reading(sum(ticks), ticks, num_bytes)
        return reading

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
class _Reading(NamedTuple):
    """What reading an instruction's operands takes, in sum and by the place where each is first."""

    total: int
    ticks: list[int]
    num_bytes: list[int]


@final
@dataclass(slots=True)
class _Reads:
    """What an instruction reads: how and where it has each operand first, and what reading all of
    them takes, by the launch."""

    cost: KernelCost
    operands: list[Operand]
    places: dict[HloInstruction, int]
    readings: dict[tuple[int, bool, float | None], _Reading] = field(default_factory=dict)


def _common_utilization(
    operand: HloInstruction,
    producer: HloInstruction,
    consumer: HloInstruction,
    of: _Reads,
    into: _Reads,
) -> float:
    if of.cost.is_fusion:
        if of.cost.result not in of.cost.operands[of.places[operand]].roots:
            return 0.0
    elif not is_elementwise(producer):
        return 0.0
    if not into.cost.is_fusion:
        return 1.0 if is_elementwise(consumer) else 0.0
    operands = into.cost.operands
    return into.cost.common(
        operands[into.places[operand]].roots, operands[into.places[producer]].roots
    )


def _first_places(operands: list[HloInstruction]) -> dict[HloInstruction, int]:
    num = len(operands)
    return dict(zip(reversed(operands), range(num - 1, -1, -1), strict=True))


@lru_cache(maxsize=1 << 16)
def _compute_ticks(flops: int, flops_per_ns: int) -> int:
    return _scale(4, to_f32(to_f32(flops) / flops_per_ns))


@lru_cache(maxsize=1 << 16)
def _overlap(computing: int, memory: int) -> int:
    return computing + memory - _scale(min(computing, memory), _OVERLAP)


def _ticks_of_s(seconds: float) -> int:
    """Returns the ticks of a number of seconds, halves rounded up."""
    if seconds < 1.0:
        return math.floor(seconds * TICKS_PER_S + 0.5)
    whole = int(seconds)
    return int(whole * TICKS_PER_S) + round_half_up((seconds - whole) * TICKS_PER_S)


def _scale(ticks: int, factor: float) -> int:
    """Returns a multiple of a duration, by the detour over seconds that XLA's durations take."""
    return _ticks_of_s(ticks * factor / TICKS_PER_S)


_MOVES: Final = frozenset({"copy", "transpose"})
_WATCHING: Final = _MOVES | {"dynamic-update-slice"}
"""Opcodes for which it matters where their operand comes from."""

_SHAPING: Final = HEROIC | HOSTILE | _WATCHING
"""Opcodes that may decide how the kernel that holds them is made."""

_STEADY: Final = frozenset({Emitter.LOOP, Emitter.CONCATENATE, Emitter.SCATTER})
"""Emitters that ask nothing about what a kernel reads."""


def _transposes_minor(member: HloInstruction) -> bool:
    """Whether a member changes the dimension that varies fastest, but for those of size one."""
    if member.opcode not in _MOVES:
        return False
    operand, result = member.operands[0].shape, member.shape
    if member.opcode == "copy":
        return _minor(operand.minor_to_major, operand.dimensions) != _minor(
            result.minor_to_major, result.dimensions
        )
    source = [member.dimensions[d] for d in result.minor_to_major]
    return _minor(operand.minor_to_major, operand.dimensions) != _minor(source, operand.dimensions)


def _minor(order: list[int] | tuple[int, ...], sizes: tuple[int, ...]) -> int | None:
    return next((d for d in order if sizes[d] != 1), None)


def _starts_at_broadcast(region: Region, member: HloInstruction) -> bool:
    """Whether a chain of unary members leads from a broadcast or iota to a member."""
    while True:
        (member, *others) = region.operands(member) or [member]
        if member.opcode in ("broadcast", "iota"):
            return True
        is_unary = len(member.operands) == 1 and (
            is_elementwise(member) or member.opcode == "bitcast"
        )
        if others or not is_unary or member not in region:
            return False
