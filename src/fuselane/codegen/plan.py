"""How a kernel lays out its work: vector width, lanes per tile, unrolling, threads or not."""

from __future__ import annotations

import math
import operator
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final, final

from fuselane.analysis.cost import instruction_cost
from fuselane.codegen.dots import is_looped_dot
from fuselane.codegen.indexing import residual_size
from fuselane.codegen.made_in_front import find_made_in_front
from fuselane.codegen.products import factor_bytes
from fuselane.codegen.reading_ahead import NOTHING_AHEAD, ReadAhead
from fuselane.codegen.row_accesses import find_rows_to_stage
from fuselane.codegen.schedule import inner_runs, needs_lanes
from fuselane.codegen.sweeps import MAX_ROWS, count_rows
from fuselane.codegen.vector_time import VectorBlock, VectorUnit
from fuselane.config import Options
from fuselane.device import DeviceDescription
from fuselane.gpu import WARP_LANES
from fuselane.hlo.computation import HloComputation
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.shape import PrimitiveType
from fuselane.lanes.program import ElementKind, LaneProgram

SHARED_BITS: Final = 256
"""Of vectors along what all lanes share, whatever the machine: LLVM makes two of one if need be."""

_NARROW_BITS: Final = (8, 16)
_WORD_BITS: Final = 32
_MAX_UNROLLED: Final = 32
_MAX_UNROLLED_SCALARS: Final = 16
_MAX_EMITTED: Final = 6_000
_MAX_EMITTED_LARGE: Final = 1_000
_LARGE: Final = 12
"""Arrays of more elements, where these make up most of so much code, are left to loops. Measured on
Runge-Kutta's stages and Hamiltonian chains of 16 to 30 variables: LLVM needs a third to two thirds
of its time less, and kernels take 0.75 to 1.13 of theirs. At 10 and 12 chains take 1.4 of it."""
_MAX_EMITTED_SCALARS: Final = 2_000
_VECTORS_IN_FLIGHT: Final = MappingProxyType({1: 1.0, 2: 1.04, 4: 1.08, 8: 1.4})
"""How many vectors are worked on at once, and how much faster than one they have to be by estimate:
their code is longer, and takes longer to compile. On 46 programs, measured on AMD Zen 4, what is
chosen so took 1.7% longer than the best, on average. Eight are best where short steps wait."""

_LEAVING: Final = 0.05
"""What a block of twice as many lanes takes longer until the last one leaves the loop, per lane."""

_MASK: Final = 3.0
"""Cycles per vector in which a block of a tile finds out which of its lanes exist, where there are
no registers for masks."""

