"""Fusion strategies on one program, side by side: kernels, bytes, modelled and measured time.

A strategy gets what XLA's hook shows, as when programs run. On a GPU XLA's own model prices the
result; its compiler can then be handed the kernels a strategy has formed, and does to them what it
does after its own fusion.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, final

import numpy as np

from fuselane import api, config
from fuselane.analysis.hlo_cost import compute_cost
from fuselane.backends.cpu import CpuBackend
from fuselane.decisions import DecisionLog
from fuselane.device import host_device
from fuselane.errors import CaptureError
from fuselane.explain.launches import find_launches
from fuselane.fusion.decision import FusionLog
from fuselane.fusion.dissolve import without_copies
from fuselane.fusion.lane_kernels import describe_refusals
from fuselane.fusion.pipelines import Pipeline
from fuselane.fusion.plan import PlannedModule, make_plan
from fuselane.fusion.running import apply, apply_on_gpu
from fuselane.fusion.strategies import find_strategy
from fuselane.gpu import GpuDescription
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.module import HloModule
from fuselane.pipeline import with_kernels
from fuselane.runtime.costs import load_costs
from fuselane.tuning.modelled import Clock, clock_of_cpu, clock_of_gpu, modelled_us
from fuselane.xla.capture import MAX_SECONDS
from fuselane.xla.captured import CapturedModule
from fuselane.xla.compilation import Source, capture_sources
from fuselane.xla.programs import CompiledProgram, Program
from fuselane.xla.targets import Target

XLA: Final = "xla"
"""Stands for what XLA does by itself."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class GpuCode:
    """What XLA's GPU compiler makes of the kernels of a strategy, for a GPU that need not be there.

    Attributes:
        refusal: Why it does not take them, in a sentence; "" if it does.
        num_thunks: Launches of kernels, calls of libraries and copies in its code.
        max_registers: Most registers that a thread of any kernel takes; None without ptxas.
        spill_bytes: What threads of all kernels spill and fetch again, in sum.
        min_occupancy: Least share of a multiprocessor's warps that a kernel fills, 0 to 1.
    """

    refusal: str = ""
    num_thunks: int = 0
    max_registers: int | None = None
    spill_bytes: int = 0
    min_occupancy: float = 1.0


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyCosts:
    """What a strategy makes of a program.

    Attributes:
        strategy: Its name or text; `xla` for XLA's own fusions.
        num_kernels: Kernels in the code.
        num_launches: How often kernels are started in one run, as far as trip counts are known.
        num_bytes: Bytes they read and write in one run.
        modelled_us: Microseconds of one run by a model of the target.
        measured_us: Median microseconds of one run on this machine; None if it was not run.
        max_difference: Largest difference of any result from XLA's, relative to that result's
            largest value; None if it was not run.
        code: What XLA makes of it for a GPU; None if it was not asked.
        refusals: Sentences about regions that were left to XLA instead of getting a lane kernel.
    """

    strategy: str
    num_kernels: int
    num_launches: float
    num_bytes: float
    modelled_us: float
    measured_us: float | None = None
    max_difference: float | None = None
    code: GpuCode | None = None
    refusals: tuple[str, ...] = ()


def compare_strategies(
    captured: Sequence[CapturedModule],
    strategies: Sequence[str],
    *,
    compile_for: Target | None = None,
    max_s: float = MAX_SECONDS,
    on_progress: Callable[[str], None] = lambda _: None,
) -> list[StrategyCosts]:
    """Returns what each strategy makes of a program, XLA's own first; nothing is run.

    Args:
        captured: The program's modules.
        strategies: Names or texts.
        compile_for: The GPU for which XLA shall compile what each strategy makes.
        max_s: Seconds that may take for each.
        on_progress: Called with a line about what is being done.
    Raises:
        OptionError: for bad text or an unknown name.
        CaptureError: if XLA for a GPU fused nothing, so that there is nothing to start from.
    """
    passes = [(text, find_strategy(text)) for text in strategies]
    own = [(_fused_by_xla(module), FusionLog()) for module in captured]
    rows = [_price(XLA, own, captured)]
    if compile_for is not None:
        rows[0] = replace(rows[0], code=_describe_code(captured))
    for text, pipeline in passes:
        fused = [fuse_module(module, pipeline) for module in captured]
        row = _price(text, fused, captured)
        if compile_for is not None:
            on_progress(f"compiling what {text} makes for {compile_for.name}")
            row = replace(row, code=_compile_fused(fused, compile_for, max_s))
        rows.append(row)
    return rows


def _compile_fused(
    fused: Sequence[tuple[HloModule, FusionLog]], target: Target, max_s: float
) -> GpuCode:
    """Compiles what a strategy made for a GPU, and returns what XLA made of it."""
    sources = [Source(form="fused", data=module.to_bytes()) for module, _ in fused]
    try:
        made, refused = capture_sources(sources, target, max_s=max_s)
    except CaptureError as error:  # XLA aborts on some of what it refuses
        return GpuCode(refusal=str(error))
    if refused:
        return GpuCode(refusal=f"{refused[0]}.")
    return _describe_code(made)


