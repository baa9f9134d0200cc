"""Linear algebra in loops: how near its products come to the machine's peak, and to XLA's time.

Each program runs under both engines in turn, round by round. The peak is that of a loop of
independent fused multiply-adds in registers, on one core, times the cores in use. Only the products
of dots count as work, whatever else a program does, so a program that also computes activations
has a lower share of the peak than its dots alone have.

    python benchmarks/dots.py --json docs/data/dots.json
"""

from __future__ import annotations

import argparse
import ctypes
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
import numpy as np
from jax import lax

import fuselane
from fuselane.cartpole.contender import engine_context
from fuselane.codegen.llvm import compile_object
from fuselane.codegen.loading import load_object
from fuselane.device import host_device
from fuselane.machine import describe_machine

ENGINES: Final = ("xla", "fuselane")
NUM_SUMS: Final = 12
LANES: Final = 2048
BATCH: Final = 256

Clock = Callable[[], float]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A program to be measured.

    Attributes:
        name: For people.
        run: The program.
        arguments: What it runs on.
        num_products: Multiplications of its dots in one run.
    """

    name: str
    run: Callable[..., Any]
    arguments: tuple[Any, ...]
    num_products: float


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Median times of a program, and what they mean.

    Attributes:
        program: Its name.
        decision: What Fuselane made of its loop.
        xla_ms, fuselane_ms: Median times of a run.
        gflops: Two for each product of Fuselane's dots, per second.
        share_of_peak: Of the machine's, all cores in use.
        ratio: How many times faster than plain XLA.
    """

    program: str
    decision: str
    xla_ms: float
    fuselane_ms: float
    gflops: float
    share_of_peak: float
    ratio: float


# Programs.


def normal(*shape: int, scale: float = 0.1) -> jax.Array:
    """Returns the same random numbers every time."""
    generator = np.random.default_rng(shape)
    return jnp.asarray(generator.standard_normal(shape) * scale, jnp.float32)


def repeat(step: Callable[..., Any], num_steps: int) -> Callable[..., Any]:
    """Returns a program that applies a step of all its arguments again and again.

    It adds something up besides: a kernel whose state comes back would end there.
    """

    def run(*state: Any) -> Any:
        start = state, jnp.zeros(())
        return lax.fori_loop(0, num_steps, lambda _, s: (step(*s[0]), s[1] + 0.5), start)

    return run


