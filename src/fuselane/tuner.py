"""Searching for the best way to compile a program: what `fuselane.tune` and `fuselane tune` do.

program       what a function, or a script, compiles, and arguments for it
module        as XLA hands it over: what strategies change, and what results are kept under
metric        time on this machine, or a model's
search        over named pipelines, values of rules, single edges and options of XLA
confirmation  the best against named pipelines and XLA's own once more, in turns
store         for `enable(tuned=True)`, and for a search that goes on later
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import jax

from fuselane import api, config, pipeline
from fuselane.decisions import DecisionLog
from fuselane.device import host_device
from fuselane.errors import CaptureError, InputError, OptionError
from fuselane.fusion.pipelines import (
    PIPELINES,
    FusionPass,
    Pipeline,
    for_gpu,
    parse_pipeline,
    pipeline_text,
    refines,
    run_pipeline,
)
from fuselane.fusion.registers import thread_registers
from fuselane.fusion.single_edges import edges_around, splits_of
from fuselane.hlo.module import HloModule
from fuselane.runtime import hook
from fuselane.runtime.costs import load_costs
from fuselane.script import ScriptFailedError, run_script
from fuselane.tuning.candidate import Candidate, sort_options
from fuselane.tuning.evaluation import (
    XLAS_OWN,
    Budget,
    BudgetOverError,
    Evaluation,
    Metric,
    Progress,
    RefusedError,
)
from fuselane.tuning.fingerprint import fingerprint
from fuselane.tuning.interrupt import Interrupt
from fuselane.tuning.making import CPU_LIMIT, GPU_LIMIT, Made, Maker, estimates
from fuselane.tuning.measured import Measured, first_line
from fuselane.tuning.modelled import Modelled, clock_of_cpu, clock_of_gpu
from fuselane.tuning.result import Tuning
from fuselane.tuning.searches import SEARCHES
from fuselane.tuning.settings import XLA_OPTIONS, TuneSettings
from fuselane.tuning.space import FusionSpace, simpler
from fuselane.tuning.store import Found, Place, Store
from fuselane.tuning.tuned import device_key, versions
from fuselane.xla.capture import capture, lower
from fuselane.xla.captured import CapturedModule
from fuselane.xla.inputs import capture_input, load_function, split_function
from fuselane.xla.programs import (
    CompiledProgram,
    Program,
    RecordedProgram,
    Recording,
    program_of,
    recording,
)
from fuselane.xla.targets import CPU, find_target

OnProgress = Callable[[Progress], None]
_T = TypeVar("_T")

_SEARCH_SHARE: Final = 0.75
_NAMED_SHARE: Final = 0.05
_SIMPLIFYING_SHARE: Final = 0.08
"""Of the budget: for the search, for comparing what it found with named pipelines once more, and
for saying that with fewer words. The rest is for comparing it with XLA's own."""

_COMPARISON_SHARE: Final = 0.03
_MAX_COMPARISON_S: Final = 5.0
"""What one comparison may take: a share of the budget, and not more than so many seconds."""

_MIN_SHARE: Final = 0.05
"""Programs of a script that take less of its time are left alone."""

_GPU_FUSION: Final = "priority-fusion"
"""The first of XLA:GPU's passes that fuse."""

_OFF: Final = "Fuselane is switched off by FUSELANE=0, so there is nothing to tune."


def tune(
    function: Callable[..., Any],
    *arguments: Any,
    on_progress: OnProgress = lambda _: None,
    **settings: Any,
) -> Tuning:
    """Searches for the best way to compile a function, and keeps it for `enable(tuned=True)`.

    The function is compiled and run many times. Whether Fuselane is on does not matter. Ctrl-C ends
    the search behind the candidate at hand, not the program; the next call goes on where it was.

    Args:
        function: A function that `jax.jit` takes, or what `jax.jit` returned.
        arguments: What it is called with, none of them static.
        on_progress: Called after each candidate.
        settings: Fields of `TuneSettings`, such as `budget_s=10`. The metric is `modelled` for a
            GPU unless it is given.
    Raises:
        OptionError: for an unknown setting, or a value that is not allowed.
        InputError: for an unknown target, or a program with side effects, or if Fuselane is
            switched off.
        CaptureError: if XLA's compiler for a GPU is not there, or fails.
    """
    chosen = _read(settings)
    jitted: Any = function if hasattr(function, "lower") else jax.jit(function)
    if find_target(chosen.target).gpu is None:
        return tune_program(program_of(jitted, arguments), chosen, on_progress)
    lowered = lower(jitted, chosen.target, *arguments)
    return tune_captured(capture(lowered, chosen.target)[0], chosen, on_progress)


