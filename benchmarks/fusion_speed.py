"""How long fusion strategies take: modules of 10,000 instructions, CPU time.

Strategies that go on from XLA's fusions get the module as `xla-today-cpu` leaves it. Each has a
process of its own: what ran there before would leave memory in pieces, which takes up to a tenth.

python benchmarks/fusion_speed.py --strategies xla-2021 xla-2023
python benchmarks/fusion_speed.py --docs docs/strategies.md
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxlib import _hlo  # type: ignore[attr-defined]

from fuselane import collector
from fuselane.cartpole.variants import make_no_concat
from fuselane.fusion.pipelines import PIPELINES, for_cpu, parse_pipeline, refines, run_pipeline
from fuselane.hlo import HloModule

Built = tuple[Callable[..., Any], tuple[Any, ...]]


def chain(num: int) -> Built:
    """One value, changed again and again."""

    def function(x: jax.Array) -> jax.Array:
        for _ in range(num // 4):
            x = jnp.sin(x) * lax.abs(x) + x
        return x

    return function, (np.ones(256, np.float32),)


def web(num: int) -> Built:
    """Each value is made of two of the twenty before it."""

    def function(x: jax.Array) -> list[jax.Array]:
        generator = np.random.default_rng(0)
        values = [x, -x]
        for step in range(num * 16 // 13):  # a fifth is dead
            left, right = generator.integers(max(0, len(values) - 20), len(values), 2)
            make = (lax.add, lax.mul, lax.max)[step % 3]
            values.append(make(values[left], values[right]))
        return values[-20:]

    return function, (np.ones(256, np.float32),)


def optimizer(num: int) -> Built:
    """Adam over many small arrays."""
    shapes = [(16, 8), (8,), (64,), (8, 16)]
    tree = [np.ones(shapes[n % 4], np.float32) for n in range(num // 14)]

    def function(parameters: list[jax.Array], gradients: list[jax.Array]) -> list[Any]:
        results = []
        for parameter, gradient in zip(parameters, gradients, strict=True):
            first = 0.9 * parameter + 0.1 * gradient
            second = 0.99 * parameter + 0.01 * gradient * gradient
            step = 1e-3 * first / (jnp.sqrt(second) + 1e-8)
            results.append((parameter - step, first, second))
        return results

    return function, (tree, tree)


def layers(num: int) -> Built:
    """Normalized and summed rows, layer after layer, and the gradient of all that."""

    def loss(x: jax.Array) -> jax.Array:
        for _ in range(num // 130):
            x = x - x.mean(-1, keepdims=True)
            x = jax.nn.gelu(x / jnp.sqrt((x * x).mean(-1, keepdims=True) + 1e-5))
            x = jax.nn.softmax(x) + x
        return x.sum()

    return jax.grad(loss), (np.ones((64, 128), np.float32),)


def fan(num: int) -> Built:
    """One array with many readers."""

    def function(x: jax.Array) -> list[jax.Array]:
        return [jnp.sin(x + step) for step in range(num // 4 + 1)]

    return function, (np.ones(256, np.float32),)


def cartpole(num: int) -> Built:
    """Steps of CartPole, one after the other without a loop."""
    num_steps = num // 108
    state = tuple(np.zeros(1024, np.float32) for _ in range(4))
    actions = np.zeros((num_steps, 1024), np.int32)
    resets = np.zeros((num_steps, 4, 1024), np.float32)
    return make_no_concat(num_steps, unroll=num_steps), (state, actions, resets)


PROGRAMS: Final = (chain, optimizer, layers, fan, cartpole, web)


class Run(NamedTuple):
    """What fusing a module took, and how many kernels it left."""

    instructions: int
    kernels: int
    seconds: float


BEGIN, END = "<!-- speed:begin -->", "<!-- speed:end -->"


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints seconds of each strategy for each program."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--strategies", nargs="+", default=[n for n in PIPELINES if n != "none"])
    parser.add_argument("--only", nargs="+", default=[], metavar="PROGRAM")
    parser.add_argument("--instructions", type=int, default=10_000)
    parser.add_argument("--cpu", action="store_true", help="without the rules of GPUs")
    parser.add_argument("--docs", type=Path, help="put the table between a page's two marks")
    options = parser.parse_args(arguments)
    table = [
        f"| program | instructions | {' | '.join(options.strategies)} |",
        f"|---|---:|{'---:|' * len(options.strategies)}",
    ]
    width = max(map(len, options.strategies)) + 2
    print(f"{'program':12}{'instructions':>14}  {'strategy':{width}}{'kernels':>8}{'CPU s':>8}")
    for program in PROGRAMS:
        if options.only and program.__name__ not in options.only:
            continue
        times = []
        for name in options.strategies:
            with ProcessPoolExecutor(1, get_context("spawn")) as process:
                asked = program, options.instructions, name
                run = process.submit(measure, *asked, cpu=options.cpu).result()
            row = f"{program.__name__:12}{run.instructions:14,}  {name:{width}}"
            print(f"{row}{run.kernels:8,}{run.seconds:8.2f}", flush=True)
            times.append(f"{run.seconds:.1f}")
        table.append(f"| `{program.__name__}` | {run.instructions:,} | {' | '.join(times)} |")
    if options.docs is not None:
        before, _, rest = options.docs.read_text().partition(BEGIN)
        text = "\n".join(table)
        options.docs.write_text(f"{before}{BEGIN}\n{text}\n{END}{rest.partition(END)[2]}")
    return 0


def measure(program: Callable[[int], Built], instructions: int, strategy: str, *, cpu: bool) -> Run:
    """Fuses a program of about so many instructions, traced in the same process as a user's is."""
    module = HloModule.from_bytes(lower(*program(instructions)))
    inline_calls(module)
    num = sum(len(c.instructions) for c in module.computations)
    pipeline = parse_pipeline(strategy)
    if refines(pipeline):
        run_pipeline(PIPELINES["xla-today-cpu"], module)
    gc.collect()  # of tracing
    start = time.process_time()
    with collector.paused():  # as while XLA compiles
        run_pipeline(for_cpu(pipeline) if cpu else pipeline, module)
    seconds = time.process_time() - start
    return Run(num, sum(i.opcode == "fusion" for i in module.entry.instructions), seconds)


def lower(function: Callable[..., Any], arguments: tuple[Any, ...]) -> bytes:
    """Returns the module that XLA gets of a function."""
    hlo: Any = jax.jit(function).lower(*arguments).compiler_ir("hlo")
    module = _hlo.HloModule.from_serialized_hlo_module_proto(hlo.as_serialized_hlo_module_proto())
    data: bytes = module.as_serialized_hlo_module_proto()
    return data


def inline_calls(module: HloModule) -> None:
    """Puts what the entry calls in place of the calls, as XLA does before it fuses."""
    entry = module.entry
    while calls := [i for i in entry.instructions if i.opcode == "call" and i.users]:
        for call in calls:
            made = dict(zip(call.to_apply.parameters, call.operands, strict=True))
            for member in call.to_apply.post_order():
                if member.opcode != "parameter":
                    made[member] = entry.add(member.clone([made[o] for o in member.operands]))
            call.replace_all_uses_with(made[call.to_apply.root])
    entry.remove_dead_instructions()
    entry.sort()
    module.remove_unused_computations()


if __name__ == "__main__":
    raise SystemExit(main())
