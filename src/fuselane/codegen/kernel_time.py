"""How long a kernel takes, from its program and the layout of its work."""

from __future__ import annotations

import math
from typing import Final

from fuselane.analysis.cost import instruction_cost
from fuselane.analysis.machine_costs import CACHED_BYTES, MachineCosts
from fuselane.codegen.packing import MAX_PACKED_BYTES, count_weight_bytes
from fuselane.codegen.plan import Plan
from fuselane.codegen.row_accesses import count_row_accesses
from fuselane.codegen.scalar_time import estimate_shared_us, estimate_waiting_us
from fuselane.codegen.schedule import inner_runs
from fuselane.codegen.sweeps import count_passed_bytes
from fuselane.codegen.vector_timing import PRODUCT
from fuselane.device import DeviceDescription
from fuselane.hlo.computation import HloComputation
from fuselane.hlo.indexed import update_of
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.shape import Shape
from fuselane.lanes.program import ElementKind, LaneProgram, LoopElement

_LOADING: Final = 0.3
"""Cycles that a product of a dot takes longer where most need loads of their own, and a register
goes once through the units that compute."""

_TURNING: Final = 0.75
"""Cycles in which an element of a row is loaded or stored, transposed; see `codegen.rows`."""

_LONG_RUN: Final = 8

_LEAPING: Final = 12.0
"""Cycles that it takes longer to load or store lanes if the next ones are in another row, so that
no prefetcher follows and pages change."""

_FEW_ROWS: Final = 16

_APART: Final = 8.0
"""Cycles in which a vector is put together, or taken apart, of lanes that are no neighbours: one
load and one shuffle for each. Measured on tables of a lane's own, one element at a time."""

_CLASHING: Final = 3.0
"""How much longer that takes where lanes are whole pages apart, so that all compete for one set of
the cache."""

_PAGE_BYTES: Final = 4096


def estimate_kernel_step_us(
    program: LaneProgram, plan: Plan, costs: MachineCosts, device: DeviceDescription
) -> float:
    """Returns a kernel's time for one step of all lanes, in microseconds."""
    body = program.loop.instruction.body
    cycles = plan.block_cycles + _gathering_cycles(program, plan)
    weight_bytes = count_weight_bytes(program)
    are_packed = weight_bytes <= MAX_PACKED_BYTES
    loading_us = _loading_us(program, plan, body, costs, are_packed=are_packed)
    per_block = cycles * costs.kernel_cycle_us + loading_us
    per_tile = estimate_shared_us(program, plan, body, costs)
    if weight_bytes > CACHED_BYTES:  # else they stay near the core that needs them in each step
        per_tile += costs.moving_us(weight_bytes, weight_bytes)
    threads = _num_threads(plan, device)
    tiles = math.ceil(plan.num_tiles / threads)
    traffic = _traffic(program, plan, costs) + _scratch_traffic(program, plan, costs)
    step = tiles * (plan.tile_vectors * per_block + per_tile) + traffic / threads
    if not program.meetings:
        return step
    step += _passing_us(program, costs)
    # No other tile fills the time in which lanes that meet wait for each other.
    return max(step, estimate_waiting_us(program, plan, body, costs))


def estimate_kernel_call_us(
    program: LaneProgram, plan: Plan, costs: MachineCosts, device: DeviceDescription
) -> float:
    """Returns what one call of a kernel takes besides its steps: the call, state in and out, and
    rows that are turned round.

    Other threads are woken besides, but not where nobody knows how long the loop runs: the caller
    takes tiles meanwhile, and may be done before they are there.
    """
    states = [e for e in program.loop.elements if e.kind is ElementKind.STATE]
    moved = sum(_state_bytes(element, plan) for element in states)
    apart = sum(e.shape.num_elements for e in states if _lies_apart(e))
    threads = _num_threads(plan, device)
    is_long = threads > 1 and program.trip_count is not None
    wake = costs.wake_us if is_long else 0.0
    rows = [program.loop.elements[index].shape for index in plan.staged]
    turning = sum(shape.num_elements for shape in rows) * _TURNING
    turning += 2 * apart / plan.vector_lanes * _APART
    turning_us = turning * costs.kernel_cycle_us
    num_bytes = sum(shape.byte_size for shape in rows)
    turning_us += costs.moving_us(2 * num_bytes, num_bytes)
    moving_us = costs.moving_us(2 * moved, moved)
    return costs.kernel_call_us + wake + moving_us + turning_us / threads


