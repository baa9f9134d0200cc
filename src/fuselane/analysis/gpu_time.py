"""How long XLA:GPU and a kernel of ours take for a step of a loop, by rough estimate.

XLA launches every kernel of a loop's body again in each step; for small arrays and short bodies
launching is all it takes. A thread of ours goes on to the next step at once: it is bound by how
fast the schedulers of its multiprocessor issue, or by how long one instruction waits for the one
before. So are the threads of XLA's kernels, which have a thread for every element.

Where XLA has yet to fuse, it is taken to leave as few kernels as it did at best, in which nothing
is computed twice: better a loop too few than one that is slower. It takes 1.2 to 5 times as long as
estimated, and kernels 0.3 to 1.3 times (23 programs on an H100; benchmarks/results).

Source of XLA's side: XLA's `gpu_performance_model_base.h` (bandwidth), with launches at the pace at
which its loops take them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, final

from fuselane.analysis.cost import OPCODE_COST, UNKNOWN_TRIP_COUNT
from fuselane.analysis.opcodes import FREE_OPCODES, LANE_OPCODES
from fuselane.analysis.while_loops import compute_trip_count
from fuselane.gpu import WARP_LANES, GpuDescription
from fuselane.hlo.computation import HloComputation
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.shape import Shape

XLA_LAUNCH_US: Final = 1.0
"""What a launch takes in XLA's model, which sets it against work when it fuses. Reports of
`explain` use it, so that their times can be compared with the prices XLA itself quotes."""

LAUNCH_US: Final = 2.5
"""From the start of one small kernel to that of the next in a loop of XLA's, as loops are chosen:
what a launch takes there, rather than what XLA lets it count for. The least of 20 programs' steps
took 6.0 microseconds, with two kernels or more (H100, 27 November 2026)."""

CALL_US: Final = 5.0
"""What a launch of a long kernel takes besides its work."""

_SCHEDULERS: Final = 4
_LATENCY_CYCLES: Final = 4.0
"""From an instruction to one that needs its result."""

_MEMORY_CYCLES: Final = 900.0
"""From a load of what is in no cache to an instruction that needs it: CartPole with numbers from a
pool on an H100, 27 November 2026."""

_ADDRESSES_CYCLES: Final = 200.0
"""For where an iteration loads from, before it does: as above, iterations of one and ten steps."""

_MEETING_CYCLES: Final = 200.0
_WARP_CYCLES: Final = 8.0
_MAX_BLOCK_WARPS: Final = 32
"""A meeting's shuffles and barriers, and what each warp of the block adds."""

_FUSED_KERNELS: Final = 2
"""Kernels that XLA at least makes of what it can fuse. Where the hook sees bodies they are not
fused yet; of most in the suite XLA made 1 to 12, 3 by median, however long (JAX 0.11.2, H200)."""

_FUSIBLE_OPCODES: Final = LANE_OPCODES - {
    "conditional",
    "dot",
    "reduce",
    "reduce-window",
    "scatter",
    "sort",
    "while",
}

_JOINING: Final = frozenset({"add", "or", "xor"})
_SHIFTS: Final = frozenset({"shift-left", "shift-right-logical"})

_SYNCHRONISING_US: Final = 10.0
"""What the host waits for in each step of a loop whose steps it cannot count: the condition."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """What a step of a kernel reads and writes.

    read_bytes: What all threads read of memory: streams, and spills beyond L2.
    written_bytes: What they write: streams. Nobody waits for it.
    path_cycles: For how long a warp has its multiprocessor's path to memory, for rows (see
        `codegen.stream_rows`) and spills.
    steps_ahead: By how many steps what is read is loaded ahead: threads compute while they wait.
    """

    read_bytes: float = 0.0
    written_bytes: float = 0.0
    path_cycles: float = 0.0
    steps_ahead: int = 0


NO_TRAFFIC: Final = Traffic()


def estimate_launched_step_us(loop: HloInstruction, gpu: GpuDescription) -> float:
    """Returns XLA's time for one iteration of a `while`, nested loops included, in microseconds."""
    body_us = _computation_us(loop.body, gpu)
    if compute_trip_count(loop) is not None:  # then nobody asks for the condition
        return body_us
    return body_us + _computation_us(loop.condition, gpu) + _SYNCHRONISING_US


def _computation_us(computation: HloComputation, gpu: GpuDescription) -> float:
    instructions = [i for i in computation.instructions if i.opcode not in FREE_OPCODES]
    fusible = [i for i in instructions if i.opcode in _FUSIBLE_OPCODES]
    if len(fusible) <= _FUSED_KERNELS or any(i.opcode == "fusion" for i in instructions):
        return sum(_instruction_us(instruction, gpu) for instruction in instructions)
    others = set(instructions).difference(fusible)
    moved = 2 * sum(_written_bytes(value) for value in _changed(computation))
    moved += sum(i.shape.byte_size for i in fusible if i.opcode == "dynamic-slice")
    fused = _FUSED_KERNELS * LAUNCH_US + _arithmetic_us(fusible, gpu)
    fused += moved / gpu.memory_bytes_per_s * 1e6
    return fused + sum(_instruction_us(instruction, gpu) for instruction in others)


