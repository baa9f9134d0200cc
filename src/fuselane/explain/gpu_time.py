"""How long a GPU takes for a kernel, by the model XLA:GPU fuses by.

A kernel computes and moves memory at once, up to a small part. Computing takes its operations at
the rate of as many units as its blocks and threads occupy; reading takes each operand from memory
once and from caches after that; writing goes to memory. Tables of operations are those of sm_90.

Source: XLA service/gpu/model/gpu_performance_model_base.cc and hlo_op_profiles_data.h.
"""

from __future__ import annotations

from typing import Final

from fuselane.analysis.fusion_runs import count_runs
from fuselane.analysis.gpu_time import XLA_LAUNCH_US
from fuselane.analysis.hlo_cost import HloCost, compute_cost, parameter_bytes
from fuselane.analysis.opcodes import ELEMENTWISE_OPCODES
from fuselane.gpu import GpuDescription
from fuselane.hlo.instruction import HloInstruction
from fuselane.xla.captured import KernelUsage

_OVERLAP: Final = 0.95
_L2_SPEEDUP: Final = 2.5
_L1_SPEEDUP: Final = 8.0
_L1_BYTES: Final = 2048
_BYTES_PER_CLOCK: Final = 32
_BLOCK_THREADS: Final = 128
_OPERATIONS: Final = {
    "add": 7.0,
    "cosine": 958.0,
    "divide": 19.0,
    "exponential": 79.0,
    "log": 166.0,
    "multiply": 3.0,
    "power": 510.0,
    "sine": 958.0,
    "sqrt": 75.0,
    "tanh": 467.0,
}
"""Cycles that XLA counts as operations, for one element in f32."""
_DEFAULT_OPERATIONS: Final = 3.0
_CONCATENATE: Final = 6.0


def count_operations_of(opcode: str) -> float:
    """Returns what XLA counts for one element of an elementwise instruction, in operations."""
    return _OPERATIONS.get(opcode, _DEFAULT_OPERATIONS)


def estimate_kernel_us(
    kernel: HloInstruction, gpu: GpuDescription, usage: KernelUsage | None
) -> float:
    """Returns the modelled time of one launch in microseconds, its overhead included.

    Args:
        kernel: What the kernel computes.
        gpu: Where it runs.
        usage: Its blocks and threads, or None where XLA does not tell: one element per thread.
    """
    cost = compute_cost(kernel)
    elements = kernel.shape.num_elements if kernel.shape.is_array else 1
    threads = usage.block_threads if usage and usage.block_threads else _BLOCK_THREADS
    blocks = usage.num_blocks if usage and usage.num_blocks else -(-elements // threads)
    compute = _compute_us(_count_operations(kernel, cost), blocks, threads, gpu)
    memory = _read_us(kernel, cost, blocks, gpu)
    memory += cost.bytes_written / gpu.memory_bytes_per_s * 1e6
    return XLA_LAUNCH_US + compute + memory - _OVERLAP * min(compute, memory)


def _compute_us(operations: float, blocks: int, threads: int, gpu: GpuDescription) -> float:
    units = min(blocks, gpu.num_multiprocessors) * min(threads, gpu.fp32_units)
    return operations / (gpu.clock_ghz * 2 * max(1, units)) / 1e3


def _read_us(kernel: HloInstruction, cost: HloCost, blocks: int, gpu: GpuDescription) -> float:
    limit = blocks * gpu.clock_ghz * 1e9 * _BYTES_PER_CLOCK
    if kernel.opcode != "fusion":
        return cost.bytes_read / min(gpu.memory_bytes_per_s, limit) * 1e6
    time = 0.0
    for parameter in kernel.called_computations[0].parameters:
        total = parameter_bytes(parameter)
        net = min(total, parameter.shape.byte_size)
        rate = float(gpu.memory_bytes_per_s)
        time += net / min(rate, limit)
        if net < gpu.l2_bytes:
            rate *= _L2_SPEEDUP
            rate *= _L1_SPEEDUP if net < _L1_BYTES * gpu.num_multiprocessors else 1
        time += (total - net) / min(rate, limit)
    return time * 1e6


def _count_operations(kernel: HloInstruction, cost: HloCost) -> float:
    """Returns XLA's operations: what a fusion computes several times counts as often."""
    if kernel.opcode != "fusion":
        return max(cost.flops, cost.transcendentals * _DEFAULT_OPERATIONS)
    runs = count_runs(kernel.called_computations[0])
    total = 0.0
    for member, times in runs.items():
        opcode = member.opcode
        if opcode in ELEMENTWISE_OPCODES:
            total += times * count_operations_of(opcode)
        elif opcode == "concatenate":
            total += times * _CONCATENATE
        elif opcode not in ("fusion", "parameter"):
            inner = compute_cost(member)
            share = times / max(1, member.shape.num_elements) if member.shape.is_array else 1
            total += inner.flops * _DEFAULT_OPERATIONS * share
    return total
