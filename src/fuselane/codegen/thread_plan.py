"""How a kernel for a GPU lays out its work: lanes of a thread, threads of a block, shared memory.

    registers    what the lanes of a thread need at once; what does not fit is spilled
    residency    the warps that a multiprocessor can have at once with so many registers and so much
                 shared memory
    time         the longer of a chain of instructions and what all resident warps issue, for as
                 many waves of warps as there are; see `analysis.gpu_time`

Of several layouts the one that takes least by estimate is chosen. One lane in a thread makes the
most threads, and they hide what instructions wait for. But each thread works out for itself what
all lanes share, random keys for example: where there are warps enough to keep the schedulers busy,
two or four lanes in a thread do that a half or a quarter as often. Lanes of a thread are neighbours
and entries of one vector, as on a CPU, and their instructions wait for each other's in no way.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from fuselane.analysis.gpu_time import Traffic, estimate_thread_step_us, is_half_rotation
from fuselane.codegen.own_arrays import OwnArray, find_own_arrays
from fuselane.codegen.plan import GpuLayout, Plan, Work, max_unrolled_for, measure
from fuselane.codegen.products import find_products
from fuselane.codegen.reading_ahead import NOTHING_AHEAD, ReadAhead, find_reads_ahead
from fuselane.codegen.stream_rows import StreamRow, find_rows
from fuselane.codegen.vector_time import VectorBlock, VectorUnit
from fuselane.codegen.warps import row_bytes
from fuselane.config import Options
from fuselane.gpu import KIB, WARP_LANES, GpuDescription
from fuselane.lanes.program import ElementKind, LaneProgram

_MAX_BLOCK_THREADS: Final = 128

_VALUE_REGISTERS: Final = 200
"""Registers of a thread that hold values, of 255; others hold addresses, and what lanes share. In a
block of 512 threads each has half of them."""

_REGISTER_BYTES: Final = 4
_OTHER_REGISTERS: Final = 24
_REGISTER_STEPS: Final = (8, 16, 24, 32, 48, 64, 96, 128, 160, _VALUE_REGISTERS)
"""Registers that are tried for values, to find out how many they need."""

_SPILLED: Final = 4.0
"""Instructions that a value in local memory takes per step: it is stored and loaded again."""

_THREAD_REGISTERS: Final = 128
"""Registers for values while loops over arrays are laid out; with more, few threads would run."""

_MAX_SHARED_BYTES: Final = 48 * KIB
"""Shared memory that a block has without asking for more (CUDA C++ Programming Guide)."""

MAX_COMMON_BYTES: Final = _MAX_SHARED_BYTES - 8 * WARP_LANES
"""What is left of it for what lanes see of each other, beside what warps leave for each other."""

_MAX_MEETING_THREADS: Final = 512
"""Threads of a block whose lanes meet: each may then have 128 registers."""

_LANES: Final = (1, 2, 4)
_MIN_FASTER: Final = 1.07
"""Estimated gain for which rows are staged or read ahead and arrays shared: estimates are no
better than that."""

_MAX_STEPS_AHEAD: Final = 8
_MAX_OPS_AT_ONCE: Final = 1024
"""Steps of an iteration that reads for all steps of the next one, and operations of a lane in them:
code gets as many times as long."""

_HELD_AHEAD: Final = 2
"""Registers for an element that is read ahead: an iteration's are there until it has used them, and
those of the next are on their way."""

_MIN_FASTER_LANES: Final = 1.25
"""Estimated gain for which a thread has two lanes; squared for four. They take twice the registers,
and half as many again where sines have their rare branch: CartPole, which would gain 9 to 21%,
takes 40 to 60 with one lane, and 64 to 86 with two, some of them with spills (ptxas 12.9)."""


def make_thread_plan(
    program: LaneProgram, gpu: GpuDescription, options: Options | None = None
) -> Plan:
    """Chooses the layout for a GPU: a thread runs one lane or a few, with their state in registers.

    Lanes that meet have to be in one block, so there a thread runs several if they are many.

    Args:
        program: What the kernel computes.
        gpu: What it is launched on.
        options: `unroll` is how many lanes a thread is to run, where it can have several at once.
    """
    work = measure(program, is_half_rotation)
    unit = VectorUnit(
        lanes=1,
        bits=32,
        registers=_VALUE_REGISTERS,
        max_unrolled=max_unrolled_for(program, work),
    )
    block = VectorBlock(program, program.loop.instruction.body, unit)
    rows = tuple(find_rows(program, unit.max_unrolled))
    find = functools.cache(functools.partial(find_reads_ahead, program, unit.max_unrolled))
    unroll = None if options is None else options.unroll
    best: Plan | None = None
    least = math.inf
    for lanes in _candidates(program, work, unroll):
        plain = _layout(program, work, unit, block, gpu, lanes)
        arrays = list(find_own_arrays(program, lanes, unit.max_unrolled))
        layouts = [plain, *_with_rows_staged(plain, rows)]
        if not program.meetings and not find_products(program):
            layouts += [shared for plan in layouts for shared in with_arrays_shared(plan, arrays)]
        layouts += [
            ahead
            for plan in layouts
            if plan.gpu is not None
            for ahead in with_reads_ahead(program, plan, gpu, find(plan.gpu.staged))
        ]
        for plan in layouts:
            assert plan.gpu is not None
            changes = bool(plan.gpu.staged) + bool(plan.gpu.arrays) + bool(plan.gpu.ahead.reads)
            factor = _MIN_FASTER**changes * _MIN_FASTER_LANES ** math.log2(lanes)
            time = thread_step_us(program, plan, gpu) * factor
            if time < least:
                best, least = plan, time
    assert best is not None, "there is a candidate"
    return best


def thread_step_us(program: LaneProgram, plan: Plan, gpu: GpuDescription) -> float:
    """Returns a kernel's time for one step, in microseconds, by estimate."""
    layout = plan.gpu
    assert layout is not None, "a plan of `make_thread_plan`"
    rows = list(find_rows(program, plan.max_unrolled))
    staged_ops = sum(row.staged_ops for row in rows if row.index in layout.staged)
    spilled = _SPILLED * layout.spilled
    chain = plan.tile_vectors * plan.lane_ops + plan.uniform_ops + spilled + staged_ops
    more = (plan.width - 1) * plan.lane_ops
    occupancy = gpu.occupancy(layout.block_threads, layout.registers, layout.shared_bytes)
    read_bytes, written_bytes = _count_moved(program)
    spilled_bytes, spilled_cycles = _spill_traffic(plan.num_tiles, layout.spilled, occupancy, gpu)
    row_cycles = sum(
        row.staged_cycles if row.index in layout.staged else row.direct_cycles(plan.width)
        for row in rows
    )
    return estimate_thread_step_us(
        chain + more,
        plan.num_tiles,
        gpu,
        chain_ops=chain,
        occupancy=occupancy,
        num_meetings=len(program.meetings),
        traffic=Traffic(
            read_bytes=read_bytes + spilled_bytes,
            written_bytes=written_bytes,
            path_cycles=row_cycles + spilled_cycles + _array_cycles(program, plan, gpu, occupancy),
            steps_ahead=layout.ahead.steps if layout.ahead.reads else 0,
        ),
    )


