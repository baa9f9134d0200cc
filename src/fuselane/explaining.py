"""From what XLA did to what `explain` reports, for every kind of input.

A report never fails because one part of it does: what cannot be found out is a note.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final

from fuselane import collector, config, pipeline
from fuselane.backends.cpu import CpuBackend
from fuselane.backends.gpu import GpuBackend
from fuselane.config import Options
from fuselane.decisions import DecisionLog, LoopDecision
from fuselane.device import host_device
from fuselane.explain.build import build_module
from fuselane.explain.model import ModuleModel
from fuselane.explain.report import Report
from fuselane.explain.units import plural
from fuselane.explain.why_strategy import StrategyRun
from fuselane.fusion.decision import FusionLog
from fuselane.fusion.dissolve import dissolve
from fuselane.fusion.lane_kernels import LaneKernels, describe_refusals
from fuselane.fusion.pipelines import Pipeline, pipeline_text, refines
from fuselane.fusion.running import apply
from fuselane.fusion.strategies import find_strategy
from fuselane.hlo.module import HloModule
from fuselane.runtime import hook
from fuselane.runtime.costs import load_costs
from fuselane.tuning.tuned import load_tuned
from fuselane.xla.captured import CapturedModule, CapturedStage

OFF_NOTE: Final = "Fuselane is switched off by FUSELANE=0."
STRATEGY_NOTE: Final = (
    "Kernels and boundaries are those of the fusion strategy in force, not XLA's own; XLA may still"
    " add copies. Loops are shown as they would run without kernels of Fuselane's."
)
UNCHANGED_NOTE: Final = (
    "The fusion strategy in force goes on from XLA's fusions and changes none of this module, or"
    " too little for XLA to forget that arguments are donated."
)
DONATED_NOTE: Final = (
    "The fusion strategy in force leaves this module to XLA, which would forget that large"
    " arguments are donated."
)


def report_on(
    captured: Iterable[CapturedModule],
    options: Options | None = None,
    strategy_of: Callable[[bytes], Pipeline | None] | None = None,
) -> Report:
    """Returns the report on modules.

    Args:
        captured: What XLA did to them.
        options: Those by which Fuselane decides about loops; None is those of the environment.
        strategy_of: Returns how to fuse a module for the CPU, None for XLA's own fusions; by
            default what was found for it if `options.tuned`, or what `options.fusion` stands for.
    Raises:
        OptionError: if that is not allowed.
    """
    is_off = config.switch() is False
    options = config.from_environment() if options is None else options
    strategy_of = _strategy_by(options) if strategy_of is None else strategy_of
    modules: list[ModuleModel] = []
    decisions: list[LoopDecision] = []
    for module in captured:
        log = DecisionLog()
        with collector.paused():
            if not is_off:
                _decide(module, options, log)
            modules.append(
                _model(module, log)
                if is_off or module.gpu is not None
                else _as_set(module, log, options, strategy_of(_unscheduled(module)))
            )
        decisions.extend(log)
    note = OFF_NOTE if is_off else ""
    return Report(loops=Report.of(decisions).loops, modules=tuple(modules), note=note)


def _decide(captured: CapturedModule, options: Options, log: DecisionLog) -> None:
    """Runs the compiler on a module as XLA's hook would have shown it; its failures are warnings,
    as they are there."""
    gpu = captured.gpu
    backend = CpuBackend(options, is_dry=True) if gpu is None else GpuBackend(options, gpu)
    data = _unscheduled(captured)
    hook.guard(lambda module: pipeline.transform(module, options, log, backend), data)


def _unscheduled(captured: CapturedModule) -> bytes:
    """Returns a module as XLA's hook shows it."""
    unscheduled = (stage.data for stage in reversed(captured.stages) if not stage.is_scheduled)
    return next(unscheduled, captured.final)


