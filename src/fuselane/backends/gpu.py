"""Kernels for an NVIDIA GPU, which need not be there."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

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
from fuselane.gpu import GpuDescription
from fuselane.hlo.instruction import HloInstruction
from fuselane.lanes.program import ElementKind, LaneProgram
from fuselane.runtime.cache import open_cache
from fuselane.runtime.kernel import Kernel, compute_key
from fuselane.runtime.ptx_call import PTX_TARGET, ptx_attributes


@final
@dataclass(frozen=True, slots=True)
class GpuBackend:
    """A GPU model as a `Backend`: kernels are PTX inside XLA's own custom calls."""

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
            return Kernel(
                key=key,
                symbol=code.symbol,
                object_code=compile_ptx(code.ir, target).encode(),
                num_tiles=plan.num_tiles,
                max_threads=0,
                target=target,
            )

        cache = open_cache(config.cache_dir(), self.options.cache_mib * 2**20)
        return cache.get_or_build(key, compile_now)


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
