"""What fusing one producer gained on a GPU, by the model XLA had in 2024 outside priority fusion.

    unfused = (n + 1) launches + max(computation, memory) of P + n reads of what P wrote
    fused   = n launches + n times max(computation, memory) of P in the kernel of both

As `early_model`, but threads and blocks are those of kernels as they are launched.

Source: xla/service/gpu/model/gpu_performance_model.cc of 2024-06.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from fuselane.fusion.gpu import early_model
from fuselane.fusion.gpu.durations import LAUNCH, TICKS_PER_S, compute_ticks
from fuselane.fusion.gpu.early_model import ComputeTimes, FusionTimes
from fuselane.fusion.gpu.kernel import Kernel, places_in, shared_operands
from fuselane.fusion.gpu.kernel_cost import round_half_up, to_f32
from fuselane.fusion.gpu.launch_2024 import running_2024
from fuselane.fusion.gpu.model import PerformanceModel
from fuselane.fusion.gpu.plans import Running
from fuselane.gpu import GpuDescription
from fuselane.hlo.instruction import HloInstruction

YEAR: Final = 2024
"""Since when it is asked; until then, `early_model`."""


def model_of(year: int) -> ComputeTimes:
    """Returns the function by which XLA knew, in a year until 2024, what fusing gains."""
    return early_model.compute_times if year < YEAR else compute_times


def compute_times(
    producer: HloInstruction,
    users: Sequence[HloInstruction],
    model: PerformanceModel,
    *,
    is_multi_output: bool = False,
) -> FusionTimes:
    """Returns what a producer costs alone and inside of users of it; see `early_model`."""
    of = model.kernel(producer)
    cost, running = model.cost_of(of), running_2024(model.plan_of(of), model.gpu)
    flops, written = int(cost.flops), cost.bytes_written
    write = model.memory.write_ticks(written)
    memory = model.read_ticks_of(of, running) + write
    unfused = LAUNCH * (len(users) + 1)
    unfused += max(compute_ticks(flops, _flops_per_ns(running, model.gpu)), memory)
    fused = LAUNCH * len(users) + (write if is_multi_output else 0)
    for user in users:
        into = model.kernel(user)
        share = model.cost_of(into).operands[places_in(into)[producer]].utilization
        total = round_half_up(to_f32(written * share))
        unfused += model.memory.cached_read_ticks(min(written, total), total, running.blocks)
        there = running_2024(model.plan_of(into, of), model.gpu)
        computing = compute_ticks(to_f32(flops * share), _flops_per_ns(there, model.gpu))
        fused += max(computing, _reading(of, into, share, there, model))
    return FusionTimes(unfused / TICKS_PER_S, fused / TICKS_PER_S)


def _reading(
    of: Kernel, into: Kernel, share: float, running: Running, model: PerformanceModel
) -> int:
    """Returns the time to read a producer's operands, less what the user reads anyway."""
    reads, places = model.cost_of(of).operands, places_in(of)
    common = {place: used for place, _, used in shared_operands(of, into)}
    again = model.memory.read_again_ticks
    ticks = taken = 0
    before: tuple[int, float, float] | None = None
    for operand in of.instruction.operands:
        place = places[operand]
        read = reads[place]
        left = share - common[place] if place in common else share
        if left:
            asked = read.bytes_read, read.utilization, left
            if asked != before:  # most are alike
                before, taken = asked, again(*asked, running.blocks)
            ticks += taken
    return ticks


def _flops_per_ns(running: Running, gpu: GpuDescription) -> int:
    """Returns how fast a kernel computes: a unit does a whole number of operations."""
    return int(to_f32(gpu.clock_ghz) * 2) * running.units
