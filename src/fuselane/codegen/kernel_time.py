"""How long a kernel takes, from its program and the layout of its work."""

from __future__ import annotations

import math

from fuselane.analysis.machine_costs import MachineCosts
from fuselane.codegen.plan import Plan
from fuselane.device import DeviceDescription
from fuselane.lanes.program import ElementKind, LaneProgram


def estimate_kernel_step_us(
    program: LaneProgram, plan: Plan, costs: MachineCosts, device: DeviceDescription
) -> float:
    """Returns a kernel's time for one step of all lanes, in microseconds."""
    if not program.has_lanes:
        return (plan.lane_ops + plan.uniform_ops) * costs.kernel_scalar_us
    threads = _num_threads(plan, device)
    tiles = math.ceil(plan.num_tiles / threads)
    registers = max(1.0, device.num_vector_registers / plan.vectors_in_registers)
    vectors = plan.tile_vectors * registers
    per_tile = vectors * plan.lane_ops * costs.kernel_operation_us
    return tiles * (per_tile + plan.uniform_ops * costs.kernel_scalar_us)


def estimate_kernel_call_us(
    program: LaneProgram, plan: Plan, costs: MachineCosts, device: DeviceDescription
) -> float:
    """Returns what one call of a kernel takes besides its steps: the call, state in and out."""
    moved = sum(
        element.shape.byte_size
        for element in program.loop.elements
        if element.kind is ElementKind.STATE
    )
    wake = costs.wake_us if _num_threads(plan, device) > 1 else 0.0
    return costs.call_us + wake + 2 * moved / costs.memory_bytes_per_us


def _num_threads(plan: Plan, device: DeviceDescription) -> int:
    return min(plan.num_tiles, device.num_cores) if plan.parallel else 1