def _array_cycles(program: LaneProgram, plan: Plan, gpu: GpuDescription, occupancy: float) -> float:
    """Returns for how long a warp keeps L1, or L2 if that has no room for all resident threads, or
    shared memory with what its lanes pick from arrays."""
    assert plan.gpu is not None, "a plan of `make_thread_plan`"
    arrays = list(find_own_arrays(program, plan.width, plan.max_unrolled))
    direct = [array for array in arrays if array.index not in plan.gpu.arrays]
    num_bytes = plan.width * sum(array.num_bytes for array in direct)
    resident = min(occupancy * gpu.max_threads, plan.num_tiles / gpu.num_multiprocessors)
    times = 1 if num_bytes * resident <= gpu.shared_bytes else 2
    return plan.width * sum(
        array.shared_cycles if array.index in plan.gpu.arrays else times * array.direct_cycles
        for array in arrays
    )


def _spill_traffic(
    num_threads: int, spilled: float, occupancy: float, gpu: GpuDescription
) -> tuple[float, float]:
    """Returns the bytes of spills that a step moves between the L2 cache and memory, and for how
    many cycles they hold a warp's path to L1, or to L2 if that has no room for all.

    Every value is stored and loaded again. Room is for what the resident threads have spilled.
    """
    part = spilled * _REGISTER_BYTES
    resident = min(occupancy * gpu.max_threads, num_threads / gpu.num_multiprocessors)
    is_in_l2 = part * resident * gpu.num_multiprocessors <= gpu.l2_bytes
    cycles = 2 * spilled * (1 if part * resident <= gpu.shared_bytes else 2)
    return 0.0 if is_in_l2 else 2 * part * num_threads, cycles


def choose_block_threads(num_threads: int, gpu: GpuDescription) -> int:
    """Returns the threads of a block: whole warps, as many as leave no multiprocessor idle."""
    block_threads = _MAX_BLOCK_THREADS
    while block_threads > WARP_LANES and num_threads < block_threads * gpu.num_multiprocessors:
        block_threads //= 2
    return block_threads


def _candidates(program: LaneProgram, work: Work, unroll: int | None) -> Sequence[int]:
    """Returns how many lanes a thread may have at once.

    One, where lanes meet or leave the loop one by one, or where dots have code of their own.
    """
    if program.meetings or work.dot_ops or find_products(program):
        return (1,)
    if unroll is not None:
        return (unroll,)
    if program.loop.lane_condition is not None:
        return (1,)
    return [lanes for lanes in _LANES if program.num_lanes % lanes == 0]