def make_programs(num_steps: int) -> Iterator[Program]:
    """Yields all programs."""
    layers = normal(LANES, 4), normal(4, 64), normal(64, 64), normal(64, 2)
    products = LANES * (4 * 64 + 64 * 64 + 64 * 2)
    for name, activation in (("dots", lambda x: x), ("relu", jax.nn.relu), ("tanh", jnp.tanh)):
        run = repeat(make_policy(activation), num_steps)
        yield make(f"policy 4-64-64-2, {name}", run, layers, products * num_steps)
    for size in (16, 64, 128, 256, 512):
        steps = max(2, num_steps * 64 * 64 // size**2 // 2)
        run = repeat(lambda x, w: (x @ w, w), steps)
        pair = normal(LANES, size), normal(size, size)
        yield make(f"x @ w, {size}", run, pair, LANES * size * size * steps)
    for cell, gates in (("gru", 3), ("lstm", 4)):
        for hidden in (64, 128):
            inputs = hidden // 2
            arguments = (
                normal(BATCH, hidden),
                normal(num_steps, BATCH, inputs),
                normal(inputs, gates * hidden),
                normal(hidden, gates * hidden),
            )
            products = BATCH * gates * hidden * (hidden + inputs) * num_steps
            yield make(f"{cell} {hidden}", make_cell(cell, gates), arguments, products)
    for size in (3, 4, 8, 12):
        pair = normal(LANES, size, size), normal(LANES, size)
        products = LANES * (size**3 + size**2) * num_steps
        yield make(f"per lane {size}x{size}", repeat(multiply, num_steps), pair, products)
    for size, observed in ((4, 2), (6, 3)):
        yield make_kalman(size, observed, num_steps)


def make(
    name: str, run: Callable[..., Any], arguments: tuple[Any, ...], num_products: float
) -> Program:
    """Returns a program."""
    return Program(name=name, run=run, arguments=arguments, num_products=num_products)


def make_policy(activation: Callable[[jax.Array], jax.Array]) -> Callable[..., Any]:
    """Returns a step that a network of three layers steers."""

    def step(x: jax.Array, w1: jax.Array, w2: jax.Array, w3: jax.Array) -> tuple[jax.Array, ...]:
        output = activation(activation(x @ w1) @ w2) @ w3
        return 0.9 * x + 0.1 * (output[:, :1] - output[:, 1:]), w1, w2, w3

    return step


def make_cell(cell: str, gates: int) -> Callable[..., Any]:
    """Returns a scan of a recurrent cell over [steps, batch, inputs]."""

    def run(h: jax.Array, xs: jax.Array, w: jax.Array, u: jax.Array) -> Any:
        def step(state: tuple[jax.Array, jax.Array], x: jax.Array) -> Any:
            h, c = state
            parts = jnp.split(x @ w + h @ u, gates, axis=1)
            z, r = jax.nn.sigmoid(parts[0]), jax.nn.sigmoid(parts[1])
            if cell == "gru":
                h = z * h + (1 - z) * jnp.tanh(parts[2] * r)
            else:
                c = z * c + r * jnp.tanh(parts[2])
                h = jax.nn.sigmoid(parts[3]) * jnp.tanh(c)
            return (h, c), h

        return lax.scan(step, (h, h), xs)

    return run


def multiply(a: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Multiplies a matrix per lane by itself, and a vector by it."""
    squared = jnp.einsum("nij,njk->nik", a, a)
    return 0.5 * squared + 0.1 * a, 0.5 * jnp.einsum("nij,nj->ni", a, x) + 0.1 * x


def make_kalman(size: int, observed: int, num_steps: int) -> Program:
    """Returns Kalman filters, one per lane, over [steps, lanes, observed]."""
    f = 0.9 * jnp.eye(size) + normal(size, size, scale=0.05)
    h = normal(observed, size, scale=1.0)

    def filter_one(x: jax.Array, p: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
        x, p = f @ x, f @ p @ f.T + 0.1 * jnp.eye(size)
        s = h @ p @ h.T + 0.5 * jnp.eye(observed)
        gain = jnp.linalg.solve(s, h @ p).T
        return x + gain @ (y - h @ x), (jnp.eye(size) - gain @ h) @ p

    def run(x: jax.Array, p: jax.Array, ys: jax.Array) -> Any:
        def step(state: tuple[jax.Array, jax.Array], y: jax.Array) -> Any:
            state = jax.vmap(filter_one)(state[0], state[1], y)
            return state, state[0]

        return lax.scan(step, (x, p), ys)

    p = jnp.broadcast_to(jnp.eye(size), (LANES, size, size))
    arguments = normal(LANES, size), p, normal(num_steps, LANES, observed)
    products = LANES * num_steps * (4 * size**3 + 2 * observed * size**2)
    return make(f"kalman {size}, {observed}", run, arguments, products)


# Measuring.


def measure_peak_gflops(num_rounds: int) -> float:
    """Returns what one core does at most: two for each fused multiply-add of f32."""
    width = host_device().vector_bits // 32
    loaded = load_object(compile_object(_peak_module(width)))
    run = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(loaded.address("peak"))
    data = np.zeros(2 * width, np.float32)
    num_iterations = 1_000_000
    seconds = []
    for _ in range(num_rounds):
        start = time.process_time()
        run(data.ctypes.data, num_iterations)
        seconds.append(time.process_time() - start)
    return 2 * width * NUM_SUMS * num_iterations / min(seconds) / 1e9


def _peak_module(width: int) -> str:
    """Returns IR of a loop of multiply-adds that don't wait for each other."""
    vector = f"<{width} x float>"
    sums = range(NUM_SUMS)
    fma = f"llvm.fma.v{width}f32"
    phis = "\n".join(f"  %a{i} = phi {vector} [ %x, %entry ], [ %b{i}, %loop ]" for i in sums)
    work = "\n".join(
        f"  %b{i} = call {vector} @{fma}({vector} %x, {vector} %y, {vector} %a{i})" for i in sums
    )
    stores = "\n".join(f"  store volatile {vector} %b{i}, ptr %data, align 4" for i in sums)
    return f"""
declare {vector} @{fma}({vector}, {vector}, {vector})
define void @peak(ptr %data, i64 %count) {{
entry:
  %x = load {vector}, ptr %data, align 4
  %second = getelementptr {vector}, ptr %data, i64 1
  %y = load {vector}, ptr %second, align 4
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
{phis}
{work}
  %next = add i64 %i, 1
  %more = icmp ult i64 %next, %count
  br i1 %more, label %loop, label %exit
exit:
{stores}
  ret void
}}
"""


def measure(program: Program, num_rounds: int, clock: Clock, peak_gflops: float) -> Result:
    """Compiles and times a program with both engines in turn."""
    num_before = len(fuselane.decisions().loops)
    compiled = {}
    for engine in ENGINES:
        with engine_context(engine):
            # A new function each time, since jit compiles the same one only once.
            function = jax.jit(functools.partial(program.run))
            compiled[engine] = function.lower(*program.arguments).compile()
    decisions = fuselane.decisions().loops[num_before:]
    seconds: dict[str, list[float]] = {engine: [] for engine in ENGINES}
    for number in range(num_rounds + 1):
        for engine in ENGINES:
            start = clock()
            jax.block_until_ready(  # type: ignore[no-untyped-call]
                compiled[engine](*program.arguments)
            )
            if number:
                seconds[engine].append(clock() - start)
    xla, ours = (statistics.median(seconds[engine]) for engine in ENGINES)
    gflops = 2 * program.num_products / ours / 1e9
    return Result(
        program=program.name,
        decision=decisions[0].decision.reason.code if decisions else "none",
        xla_ms=xla * 1e3,
        fuselane_ms=ours * 1e3,
        gflops=gflops,
        share_of_peak=gflops / peak_gflops,
        ratio=xla / ours,
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures all programs, prints them and writes the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", default="", help="programs whose names contain this")
    parser.add_argument("--quick", action="store_true", help="one short round, to see that it runs")
    parser.add_argument(
        "--cpu", action="store_true", help="time of all cores instead of the clock's: on busy ones"
    )
    options = parser.parse_args(arguments)
    rounds, steps = (1, 20) if options.quick else (options.rounds, 200)
    clock = time.process_time if options.cpu else time.perf_counter
    cores = 1 if options.cpu else host_device().num_cores
    peak_gflops = cores * measure_peak_gflops(3 if options.quick else 20)
    print(f"peak {peak_gflops:.0f} GFLOP/s on {cores} core{'s' * (cores > 1)}")
    print(
        f"{'program':26} {'xla ms':>9} {'fuselane ms':>12} {'ratio':>6} {'GFLOP/s':>8} {'share':>6}"
    )
    results = []
    for program in make_programs(steps):
        if options.only in program.name:
            result = measure(program, rounds, clock, peak_gflops)
            results.append(result)
            print(
                f"{result.program:26} {result.xla_ms:9.2f} {result.fuselane_ms:12.2f} "
                f"{result.ratio:6.2f} {result.gflops:8.1f} {result.share_of_peak:6.0%} "
                f"{'' if result.decision == 'fused' else result.decision}",
                flush=True,
            )
    if options.json:
        rows = [dataclasses.asdict(result) for result in results]
        document = {"machine": describe_machine(), "peak_gflops": peak_gflops, "rows": rows}
        options.json.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
