"""What Fuselane adds to compiling: the four CartPole variants, and a program without any loop.

Each round traces, lowers and compiles everything afresh with each engine in turn; the kernel cache
is emptied before. "First" is the first compilation of a program in the process.

    python benchmarks/compile_time.py --json docs/data/compile_time.json
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

import jax
import jax.numpy as jnp

from fuselane import config
from fuselane.cartpole.contender import engine_context
from fuselane.cartpole.problem import make_problem
from fuselane.cartpole.variants import VARIANTS
from fuselane.machine import describe_machine
from fuselane.runtime.cache import open_cache
from fuselane.runtime.table import table

ENGINES: Final = ("xla", "fuselane")
NUM_LAYERS: Final = 24


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One program: milliseconds to lower and compile it, and to compile it alone.

    Attributes:
        program: Its name.
        lower_ms: Median time to trace and lower, which Fuselane has no part in.
        xla_ms: Median time to compile under plain XLA.
        fuselane_ms: Median time to compile with Fuselane.
        xla_first_ms: The first compilation under plain XLA.
        fuselane_first_ms: The first compilation with Fuselane.
    """

    program: str
    lower_ms: float
    xla_ms: float
    fuselane_ms: float
    xla_first_ms: float
    fuselane_first_ms: float

    @property
    def ratio(self) -> float:
        """How many times plain XLA's time compiling takes with Fuselane."""
        return self.fuselane_ms / self.xla_ms


def make_programs(num_envs: int, num_steps: int) -> Iterator[tuple[str, Callable[[], Any], Any]]:
    """Yields name, maker of a new function object, and arguments of each program."""
    problem = make_problem(num_envs, num_steps)
    for name, variant in VARIANTS.items():
        make = functools.partial(variant.make_rollout, num_steps)
        yield name, make, variant.get_arguments(problem)
    yield "no loop", make_network, (jnp.ones((64, 64)), jnp.ones((NUM_LAYERS, 64, 64)))


def make_network() -> Callable[[jax.Array, jax.Array], jax.Array]:
    """Returns a function of many layers and no loop, f32[64, 64] to f32[64, 64]."""

    def network(x: jax.Array, weights: jax.Array) -> jax.Array:
        for i in range(NUM_LAYERS):
            x = jnp.tanh(x @ weights[i]) + jax.nn.softmax(x)
        return x

    return network


def time_compilation(engine: str, function: Any, arguments: Any) -> tuple[float, float]:
    """Returns the milliseconds of lowering and of compiling."""
    open_cache(config.cache_dir()).forget()
    table.forget()
    with engine_context(engine):
        start = time.perf_counter()
        lowered = jax.jit(function).lower(*arguments)
        middle = time.perf_counter()
        lowered.compile()
        table.finish()  # or the first call would have to wait
        end = time.perf_counter()
    return (middle - start) * 1e3, (end - middle) * 1e3


def measure(program: str, make: Callable[[], Any], arguments: Any, num_rounds: int) -> Result:
    """Compiles a program with both engines in turn."""
    lower_ms: list[float] = []
    compile_ms: dict[str, list[float]] = {engine: [] for engine in ENGINES}
    for _ in range(num_rounds):
        for engine in ENGINES:
            lowering, compilation = time_compilation(engine, make(), arguments)
            lower_ms.append(lowering)
            compile_ms[engine].append(compilation)
    return Result(
        program=program,
        lower_ms=statistics.median(lower_ms),
        xla_ms=statistics.median(compile_ms["xla"]),
        fuselane_ms=statistics.median(compile_ms["fuselane"]),
        xla_first_ms=compile_ms["xla"][0],
        fuselane_first_ms=compile_ms["fuselane"][0],
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures all programs, prints them and writes the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument(
        "--quick", action="store_true", help="one round, small, to see that it runs"
    )
    options = parser.parse_args(arguments)
    num_envs, num_steps = (100, 20) if options.quick else (2048, 10_000)
    for engine in ENGINES:  # what is set up once per process is not the programs' doing
        time_compilation(engine, lambda x: jax.lax.fori_loop(0, 9, lambda _, y: y * y, x), (1.0,))
    results = []
    print(
        f"{'program':10} {'lower ms':>9} {'xla ms':>9} {'fuselane ms':>12} {'ratio':>6} {'+ms':>8}"
    )
    for program, make, values in make_programs(num_envs, num_steps):
        result = measure(program, make, values, 1 if options.quick else options.rounds)
        results.append(result)
        added_ms = result.fuselane_ms - result.xla_ms
        print(
            f"{program:10} {result.lower_ms:9.1f} {result.xla_ms:9.1f} {result.fuselane_ms:12.1f} "
            f"{result.ratio:6.2f} {added_ms:8.1f}",
            flush=True,
        )
    rows = [{**dataclasses.asdict(result), "ratio": result.ratio} for result in results]
    document = {"machine": describe_machine(), "rows": rows}
    options.json.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
