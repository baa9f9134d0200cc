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
from fuselane.explain.why_strategy import StrategyRun
from fuselane.fusion.dissolve import dissolve
from fuselane.fusion.pipelines import Pipeline
from fuselane.fusion.running import apply
from fuselane.fusion.strategies import find_strategy
from fuselane.hlo.module import HloModule
from fuselane.runtime import hook
from fuselane.runtime.costs import load_costs
from fuselane.xla.captured import CapturedModule, CapturedStage

OFF_NOTE: Final = "Fuselane is switched off by FUSELANE=0."
STRATEGY_NOTE: Final = (
    "Kernels and boundaries are those of the fusion strategy in force, not XLA's own; XLA may still"
    " add copies. Loops are shown as they would run without kernels of Fuselane's."
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
            default what `options.fusion` stands for.
    Raises:
        OptionError: if that is not allowed.
    """
    is_off = config.switch() is False
    options = config.from_environment() if options is None else options
    strategy = find_strategy(options.fusion) if options.fusion and strategy_of is None else None
    modules: list[ModuleModel] = []
    decisions: list[LoopDecision] = []
    for module in captured:
        log = DecisionLog()
        with collector.paused():
            if not is_off:
                _decide(module, options, log)
            passes = strategy if strategy_of is None else strategy_of(_unscheduled(module))
            if is_off or module.gpu is not None:
                passes = None
            modules.append(_model(module, log) if passes is None else _fused(module, log, passes))
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


def _fused(captured: CapturedModule, log: DecisionLog, passes: Pipeline) -> ModuleModel:
    """Returns the model of a module as the passes of a strategy fuse it."""
    data = _unscheduled(captured)
    module, unfused = HloModule.from_bytes(data), HloModule.from_bytes(data)
    try:
        dissolve(unfused)
        steps = apply(module, passes)
        final = module.to_bytes()
    except Exception as error:
        note = f"The fusion strategy failed, so XLA's own is shown: {hook.describe(error)}."
        return _model(replace(captured, notes=(*captured.notes, note)), log)
    before = [stage for stage in captured.stages if not stage.is_scheduled]
    fused = CapturedStage(pipeline="fuselane", name="fusion", data=final)
    captured = replace(
        captured, stages=(*before, fused), final=final, notes=(*captured.notes, STRATEGY_NOTE)
    )
    return _model(captured, log, StrategyRun(log=steps, unfused=unfused))


def _model(
    captured: CapturedModule, log: DecisionLog, strategy: StrategyRun | None = None
) -> ModuleModel:
    """Returns the model of one module; of one that breaks it, what XLA's compilation says."""
    costs, num_cores = load_costs(config.cache_dir()), host_device().num_cores
    try:
        return build_module(captured, log, costs=costs, num_cores=num_cores, strategy=strategy)
    except Exception as error:
        note = f"Its kernels are not shown: {hook.describe(error)}."
        noted = replace(captured, notes=(*captured.notes, note))
    return ModuleModel(
        name=noted.name, target=noted.target, compile_s=noted.compile_s, notes=noted.notes
    )