_FREE_UNIFORM_OPS: Final = 4
_LONG_STEP: Final = 4_000
_UNIFORM_SHARE: Final = 0.04
_TILES_PER_THREAD: Final = 4
_MIN_TILE_VECTORS: Final = 16
_MIN_ROW_LANES: Final = 64
"""Lanes of a stream's row that are worth going there: a few cache lines."""
_PAGE_ELEMENTS: Final = 512  # of 8 bytes, the largest there are
_MIN_PARALLEL_OPS: Final = 200_000
_UNKNOWN_TRIPS: Final = 256
"""Steps a loop is taken to have that nobody has counted. Loops of few lanes are over soon as often
as not, and another thread takes 15 to 40 microseconds to wake on a busy machine."""
_WIDE_UNIT_BITS: Final = 512
_WIDE_UNIT_PASSES: Final = 1.6
"""Such units go through more than loads bring: with matrices of 64 to 256 columns, dots reached
0.58 of the peak of Intel's Emerald Rapids."""
_MIN_DOT_SHARE: Final = 0.3
_VECTORS_PER_DOT: Final = 2
_MAX_UNROLLED_BESIDE_DOTS: Final = 16
_MAX_STAGED_BYTES: Final = 1 << 19
"""What a tile keeps of what never changes: half of what a call has on its stack."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class GpuLayout:
    """How the tiles of a kernel are laid out on a GPU, one for each thread.

    block_threads: Threads of a block: whole warps.
    registers: That a thread needs, by estimate.
    spilled: Values that it stores in a step for want of registers, by estimate.
    staged: Indices of the loop's elements whose rows pass through shared memory.
    row_bytes: Shared memory that a warp has for one of them.
    arrays: Indices of the loop's states that are in shared memory; see `codegen.own_arrays`.
    array_bytes: Shared memory that a thread has for them.
    ahead: What is read a step ahead.
    """

    block_threads: int
    registers: int
    spilled: float
    staged: frozenset[int] = frozenset()
    row_bytes: int = 0
    arrays: frozenset[int] = frozenset()
    array_bytes: int = 0
    ahead: ReadAhead = NOTHING_AHEAD

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block."""
        num_warps = self.block_threads // WARP_LANES
        return num_warps * self.row_bytes + self.block_threads * self.array_bytes


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The layout of a kernel's work.

    width: Lanes in one LLVM vector, which may span several registers; 1 for scalars.
    vector_lanes: Lanes in one register.
    tile_vectors: Vectors in a tile; 1 keeps the state in registers through all steps.
    num_tiles: Tiles that cover all lanes; the last may be partial.
    max_unrolled: The most elements per lane kept in registers.
    vectors_in_registers: How many vectors of this width the machine's registers hold.
    parallel: Whether the work is worth several threads.
    lane_ops: Estimated operations of one step on one vector.
    uniform_ops: Estimated scalar operations of one step that all lanes of a tile share.
    block_cycles: Estimated processor cycles of one step of one block of `width` lanes; 0 for
        scalars.
    passes: What `count_passes` says of its vectors.
    avoids_masks: Whether whole blocks have code without masks, as the processor is slow at them.
    avoids_gathers: Whether each lane's element is loaded on its own, which is as fast.
    has_equal_zeros: Whether -0 is not less than +0 where the processor compares vectors.
    is_interleaved: Whether neighbours among the lanes are in different tiles, so that threads side
        by side work on lanes side by side. Tiles are of lane blocks of one lane then.
    staged: Indices of the loop's elements of which a tile keeps what never changes: rows, turned
        round so that lanes are neighbours, and what the region makes for each lane.
    """

    width: int
    vector_lanes: int
    tile_vectors: int
    num_tiles: int
    max_unrolled: int
    vectors_in_registers: int
    parallel: bool
    lane_ops: float
    uniform_ops: float
    block_cycles: float = 0.0
    passes: float = 1.0
    avoids_masks: bool = False
    avoids_gathers: bool = False
    has_equal_zeros: bool = False
    is_interleaved: bool = False
    staged: frozenset[int] = frozenset()
    gpu: GpuLayout | None = None

    @property
    def shared_bits(self) -> int:
        """Bits of vectors along what all lanes share; a GPU's threads have none."""
        return 0 if self.gpu else SHARED_BITS

    @property
    def tile_lanes(self) -> int:
        """Lanes in a tile."""
        return self.width * self.tile_vectors

    @property
    def pitch(self) -> int:
        """Lanes from one row of a tile's scratch memory to the next.

        One vector more than the tile has, or a register more: rows whole pages apart would compete
        for the same cache sets, and loads from one would wait for stores to another. A GPU's thread
        has no such caches to itself.
        """
        if self.width == 1:
            return self.tile_lanes
        pitch = self.tile_lanes + self.width
        return pitch if pitch % _PAGE_ELEMENTS else pitch + self.vector_lanes

    def numbers(self) -> dict[str, float]:
        """Returns what a decision tells of the layout: that of a GPU's threads, by name."""
        if self.gpu is None:
            return {}
        return {
            "lanes_per_thread": float(self.tile_lanes),
            "block_threads": float(self.gpu.block_threads),
            "registers": float(self.gpu.registers),
            "spilled_values": self.gpu.spilled,
            "staged_streams": float(len(self.gpu.staged)),
            "shared_arrays": float(len(self.gpu.arrays)),
            "reads_ahead": float(len(self.gpu.ahead.reads)),
        }

    def with_smaller_tiles(self, num_lanes: int) -> Plan:
        """Returns the plan for as many lanes with tiles of half as many vectors."""
        tile_vectors = max(1, self.tile_vectors // 2)
        num_tiles = math.ceil(num_lanes / (self.width * tile_vectors))
        return replace(self, tile_vectors=tile_vectors, num_tiles=num_tiles)


_MIN_REGISTER_LANES: Final = 4


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What one step of a loop costs, and the memory it runs on.

    lane_ops, uniform_ops: As in `Plan`.
    dot_ops: Those of `lane_ops` that are products of long dots.
    state_bytes, state_elements: What a lane carries from step to step.
    has_streams: Whether rows of streams are read or written.
    has_partial_streams: Whether the lanes of a tile are combined in every step.
    """

    lane_ops: float
    dot_ops: float
    uniform_ops: float
    state_bytes: int
    state_elements: int
    has_streams: bool
    has_partial_streams: bool


def count_passes(vector_bits: int, unit_bits: int) -> float:
    """Returns how often a vector goes through the units that compute, by how long products take."""
    if unit_bits >= _WIDE_UNIT_BITS:
        return _WIDE_UNIT_PASSES if vector_bits >= _WIDE_UNIT_BITS else 1.0
    return math.ceil(vector_bits / unit_bits)


def make_plan(program: LaneProgram, options: Options, device: DeviceDescription) -> Plan:
    """Chooses the layout for a CPU from estimates of work, registers and caches."""
    work = measure(program)
    if not program.has_lanes:
        return _scalar_plan(program, work, device)
    vector_bits = options.vector_bits or device.vector_bits
    bits = _element_bits(program, vector_bits, has_masks=device.has_masked_memory)
    while not options.vector_bits and _is_half_empty(program.num_lanes, vector_bits // bits):
        vector_bits //= 2
    lanes, passes = vector_bits // bits, count_passes(vector_bits, device.unit_bits)
    in_registers = _fits_registers(work, device) and not program.meetings
    kept = find_rows_to_stage(program, lanes, _MAX_STAGED_BYTES)
    if not (in_registers or program.is_straight):
        kept |= find_made_in_front(program)
    work = replace(work, state_bytes=work.state_bytes + sum(kept.values()))
    trips = program.loop.trip_count
    trips = _UNKNOWN_TRIPS if trips is None else trips
    total = trips * program.num_lanes / lanes * work.lane_ops
    threads = min(device.num_cores, options.threads or device.num_cores)
    if total < _MIN_PARALLEL_OPS:
        threads = 1
    max_unrolled = max_unrolled_for(program, work, keeps_large=False)
    unit = VectorUnit(
        lanes=lanes,
        bits=bits,
        registers=device.num_vector_registers,
        max_unrolled=max_unrolled,
        passes=passes,
    )
    body = program.loop.instruction.body
    block = VectorBlock(program, body, unit, is_tiled=not in_registers)

    def block_cycles(vectors: int) -> float:
        return _block_cycles(
            block, vectors, program, lanes, has_masks=in_registers or device.has_masked_memory
        )

    unroll = options.unroll
    if unroll is None:
        candidates = _candidates(program, work, device, block.code_size(), lanes, threads)
        num_vectors = math.ceil(program.num_lanes / lanes / threads)
        unroll = _vectors_in_flight(candidates, num_vectors, block_cycles)
    width = max(2, lanes * unroll)
    num_vectors = math.ceil(program.num_lanes / width)
    if options.tile_lanes is not None:
        tile_vectors = max(1, options.tile_lanes // width)
    elif in_registers:
        tile_vectors = 1
    else:
        tile_vectors = _tile_vectors(work, device, width, num_vectors, threads)
    if program.loop.lane_condition is not None:
        # Lanes leave the loop block by block: steps of several blocks can't be taken together.
        tile_vectors = 1
    if program.meetings:
        tile_vectors = num_vectors
    tile_vectors = min(tile_vectors, num_vectors)
    num_tiles = math.ceil(num_vectors / tile_vectors)
    fits = sum(kept.values()) * width * tile_vectors <= _MAX_STAGED_BYTES
    return Plan(
        width=width,
        vector_lanes=lanes,
        tile_vectors=tile_vectors,
        num_tiles=num_tiles,
        max_unrolled=max_unrolled,
        vectors_in_registers=max(1, device.num_vector_registers * lanes // width),
        parallel=num_tiles > 1 and threads > 1,
        lane_ops=work.lane_ops,
        uniform_ops=work.uniform_ops,
        block_cycles=block_cycles(unroll),
        passes=passes,
        avoids_masks=not device.has_masked_memory,
        avoids_gathers=not device.has_fast_gathers,
        has_equal_zeros=device.has_equal_zeros,
        staged=frozenset(kept) if fits else frozenset(),
    )


def _scalar_plan(program: LaneProgram, work: Work, device: DeviceDescription) -> Plan:
    """Returns the layout of a loop without lanes: scalars, on one thread."""
    return Plan(
        width=1,
        vector_lanes=1,
        tile_vectors=1,
        num_tiles=1,
        max_unrolled=_max_unrolled_scalars(program),
        vectors_in_registers=device.num_vector_registers,
        parallel=False,
        lane_ops=work.lane_ops,
        uniform_ops=work.uniform_ops,
        has_equal_zeros=device.has_equal_zeros,
    )


def _fits_registers(work: Work, device: DeviceDescription) -> bool:
    """Streams want long rows and shared work wants many lanes: both want tiles instead.

    So does state that is in memory anyway. But the many values of a long step would have to be
    passed on between its sweeps over a tile, which is worse.
    """
    if work.uniform_ops > 0.25 * work.lane_ops + _FREE_UNIFORM_OPS or work.has_partial_streams:
        return False
    if work.lane_ops > _LONG_STEP and not work.dot_ops:
        return True
    if work.has_streams:
        return False
    return work.state_elements <= device.num_vector_registers // 2


def _candidates(
    program: LaneProgram,
    work: Work,
    device: DeviceDescription,
    code_size: float,
    lanes: int,
    threads: int,
) -> Sequence[int]:
    """Returns how many vectors may be worked on at once: with blocks for all threads, of which at
    least four fit the L1 cache, and no more code than LLVM compiles soon.

    Dots block their outputs for two vectors.
    """
    is_dot = work.dot_ops > _MIN_DOT_SHARE * work.lane_ops
    most = program.num_lanes / (lanes * threads)
    if not is_dot:
        cached = device.l1_bytes / 4 / max(work.state_bytes * lanes, 1)
        most = min(most, cached, _MAX_EMITTED / max(code_size, 1))
    candidates = (_VECTORS_PER_DOT,) if is_dot else _VECTORS_IN_FLIGHT
    return [vectors for vectors in candidates if vectors <= most] or [1]


def _vectors_in_flight(
    candidates: Sequence[int], num_vectors: int, block_cycles: Callable[[int], float]
) -> int:
    """Returns how many vectors at once take a thread's vectors through a step soonest, by estimate;
    fewer where more gain next to nothing."""
    best, least = candidates[0], math.inf
    for vectors in candidates:
        time = math.ceil(num_vectors / vectors) * block_cycles(vectors)
        if time > least:
            break
        if time * _VECTORS_IN_FLIGHT[vectors] < least * _VECTORS_IN_FLIGHT[best]:
            best, least = vectors, time
    return best


def _block_cycles(
    block: VectorBlock, vectors: int, program: LaneProgram, lanes: int, *, has_masks: bool
) -> float:
    """Returns the time of a step of a block, with what comes from its being wide."""
    cycles = block.cycles(vectors)
    if program.num_lanes % (lanes * vectors) and not has_masks:
        cycles += _MASK * vectors
    if program.loop.lane_condition is not None:
        cycles *= 1 + _LEAVING * math.log2(vectors)
    return cycles


def _tile_vectors(
    work: Work, device: DeviceDescription, width: int, num_vectors: int, threads: int
) -> int:
    vector_bytes = max(work.state_bytes * width, 1)
    cached = max(1, device.l1_bytes // 2 // vector_bytes)
    shared = math.ceil(work.uniform_ops / max(_UNIFORM_SHARE * work.lane_ops, 1))
    rows = min(cached, _MIN_TILE_VECTORS)
    if work.has_streams or work.has_partial_streams:
        fitting = device.l2_bytes // 2 // vector_bytes
        rows = max(cached, min(math.ceil(_MIN_ROW_LANES / width), fitting))
    wanted = max(min(shared, max(1, device.l2_bytes // 4 // vector_bytes)), rows)
    per_thread = math.ceil(num_vectors / threads)
    if wanted >= per_thread:
        return per_thread
    tiles = math.ceil(per_thread / wanted)
    return math.ceil(num_vectors / (threads * min(tiles, max(_TILES_PER_THREAD, tiles))))


def _is_half_empty(num_lanes: int, lanes: int) -> bool:
    """Whether half a register would hold all lanes: memory for the others, and masks that say they
    don't exist, take more time than they save."""
    return num_lanes <= lanes // 2 and lanes > _MIN_REGISTER_LANES


def _element_bits(program: LaneProgram, vector_bits: int, *, has_masks: bool) -> int:
    """Returns the width of an element of which the lanes are to fill a register: less than a word
    if half of the work fits into that and there are so many lanes, more if half needs more.

    Without masks the last lanes have to fill theirs, too: LLVM makes a branch of each element less
    than a word that is masked.
    """
    works: defaultdict[int, float] = defaultdict(float)
    for instruction, weight in _weighted(program, program.loop.instruction.body, 1.0):
        works[_number_bits(instruction, program)] += weight
    works.pop(0, None)
    half = sum(works.values()) / 2
    for bits in _NARROW_BITS:
        wider = sum(work for width, work in works.items() if width > bits)
        registers, rest = divmod(program.num_lanes, vector_bits // bits)
        if wider < half and registers and (has_masks or not rest):
            return bits
    return 2 * _WORD_BITS if works[2 * _WORD_BITS] > half else _WORD_BITS


def _number_bits(instruction: HloInstruction, program: LaneProgram) -> int:
    """Returns the width of the widest numbers that an instruction makes or reads for each lane; 0
    for predicates alone, which are as wide as what they tell of. Floats are widened to words."""
    values = (instruction, *instruction.operands)
    arrays = (v for v in values if v.shape.is_array and needs_lanes(v, program))
    elements = {value.shape.element_type for value in arrays} - {PrimitiveType.PRED}
    return max((max(e.bits, _WORD_BITS * e.is_floating) for e in elements), default=0)


def max_unrolled_for(program: LaneProgram, work: Work, *, keeps_large: bool = True) -> int:
    """Returns the most elements per lane to keep in registers, so that code stays short.

    Args:
        program: What is being laid out.
        work: Its step.
        keeps_large: Whether larger arrays are worth their code, as on GPUs: they have more
            registers, and memory is far.
    """
    sizes = [
        _size(instruction, program)
        for instruction, _ in _repeated(program, program.loop.instruction.body, 1.0)
    ]

    def emitted(limit: int) -> int:
        return sum(size for size in sizes if size <= limit)

    limit = _MAX_UNROLLED_BESIDE_DOTS if work.dot_ops else _MAX_UNROLLED
    if not keeps_large and emitted(limit) > max(_MAX_EMITTED_LARGE, 2 * emitted(_LARGE)):
        limit = _LARGE
    while limit > 1 and emitted(limit) > _MAX_EMITTED:
        limit //= 2
    return limit


def _max_unrolled_scalars(program: LaneProgram) -> int:
    """Small arrays are kept in registers as a whole; beside larger ones loops over all of them are
    faster, since LLVM makes vectors of these."""
    sizes = [
        instruction.shape.num_elements
        for instruction, _ in _repeated(program, program.loop.instruction.body, 1.0)
        if instruction not in program.mutable
    ]
    is_small = max(sizes, default=0) <= _MAX_UNROLLED and sum(sizes) <= _MAX_EMITTED_SCALARS
    return _MAX_UNROLLED if is_small else _MAX_UNROLLED_SCALARS


def measure(
    program: LaneProgram, is_free: Callable[[HloInstruction], bool] = lambda _: False
) -> Work:
    """Returns what one step of a loop costs; `is_free` tells what the machine does by the way."""
    lane_ops = uniform_ops = dot_ops = 0.0
    rows = 0
    for instruction, weight in _weighted(program, program.loop.instruction.body, 1.0):
        if not instruction.shape.is_array or instruction in program.late or is_free(instruction):
            continue
        if needs_lanes(instruction, program):
            lane_ops += weight
            rows += count_rows(instruction, program)
            if instruction.opcode == "dot" and is_looped_dot(instruction, program):
                dot_ops += weight
        else:
            uniform_ops += weight
    state = [
        element
        for element in program.loop.elements
        if element.kind is ElementKind.STATE and element.lane_dimension is not None
    ]
    sizes = [residual_size(e.shape.dimensions, e.lane_dimension) for e in state]
    widths = [element.shape.element_type.byte_size for element in state]
    shared = sum(s * w for e, s, w in zip(state, sizes, widths, strict=True) if e.combiner)
    per_lane = sum(map(operator.mul, sizes, widths)) - shared + factor_bytes(program)
    return Work(
        lane_ops=max(lane_ops, 1.0),
        dot_ops=dot_ops,
        uniform_ops=uniform_ops,
        # Several sweeps pass about as much on as the state they start from.
        state_bytes=per_lane * (1 + (rows > MAX_ROWS)),
        state_elements=sum(sizes),
        has_streams=rows > 0,
        has_partial_streams=_has_partial_stream(program),
    )


def _has_partial_stream(program: LaneProgram) -> bool:
    """Whether the lanes of a tile are combined in every step."""
    return any(e.kind is ElementKind.STREAM and e.combiner for e in program.loop.elements)


def _weighted(
    program: LaneProgram, computation: HloComputation, times: float
) -> Iterator[tuple[HloInstruction, float]]:
    """Yields the arrays of a loop body, nested ones too, with their operations per step."""
    lane = program.lane_dimensions.get
    for instruction, runs in _repeated(program, computation, times):
        yield instruction, runs * instruction_cost(instruction, lane, lambda loop: None)


def _repeated(
    program: LaneProgram, computation: HloComputation, times: float
) -> Iterator[tuple[HloInstruction, float]]:
    """Yields the arrays of a loop body, nested ones too, with how often they are made in a step."""
    for instruction in computation.instructions:
        for inner, count in inner_runs(instruction, program):
            yield from _repeated(program, inner, times * count)
        if instruction.opcode not in ("while", "conditional") and instruction.shape.is_array:
            yield instruction, times


def _size(instruction: HloInstruction, program: LaneProgram) -> int:
    lane = program.lane_dimensions.get(instruction)
    return residual_size(instruction.shape.dimensions, lane)
