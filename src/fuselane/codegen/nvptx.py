"""A lane program to PTX: one thread for each lane, one launch for the whole loop.

The code is that of `codegen.kernel` with blocks of one lane: state in registers, what all lanes
share worked out by every thread. Arrays of a lane that are indexed at run time are in local memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final

from llvmlite import ir

from fuselane.codegen.entry import GpuEntry
from fuselane.codegen.kernel import emit_kernel
from fuselane.codegen.llvm import compile_ptx
from fuselane.codegen.plan import Plan, make_thread_plan
from fuselane.decisions import Reason
from fuselane.errors import UnsupportedError
from fuselane.gpu import WARP_LANES, GpuDescription
from fuselane.lanes.program import LaneProgram

_MAX_BLOCK_THREADS: Final = 128
SYMBOL: Final = "fuselane_kernel"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class PtxKernel:
    """A kernel ready for ptxas.

    ptx: Text of the module.
    symbol: The kernel's name in it.
    grid_blocks: Thread blocks of a launch.
    block_threads: Threads of a block.
    plan: How the work is laid out; for reports.
    """

    ptx: str
    symbol: str
    grid_blocks: int
    block_threads: int
    plan: Plan


def build_ptx(program: LaneProgram, gpu: GpuDescription) -> PtxKernel:
    """Returns the kernel of a lane program for a GPU.

    Raises:
        UnsupportedError: for loops whose lanes have to meet in every step, and for lanes that need
            too much memory.
    """
    if program.meetings:
        meeting = next(iter(program.meetings))
        decision = Reason.CROSS_LANE.decide(
            instruction=meeting.name,
            opcode=meeting.opcode,
            detail="all lanes meet in each step, which threads of several blocks cannot",
        )
        raise UnsupportedError(decision)
    plan = make_thread_plan(program)
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
    emit_kernel(program, plan, entry)
    major, minor = gpu.compute_capability
    return PtxKernel(
        ptx=compile_ptx(module, f"sm_{major}{minor}"),
        symbol=SYMBOL,
        grid_blocks=-(-plan.num_tiles // block_threads),
        block_threads=block_threads,
        plan=plan,
    )


def choose_block_threads(num_threads: int, gpu: GpuDescription) -> int:
    """Returns the threads of a block: whole warps, as many as leave no multiprocessor idle."""
    block_threads = _MAX_BLOCK_THREADS
    while block_threads > WARP_LANES and num_threads < block_threads * gpu.num_multiprocessors:
        block_threads //= 2
    return block_threads
