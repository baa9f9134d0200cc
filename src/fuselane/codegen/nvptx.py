"""A lane program to PTX: a thread for each lane or a few, one launch for the whole loop.

The code is that of `codegen.kernel` with blocks of the lanes of a thread: state in registers, what
all lanes share worked out by every thread. `codegen.thread_plan` chooses how many lanes those are.
Arrays of a lane that are indexed at run time are in local memory, or in shared memory if that pays
(`codegen.own_arrays`). Where lanes meet in each step, or see each other, one block of threads has
them all; see `codegen.warps`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final

from llvmlite import ir

from fuselane.codegen.elemental.division import define_exact_quotients
from fuselane.codegen.gpu_entry import GpuEntry
from fuselane.codegen.kernel import SYMBOL, emit_kernel
from fuselane.codegen.math.approximate import define_approximations
from fuselane.codegen.partials import check_partials
from fuselane.codegen.plan import Plan
from fuselane.codegen.products import find_products
from fuselane.gpu import GpuDescription
from fuselane.lanes.program import LaneProgram

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


def build_threads(
    program: LaneProgram, plan: Plan, gpu: GpuDescription, *, fast_math: bool = False
) -> ThreadCode:
    """Returns the kernel of a lane program for a GPU.

    Args:
        program: What the kernel computes.
        plan: From `make_thread_plan`, for this GPU.
        gpu: What it is launched on.
        fast_math: Whether elementary functions of f32 may be approximate, and products contracted
            with sums.
    Raises:
        UnsupportedError: for lanes that need too much memory, and for reductions over lanes that
            leave too much to be combined.
    """
    assert plan.gpu is not None, "a plan of `make_thread_plan`"
    block_threads = plan.gpu.block_threads
    module = ir.Module(name=SYMBOL)
    define_exact_quotients(module, plan.width)
    if fast_math:
        define_approximations(module, plan.width, gpu.compute_capability)
    entry = GpuEntry(
        module,
        SYMBOL,
        len(program.inputs),
        len(program.outputs),
        num_tiles=plan.num_tiles,
        layout=plan.gpu,
        max_stack_bytes=gpu.memory_bytes // _LOCAL_SHARE // gpu.resident_threads,
        has_own_rows=bool(find_products(program)),
    )
    entry.contracts = fast_math
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
