"""Measures one program in this process and writes its outcome; `suite.py` starts one for each.

python -m trial.measure NAME OUTCOME.json --seconds S --compile-rounds N [--quick]
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import itertools
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

import jax
import jax.numpy as jnp

import fuselane
from fuselane import config
from fuselane.cartpole.contender import engine_context
from fuselane.decisions import LoopDecision
from fuselane.runtime.cache import open_cache
from fuselane.runtime.table import table
from programs import find_program
from programs.program import Built, Program, Size
from trial.agreement import Agreement, compare
from trial.outcome import Loop, Outcome

ENGINES: Final = ("xla", "fuselane")
MIN_ROUNDS, MAX_ROUNDS = 5, 200
QUICK_ROUNDS: Final = 2
MAX_COMPILE_ROUNDS: Final = 30
SHORT_MS: Final = 1.0
# A program that takes longer to compile than this is compiled once by each engine.
SLOW_COMPILE_MS: Final = 20e3


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Compilation:
    """A program compiled by each engine in turn; times in milliseconds, executables the last."""

    executables: dict[str, Callable[..., Any]]
    lower_ms: list[float]
    compile_ms: dict[str, list[float]]
    compile_cpu_ms: dict[str, list[float]]
    loops: tuple[Loop, ...]


def measure(program: Program, is_quick: bool, seconds: float, compile_rounds: int) -> Outcome:
    """Compiles, compares and times a program under both engines in turns.

    Args:
        program: What to measure; whatever it requires is installed.
        is_quick: At its tiny size, each thing once or twice.
        seconds: About how long to run it.
        compile_rounds: How often each engine compiles it.
    """
    fuselane.disable()
    warm_up_compilers()
    size = program.quick if is_quick else program.full
    built = program.build(size)
    compilation = compile_in_turns(
        built, 1 if is_quick else compile_rounds, 0.0 if is_quick else seconds
    )
    if program.calls > 1:
        executables = {engine: repeat(built[0], program.calls) for engine in ENGINES}
        compilation = dataclasses.replace(compilation, executables=executables)
    results = {engine: run(compilation, engine, built) for engine in ENGINES}
    agreement = compare(results["xla"], results["fuselane"], program.rule_at(size))
    early = compare_early(program, size)
    del results
    times_ms = time_in_turns(compilation, built, seconds, is_quick)
    (xla_ms, xla_cpu_ms), (fuselane_ms, fuselane_cpu_ms) = (
        [statistics.median(column) for column in zip(*times_ms[engine], strict=True)]
        for engine in ENGINES
    )
    return Outcome(
        name=program.name,
        xla_ms=xla_ms,
        fuselane_ms=fuselane_ms,
        xla_cpu_ms=xla_cpu_ms,
        fuselane_cpu_ms=fuselane_cpu_ms,
        num_rounds=len(times_ms["xla"]),
        lower_ms=statistics.median(compilation.lower_ms),
        xla_compile_ms=statistics.median(compilation.compile_ms["xla"]),
        fuselane_compile_ms=statistics.median(compilation.compile_ms["fuselane"]),
        compile_ratios=ratios(compilation.compile_ms),
        compile_cpu_ratios=ratios(compilation.compile_cpu_ms),
        loops=compilation.loops,
        agrees=agreement.holds and early.holds,
        difference=agreement.difference,
        share_apart=agreement.share_apart,
        disagreement="; early: ".join(a.detail for a in (agreement, early) if a.detail),
    )


def ratios(times_ms: Mapping[str, Sequence[float]]) -> tuple[float, ...]:
    """Returns how many times as long as plain XLA each turn takes with Fuselane."""
    pairs = zip(times_ms["fuselane"], times_ms["xla"], strict=True)
    return tuple(fuselane_ms / xla_ms for fuselane_ms, xla_ms in pairs)


def compile_in_turns(built: Built, num_rounds: int, seconds: float = 0.0) -> Compilation:
    """Traces, lowers and compiles a program afresh by each engine, `num_rounds` times over, and
    further where it takes less than `seconds`: a few milliseconds are soon lost in noise."""
    executables: dict[str, Callable[..., Any]] = {}
    lower_ms: list[float] = []
    compile_ms: dict[str, list[float]] = {engine: [] for engine in ENGINES}
    compile_cpu_ms: dict[str, list[float]] = {engine: [] for engine in ENGINES}
    num_before = len(fuselane.decisions().loops)
    start = time.perf_counter()
    for done, engines in enumerate(itertools.islice(orders(), max(num_rounds, MAX_COMPILE_ROUNDS))):
        if done >= num_rounds and time.perf_counter() - start > seconds:
            break
        for engine in engines:
            executables[engine], lowering, compiling, on_cores = compile_once(engine, built)
            lower_ms.append(lowering)
            compile_ms[engine].append(compiling)
            compile_cpu_ms[engine].append(on_cores)
        if compile_ms["xla"][-1] > SLOW_COMPILE_MS:
            break
    loops = tuple(describe_loop(loop) for loop in fuselane.decisions().loops[num_before:])
    return Compilation(
        executables=executables,
        lower_ms=lower_ms,
        compile_ms=compile_ms,
        compile_cpu_ms=compile_cpu_ms,
        loops=loops,
    )


def compile_once(engine: str, built: Built) -> tuple[jax.stages.Compiled, float, float, float]:
    """Returns the executable and the milliseconds to lower, to compile, and to compile on all
    cores together, nothing cached."""
    function, arguments = built
    open_cache(config.cache_dir()).forget()
    table.forget()
    with engine_context(engine):
        start = time.perf_counter()
        # A new object: JAX has traced and compiled nothing under it.
        lowered = jax.jit(functools.partial(function)).lower(*arguments)
        middle, cpu_middle = time.perf_counter(), time.process_time()
        executable = lowered.compile()
        table.finish()  # or the first call would have to wait
        end, cpu_end = time.perf_counter(), time.process_time()
    return executable, (middle - start) * 1e3, (end - middle) * 1e3, (cpu_end - cpu_middle) * 1e3


def repeat(function: Callable[..., Any], calls: int) -> Callable[..., Any]:
    """Returns a function that calls another one many times as users do, through `jax.jit`, in the
    engine's context."""
    # A new object: JAX has traced and compiled nothing under it.
    jitted = jax.jit(functools.partial(function))

    def run_all(*arguments: Any) -> Any:
        for _ in range(calls - 1):
            jitted(*arguments)
        return jitted(*arguments)

    return run_all