def _strategy_by(options: Options) -> Callable[[bytes], Pipeline | None]:
    """Returns what tells how to fuse a module, as set by options."""
    strategy = find_strategy(options.fusion) if options.fusion else None
    tuned = load_tuned() if options.tuned else None

    def strategy_of(data: bytes) -> Pipeline | None:
        found = None if tuned is None else tuned.find(data, loops=options.loops)
        return strategy if found is None else found

    return strategy_of


def _as_set(
    captured: CapturedModule, log: DecisionLog, options: Options, passes: Pipeline | None
) -> ModuleModel:
    """Returns the model of a module as it is fused with options, by some passes or by XLA."""
    if options.tuned:
        found = "XLA's own fusions" if passes is None else f"`{pipeline_text(passes)}`"
        captured = _noted(captured, f"With the option tuned, this module gets {found}.")
    if passes is None:
        return _model(captured, log)
    return _fused(captured, log, options, passes)


def _fused(
    captured: CapturedModule, log: DecisionLog, options: Options, passes: Pipeline
) -> ModuleModel:
    """Returns the model of a module as the passes of a strategy fuse it."""
    data = _unscheduled(captured)
    module, unfused = HloModule.from_bytes(data), HloModule.from_bytes(data)
    has_xlas = refines(passes)
    if pipeline.leaves_donated(passes, module):
        return _model(_noted(captured, DONATED_NOTE), log)
    try:
        if not has_xlas:
            dissolve(unfused)
        backend = CpuBackend(options, is_dry=True)
        steps = apply(module, pipeline.with_kernels(passes, module, options, log, backend))
        module.remove_unused_computations()
        final = module.to_bytes()
    except Exception as error:
        note = f"The fusion strategy failed, so XLA's own is shown: {hook.describe(error)}."
        return _model(_noted(captured, note), log)
    refusals = describe_refusals(steps)
    if pipeline.leaves_as_it_is(passes, steps, module):
        return _model(_noted(captured, UNCHANGED_NOTE, *refusals), log)
    before = [stage for stage in captured.stages if not stage.is_scheduled]
    fused = CapturedStage(pipeline="fuselane", name="fusion", data=final)
    captured = replace(captured, stages=(*before, fused), final=final)
    captured = _noted(captured, _summarise(steps) if has_xlas else STRATEGY_NOTE, *refusals)
    return _model(captured, log, StrategyRun(log=steps, unfused=unfused, has_xlas=has_xlas))


def _noted(captured: CapturedModule, *notes: str) -> CapturedModule:
    return replace(captured, notes=(*captured.notes, *notes))


def _summarise(steps: FusionLog) -> str:
    """Returns what a strategy that goes on from XLA's fusions made of them, in a sentence."""
    made = [step for step in steps if step.fusion]
    kernels = [step for step in made if step.pass_name == LaneKernels.name]
    replaced = sum(int(step.decision.numbers["xla_kernels"]) for step in kernels)
    parts = []
    if kernels:
        count = plural(len(kernels), "kernel")
        parts.append(f"makes {count} of Fuselane's of {replaced:,} of XLA's")
    if len(made) > len(kernels):
        parts.append(f"changes {plural(len(made) - len(kernels), 'fusion')} besides")
    what = " and ".join(parts)
    return f"The fusion strategy in force goes on from XLA's fusions: it {what}."


def _model(
    captured: CapturedModule, log: DecisionLog, strategy: StrategyRun | None = None
) -> ModuleModel:
    """Returns the model of one module; of one that breaks it, what XLA's compilation says."""
    costs, num_cores = load_costs(config.cache_dir()), host_device().num_cores
    try:
        return build_module(captured, log, costs=costs, num_cores=num_cores, strategy=strategy)
    except Exception as error:
        noted = _noted(captured, f"Its kernels are not shown: {hook.describe(error)}.")
    return ModuleModel(
        name=noted.name, target=noted.target, compile_s=noted.compile_s, notes=noted.notes
    )
