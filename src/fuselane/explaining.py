"""From what XLA did to what `explain` reports, for every kind of input.

A report never fails because one part of it does: what cannot be found out is a note.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from fuselane import collector, config, gpu_fusion, pipeline
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
from fuselane.fusion.dissolve import dissolve, forget_order, unfuse_on_gpu
from fuselane.fusion.lane_kernels import LaneKernels, describe_refusals
from fuselane.fusion.pipelines import Pipeline, pipeline_text, refines
from fuselane.fusion.running import apply
from fuselane.fusion.strategies import is_for_cpus
from fuselane.gpu import GpuDescription
from fuselane.hlo.module import HloModule
from fuselane.runtime import hook
from fuselane.runtime.costs import load_costs
from fuselane.tuning.choice import Choice
from fuselane.xla.captured import CapturedModule, CapturedStage
from fuselane.xla.targets import target_of

OFF_NOTE: Final = "Fuselane is switched off by FUSELANE=0."
STRATEGY_NOTE: Final = (
    "Kernels and boundaries are those of the fusion strategy in force, not XLA's own; XLA may still"
    " add copies. Loops are shown as they would run without kernels of Fuselane's."
)
SAME_NOTE: Final = "The fusion strategy in force makes the kernels that XLA makes itself."
UNCHANGED_NOTE: Final = (
    "The fusion strategy in force goes on from XLA's fusions and changes none of this module, or"
    " too little for XLA to forget that arguments are donated."
)
DONATED_NOTE: Final = (
    "The fusion strategy in force leaves this module to XLA, which would forget that large"
    " arguments are donated."
)
FOR_CPUS_NOTE: Final = (
    "The fusion strategy in force goes on from XLA:CPU's fusions only, so this module keeps those"
    " that XLA makes for the GPU."
)


def report_on(
    captured: Iterable[CapturedModule],
    options: Options | None = None,
    choice: Choice | None = None,
) -> Report:
    """Returns the report on modules.

    Args:
        captured: What XLA did to them.
        options: Those by which Fuselane decides about loops; None is those of the environment.
        choice: How to fuse them; by default as options say.
    Raises:
        OptionError: if that is not allowed.
    """
    is_off = config.switch() is False
    options = config.from_environment() if options is None else options
    choice = Choice.by(options) if choice is None else choice
    modules: list[ModuleModel] = []
    decisions: list[LoopDecision] = []
    for module in captured:
        log = DecisionLog()
        with collector.paused():
            if not is_off:
                _decide(module, options, log)
            modules.append(_model(module, log) if is_off else _as_set(module, log, options, choice))
        decisions.extend(log)
    note = OFF_NOTE if is_off else ""
    return Report(loops=Report.of(decisions).loops, modules=tuple(modules), note=note)


def _decide(captured: CapturedModule, options: Options, log: DecisionLog) -> None:
    """Runs the compiler on a module as XLA's hook would have shown it; its failures are warnings,
    as they are there."""
    gpu = captured.gpu
    backend = CpuBackend(options, is_dry=True) if gpu is None else GpuBackend(options, gpu)
    data = captured.unscheduled()
    hook.guard(lambda module: pipeline.transform(module, options, log, backend), data)


def _as_set(
    captured: CapturedModule, log: DecisionLog, options: Options, choice: Choice
) -> ModuleModel:
    """Returns the model of a module as it is fused with options, by some passes or by XLA."""
    if captured.gpu is not None:
        if choice.strategy is None:
            return _model(captured, log)
        if is_for_cpus(choice.strategy):
            return _model(_noted(captured, FOR_CPUS_NOTE), log)
        return _fused_on_gpu(captured, log, options, choice.strategy, captured.gpu)
    passes = choice.strategy_of(captured.unscheduled())
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
    data = captured.unscheduled()
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
    run = StrategyRun(log=steps, unfused=unfused, has_xlas=has_xlas)
    refusals = describe_refusals(steps)
    if pipeline.leaves_as_it_is(passes, steps, module):
        left = replace(run, is_in_force=False)
        return _model(_noted(captured, UNCHANGED_NOTE, *refusals), log, left)
    before = [stage for stage in captured.stages if not stage.is_scheduled]
    fused = CapturedStage(pipeline="fuselane", name="fusion", data=final)
    captured = replace(captured, stages=(*before, fused), final=final)
    captured = _noted(captured, _summarise(steps) if has_xlas else STRATEGY_NOTE, *refusals)
    return _model(captured, log, run)


def _fused_on_gpu(
    captured: CapturedModule,
    log: DecisionLog,
    options: Options,
    passes: Pipeline,
    gpu: GpuDescription,
) -> ModuleModel:
    """Returns the model of a module as a strategy fuses it and XLA:GPU compiles that."""
    unfused, has_xlas = captured.module(), refines(passes)
    (forget_order if has_xlas else unfuse_on_gpu)(unfused)
    try:
        formed = gpu_fusion.form(captured.module(), gpu, passes)
        run = StrategyRun(
            log=formed.log, unfused=unfused, has_xlas=has_xlas, is_in_force=formed.is_new
        )
        if not formed.is_new:
            return _model(_noted(captured, SAME_NOTE), log, run)
        made = gpu_fusion.finish(formed, target_of(gpu), options.max_compile_s, with_usage=True)
    except Exception as error:
        note = f"XLA's own fusions are shown, not those of the strategy: {hook.describe(error)}."
        return _model(_noted(captured, note), log)
    fused = CapturedStage(pipeline="fuselane", name="fusion", data=made.final)
    captured = replace(
        captured,
        stages=(*captured.stages, fused),
        final=made.final,
        thunks=made.thunks,
        ptx=made.ptx,
        usage=made.usage,
        parts=made.parts,
    )
    captured = _noted(captured, STRATEGY_NOTE)
    return _model(captured, log, run)


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
