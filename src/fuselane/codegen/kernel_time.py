"""How long a kernel takes, from its program and the layout of its work."""

from __future__ import annotations

import math
from typing import Final

from fuselane.analysis.cost import OPCODE_COST, UNKNOWN_TRIP_COUNT, instruction_cost
from fuselane.analysis.machine_costs import MachineCosts
from fuselane.codegen.packing import MAX_PACKED_BYTES
from fuselane.codegen.plan import Plan
from fuselane.codegen.schedule import needs_lanes
from fuselane.device import DeviceDescription
from fuselane.hlo.computation import HloComputation
from fuselane.hlo.instruction import HloInstruction
from fuselane.lanes.program import ElementKind, LaneProgram

_CHEAP: Final = 4.0
"""Opcodes of at most this cost are a few independent instructions, others long chains of them."""

_INDEPENDENT: Final = 4
"""Elements of a uniform array from which on its operations do not wait for each other."""

_PRODUCT: Final = 1.35
_LOADED_PRODUCT: Final = 2.2
"""Cheap operations that a product of a dot takes, with weights from a cache and all lanes', and
where most products need loads of their own."""

_SHORT_ROW: Final = 192.0
"""Rows of about so many elements take LLVM's vectors of scalars twice as long, for what is left
over at their ends."""


def estimate_kernel_step_us(
    program: LaneProgram, plan: Plan, costs: MachineCosts, device: DeviceDescription
) -> float:
    """Returns a kernel's time for one step of all lanes, in microseconds."""
    per_vector, per_tile = _measure(program, plan, program.loop.instruction.body, costs)
    threads = _num_threads(plan, device)
    tiles = math.ceil(plan.num_tiles / threads)
    registers = max(1.0, device.num_vector_registers / plan.vectors_in_registers)
    vectors = plan.tile_vectors * registers
    return tiles * (vectors * per_vector + per_tile) + _traffic(program, costs) / threads


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
    return costs.kernel_call_us + wake + costs.moving_us(2 * moved, moved)


def _num_threads(plan: Plan, device: DeviceDescription) -> int:
    return min(plan.num_tiles, device.num_cores) if plan.parallel else 1


def _measure(
    program: LaneProgram, plan: Plan, computation: HloComputation, costs: MachineCosts
) -> tuple[float, float]:
    """Returns the time of one run of a computation for a vector of lanes, and for what all lanes of
    a tile share."""
    per_vector = per_tile = 0.0
    for instruction in computation.instructions:
        if instruction.opcode == "while":
            trips = program.loops[instruction].trip_count
            times = UNKNOWN_TRIP_COUNT if trips is None else trips
            inner = _measure(program, plan, instruction.body, costs)
            per_vector += times * inner[0]
            per_tile += times * inner[1]
        elif instruction.shape.is_array or instruction.opcode in ("reduce", "sort"):
            operations = instruction_cost(instruction, program.lane_dimensions.get, lambda _: None)
            if needs_lanes(instruction, program):
                slowness = _dot_slowness(instruction, program)
                per_vector += slowness * operations * _operation_us(instruction, costs)
            else:
                per_tile += operations * _scalar_operation_us(instruction, plan, costs)
    return per_vector, per_tile


def _dot_slowness(instruction: HloInstruction, program: LaneProgram) -> float:
    """Returns how many cheap operations a product of a dot takes; 1 for other opcodes."""
    if instruction.opcode != "dot":
        return 1.0
    weights = [o.shape for o in instruction.operands if program.lane_dimensions.get(o) is None]
    is_packed = sum(shape.byte_size for shape in weights) <= MAX_PACKED_BYTES
    return _PRODUCT if weights and is_packed else _LOADED_PRODUCT


def _operation_us(instruction: HloInstruction, costs: MachineCosts) -> float:
    is_cheap = OPCODE_COST.get(instruction.opcode, 1.0) <= _CHEAP
    return costs.kernel_operation_us if is_cheap else costs.kernel_function_us


def _scalar_operation_us(instruction: HloInstruction, plan: Plan, costs: MachineCosts) -> float:
    """Returns the time of one operation on one element of a uniform array."""
    if instruction.opcode == "reduce":
        is_long = instruction.operands[0].shape.num_elements > plan.max_unrolled
        return costs.kernel_scalar_us * (0.35 if is_long else 1.0)
    if instruction.opcode in ("dot", "sort"):
        return costs.kernel_scalar_us
    shape = instruction.shape
    if shape.num_elements < _INDEPENDENT:
        return max(costs.kernel_scalar_us, 2 * _operation_us(instruction, costs))
    if shape.num_elements <= plan.max_unrolled:
        return _operation_us(instruction, costs)
    share = 2 * shape.element_type.bits / 256 * (1 + _SHORT_ROW / shape.dimensions[-1])
    return min(share, 4.0) * _operation_us(instruction, costs)


def _traffic(program: LaneProgram, costs: MachineCosts) -> float:
    """Returns the time to move what streams bring in and take out in a step, on one core."""
    rows = total = 0.0
    for element in program.loop.elements:
        if element.kind is ElementKind.STREAM and element.shape.dimensions:
            rows += element.shape.byte_size / element.shape.dimensions[0]
            total += element.shape.byte_size
    return costs.moving_us(rows, total)
