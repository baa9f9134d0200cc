"""A lane program to PTX: one thread for each lane, one launch for the whole loop.

The code is that of `codegen.kernel` with blocks of one lane: state in registers, what all lanes
share worked out by every thread. Arrays of a lane that are indexed at run time are in local memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final

from llvmlite import ir

from fuselane.codegen.entry import GpuEntry
from fuselane.codegen.kernel import SYMBOL, emit_kernel
from fuselane.codegen.plan import Plan
from fuselane.decisions import Reason
from fuselane.errors import UnsupportedError
from fuselane.gpu import WARP_LANES, GpuDescription
from fuselane.lanes.program import LaneProgram

_MAX_BLOCK_THREADS: Final = 128


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadCode:
    """A kernel ready for LLVM's NVPTX back end.

    ir: Text of the module.
    symbol: The kernel's name in it.
    grid_blocks: Thread blocks of a launch.
    block_threads: Threads of a block.
    num_instructions: As in `KernelCode`.
    """

    ir: str
    symbol: str
    grid_blocks: int
    block_threads: int
    num_instructions: int


def build_threads(program: LaneProgram, plan: Plan, gpu: GpuDescription) -> ThreadCode:
    """Returns the kernel of a lane program for a GPU.

    Args:
        program: What the kernel computes.
        plan: From `make_thread_plan`.
        gpu: What it is launched on.
    Raises:
        UnsupportedError: for loops whose lanes have to meet in every step, and for lanes that need
            too much memory.
    """
    for meeting in program.meetings:
        decision = Reason.CROSS_LANE.decide(
            instruction=meeting.name,
            opcode=meeting.opcode,
            detail="all lanes meet in each step, which the threads of several blocks cannot",
        )
        raise UnsupportedError(decision)
    block_threads = choose_block_threads(plan.num_tiles, gpu)
    module = ir.Module(name=SYMBOL)
    entry = GpuEntry(
        module,
        SYMBOL,
        len(program.inputs),
        len(program.outputs),
        num_tiles=plan.num_tiles,
        block_threads=block_threads,
    )
    frame = emit_kernel(program, plan, entry)
    return ThreadCode(
        ir=str(module),
        symbol=SYMBOL,
        grid_blocks=-(-plan.num_tiles // block_threads),
        block_threads=block_threads,
        num_instructions=frame.builder.num_instructions,
    )


def choose_block_threads(num_threads: int, gpu: GpuDescription) -> int:
    """Returns the threads of a block: whole warps, as many as leave no multiprocessor idle."""
    block_threads = _MAX_BLOCK_THREADS
    while block_threads > WARP_LANES and num_threads < block_threads * gpu.num_multiprocessors:
        block_threads //= 2
    return block_threads
