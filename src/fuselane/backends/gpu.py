"""Kernels for an NVIDIA GPU, which need not be there."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Final, final

from fuselane import config
from fuselane.analysis.gpu_time import (
    CALL_US,
    estimate_launched_step_us,
    estimate_thread_step_us,
)
from fuselane.backends.backend import KernelCall
from fuselane.codegen.llvm import check_time, compile_ptx, nvptx_target
from fuselane.codegen.nvptx import ThreadCode, build_threads
from fuselane.codegen.plan import Plan, make_thread_plan
from fuselane.config import Options
from fuselane.decisions import Reason
from fuselane.errors import UnsupportedError
from fuselane.gpu import GpuDescription
from fuselane.hlo.instruction import HloInstruction
from fuselane.lanes.program import ElementKind, LaneProgram
from fuselane.runtime.cache import open_cache
from fuselane.runtime.kernel import Kernel, compute_key
from fuselane.runtime.ptx_call import PTX_TARGET, ptx_attributes

MAX_PTX_LINES: Final = 40_000
"""The most that a kernel may have: drivers take about 50 microseconds for each, more for some."""

_REGISTERS: Final = 200
"""Values of a thread that registers hold beside addresses and what lies between two steps."""

_SPILLED: Final = 4.0
"""Instructions that a value in local memory takes per step: it is stored and loaded again."""


@final
@dataclass(frozen=True, slots=True)
class GpuBackend:
    """A GPU model as a `Backend`: kernels are PTX inside XLA's own custom calls."""

    comes_after_layouts: ClassVar[bool] = False

    options: Options
    gpu: GpuDescription

    def xla_step_us(self, loop: HloInstruction, *, is_compiled: bool) -> float:
        """Returns XLA:GPU's time for one iteration, launch by launch."""
        del is_compiled  # XLA:GPU compiles no whole loops
        return estimate_launched_step_us(loop, self.gpu)

    def plan(self, program: LaneProgram) -> Plan:
        """Returns the layout: a thread for each lane."""
        return make_thread_plan(program)

    def kernel_us(self, program: LaneProgram, plan: Plan) -> tuple[float, float]:
        """Returns the times of one iteration and of a launch besides."""
        ops = plan.tile_vectors * plan.lane_ops + plan.uniform_ops
        ops += _SPILLED * max(0, _count_values(program, plan) - _REGISTERS)
        step_us = estimate_thread_step_us(
            ops,
            plan.num_tiles,
            self.gpu,
            num_meetings=len(program.meetings),
            moved_bytes=_count_moved(program),
        )
        return step_us, CALL_US

    def compile(self, program: LaneProgram, plan: Plan) -> KernelCall:
        """Returns the kernel, from the cache or fresh from LLVM."""
        code = build_threads(program, plan, self.gpu)
        kernel = self._compile(code, plan)

        def attributes(num_results: int) -> bytes:
            return ptx_attributes(
                kernel.object_code.decode(),
                code.symbol,
                grid_blocks=code.grid_blocks,
                block_threads=code.block_threads,
                num_inputs=len(program.inputs),
                num_results=num_results,
            )

        return KernelCall(
            program=replace(program, num_tiles=code.num_rows),
            target=PTX_TARGET,
            attributes=attributes,
            key=kernel.key,
        )

    def _compile(self, code: ThreadCode, plan: Plan) -> Kernel:
        target = nvptx_target(self.gpu.compute_capability)
        key = compute_key(code.ir, code.symbol, repr(target), self.options.fingerprint())

        def compile_now() -> Kernel:
            check_time(code.num_instructions)
            ptx = compile_ptx(code.ir, target)
            num_lines = ptx.count("\n")
            if num_lines > MAX_PTX_LINES:
                detail = f"{num_lines:,} lines of PTX"
                raise UnsupportedError(Reason.TOO_MUCH_CODE.decide(detail=detail))
            return Kernel(
                key=key,
                symbol=code.symbol,
                object_code=ptx.encode(),
                num_tiles=plan.num_tiles,
                max_threads=0,
                target=target,
            )

        cache = open_cache(config.cache_dir(), self.options.cache_mib * 2**20)
        return cache.get_or_build(key, compile_now)


def _count_values(program: LaneProgram, plan: Plan) -> int:
    """Returns the values of 32 bits that a thread carries from step to step in registers."""
    sizes = [
        element.shape.byte_size // (4 * element.shape.dimensions[element.lane_dimension])
        for element in program.loop.elements
        if element.kind is ElementKind.STATE and element.lane_dimension is not None
    ]
    return plan.tile_vectors * sum(size for size in sizes if size <= plan.max_unrolled)


def _count_moved(program: LaneProgram) -> float:
    """Returns the bytes of streams that a step reads and writes, if its steps are counted."""
    loop = program.loop
    rows = [
        element.shape.byte_size
        for element in loop.elements
        if element.kind is ElementKind.STREAM
        or (element.kind is ElementKind.INVARIANT and element.lane_dimension is not None)
    ]
    return sum(rows) / loop.trip_count if loop.trip_count else 0.0
