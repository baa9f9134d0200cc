"""From what XLA did to what `explain` reports, for every kind of input.

A report never fails because one part of it does: what cannot be found out is a note.
"""

from __future__ import annotations

from collections.abc import Iterable
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
from fuselane.runtime import hook
from fuselane.runtime.costs import load_costs
from fuselane.xla.captured import CapturedModule

OFF_NOTE: Final = "Fuselane is switched off by FUSELANE=0."


def report_on(captured: Iterable[CapturedModule], options: Options | None = None) -> Report:
    """Returns the report on modules.

    Args:
        captured: What XLA did to them.
        options: Those by which Fuselane decides about loops; None is those of the environment.
    """
    is_off = config.switch() is False
    options = config.from_environment() if options is None else options
    modules: list[ModuleModel] = []
    decisions: list[LoopDecision] = []
    for module in captured:
        log = DecisionLog()
        with collector.paused():
            if not is_off:
                _decide(module, options, log)
            modules.append(_model(module, log))
        decisions.extend(log)
    note = OFF_NOTE if is_off else ""
    return Report(loops=Report.of(decisions).loops, modules=tuple(modules), note=note)


def _decide(captured: CapturedModule, options: Options, log: DecisionLog) -> None:
    """Runs the compiler on a module as XLA's hook would have shown it; its failures are warnings,
    as they are there."""
    unscheduled = (stage.data for stage in reversed(captured.stages) if not stage.is_scheduled)
    data = next(unscheduled, captured.final)
    gpu = captured.gpu
    backend = CpuBackend(options, is_dry=True) if gpu is None else GpuBackend(options, gpu)
    hook.guard(lambda module: pipeline.transform(module, options, log, backend), data)


def _model(captured: CapturedModule, log: DecisionLog) -> ModuleModel:
    """Returns the model of one module; of one that breaks it, what XLA's compilation says."""
    costs, num_cores = load_costs(config.cache_dir()), host_device().num_cores
    try:
        return build_module(captured, log, costs=costs, num_cores=num_cores)
    except Exception as error:
        note = f"Its kernels are not shown: {hook.describe(error)}."
        noted = replace(captured, notes=(*captured.notes, note))
    return ModuleModel(
        name=noted.name, target=noted.target, compile_s=noted.compile_s, notes=noted.notes
    )