def tune_input(
    command: Sequence[str], settings: TuneSettings, on_progress: OnProgress = lambda _: None
) -> list[Tuning]:
    """Tunes what the command line names.

    Args:
        command: `FILE.py ARGUMENTS...`, run as Python runs it, all of whose programs that matter
            are tuned, each for a share of the budget; or `FILE.py:FUNCTION`, a function that takes
            nothing and returns a function to compile and a tuple of its arguments.
        settings: How to search.
        on_progress: Called after each candidate.
    Raises:
        InputError: if there is no such input, it holds no program that can be run again, or the
            script fails.
        CaptureError: if XLA's compiler for a GPU is not there, or fails.
    """
    if find_target(settings.target).gpu is not None:
        modules = capture_input(command, settings.target).modules
        share = replace(settings, budget_s=settings.budget_s / len(modules))
        return _each(modules, lambda module: tune_captured(module, share, on_progress))
    function = split_function(command[0])
    if function is not None:
        jitted, arguments = load_function(*function)
        return [tune_program(program_of(jitted, arguments), settings, on_progress)]
    path = Path(command[0])
    if not path.is_file():
        raise InputError(f"There is no script {command[0]!r}.")
    if path.suffix != ".py":
        raise InputError(
            f"Programs are run to be tuned, so name a script (.py) that does, not {command[0]!r};"
            " modules in files are tuned for a GPU only, with --target."
        )
    with recording() as found, contextlib.suppress(SystemExit):
        try:
            run_script(path, command[1:])
        except ScriptFailedError:
            raise InputError(f"The script {command[0]!r} failed, so it is not tuned.") from None
    return tune_recorded(found, settings, on_progress)


def tune_recorded(
    recording: Recording, settings: TuneSettings, on_progress: OnProgress = lambda _: None
) -> list[Tuning]:
    """Tunes the programs of a script that matter, each with a share of the budget.

    Args:
        recording: What the script compiled and called.
        settings: How to search; the budget is for all programs together.
        on_progress: Called after each candidate.
    Raises:
        InputError: if the script called no program that can be run again.
    """
    programs = sorted(recording.programs, key=lambda recorded: -recorded.total_s)
    total_s = sum(recorded.total_s for recorded in programs)
    chosen = [recorded for recorded in programs if recorded.total_s >= _MIN_SHARE * total_s]
    if not chosen:
        raise InputError("The script called no program that could be run again.")
    total_s = sum(recorded.total_s for recorded in chosen)

    def tune_one(recorded: RecordedProgram) -> Tuning:
        share = replace(settings, budget_s=settings.budget_s * recorded.total_s / total_s)
        return tune_program(recorded.program, share, on_progress)

    return _each(chosen, tune_one)


def _each(programs: Iterable[_T], tune_one: Callable[[_T], Tuning]) -> list[Tuning]:
    """Tunes programs one after the other, until the user interrupts."""
    results: list[Tuning] = []
    for program in programs:
        results.append(tune_one(program))
        if results[-1].is_interrupted:
            break
    return results


def tune_program(
    program: Program, settings: TuneSettings, on_progress: OnProgress = lambda _: None
) -> Tuning:
    """Searches for the best way to compile a program for this machine's CPU.

    Raises:
        InputError: if Fuselane is switched off, or XLA fails on the program.
    """
    if config.switch() is False:
        raise InputError(_OFF)
    interrupt = Interrupt()
    with interrupt.awaited():
        makers = _Makers(program, loops=settings.loops)
        maker = makers.of({})
        metric: Metric
        if settings.metric == "time":
            max_s = min(_MAX_COMPARISON_S, _COMPARISON_SHARE * settings.budget_s)
            metric = Measured(makers.of, partial(_compile, program, settings.loops), max_s=max_s)
        else:
            costs = load_costs(config.cache_dir())
            metric = Modelled(maker, clock_of_cpu(costs, host_device().num_cores))
        return _search(maker, metric, settings, on_progress, interrupt, makers.of)


