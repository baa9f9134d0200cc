"""Kernels for the CPU this process runs on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Final, final

from fuselane import config
from fuselane.analysis.machine_costs import MachineCosts
from fuselane.analysis.xla_time import (
    estimate_fused_us,
    estimate_step_us,
    estimate_thunk_us,
)
from fuselane.backends.backend import KernelCall
from fuselane.codegen.kernel import KernelCode, build_planned
from fuselane.codegen.kernel_time import (
    estimate_kernel_call_us,
    estimate_kernel_step_us,
    estimate_straight_us,
)
from fuselane.codegen.least_time import estimate_least_us
from fuselane.codegen.llvm import Bitcode, HostTarget, Vectors, check_time, read_ir
from fuselane.codegen.plan import Plan, make_plan
from fuselane.config import Options
from fuselane.device import host_device
from fuselane.hlo.instruction import HloInstruction
from fuselane.lanes.identity import identity_of
from fuselane.lanes.program import LaneProgram
from fuselane.runtime.cache import open_cache
from fuselane.runtime.costs import load_costs
from fuselane.runtime.ffi import TARGET, custom_call_attributes
from fuselane.runtime.kernel import Kernel, compute_key
from fuselane.runtime.repeat import REPEAT_TARGET, repeat_attributes
from fuselane.runtime.table import table

_MAX_SIMPLE_ACCESSES: Final = 400
"""Loads and stores up to which a kernel gets LLVM's cheap passes. What the others do besides is to
take loads away or out of loops, and what they leave is in registers or in the nearest cache: with
so few, 60 kernels were as fast as after all passes, and LLVM took 0.23 to 1 of its time."""


@final
@dataclass(frozen=True, slots=True)
class CpuBackend:
    """The host's CPU as a `Backend`: kernels are objects that our FFI handler runs.

    Attributes:
        options: What the user set.
        is_dry: Whether kernels are left without machine code, by who only wants to know what would
            become of a loop.
        costs: What estimates rest on; by default those of this machine.
    """

    comes_after_layouts: ClassVar[bool] = True

    options: Options
    is_dry: bool = False
    costs: MachineCosts = field(default_factory=lambda: load_costs(config.cache_dir()))

    def xla_step_us(self, loop: HloInstruction, *, is_compiled: bool) -> float:
        """Returns XLA:CPU's time for one iteration, thunk by thunk."""
        cores = host_device().num_cores
        return estimate_step_us(loop, self.costs, is_compiled=is_compiled, num_cores=cores)

    def least_us(self, loop: HloInstruction) -> float:
        """Returns less than the products of one iteration take one thread."""
        return estimate_least_us(loop, self.costs, host_device())

    def xla_straight_us(self, members: Sequence[HloInstruction]) -> float:
        """Returns XLA:CPU's time for kernels that it runs one after the other."""
        arrays = dict.fromkeys([*members, *(o for m in members for o in m.operands)])
        footprint = sum(array.shape.byte_size for array in arrays)
        cores = host_device().num_cores
        return sum(
            estimate_thunk_us(member, self.costs, footprint=footprint, num_cores=cores)
            for member in members
        )

    def straight_us(self, program: LaneProgram, plan: Plan) -> float:
        """Returns the time of a call of a kernel of straight-line code, on all threads, and of what
        XLA makes of its sums over lanes behind it."""
        kernel_us = estimate_straight_us(program, plan, self.costs, host_device())
        if program.epilogue is None:
            return kernel_us
        return kernel_us + estimate_fused_us(program.epilogue.computation, self.costs)

    def plan(self, program: LaneProgram) -> Plan:
        """Returns the layout: vectors, tiles, threads."""
        return make_plan(program, self.options, host_device())

    def kernel_us(self, program: LaneProgram, plan: Plan) -> tuple[float, float]:
        """Returns the times of one iteration and of a call besides, on all threads."""
        device = host_device()
        return (
            estimate_kernel_step_us(program, plan, self.costs, device),
            estimate_kernel_call_us(program, plan, self.costs, device),
        )

    def compile(self, program: LaneProgram, plan: Plan) -> KernelCall:
        """Returns the kernel, from the cache or as bitcode, of which machine code is made meanwhile
        (see `runtime.table`)."""
        kernel = self._kernel(program, plan)
        if kernel.bitcode is not None:
            table.begin(kernel)
        target, attributes = TARGET, custom_call_attributes(kernel)
        if self.options.repeat:
            target = REPEAT_TARGET
            attributes = repeat_attributes(kernel, program.name, len(program.outputs))
        return KernelCall(
            program=replace(
                program, num_tiles=kernel.num_tiles, scratch_bytes=kernel.scratch_bytes
            ),
            target=target,
            attributes=attributes,
            key=kernel.key,
        )

    def _kernel(self, program: LaneProgram, plan: Plan) -> Kernel:
        options = self.options
        target, settings = repr(HostTarget.host()), options.fingerprint()
        name = program.name if options.bounds_checks else ""  # whose failures name it
        key = compute_key(identity_of(program), repr(plan), name, target, settings)

        def make() -> Kernel:
            code = build_planned(program, plan, bounds_checks=options.bounds_checks)
            return make_kernel(code, key, options, is_dry=self.is_dry)

        if self.is_dry:
            return make()
        return open_cache(config.cache_dir(), options.cache_mib * 2**20).get_or_build(key, make)


def make_kernel(code: KernelCode, key: str, options: Options, *, is_dry: bool = False) -> Kernel:
    """Returns a kernel as bitcode, verified, and how LLVM is to make machine code of it.

    Args:
        code: The kernel.
        key: What it is known by.
        options: What the user set.
        is_dry: Whether to leave out the code.
    Raises:
        OutOfTimeError: if LLVM would probably need longer than there is time.
    """
    check_time(code.num_instructions)
    target = HostTarget.host()
    bitcode: Bitcode | None = None
    if not is_dry:
        is_wide = code.plan.vectors_in_registers < host_device().num_vector_registers
        in_order = is_wide and code.is_bitwise and options.optimise
        vectors = code.vectors if options.optimise else Vectors.NOWHERE
        is_simple = code.has_dots or code.num_accesses <= _MAX_SIMPLE_ACCESSES
        opt_level = (1 if is_simple else 2) if options.optimise else 0
        bitcode = Bitcode(
            data=read_ir(code.ir, target),
            opt_level=opt_level,
            vectorise=vectors,
            in_order=in_order,
        )
    return Kernel(
        key=key,
        symbol=code.symbol,
        object_code=b"",
        num_tiles=code.num_tiles,
        max_threads=(options.threads or 0) if code.parallel else 1,
        target=target,
        scratch_bytes=code.scratch_bytes,
        bitcode=bitcode,
    )
