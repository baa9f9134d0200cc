"""The microscope on one page: what XLA did to a module in, what `explain` says about it out.

launches     the schedule walked as a run walks it: kernels, loops, how often each
provenance   which line of the user's program each instruction belongs to
kernels      what each computes, reads, writes, and takes by model
loops        trip counts, kernels per iteration, launches under XLA and under Fuselane
edges        every value that crosses from one kernel to another, through loops and tuples
boundaries   why each of them is one: from where it crosses, or by the target's fusion rules
stages       what each pass made of the module
strategy     every answer of the passes that were tried instead of XLA's, yes and no
advice       what the user can do about it, with the gain by the same model
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final

from fuselane.analysis.dispatch import remove_dispatch_mark
from fuselane.analysis.gpu_time import XLA_LAUNCH_US
from fuselane.analysis.hlo_cost import HloCost
from fuselane.analysis.machine_costs import MachineCosts
from fuselane.analysis.xla_time import estimate_thunk_us
from fuselane.decisions import LoopDecision
from fuselane.explain.advice.rule import View
from fuselane.explain.advice.rules import give_advice
from fuselane.explain.boundaries import describe_boundaries
from fuselane.explain.edges import find_edges
from fuselane.explain.gpu_time import estimate_kernel_us
from fuselane.explain.kernels import Clock, describe_kernels
from fuselane.explain.launches import Launch, Launches, find_launches
from fuselane.explain.loops import describe_loops
from fuselane.explain.model import InstructionModel, ModuleModel
from fuselane.explain.provenance import Provenance
from fuselane.explain.recomputed import find_recomputed
from fuselane.explain.strategy import describe_strategy
from fuselane.explain.timeline import describe_stages
from fuselane.explain.why import Judge, Rules
from fuselane.explain.why_cpu import CpuRefusals
from fuselane.explain.why_gpu import GpuRefusals
from fuselane.explain.why_strategy import StrategyRefusals, StrategyRun
from fuselane.hlo.module import HloModule
from fuselane.xla.captured import CapturedModule, CapturedStage

_FUSION_PASSES: Final = frozenset({"fusion", "priority-fusion"})


def build_module(
    captured: CapturedModule,
    decisions: Iterable[LoopDecision] = (),
    *,
    costs: MachineCosts | None = None,
    num_cores: int = 1,
    strategy: StrategyRun | None = None,
) -> ModuleModel:
    """Returns what is known of a module that XLA compiled.

    Args:
        captured: What XLA did to it, without Fuselane.
        decisions: What Fuselane decided about loops; those of other modules are passed over.
        costs: Of the machine, for a CPU; None for those built in.
        num_cores: Cores XLA may use on a CPU.
        strategy: What was tried instead of XLA's own fusions, if anything was.
    """
    module = captured.module()
    remove_dispatch_mark(module)
    launches = find_launches(module, captured.parts)
    first, unfused = _first(captured), _unfused(captured)
    earlier = [read for read in (unfused and unfused.module, first) if read is not None]
    provenance = Provenance(module, launches.callers, earlier)
    machine = costs or MachineCosts()
    in_force = strategy if strategy is not None and strategy.is_in_force else None
    clock = _choose_clock(captured, machine, num_cores, in_force)
    own = [d for d in decisions if d.module == captured.name]
    rules: Rules
    if in_force is not None:
        rest = None
        if in_force.has_xlas:
            rest = CpuRefusals(module, captured.module(), unfused and unfused.module).why
        rules = StrategyRefusals(in_force, module, rest).why
    elif captured.gpu is None:
        rules = CpuRefusals(module, captured.module(), unfused and unfused.module).why
    else:
        rules = GpuRefusals(captured, module, unfused and unfused.module).why
    judge = Judge(rules)
    model = ModuleModel(
        name=captured.name,
        target=captured.target,
        kernels=describe_kernels(launches, provenance, clock, captured),
        loops=describe_loops(launches, provenance, own),
        boundaries=describe_boundaries(find_edges(module, launches), judge, provenance),
        stages=describe_stages(captured.stages),
        instructions=_describe_instructions(module, launches, provenance),
        compile_s=captured.compile_s,
        notes=captured.notes,
        strategy=None if strategy is None else describe_strategy(strategy),
    )
    return replace(model, advice=give_advice(_view(model, launches, captured, machine, first)))


def _unfused(captured: CapturedModule) -> CapturedStage | None:
    """Returns the stage before XLA fused anything, or None if it is not among those captured."""
    for before, after in itertools.pairwise(captured.stages):
        if after.name in _FUSION_PASSES:
            return before
    return None


def _first(captured: CapturedModule) -> Callable[[], HloModule] | None:
    """Returns what reads the module as it came, once, or None if it is not known."""
    return functools.cache(captured.stages[0].module) if captured.stages else None


def _view(
    model: ModuleModel,
    launches: Launches,
    captured: CapturedModule,
    costs: MachineCosts,
    first: Callable[[], HloModule] | None,
) -> View:
    """Returns the module as the rules of advice see it."""
    gpu = captured.gpu
    return View(
        module=model,
        launch_us=costs.thunk_us if gpu is None else XLA_LAUNCH_US,
        bytes_per_us=costs.cached_bytes_per_us if gpu is None else gpu.memory_bytes_per_s / 1e6,
        first=first,
        recomputed={
            kernel.name: found
            for kernel in launches.kernels
            if (found := find_recomputed(kernel)) is not None
        },
    )


def _choose_clock(
    captured: CapturedModule, costs: MachineCosts, num_cores: int, strategy: StrategyRun | None
) -> Clock:
    """Returns the target's model of how long kernels take."""
    gpu = captured.gpu
    if gpu is not None:
        return lambda launch, _: estimate_kernel_us(
            launch.instruction, gpu, captured.usage.get(launch.instruction.name)
        )

    def time_us(launch: Launch, cost: HloCost) -> float:
        own_us = None if strategy is None else strategy.kernel_us(launch.instruction.name)
        if own_us is not None:
            return own_us
        carried = launch.loop.shape.byte_size if launch.loop else int(cost.num_bytes)
        return estimate_thunk_us(
            launch.instruction,
            costs,
            footprint=carried,
            num_cores=num_cores,
            is_compiled=launch.function is not None,
        )

    return time_us


def _describe_instructions(
    module: HloModule, launches: Launches, provenance: Provenance
) -> tuple[InstructionModel, ...]:
    """Returns the graph: instructions of all computations, callees before callers."""
    kernels = {
        callee: kernel.name for kernel in launches.kernels for callee in kernel.called_computations
    }
    described = []
    for computation in reversed(module.computations):
        for instruction in computation.instructions:
            within = kernels.get(computation, "")
            if within:
                for callee in instruction.called_computations:
                    kernels.setdefault(callee, within)
            described.append(
                InstructionModel(
                    name=instruction.name,
                    opcode=instruction.opcode,
                    shape=str(instruction.shape),
                    computation=computation.name,
                    operands=tuple(operand.name for operand in instruction.operands),
                    calls=tuple(callee.name for callee in instruction.called_computations),
                    kernel=within or (instruction.name if instruction in launches.kernels else ""),
                    source=provenance.line(instruction),
                    op_name=instruction.metadata.op_name,
                )
            )
    return tuple(described)