def _describe_code(captured: Sequence[CapturedModule]) -> GpuCode:
    usage = [usage for module in captured for usage in module.usage.values()]
    occupancies = [
        module.gpu.occupancy(usage.block_threads, usage.registers, usage.shared_bytes)
        for module in captured
        if module.gpu is not None
        for usage in module.usage.values()
        if usage.block_threads
    ]
    return GpuCode(
        num_thunks=sum(sum(module.parts.values()) for module in captured),
        max_registers=max((kernel.registers for kernel in usage), default=None),
        spill_bytes=sum(kernel.spill_bytes for kernel in usage),
        min_occupancy=min(occupancies, default=1.0),
    )


def fuse_module(captured: CapturedModule, pipeline: Pipeline) -> tuple[HloModule, FusionLog]:
    """Returns a module as a strategy fuses it, and what its passes decided."""
    module = module_before_hook(captured)
    if captured.gpu is not None:
        return module, apply_on_gpu(module, pipeline, captured.gpu)
    options = config.from_environment()
    backend = CpuBackend(options, is_dry=True)
    return module, apply(module, with_kernels(pipeline, module, options, DecisionLog(), backend))


def plan_module(captured: CapturedModule, pipeline: Pipeline) -> PlannedModule:
    """Returns what a strategy fuses, as a plan."""
    return make_plan(module_before_hook(captured), pipeline, captured.gpu)


def _fused_by_xla(captured: CapturedModule) -> HloModule:
    """Returns a module with XLA's own fusions; on a GPU without copies, as strategies have none."""
    module = module_before_hook(captured)
    return module if captured.gpu is None else without_copies(module)


def module_before_hook(captured: CapturedModule) -> HloModule:
    """Returns a module as XLA's hook shows it to strategies: scheduled on a GPU, on a CPU not."""
    if captured.gpu is not None:
        return captured.module()
    return HloModule.from_bytes(captured.unscheduled())


def measure(
    program: Program, strategies: Sequence[str], rows: Sequence[StrategyCosts], *, rounds: int
) -> list[StrategyCosts]:
    """Runs a program in turns as each strategy fuses it; returns the rows with times.

    Loops stay with XLA. Raises RuntimeError if XLA fails on one.
    """
    compiled = [_compile(program, "" if text == XLA else text) for text in strategies]
    expected = compiled[0].results()
    differences = [_difference(expected, one.results()) for one in compiled]
    times: list[list[float]] = [[] for _ in compiled]
    for number in range(rounds):
        order = range(len(compiled)) if number % 2 == 0 else reversed(range(len(compiled)))
        for index in order:
            start = time.perf_counter()
            compiled[index].run()
            times[index].append(time.perf_counter() - start)
    return [
        replace(row, measured_us=statistics.median(seconds) * 1e6, max_difference=difference)
        for row, seconds, difference in zip(rows, times, differences, strict=True)
    ]


def _compile(program: Program, fusion: str) -> CompiledProgram:
    with api.enabled(fusion=fusion, loops=False):
        return program.compile()


def _difference(expected: Sequence[np.ndarray], actual: Sequence[np.ndarray]) -> float:
    worst = 0.0
    for right, got in zip(expected, actual, strict=True):
        if right.size == 0 or right.tobytes() == got.tobytes():
            continue
        wide = np.complex128 if np.iscomplexobj(right) else np.float64
        size = float(np.nanmax(np.abs(right.astype(wide)))) or 1.0
        worst = max(worst, float(np.nanmax(np.abs(right.astype(wide) - got.astype(wide)))) / size)
    return worst


def _price(
    strategy: str,
    fused: Sequence[tuple[HloModule, FusionLog]],
    captured: Sequence[CapturedModule],
) -> StrategyCosts:
    kernels, launches, num_bytes, modelled = 0, 0.0, 0.0, 0.0
    for (module, log), origin in zip(fused, captured, strict=True):
        ours_us = _kernels_of_ours(log)
        modelled += modelled_us(module, _clock(origin.gpu), ours_us)
        for launch in find_launches(module).kernels.values():
            count = 1 if launch.count is None else launch.count
            kernels += 1
            launches += count
            num_bytes += count * _num_bytes(launch.instruction, launch.instruction.name in ours_us)
    return StrategyCosts(
        strategy=strategy,
        num_kernels=kernels,
        num_launches=launches,
        num_bytes=num_bytes,
        modelled_us=modelled,
        refusals=tuple(note for _, log in fused for note in describe_refusals(log)),
    )


def _kernels_of_ours(log: FusionLog) -> dict[str, float]:
    """Returns the estimated microseconds of the lane kernels that a strategy made, by name."""
    made = ((step.fusion, step.decision.numbers) for step in log if step.fusion)
    return {name: numbers["kernel_us"] for name, numbers in made if "kernel_us" in numbers}


def _num_bytes(kernel: HloInstruction, is_ours: bool) -> float:
    if not is_ours:
        return compute_cost(kernel).num_bytes
    # XLA knows nothing of what a call of ours moves.
    read = sum(operand.shape.byte_size for operand in dict.fromkeys(kernel.operands))
    written = sum(shape.byte_size for shape in kernel.shape.tuple_shapes or (kernel.shape,))
    return float(read + written)


def _clock(gpu: GpuDescription | None) -> Clock:
    if gpu is not None:
        return clock_of_gpu(gpu)
    return clock_of_cpu(load_costs(config.cache_dir()), host_device().num_cores)
