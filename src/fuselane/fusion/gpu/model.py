"""How long a kernel takes on a GPU, by XLA's performance model, in quarters of a nanosecond.

    time = computation + memory - 0.95 * min(computation, memory)

Memory is read at the rate of the GPU's memory the first time and of a cache after that, and both no
faster than the blocks at work can ask for it.

Source: xla/service/gpu/model/gpu_performance_model.cc of 2026.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import final

from fuselane.fusion.gpu.costs import compute_cost, remember_cost
from fuselane.fusion.gpu.durations import Memory, Ticks, compute_ticks, hidden, overlap
from fuselane.fusion.gpu.kernel import (
    UNEVEN,
    Even,
    Kernel,
    KernelTime,
    Reading,
    places_in,
    shared_operands,
)
from fuselane.fusion.gpu.kernel_cost import (
    EXACT_IN_F32,
    KernelCost,
    round_half_up,
    to_f32,
)
from fuselane.fusion.gpu.plans import Plan, Running
from fuselane.fusion.gpu.region import Opcodes, Region, is_custom, opcodes_of
from fuselane.fusion.gpu.rules import Demands, demands_of
from fuselane.fusion.growing import HEAVY
from fuselane.fusion.opcodes import is_elementwise
from fuselane.gpu import GpuDescription
from fuselane.hlo.instruction import HloInstruction


@final
class PerformanceModel:
    """The model for one GPU; remembers what it knows of instructions until told to forget."""

    def __init__(self, gpu: GpuDescription) -> None:
        self.gpu = gpu
        self._kernels: dict[HloInstruction, Kernel] = {}
        self.memory = Memory(gpu)
        self._computing: dict[int, Ticks[float]] = {}
        """How long so many operations take, by how many a kernel does in a nanosecond."""
        self._hidden = Ticks(hidden)
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
            if kernel.even is not None and kernel.even.operands:
                kernel.even = kernel.even._replace(operands=frozenset(instruction.operands))
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

    def kernels(self, instructions: Iterable[HloInstruction]) -> list[Kernel]:
        """Returns what is known of each of some instructions."""
        known = self._kernels
        return [known.get(i) or self.kernel(i) for i in instructions]

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

    def read_ticks_of(self, kernel: Kernel, running: Running) -> int:
        """Returns the time to read all operands, those that occur twice twice."""
        operands, places = kernel.instruction.operands, places_in(kernel)
        memory, ticks, _ = self._reading(kernel, running)
        if len(places) < len(operands):
            memory = sum([ticks[places[operand]] for operand in operands])
        return memory

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
        reading = into.readings.get((running.reading, None)) or self._reading(into, running)
        total, ticks, _ = reading
        reading = of.readings.get((running.reading, share)) or self._reading(of, running, share)
        total_of, ticks_of, num_bytes_of = reading
        memory = total - ticks[place] + total_of + write
        if is_multi_output:
            memory += write_of
        for place_of, here, common in shared_operands(of, into):
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
        computing = compute_ticks(computed, running.flops_per_ns)
        return overlap(computing, memory)

    def ticks_won(self, of: Kernel, users: Iterable[Kernel]) -> int:
        """Returns how many ticks users of a kernel take longer alone than with it computed inside.

        Most kernels read evenly: they have arrays of one shape, each once, and read for each
        element of their result the same one of each. Where both do, the producer's are read as the
        user's are, once, and the rest of `fused_ticks` is the same for all of a user's operands.
        """
        producer, total_won, hidden_ticks = of.instruction, 0, self._hidden
        operands_of, flops_of, _, _, whole_of, each_of, running_of, _ = of.even or self._even(of)
        for into in users:
            won = into.won.get(producer)
            if won is None:
                even = into.even or self._even(into)
                operands, flops, total, others, _, _, running, computing_ticks = even
                if operands and operands_of:
                    whole, each = whole_of, each_of
                    if running is not running_of:
                        operand = producer.operands[0]
                        each = self._read_ticks(operand, operand.shape.byte_size, running)
                        whole = each * len(operands_of)
                    memory = others + whole
                    if not operands.isdisjoint(operands_of):
                        memory -= len(operands & operands_of) * each
                    computing = computing_ticks[flops + flops_of]
                    ticks = computing + memory
                    ticks -= hidden_ticks[computing if computing < memory else memory]
                else:
                    total = (into.time or self.time_of(into)).total
                    ticks = self.fused_ticks(of, into, self.plan_of(into, of))
                won = into.won[producer] = total - ticks
            total_won += won
        return total_won

    def _even(self, kernel: Kernel) -> Even:
        """Returns what `ticks_won` asks of a kernel."""
        if kernel.even is None:
            self._look(kernel)
        assert kernel.even is not None
        return kernel.even

    def _look(self, kernel: Kernel) -> None:
        """Finds out how long a kernel takes, and whether it reads evenly."""
        cost, plan = self.cost_of(kernel), self.plan_of(kernel)
        running = plan.known or plan.running(self.gpu)
        operands = kernel.instruction.operands
        distinct = frozenset(operands)
        is_simple = kernel.is_plain and not kernel.is_shaping and plan.is_steady
        flops, write = int(cost.flops), self.memory.write_ticks(cost.bytes_written)
        if is_simple and len(distinct) == len(operands) and _reads_evenly(kernel, cost):
            speed = running.flops_per_ns
            computing = self._computing.get(speed)
            if computing is None:
                computing = Ticks(partial(compute_ticks, flops_per_ns=speed))
                self._computing[speed] = computing
            each = self._read_ticks(operands[0], operands[0].shape.byte_size, running)
            memory, time = each * len(operands), computing[flops]
            total = time + memory + write - self._hidden[min(time, memory + write)]
            others = memory - each + write
            kernel.even = Even(distinct, flops, total, others, memory, each, running, computing)
        else:
            memory = self.read_ticks_of(kernel, running) + write
            total = overlap(compute_ticks(flops, running.flops_per_ns), memory)
            kernel.even = UNEVEN
        kernel.time = KernelTime(flops, write, total)

    def _reading(self, kernel: Kernel, running: Running, share: float | None = None) -> Reading:
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
            reading = kernel.readings[key] = Reading(sum(ticks), ticks, num_bytes)
            if share is None and max(num_bytes, default=0) < EXACT_IN_F32:
                kernel.readings[running.reading, 1.0] = reading
        return reading

    def _read_ticks(self, operand: HloInstruction, total: int, running: Running) -> int:
        """Returns the time to read `total` bytes, repetitions included, of an operand."""
        shape, element = operand.shape, 0
        if not running.is_coalesced and shape.is_array:
            element = shape.element_type.byte_size
        return self.memory.read_ticks(shape.byte_size, element, total, running.blocks)


def _reads_evenly(kernel: Kernel, cost: KernelCost) -> bool:
    """Whether a kernel of distinct operands reads evenly, see `ticks_won`; the cost is its own."""
    operands = kernel.instruction.operands
    if not operands:
        return False
    shape = operands[0].shape
    if shape.byte_size >= EXACT_IN_F32:
        return False
    for operand in operands:
        if operand.shape is not shape:
            return False
    if cost.result < 0:
        return is_elementwise(kernel.instruction)
    return cost.reads_evenly and cost.utilization[cost.result] == 1.0


def _share(num_bytes: int, share: float) -> int:
    return round_half_up(to_f32(num_bytes * share))
