"""A lane program to PTX: one thread for each lane, one launch for the whole loop.

The code is that of `codegen.kernel` with blocks of one lane: state in registers, what all lanes
share worked out by every thread. Arrays of a lane that are indexed at run time are in local memory.
Where lanes meet in each step, one block of threads has them all; see `codegen.warps`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final

from llvmlite import ir

from fuselane.codegen.gpu_entry import GpuEntry
from fuselane.codegen.kernel import SYMBOL, emit_kernel
from fuselane.codegen.partials import check_partials
from fuselane.codegen.plan import Plan
from fuselane.codegen.products import find_products
from fuselane.gpu import WARP_LANES, GpuDescription
from fuselane.lanes.program import LaneProgram

_MAX_BLOCK_THREADS: Final = 128

_LOCAL_SHARE: Final = 16
"""Part of a GPU's memory that threads may have for arrays of their own. The driver sets it aside
for as many threads as can be resident at once, however few are launched."""

_PARTIAL_SHARE: Final = 64
"""Part of a GPU's memory that results may take which are combined behind a kernel."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadCode:
    """A kernel ready for LLVM's NVPTX back end.

    ir: Text of the module.
    symbol: The kernel's name in it.
    grid_blocks: Thread blocks of a launch.
    block_threads: Threads of a block.
    num_rows: Rows of the results that are combined behind it.
    num_instructions: As in `KernelCode`.
    """

    ir: str
    symbol: str
    grid_blocks: int
    block_threads: int
    num_rows: int
    num_instructions: int


def build_threads(program: LaneProgram, plan: Plan, gpu: GpuDescription) -> ThreadCode:
    """Returns the kernel of a lane program for a GPU.

    Args:
        program: What the kernel computes.
        plan: From `make_thread_plan`.
        gpu: What it is launched on.
    Raises:
        UnsupportedError: for lanes that need too much memory, and for reductions over lanes that
            leave too much to be combined.
    """
    block_threads = choose_block_threads(plan.num_tiles, gpu)
    if program.meetings:
        block_threads = -(-plan.num_tiles // WARP_LANES) * WARP_LANES
    module = ir.Module(name=SYMBOL)
    entry = GpuEntry(
        module,
        SYMBOL,
        len(program.inputs),
        len(program.outputs),
        num_tiles=plan.num_tiles,
        block_threads=block_threads,
        max_stack_bytes=gpu.memory_bytes // _LOCAL_SHARE // gpu.resident_threads,
        has_own_rows=bool(find_products(program)),
    )
    check_partials(program, entry.num_rows, gpu.memory_bytes // _PARTIAL_SHARE)
    frame = emit_kernel(program, plan, entry)
    return ThreadCode(
        ir=str(module),
        symbol=SYMBOL,
        grid_blocks=-(-plan.num_tiles // block_threads),
        block_threads=block_threads,
        num_rows=entry.num_rows,
        num_instructions=frame.builder.num_instructions,
    )


def choose_block_threads(num_threads: int, gpu: GpuDescription) -> int:
    """Returns the threads of a block: whole warps, as many as leave no multiprocessor idle."""
    block_threads = _MAX_BLOCK_THREADS
    while block_threads > WARP_LANES and num_threads < block_threads * gpu.num_multiprocessors:
        block_threads //= 2
    return block_threads