def _layout(
    program: LaneProgram,
    work: Work,
    unit: VectorUnit,
    block: VectorBlock,
    gpu: GpuDescription,
    lanes: int,
) -> Plan:
    """Returns the plan for a number of lanes of a thread, rows as they lie."""
    num_threads = math.ceil(program.num_lanes / lanes)
    block_threads = choose_block_threads(num_threads, gpu)
    if program.meetings:
        num_threads = min(num_threads, _MAX_MEETING_THREADS)
        block_threads = math.ceil(num_threads / WARP_LANES) * WARP_LANES
    most = min(_VALUE_REGISTERS, gpu.registers // block_threads - _OTHER_REGISTERS)
    steps = (registers for registers in _REGISTER_STEPS if registers < most)
    values = next((r for r in steps if not block.count_spills(r / lanes)), most)
    return Plan(
        width=lanes,
        vector_lanes=1,
        tile_vectors=math.ceil(program.num_lanes / (lanes * num_threads)),
        num_tiles=num_threads,
        is_interleaved=lanes == 1,
        max_unrolled=unit.max_unrolled,
        vectors_in_registers=max(1, _THREAD_REGISTERS // lanes),
        parallel=True,
        lane_ops=work.lane_ops,
        uniform_ops=work.uniform_ops,
        gpu=GpuLayout(
            block_threads=block_threads,
            registers=values + _OTHER_REGISTERS,
            spilled=lanes * block.count_spills(values / lanes),
        ),
    )


def _with_rows_staged(plan: Plan, rows: Sequence[StreamRow]) -> Iterator[Plan]:
    """Yields the plan with those rows staged that are moved sooner so, if there are any."""
    if plan.tile_lanes > 1:
        return
    sooner = [row for row in rows if row.can_be_staged and row.staged_cycles < row.direct_cycles()]
    if sooner:
        yield with_staged(plan, sooner)


def with_staged(plan: Plan, rows: Sequence[StreamRow]) -> Plan:
    """Returns a plan of one lane in a thread with those rows staged."""
    assert plan.gpu is not None, "a plan of `make_thread_plan`"
    layout = replace(
        plan.gpu,
        staged=frozenset(row.index for row in rows),
        row_bytes=max(row_bytes(row.length, row.element_bytes) for row in rows),
        ahead=NOTHING_AHEAD,
    )
    return replace(plan, gpu=layout)


def with_arrays_shared(plan: Plan, arrays: Sequence[OwnArray]) -> Iterator[Plan]:
    """Yields the plan with those arrays in shared memory, if a block has room for them."""
    assert plan.gpu is not None, "a plan of `make_thread_plan`"
    if not arrays:
        return
    layout = replace(
        plan.gpu,
        arrays=frozenset(array.index for array in arrays),
        array_bytes=plan.width * sum(array.num_bytes for array in arrays),
    )
    while layout.shared_bytes > _MAX_SHARED_BYTES and layout.block_threads > WARP_LANES:
        layout = replace(layout, block_threads=layout.block_threads // 2)
    if layout.shared_bytes <= _MAX_SHARED_BYTES:
        yield replace(plan, gpu=layout)


def with_reads_ahead(
    program: LaneProgram, plan: Plan, gpu: GpuDescription, ahead: ReadAhead
) -> Iterator[Plan]:
    """Yields the plan with rows read some steps ahead, if there are any and registers for them."""
    assert plan.gpu is not None, "a plan of `make_thread_plan`"
    if plan.tile_vectors > 1 or find_products(program):
        return
    most = min(_VALUE_REGISTERS + _OTHER_REGISTERS, gpu.registers // plan.gpu.block_threads)
    trips = program.loop.trip_count or 0
    for steps in range(1, _MAX_STEPS_AHEAD + 1):
        several = replace(ahead, steps=steps)
        num_elements = several.count_elements(program)
        registers = plan.gpu.registers + _HELD_AHEAD * plan.width * num_elements
        is_short = steps == 1 or steps * plan.lane_ops <= _MAX_OPS_AT_ONCE
        if ahead.reads and is_short and trips % steps == 0 and registers <= most:
            yield replace(plan, gpu=replace(plan.gpu, ahead=several, registers=registers))


def _count_moved(program: LaneProgram) -> tuple[float, float]:
    """Returns the bytes of streams that a step of all lanes reads, and those that it writes, if its
    steps are counted."""
    loop = program.loop
    if not loop.trip_count:
        return 0.0, 0.0
    written = sum(e.shape.byte_size for e in loop.elements if e.kind is ElementKind.STREAM)
    read = 0.0
    for own in loop.instruction.body.parameters[0].users:
        element = loop.elements[own.tuple_index]
        if element.kind is ElementKind.INVARIANT and element.lane_dimension is not None:
            slices = [user for user in own.users if user.opcode == "dynamic-slice"]
            read += sum(piece.shape.byte_size for piece in slices)
    return read, written / loop.trip_count