def tune_captured(
    captured: CapturedModule, settings: TuneSettings, on_progress: OnProgress = lambda _: None
) -> Tuning:
    """Searches for the best way to compile a module for a GPU, which need not be there, by model.

    Raises:
        CaptureError: if XLA did not show the module before fusing it.
    """
    gpu = captured.gpu
    assert gpu is not None, "programs for a CPU are not captured"
    stages = [stage for stage in captured.stages if not stage.is_scheduled]
    at = next((n for n, stage in enumerate(stages) if n and stage.name == _GPU_FUSION), None)
    if at is None:
        raise CaptureError(f"XLA fused nothing in {captured.name}, so there is nothing to tune.")
    # What comes after fusing, such as copies for loops, no candidate is charged for.
    fused = [stage for stage in stages[at:] if stage.pipeline == stages[at].pipeline]
    sources = {True: fused[-1].data, False: stages[at - 1].data}

    def fuse(passes: Pipeline | None) -> Made:
        module = HloModule.from_bytes(sources[passes is None or refines(passes)])
        if passes is not None:
            run_pipeline(for_gpu(passes, gpu), module)
        return Made(module=module)

    num_threads = gpu.num_multiprocessors * gpu.max_threads
    maker = Maker(
        xla=fused[-1].data,
        fuse=fuse,
        max_registers=GPU_LIMIT,
        registers_of=partial(thread_registers, num_threads=num_threads),
    )
    metric = Modelled(maker, clock_of_gpu(gpu))
    interrupt = Interrupt()
    with interrupt.awaited():
        return _search(maker, metric, settings, on_progress, interrupt)


def _search(
    maker: Maker,
    metric: Metric,
    settings: TuneSettings,
    on_progress: OnProgress,
    interrupt: Interrupt,
    maker_of: Callable[[Mapping[str, str]], Maker] | None = None,
) -> Tuning:
    """Searches, confirms what was found, and keeps it."""
    store = Store(config.cache_dir())
    place = Place(
        device=device_key(host_device()) if settings.target == CPU else settings.target,
        versions=versions(),
        metric=settings.metric,
        loops=settings.loops,
    )
    module = HloModule.from_bytes(maker.xla)
    own = fingerprint(module)
    key = _search_key(own, place, settings)
    if settings.fresh:
        store.forget(key)
    try:
        evaluation = Evaluation(
            metric,
            Budget(
                seconds=_SEARCH_SHARE * settings.budget_s,
                questions=math.inf if settings.questions is None else settings.questions,
                interrupt=interrupt,
            ),
            known=store.answers(key),
            keep=partial(store.keep_answer, key),
            report=on_progress,
        )
    except RefusedError as refusal:
        raise InputError(f"{module.name} cannot be tuned: {refusal}") from None
    is_complete = False
    budget_s = settings.budget_s
    try:
        SEARCHES[settings.search](
            _space(settings, maker), evaluation.cost, random.Random(settings.seed)
        )
        is_complete = True
    except BudgetOverError:
        if interrupt.has_come:
            budget_s = 0.0
            on_progress(replace(evaluation.progress(), is_interrupted=True))
    settle = partial(_settle, metric, evaluation, budget_s)
    best, best_us = settle(evaluation.best)
    found = {own: (best, best_us)}
    if best.compiler_options and maker_of is not None:
        # Told apart by what XLA hands over under these options, if that differs at all.
        other = HloModule.from_bytes(maker_of(dict(best.compiler_options)).xla)
        found = {fingerprint(other): (best, best_us)}
        found[own] = settle(evaluation.best_plain)
    for digest, (candidate, cost_us) in found.items():
        store.add_found(
            Found(
                name=module.name,
                fingerprint=digest,
                place=place,
                candidate=candidate,
                cost_us=cost_us,
                xla_us=evaluation.xla_us,
            )
        )
    progress = evaluation.progress()
    return Tuning(
        name=module.name,
        best=best,
        best_us=best_us,
        xla_us=evaluation.xla_us,
        metric=settings.metric,
        target=settings.target,
        num_asked=progress.num_asked,
        num_measured=progress.num_measured,
        is_complete=is_complete,
        is_interrupted=interrupt.has_come,
        refusals=Counter(evaluation.refusals().values()),
    )


def _settle(
    metric: Metric, evaluation: Evaluation, budget_s: float, best: Candidate
) -> tuple[Candidate, float]:
    """Returns the best candidate and its cost, if it beats XLA's own once more; else XLA's own."""
    best = _compare_named(metric, evaluation, _NAMED_SHARE * budget_s, best)
    best = _simplify(metric, _SIMPLIFYING_SHARE * budget_s, best)
    ratio = 1.0 if best == XLAS_OWN else metric.confirm(best)
    if ratio < 1.0:
        return best, ratio * evaluation.xla_us
    return XLAS_OWN, evaluation.xla_us


