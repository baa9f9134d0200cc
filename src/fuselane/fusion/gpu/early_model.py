"""What fusing one producer gains on a GPU, by the model XLA had from 2022-11 on.

    unfused = (n + 1) launches + max(computation, memory) of P + n reads of what P wrote
    fused   = n launches + n times max(computation, memory) of P, each as often as it is asked for

Source: xla/service/gpu/gpu_performance_model.cc of 2023-01.
Operations are counted as XLA counts them today (section 3.9), not by that year's table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, final

from fuselane.fusion.gpu.durations import LAUNCH, TICKS_PER_S
from fuselane.fusion.gpu.kernel import Kernel, places_in, shared_operands
from fuselane.fusion.gpu.kernel_cost import KernelCost
from fuselane.fusion.gpu.model import PerformanceModel
from fuselane.fusion.opcodes import leaf_shapes
from fuselane.gpu import GpuDescription
from fuselane.hlo.instruction import HloInstruction

_LAUNCH_S: Final = LAUNCH / TICKS_PER_S
_L2_SPEEDUP: Final = 2.5
_L1_SPEEDUP: Final = 8.0
_L1_BYTES: Final = 2 * 1024


@final
@dataclass(frozen=True, slots=True)
class FusionTimes:
    """Times in seconds, of a producer and of what its users do because of it.

    Attributes:
        unfused: As a kernel of its own.
        fused: Inside of its users.
    """

    unfused: float
    fused: float


class ComputeTimes(Protocol):
    """What tells how long a producer takes, by one year's model; see `compute_times`."""

    def __call__(
        self,
        producer: HloInstruction,
        users: Sequence[HloInstruction],
        model: PerformanceModel,
        *,
        is_multi_output: bool = False,
    ) -> FusionTimes: ...


def compute_times(
    producer: HloInstruction,
    users: Sequence[HloInstruction],
    model: PerformanceModel,
    *,
    is_multi_output: bool = False,
) -> FusionTimes:
    """Returns what a producer costs alone and inside of users of it.

    Args:
        producer: Any instruction.
        users: Those it would be fused into.
        model: Knows and remembers what instructions compute and read.
        is_multi_output: Whether the fused kernel writes the producer's result as well.
    """
    gpu = model.gpu
    kernel = model.kernel(producer)
    cost = model.cost_of(kernel)
    size = producer.shape.byte_size
    write = cost.bytes_written / gpu.memory_bytes_per_s
    elements = sum(leaf.num_elements for leaf in leaf_shapes(producer.shape))
    reading = _reading(kernel, cost, 1.0, {}, gpu)
    unfused = _LAUNCH_S * (len(users) + 1) + max(
        _compute(cost.flops, elements, gpu), reading + write
    )
    fused = _LAUNCH_S * len(users) + (write if is_multi_output else 0.0)
    for user in users:
        into = model.kernel(user)
        share = model.cost_of(into).operands[places_in(into)[producer]].utilization
        shared = shared_operands(kernel, into)
        unfused += _read(size, round(size * share), gpu)
        computing = _compute(cost.flops * share, elements * share, gpu)
        reading_there = reading
        if shared or share != 1.0:
            common = {place: used for place, _, used in shared}
            reading_there = _reading(kernel, cost, share, common, gpu)
        fused += max(computing, reading_there)
    return FusionTimes(unfused, fused)


def _reading(
    kernel: Kernel,
    cost: KernelCost,
    share: float,
    common: Mapping[int, float],
    gpu: GpuDescription,
) -> float:
    """Returns the time to read a producer's operands, less what the user reads anyway: how much of
    some of them, by place, is in `common`."""
    reads, places = cost.operands, places_in(kernel)
    seconds = 0.0
    size_before, bytes_before, taken = -1, 0.0, 0.0
    for operand in dict.fromkeys(kernel.instruction.operands):
        place, size = places[operand], operand.shape.byte_size
        num_bytes = reads[place].bytes_read * share
        if place in common:
            num_bytes -= size * common[place]
        if num_bytes > 0:
            if size != size_before or num_bytes != bytes_before:  # most are alike
                size_before, bytes_before = size, num_bytes
                taken = _read(size, round(num_bytes), gpu)
            seconds += taken
    return seconds


def _compute(flops: float, threads: float, gpu: GpuDescription) -> float:
    units = min(max(threads, 1.0), gpu.num_multiprocessors * gpu.fp32_units)
    return flops / (2e9 * gpu.clock_ghz * units)


def _read(net: int, total: int, gpu: GpuDescription) -> float:
    bandwidth = float(gpu.memory_bytes_per_s)
    if net < gpu.l2_bytes:
        bandwidth *= _L2_SPEEDUP
        if net < _L1_BYTES * gpu.num_multiprocessors:
            bandwidth *= _L1_SPEEDUP
    return total / bandwidth
