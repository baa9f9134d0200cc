"""A lane program to a kernel: LLVM IR for one function that runs tiles; see `codegen.entry`.

Behind the outputs may come scratch memory, for tiles of more lanes than the stack has room for.

A tile is a run of lanes. For each of its tiles the kernel brings the loop's state in, runs all
steps, and writes the state out; streams are read and written step by step. A tile of one lane
block keeps its state in registers through all steps. A larger tile keeps it in scratch memory that
stays in the L1 cache, and runs each step block by block: what all lanes share (random keys,
counters) is then computed once per step and tile, and rows of streams are touched in long runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Final, final

from llvmlite import ir

from fuselane.analysis.cost import OPCODE_COST, UNKNOWN_TRIP_COUNT, instruction_cost
from fuselane.codegen.arrays import Memory, Partial
from fuselane.codegen.bounds import guard
from fuselane.codegen.control import emit_body, emit_loop, emit_steps
from fuselane.codegen.dots import count_result_bytes, is_looped_dot
from fuselane.codegen.emitter import Emitter
from fuselane.codegen.entry import CpuEntry, KernelEntry
from fuselane.codegen.frame import Frame
from fuselane.codegen.function import KernelFunction
from fuselane.codegen.heavy_loops import find_vectors, keep_copying_loops, leave_light_loops
from fuselane.codegen.in_step import InStepLoop
from fuselane.codegen.indexing import i64
from fuselane.codegen.llvm import Vectors
from fuselane.codegen.math import define_short_roots
from fuselane.codegen.math.rare import call_long_functions
from fuselane.codegen.packing import pack_weights
from fuselane.codegen.panels import Panels
from fuselane.codegen.partials import MAX_PARTIAL_BYTES, check_partials
from fuselane.codegen.plan import Plan, make_plan
from fuselane.codegen.products import find_products
from fuselane.codegen.reading_ahead import NOTHING_AHEAD
from fuselane.codegen.schedule import needs_lanes
from fuselane.codegen.staging import with_rows_staged
from fuselane.codegen.tiles import TiledLoop
from fuselane.codegen.zero_trips import unless_over
from fuselane.config import Options
from fuselane.decisions import Reason
from fuselane.device import DeviceDescription
from fuselane.errors import UnsupportedError
from fuselane.hlo.computation import HloComputation
from fuselane.hlo.instruction import HloInstruction
from fuselane.lanes.program import LaneProgram

SYMBOL: Final = "fuselane_kernel"


_BITWISE_OPCODES: Final = frozenset(
    {"xor", "or", "and", "shift-left", "shift-right-logical", "shift-right-arithmetic"}
)
_MIN_BITWISE: Final = 0.3
_MIN_DOTS: Final = 0.3


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class KernelCode:
    """A kernel ready for LLVM.

    ir: Text of the module.
    symbol: The function's name in it.
    num_tiles: Tiles that cover all lanes.
    scratch_bytes: Memory the caller has to give as one more output, if any.
    parallel: Whether tiles are worth handing to several threads.
    plan: How the work is laid out; for reports.
    num_instructions: How many of LLVM's there are, but for the bodies of functions of its own.
    num_accesses: How many instructions load or store, those of its functions as well.
    is_bitwise: Whether much of the work is on bits, as random numbers are.
    has_dots: Whether much of the work is dots, whose loops are emitted as they are to be.
    vectors: Where LLVM is to look for vectors in scalar code.
    """

    ir: str
    symbol: str
    num_tiles: int
    scratch_bytes: int
    parallel: bool
    plan: Plan
    num_instructions: int
    num_accesses: int
    is_bitwise: bool
    has_dots: bool
    vectors: Vectors


def build(program: LaneProgram, options: Options, device: DeviceDescription) -> KernelCode:
    """Returns the kernel of a lane program for a CPU.

    A tile too large for the scratch memory a thread may have is made smaller until it fits.

    Raises:
        UnsupportedError: if not even a tile of one vector fits.
    """
    plan = make_plan(program, options, device)
    return build_planned(program, plan, bounds_checks=options.bounds_checks)


def build_planned(program: LaneProgram, plan: Plan, *, bounds_checks: bool = False) -> KernelCode:
    """Returns the kernel of a lane program as planned, perhaps with smaller tiles; see `build`.

    Args:
        program: What the kernel computes.
        plan: How.
        bounds_checks: Whether every load and store is guarded; see `codegen.bounds`.
    Raises:
        UnsupportedError: also if its tiles leave too much to be combined behind it.
    """
    while True:
        check_partials(program, plan.num_tiles, MAX_PARTIAL_BYTES)
        try:
            return _build(program, plan, bounds_checks=bounds_checks)
        except UnsupportedError as error:
            is_too_large = error.decision.reason is Reason.TOO_LARGE
            has_smallest_tiles = plan.tile_vectors == 1 or program.meetings
            if is_too_large and has_smallest_tiles and plan.staged:
                plan = replace(plan, staged=frozenset())
            elif not is_too_large or has_smallest_tiles:
                raise
            else:
                plan = plan.with_smaller_tiles(program.num_lanes)


def _build(program: LaneProgram, plan: Plan, *, bounds_checks: bool) -> KernelCode:
    module = ir.Module(name=SYMBOL)
    if plan.width == 1:
        define_short_roots(module)
    num_inputs, num_outputs = len(program.inputs), len(program.outputs)
    entry = CpuEntry(module, SYMBOL, num_inputs, num_outputs, num_tiles=plan.num_tiles)
    entry.calls = not bounds_checks
    frame = emit_kernel(program, plan, entry)
    call_long_functions(module)
    if plan.width == 1:
        leave_light_loops(module)
    vectors = find_vectors(module, has_lanes=plan.width > 1)
    if vectors is Vectors.IN_LOOPS:
        keep_copying_loops(module)
    if bounds_checks:
        regions = dict(frame.regions)
        for function in module.functions:
            if isinstance(function, KernelFunction):
                regions.update(function.regions)
        guard(module, regions, f"the kernel of {program.name}")
    return KernelCode(
        ir=str(module),
        symbol=SYMBOL,
        num_tiles=plan.num_tiles,
        scratch_bytes=frame.scratch_bytes,
        parallel=plan.parallel,
        plan=plan,
        num_instructions=frame.builder.num_instructions,
        num_accesses=_count_accesses(module),
        is_bitwise=_share(program, _is_bitwise) > _MIN_BITWISE,
        has_dots=_share(program, lambda i: _is_dot(i, program, plan.max_unrolled)) > _MIN_DOTS,
        vectors=vectors,
    )


def emit_kernel(program: LaneProgram, plan: Plan, entry: KernelEntry) -> Frame:
    """Emits the body of a kernel's function and ends it."""
    frame = Frame(program, plan, entry)
    most = max(plan.max_unrolled, plan.vectors_in_registers)
    frame.check_room(plan.width * count_result_bytes(program, most))
    with unless_over(frame) if plan.gpu is None else nullcontext():
        panels: Mapping[HloInstruction, Panels] = {}
        if plan.width > 1 and plan.gpu is None:
            everywhere = frame.emitter(frame.block(i64(0), ir.Constant(ir.IntType(1), 1)))
            panels = pack_weights(everywhere, plan)
        with entry.each_tile(frame.builder) as tile:
            _emit_tile(frame, tile, panels)
    frame.finish()
    return frame