def _compare_named(
    metric: Metric, evaluation: Evaluation, max_s: float, best: Candidate
) -> Candidate:
    """Returns the best of a candidate and the named pipelines that cost little more when they were
    priced, as time allows: what else runs on the machine decides, too, which is faster."""
    deadline_s = time.monotonic() + max_s
    for named in evaluation.near_best(map(Candidate, PIPELINES)):
        if time.monotonic() > deadline_s:
            break
        with contextlib.suppress(RefusedError):
            if metric.compare(named, best, evaluation.best_us).is_best:
                best = named
    return best


def _simplify(metric: Metric, max_s: float, best: Candidate) -> Candidate:
    """Returns what makes the same module with fewer passes and settings, as time allows."""
    deadline_s = time.monotonic() + max_s
    result = metric.make(best) if best.fusion else ""
    is_simpler = bool(best.fusion)
    while is_simpler:
        is_simpler = False
        for passes in simpler(parse_pipeline(best.fusion)):
            if time.monotonic() > deadline_s:
                return best
            candidate = replace(best, fusion=pipeline_text(passes))
            with contextlib.suppress(RefusedError):
                if metric.make(candidate) == result:
                    best, is_simpler = candidate, True
                    break
    return best


def _space(settings: TuneSettings, maker: Maker) -> FusionSpace:
    def edges(candidate: Candidate) -> Sequence[Sequence[FusionPass]]:
        try:
            module = maker.make(candidate).module
        except RefusedError:
            return []
        return list(edges_around(module)), list(splits_of(module))

    starts = [Candidate(fusion) for fusion in settings.starts or PIPELINES]
    is_cpu = settings.target == CPU
    return FusionSpace(
        starting=starts if settings.starts else [XLAS_OWN, *starts],
        xlas_own="xla-today-cpu" if is_cpu else "xla-today-gpu",
        compiler_options=XLA_OPTIONS if settings.xla_options else {},
        edges=edges,
    )


def _search_key(own: str, place: Place, settings: TuneSettings) -> str:
    """Returns what is equal for searches that ask the same questions of the same answers."""
    same = replace(settings, budget_s=1.0, questions=None, fresh=False)
    text = repr((own, place, same, config.source_digest()))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _compile(program: Program, loops: bool, candidate: Candidate) -> CompiledProgram:
    with api.enabled(loops=loops, fusion=candidate.fusion):
        return program.compile(dict(candidate.compiler_options))


class _Makers:
    """What makes modules of a program, for each choice of compiler options."""

    def __init__(self, program: Program, *, loops: bool) -> None:
        self._program = program
        self._loops = loops
        self._known: dict[tuple[tuple[str, str], ...], Maker] = {}

    def of(self, compiler_options: Mapping[str, str]) -> Maker:
        """Returns the maker under compiler options.

        Raises:
            RefusedError: if XLA does not compile the program so.
        """
        key = sort_options(compiler_options)
        if key not in self._known:
            self._known[key] = self._make(compiler_options)
        return self._known[key]

    def _make(self, compiler_options: Mapping[str, str]) -> Maker:
        with api.enabled(loops=False, fusion=""), hook.observed() as modules:
            try:
                self._program.compile(compiler_options)
            except RuntimeError as error:
                raise RefusedError(f"XLA fails on it: {first_line(error)}.") from error
        if not modules:
            raise InputError(f"XLA does not show {self._program.name} before compiling it.")
        data = modules[0]
        options = replace(config.from_environment(), loops=self._loops, fusion="", tuned=False)

        def fuse(passes: Pipeline | None) -> Made:
            log = DecisionLog()
            made = pipeline.transform(data, options, log, strategy=passes)
            return Made(module=HloModule.from_bytes(made or data), own_us=estimates(log))

        limit = CPU_LIMIT * host_device().num_vector_registers
        return Maker(xla=data, fuse=fuse, max_registers=limit)


def _read(settings: Mapping[str, Any]) -> TuneSettings:
    known = [field.name for field in fields(TuneSettings)]
    for name in settings:
        if name not in known:
            raise OptionError(f"There is no setting {name!r}; settings are {', '.join(known)}.")
    usual = {} if settings.get("target", CPU) == CPU else {"metric": "modelled"}
    return TuneSettings(**{**usual, **settings})
