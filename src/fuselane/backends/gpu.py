"""Kernels for an NVIDIA GPU, which need not be there."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Final, final

from fuselane import config
from fuselane.analysis.gpu_time import CALL_US, estimate_launched_step_us
from fuselane.analysis.refusal import refuse
from fuselane.backends.backend import KernelCall
from fuselane.codegen.llvm import check_time, compile_ptx, nvptx_target
from fuselane.codegen.nvptx import ThreadCode, build_threads
from fuselane.codegen.plan import Plan
from fuselane.codegen.thread_plan import MAX_COMMON_BYTES, make_thread_plan, thread_step_us
from fuselane.config import Options
from fuselane.decisions import Reason
from fuselane.errors import UnsupportedError
from fuselane.gpu import GpuDescription
from fuselane.hlo.instruction import HloInstruction
from fuselane.lanes.program import LaneProgram
from fuselane.runtime.cache import open_cache
from fuselane.runtime.kernel import Kernel, compute_key
from fuselane.runtime.ptx_call import PTX_TARGET, ptx_attributes

MAX_PTX_LINES: Final = 40_000
"""The most that a kernel may have: drivers take about 50 microseconds for each, more for some."""


@final
@dataclass(frozen=True, slots=True)
class GpuBackend:
    """A GPU model as a `Backend`: kernels are PTX inside custom calls.

    Attributes:
        options: What the user set.
        gpu: The model.
        target: Whose custom calls they are: XLA's own, or ours (`runtime.launch`).
    """

    comes_after_layouts: ClassVar[bool] = False

    options: Options
    gpu: GpuDescription
    target: str = PTX_TARGET

    def xla_step_us(self, loop: HloInstruction, *, is_compiled: bool) -> float:
        """Returns XLA:GPU's time for one iteration, launch by launch."""
        del is_compiled  # XLA:GPU compiles no whole loops
        return estimate_launched_step_us(loop, self.gpu)

    def least_us(self, loop: HloInstruction) -> float:
        """Returns 0: lanes that see each other have many threads here."""
        del loop
        return 0.0

    def plan(self, program: LaneProgram) -> Plan:
        """Returns the layout: lanes of a thread, threads of a block."""
        num_bytes = sum(copy.shape.byte_size for copy in program.shared)
        if num_bytes > MAX_COMMON_BYTES:
            detail = (
                f"on a GPU lanes see {MAX_COMMON_BYTES:,} bytes of each other's, not {num_bytes:,}"
            )
            raise refuse(Reason.CROSS_LANE, program.shared[0], detail=detail)
        return make_thread_plan(program, self.gpu, self.options)

    def kernel_us(self, program: LaneProgram, plan: Plan) -> tuple[float, float]:
        """Returns the times of one iteration and of a launch besides."""
        return thread_step_us(program, plan, self.gpu), CALL_US

    def compile(self, program: LaneProgram, plan: Plan) -> KernelCall:
        """Returns the kernel, from the cache or fresh from LLVM."""
        code = build_threads(program, plan, self.gpu, fast_math=self.options.fast_math)
        kernel = self._compile(code, plan)

        def attributes(num_results: int) -> bytes:
            return ptx_attributes(
                self.target,
                kernel.object_code.decode(),
                code.symbol,
                grid_blocks=code.grid_blocks,
                block_threads=code.block_threads,
                num_inputs=len(program.inputs),
                num_results=num_results,
            )

        return KernelCall(
            program=replace(program, num_tiles=code.num_rows),
            target=self.target,
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