def estimate_straight_us(
    program: LaneProgram, plan: Plan, costs: MachineCosts, device: DeviceDescription
) -> float:
    """Returns the time of a call of a kernel of straight-line code, which reads each input and
    writes each result once, in microseconds.

    Results count twice: their memory is new, and fetched before it is written. XLA puts a result
    where an operand was that nothing else needs.
    """
    work = estimate_kernel_step_us(program, plan, costs, device)
    threads = _num_threads(plan, device)
    shapes = program.loop.instruction.shape.tuple_shapes
    read = [(p.shape, program.lane_dimensions[p], _share_read(program, p)) for p in program.inputs]
    written = []
    for output in program.outputs:
        element = program.loop.elements[output.tuple_index]
        if not element.combiner:
            written.append((shapes[output.tuple_index], element.lane_dimension, 1.0))
    arrays = read + written
    moved = sum(shape.byte_size * share for shape, _, share in [*arrays, *written])
    turned = sum(s.num_elements * share for s, lane, share in arrays if is_in_rows(s, lane))
    turning_us = turned * _TURNING * costs.kernel_cycle_us
    leaps = sum(s.num_elements * share for s, lane, share in arrays if is_leaping(s, lane, share))
    leaping_us = leaps / plan.vector_lanes * _LEAPING * costs.kernel_cycle_us
    wake = costs.wake_us if threads > 1 else 0.0
    moving_us = costs.moving_us(moved, moved) + turning_us + leaping_us
    return work + moving_us / threads + costs.kernel_call_us + wake


def _share_read(program: LaneProgram, parameter: HloInstruction) -> float:
    """Returns how much of an input straight-line code reads, which may take slices of it only,
    beside what is part of `_traffic`."""
    operands = program.loop.instruction.operands[0].operands
    if program.lane_dimensions[parameter] is None or parameter not in operands:
        return 1.0
    element = program.loop.elements[operands.index(parameter)]
    read, size = _rows_read(program, element)
    if not read:
        return 1.0  # what gathers read is not counted
    return 0.0 if _is_far_apart(read, size) else min(1.0, read / size)


def _rows_read(program: LaneProgram, element: LoopElement) -> tuple[float, float]:
    """Returns how many elements of a lane a step reads of an array, and how many there are."""
    size = element.shape.num_elements / program.num_lanes
    return count_row_accesses(program, element.index), size


def _is_far_apart(read: float, size: float) -> bool:
    """Whether what a step reads of an array's elements are few of them."""
    return _FEW_ROWS * read <= size


def is_in_rows(shape: Shape, lane: int | None) -> bool:
    """Whether the elements of a lane are many neighbours in memory."""
    return lane is not None and shape.strides[lane] >= _LONG_RUN


def is_leaping(shape: Shape, lane: int | None, share: float) -> bool:
    """Whether a lane goes through many rows, in each of which the lanes are neighbours, of that
    share of an array."""
    if lane is None or shape.strides[lane] >= _LONG_RUN:
        return False
    rows = shape.num_elements // shape.dimensions[lane] // shape.strides[lane]
    return rows * share > _FEW_ROWS


def _num_threads(plan: Plan, device: DeviceDescription) -> int:
    return min(plan.num_tiles, device.num_cores) if plan.parallel else 1


def _gathering_cycles(program: LaneProgram, plan: Plan) -> float:
    """Returns the cycles of a block's accesses to lanes that are no neighbours, per step."""
    if plan.vector_lanes == 1:
        return 0.0
    operands = program.loop.instruction.operands[0].operands
    cycles = 0.0
    for element in program.loop.elements:
        lane, shape = element.lane_dimension, operands[element.index].shape
        if element.kind is ElementKind.STATE or element.index in plan.staged or lane is None:
            continue
        if element.combiner:  # in memory there are sums only
            continue
        distance = shape.strides[lane]
        if distance == 1 or (element.kind is ElementKind.INVARIANT and distance < _LONG_RUN):
            continue
        one = _APART
        if distance * shape.element_type.byte_size % _PAGE_BYTES == 0:
            one *= _CLASHING
        cycles += one * count_row_accesses(program, element.index)
    return cycles * plan.width / plan.vector_lanes