def describe_loop(loop: LoopDecision) -> Loop:
    """Returns what the results keep of a decision."""
    return Loop(
        name=loop.name,
        source=loop.source,
        trip_count=loop.trip_count,
        lanes=loop.lanes,
        fused=loop.fused,
        reason=loop.reason.code,
        sentence=loop.decision.sentence,
        instruction=loop.decision.instruction,
        opcode=loop.decision.opcode,
        instruction_source=loop.decision.source,
        numbers=dict(loop.decision.numbers),
    )


def run(compilation: Compilation, engine: str, built: Built) -> Any:
    """Returns the results of one run, all of them there."""
    with engine_context(engine):
        return wait(compilation.executables[engine](*built[1]))


def wait(results: Any) -> Any:
    """Returns results once they are all there."""
    for leaf in jax.tree.leaves(results):
        leaf.block_until_ready()
    return results


def time_run(compilation: Compilation, engine: str, built: Built) -> tuple[float, float]:
    """Returns the milliseconds of one run, and those spent on all cores together.

    Those of short runs are means over so many that they fill SHORT_MS: XLA's threads go to sleep
    and wake in turns, so that a single run shows where it fell rather than how long it takes.
    """
    executable, arguments = compilation.executables[engine], built[1]

    def time_runs(count: int) -> tuple[float, float]:
        start, cpu_start = time.perf_counter(), time.process_time()
        for _ in range(count):
            wait(executable(*arguments))
        end, cpu_end = time.perf_counter(), time.process_time()
        return (end - start) * 1e3 / count, (cpu_end - cpu_start) * 1e3 / count

    with engine_context(engine):
        times = time_runs(1)
        # A short run also feels that its context has just been entered.
        return times if times[0] > SHORT_MS else time_runs(math.ceil(SHORT_MS / times[0]))


def time_in_turns(
    compilation: Compilation, built: Built, seconds: float, is_quick: bool
) -> dict[str, list[tuple[float, float]]]:
    """Runs both engines in turns, each first as often as the other; returns what `time_run` does,
    by engine."""
    times_ms: dict[str, list[tuple[float, float]]] = {engine: [] for engine in ENGINES}
    round_s = sum(time_run(compilation, engine, built)[0] for engine in ENGINES) * 1e-3
    num_rounds = int(min(MAX_ROUNDS, max(MIN_ROUNDS, seconds / round_s)))
    for engines in itertools.islice(orders(), QUICK_ROUNDS if is_quick else num_rounds):
        for engine in engines:
            times_ms[engine].append(time_run(compilation, engine, built))
    return times_ms


def orders() -> Iterator[tuple[str, ...]]:
    """Yields the engines in one order and the other, for ever."""
    return itertools.cycle((ENGINES, ENGINES[::-1]))


def compare_early(program: Program, size: Size) -> Agreement:
    """Compares a run of few steps, in which no element may be apart."""
    steps = program.rule.early_steps
    if steps is None or steps >= size.steps:
        return Agreement(holds=True, difference=0.0, share_apart=0.0)
    size = dataclasses.replace(size, steps=steps)
    built = program.build(size)
    compilation = compile_in_turns(built, 1)
    results = {engine: run(compilation, engine, built) for engine in ENGINES}
    return compare(results["xla"], results["fuselane"], program.rule_at(size))


def warm_up_compilers() -> None:
    """Compiles a small loop with each engine, so that no program pays for what is set up once."""

    def loop(x: jax.Array) -> jax.Array:
        result: jax.Array = jax.lax.fori_loop(0, 9, lambda _, y: jnp.sin(y), x)
        return result

    for engine in ENGINES:
        compile_once(engine, (loop, (jnp.ones(64),)))


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures the program named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("outcome", type=Path)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--compile-rounds", type=int, required=True)
    parser.add_argument("--packages", action="append", default=[])
    options = parser.parse_args(arguments)
    sys.path.extend(options.packages)
    program = find_program(options.name)
    missing = program.missing()
    if missing:
        outcome = Outcome(name=program.name, skipped=missing)
    else:
        with jax.enable_x64(program.x64):
            outcome = measure(program, options.quick, options.seconds, options.compile_rounds)
    options.outcome.write_text(json.dumps(dataclasses.asdict(outcome)))


if __name__ == "__main__":
    main()