def _count_accesses(module: ir.Module) -> int:
    return sum(
        isinstance(instruction, ir.LoadInstr | ir.StoreInstr)
        or (isinstance(instruction, ir.CallInstr) and _is_masked(instruction.callee.name))
        for function in module.functions
        for block in function.blocks
        for instruction in block.instructions
    )


def _is_masked(intrinsic: str) -> bool:
    return intrinsic.startswith("llvm.masked.")


def _is_bitwise(instruction: HloInstruction) -> bool:
    """Whether an instruction is work on bits, such as random numbers: long chains of operations on
    few values."""
    return instruction.opcode in _BITWISE_OPCODES


def _is_dot(
    instruction: HloInstruction, program: LaneProgram, max_outputs: int | None = None
) -> bool:
    return instruction.opcode == "dot" and is_looped_dot(instruction, program, max_outputs)


def _share(program: LaneProgram, is_wanted: Callable[[HloInstruction], bool]) -> float:
    """Returns the share of some instructions in the work that most blocks do: all but what is
    guarded, as resets are. A guard with dots is the step itself, which lanes that are reset lack.
    """
    skipped = {
        part
        for guards in program.guards.values()
        for g in guards
        if not any(_is_dot(part, program) for part in g.parts)
        for part in g.parts
    }
    wanted = total = 0.0

    def count(computation: HloComputation, times: float) -> None:
        nonlocal wanted, total
        for instruction in computation.instructions:
            if instruction in skipped:
                continue
            if instruction.opcode == "while":
                trips = program.loops[instruction].trip_count
                count(instruction.body, times * (trips or UNKNOWN_TRIP_COUNT))
            elif instruction.opcode in OPCODE_COST and needs_lanes(instruction, program):
                lane = program.lane_dimensions.get
                operations = times * instruction_cost(instruction, lane, lambda _: None)
                total += operations
                wanted += operations if is_wanted(instruction) else 0.0

    count(program.loop.instruction.body, 1.0)
    return wanted / max(total, 1.0)


def _emit_tile(frame: Frame, tile: ir.Value, panels: Mapping[HloInstruction, Panels]) -> None:
    builder, plan = frame.builder, frame.plan
    offset = tile
    if not plan.is_interleaved:
        offset = builder.mul(tile, i64(plan.tile_lanes), flags=("nsw", "nuw"))
    is_first = ir.Constant(ir.IntType(1), 1)
    if plan.num_tiles > 1:
        is_first = builder.icmp_signed("==", tile, i64(0))
    emitter = frame.emitter(frame.block(offset, is_first))
    emitter.panels.update(panels)
    outputs = frame.results(tile)
    if frame.program.meetings:
        InStepLoop(frame, emitter, outputs, offset).emit()
    elif plan.tile_vectors == 1 and not find_products(frame.program):
        _emit_in_registers(frame, emitter, outputs)
    else:
        TiledLoop(frame, emitter, outputs, offset).emit()


def _emit_in_registers(frame: Frame, emitter: Emitter, outputs: Sequence[Memory | Partial]) -> None:
    """Emits the whole loop for one lane block."""
    program = frame.program
    loop = program.loop.instruction
    steps = emitter.schedule(program.region).steps
    emit_steps(emitter, [s for s in steps if s is not loop and frame.is_prologue(s)])
    initial = frame.initial(emitter, outputs)
    initial = with_rows_staged(emitter, program, initial, frame.plan)
    if program.is_straight:
        results = emit_body(emitter, loop.body, initial)
    else:
        ahead = NOTHING_AHEAD if frame.plan.gpu is None else frame.plan.gpu.ahead
        results = emit_loop(
            emitter,
            program.loop,
            initial,
            lambda arrays: emit_body(emitter, loop.body, arrays, known=ahead.reads),
            ahead=ahead,
        )
    for output, target in zip(program.outputs, outputs, strict=True):
        array = results[output.tuple_index]
        is_there = isinstance(array, Memory | Partial) and array.pointer is target.pointer
        if not is_there:
            emitter.copy(array, target)