def _loading_us(
    program: LaneProgram,
    plan: Plan,
    computation: HloComputation,
    costs: MachineCosts,
    *,
    are_packed: bool,
) -> float:
    """Returns what products of dots that load both of their factors take besides, per block.

    Those do not whose weights are all lanes', if weights lie in the order in which dots need them.
    What is loaded while a register goes through narrow units again takes no time of its own.
    """
    time = 0.0
    for instruction in computation.instructions:
        for inner, times in inner_runs(instruction, program):
            time += times * _loading_us(program, plan, inner, costs, are_packed=are_packed)
        if instruction.opcode == "dot" and not (are_packed and _has_weights(instruction, program)):
            products = instruction_cost(instruction, program.lane_dimensions.get, lambda _: None)
            loading = max(0.0, _LOADING - (math.floor(plan.passes) - 1) * PRODUCT.work)
            time += products * plan.width / plan.vector_lanes * loading * costs.kernel_cycle_us
    return time


def _has_weights(dot: HloInstruction, program: LaneProgram) -> bool:
    """Whether all lanes share an operand of a dot."""
    return any(program.lane_dimensions.get(o) is None for o in dot.operands)


def _traffic(program: LaneProgram, plan: Plan, costs: MachineCosts) -> float:
    """Returns the time to move what streams bring in and take out in a step, and rows that it reads
    of what never changes, on one core.

    A block of lanes goes from row to row, where no prefetcher follows it through memory.
    """
    rows = total = leaps = 0.0
    for element in program.loop.elements:
        # What lanes make together is no longer for each of them.
        together = program.num_lanes if element.combiner else 1
        if element.kind is ElementKind.STREAM and element.shape.dimensions:
            rows += _row_bytes(program, element) / together
            total += element.shape.byte_size / together
        elif element.kind is ElementKind.INVARIANT and element.lane_dimension is not None:
            read, size = _rows_read(program, element)
            if _is_far_apart(read, size):
                rows += element.shape.byte_size * read / size
                total += element.shape.byte_size
                is_far = element.shape.byte_size > CACHED_BYTES
                leaps += read * plan.num_tiles * plan.tile_vectors if is_far else 0.0
    return costs.moving_us(rows, total) + leaps * _LEAPING * costs.kernel_cycle_us


def _row_bytes(program: LaneProgram, element: LoopElement) -> float:
    """Returns how much of a stream a step reads or writes: what it updates, whichever dimension the
    steps go along, or what there is at one place along the first."""
    written = program.loop.instruction.body.root.operands[element.index]
    update = update_of(written)
    if update is not written:
        return update.shape.byte_size
    return element.shape.byte_size / element.shape.dimensions[0]


def _scratch_traffic(program: LaneProgram, plan: Plan, costs: MachineCosts) -> float:
    """Returns the time in which tiles of several vectors read and write their state in a step."""
    if plan.tile_vectors == 1:
        return 0.0
    state = sum(
        _state_bytes(element, plan)
        for element in program.loop.elements
        if element.kind is ElementKind.STATE and element.lane_dimension is not None
    )
    return costs.moving_us(2 * state, state / plan.num_tiles)


def _passing_us(program: LaneProgram, costs: MachineCosts) -> float:
    """Returns the time to write what lanes that meet leave for later phases of a step, and to read
    it again, where that does not stay in a core's caches."""
    left, received = count_passed_bytes(program)
    return costs.moving_us(left + received, left) if left > CACHED_BYTES else 0.0


def _lies_apart(element: LoopElement) -> bool:
    """Whether a state's lanes are no neighbours in memory, from where it is brought in and out."""
    lane = element.lane_dimension
    return lane is not None and not element.combiner and element.shape.strides[lane] > 1


def _state_bytes(element: LoopElement, plan: Plan) -> int:
    """Returns the size of a state; what lanes make together is a row for each tile."""
    if not element.combiner or element.lane_dimension is None:
        return element.shape.byte_size
    rows = element.shape.dimensions[element.lane_dimension]
    return element.shape.byte_size // rows * plan.num_tiles