def _arithmetic_us(instructions: Sequence[HloInstruction], gpu: GpuDescription) -> float:
    """Returns the time of elementwise work with a thread for each element: the longer of what one
    thread waits for and what all of them issue."""
    costs = [0.0 if is_half_rotation(i) else OPCODE_COST[i.opcode] for i in instructions]
    chain = _LATENCY_CYCLES * sum(costs)
    all_costs = sum(
        cost * instruction.shape.num_elements
        for cost, instruction in zip(costs, instructions, strict=True)
    )
    issued = all_costs / (gpu.fp32_units * gpu.num_multiprocessors)
    return max(chain, issued) / (gpu.clock_ghz * 1e3)


def _changed(computation: HloComputation) -> list[HloInstruction]:
    """Returns the results of a computation that it computes, each once."""
    root = computation.root
    results = dict.fromkeys(root.operands if root.opcode == "tuple" else [root])
    return [value for value in results if value.opcode not in FREE_OPCODES]


def _written_bytes(value: HloInstruction) -> int:
    """Returns the size of an array, or of its part that is not updated in place."""
    is_update = value.opcode == "dynamic-update-slice"
    return (value.operands[1] if is_update else value).shape.byte_size


def _instruction_us(instruction: HloInstruction, gpu: GpuDescription) -> float:
    opcode = instruction.opcode
    if opcode in FREE_OPCODES:
        return 0.0
    if opcode == "while":
        count = compute_trip_count(instruction)
        steps = UNKNOWN_TRIP_COUNT if count is None else count
        return steps * estimate_launched_step_us(instruction, gpu)
    if opcode == "call":
        return _computation_us(instruction.to_apply, gpu)
    if opcode == "conditional":
        branches = [_computation_us(c, gpu) for c in instruction.called_computations]
        return LAUNCH_US + max(branches)
    moved = sum(shape.byte_size for shape in _arrays(instruction))
    return max(LAUNCH_US, moved / gpu.memory_bytes_per_s * 1e6)


def _arrays(instruction: HloInstruction) -> list[Shape]:
    result = instruction.shape
    shapes = [operand.shape for operand in instruction.operands]
    shapes += result.tuple_shapes if result.is_tuple else [result]
    return [shape for shape in shapes if not shape.is_tuple]


def is_half_rotation(instruction: HloInstruction) -> bool:
    """Returns whether an instruction is a shift that is half of a rotation, which GPUs have an
    instruction for: `or(shift-left(x, 13), shift-right-logical(x, 19))`.

    How far both shift is not looked at: generators of random bits do little else with two shifts of
    one value.
    """
    if instruction.opcode not in _SHIFTS or len(instruction.users) != 1:
        return False
    (user,) = instruction.users
    shifts = {operand.opcode: operand for operand in user.operands}
    if user.opcode not in _JOINING or shifts.keys() != _SHIFTS:
        return False
    left, right = shifts.values()
    return left.operands[0] is right.operands[0]


def estimate_thread_step_us(
    thread_ops: float,
    num_threads: int,
    gpu: GpuDescription,
    *,
    chain_ops: float | None = None,
    occupancy: float = 1.0,
    num_meetings: int = 0,
    traffic: Traffic = NO_TRAFFIC,
) -> float:
    """Returns a kernel's time for one step of all threads, in microseconds.

    The longest of: a thread's instructions, each waiting for the one before; the instructions of
    all warps, which take turns; what is read and written. Waiting for memory, and for each other
    where lanes meet, which only one multiprocessor can have at once, comes on top. Warps that do
    not fit a multiprocessor at once come after the others.

    Args:
        thread_ops: Instructions of one step of one thread.
        num_threads: Threads.
        gpu: Where.
        chain_ops: How many of them wait for each other; all by default.
        occupancy: The share of a multiprocessor's warps that it can have at once.
        num_meetings: Reductions over all threads that each of them waits for.
        traffic: What goes through memory and caches.
    """
    multiprocessors = 1 if num_meetings else gpu.num_multiprocessors
    warps = -(-num_threads // WARP_LANES)
    warps_per_scheduler = -(-warps // (_SCHEDULERS * multiprocessors))
    resident = max(1.0, occupancy * gpu.max_threads / (WARP_LANES * _SCHEDULERS))
    at_once = min(float(warps_per_scheduler), resident)
    issue_cycles = WARP_LANES * _SCHEDULERS / gpu.fp32_units
    chain = _LATENCY_CYCLES * (thread_ops if chain_ops is None else chain_ops)
    waves = warps_per_scheduler / max(at_once, 1.0)
    cycles = waves * max(chain, thread_ops * at_once * issue_cycles)
    cycles = max(cycles, traffic.path_cycles * -(-warps // multiprocessors))
    if num_meetings:
        cycles += num_meetings * (_MEETING_CYCLES + _WARP_CYCLES * min(warps, _MAX_BLOCK_WARPS))
    if traffic.read_bytes:
        ahead = traffic.steps_ahead
        if ahead:
            cycles = max(cycles + _ADDRESSES_CYCLES / ahead, _MEMORY_CYCLES / ahead)
        else:
            cycles += _MEMORY_CYCLES
    moving_us = (traffic.read_bytes + traffic.written_bytes) / gpu.memory_bytes_per_s * 1e6
    return max(cycles / (gpu.clock_ghz * 1e3), moving_us)
