"""CartPole on a GPU: plain XLA, XLA with its loops in command buffers, Fuselane, CUDA by hand.

python -m card.cartpole OUT.json --seconds S

All engines take turns in this process; results are compared after a few steps, and by how often
environments are reset after all of them (see docs/design/0002).
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from jax._src import core
from jax._src.interpreters import mlir
from jaxlib.mlir import ir

import fuselane
from card.nvrtc import compile_cuda
from card.series import Row, describe_error, measure_all, run_series
from card.sizes import QUICK_SIZES, SIZES
from fuselane.analysis.hlo_cost import compute_total
from fuselane.cartpole.constants import STEPS_WITHOUT_RESET
from fuselane.cartpole.problem import Problem, make_problem
from fuselane.cartpole.variants import PEER_VARIANT, VARIANTS
from fuselane.codegen.thread_plan import choose_block_threads
from fuselane.gpu import WARP_LANES, GpuDescription, describe_gpu
from fuselane.hlo.module import HloModule
from fuselane.runtime.ptx_call import PTX_TARGET

CUDA_SOURCE: Final = Path(__file__).with_name("cartpole.cu")
COMMAND_BUFFERS: Final = {
    "xla_gpu_enable_command_buffer": "FUSION,CUBLAS,WHILE,CONDITIONAL",
    "xla_gpu_graph_min_graph_size": 1,
}
"""Around a loop there are three copies at most: by default, four launches are no graph. XLA takes
loops into one only where it knows the driver, which it does not of GPUs that are described."""
CUDA_KERNELS: Final = {"naive": "cartpole_naive", PEER_VARIANT: "cartpole"}
"""Kernels of `cartpole.cu`: variants, and what computes the same by hand."""

ROUNDS: Final = 5
SLOW_S: Final = 8.0
PATIENCE_S: Final = 100.0
"""For all engines of a variant at one size."""

Run = Callable[[], Any]


def main() -> int:
    """Measures until the time is over; returns 1 if a result was wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=150)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--names", nargs="*", help="measures these in this process")
    options = parser.parse_args()
    if options.names is not None:
        return measure_all(options.names, options.out, measure_named)
    sizes = QUICK_SIZES if options.quick else SIZES
    names = [f"{variant} {envs} x {steps}" for envs, steps in sizes for variant in VARIANTS]
    rows: list[Row] = []
    series = run_series("card.cartpole", names, options.out, options.seconds, patience_s=PATIENCE_S)
    for rows, remaining in series:
        left = [{"name": name, "error": "no time left"} for name in remaining]
        options.out.write_text(json.dumps(rows + left, indent=2), encoding="utf-8")
    return int(any(row.get("wrong") for row in rows))


def measure_named(name: str) -> Row:
    """Returns what there is to be known of a variant at a size; results are compared at the first
    size."""
    variant, envs, _, steps = name.split()
    size = int(envs), int(steps)
    return measure(variant, _problem(*size), is_compared=size in (SIZES[0], *QUICK_SIZES))


@functools.lru_cache(maxsize=1)
def _problem(num_envs: int, num_steps: int) -> Problem:
    """Returns the problem of a size, kept for all variants: its pool can have 256 MiB."""
    return make_problem(num_envs, num_steps)


def measure(variant: str, problem: Problem, *, is_compared: bool) -> Row:
    """Returns the median milliseconds of each engine on one variant, and what went wrong.

    Args:
        variant: Which of them.
        problem: At which size.
        is_compared: Whether results are compared, which takes each engine one more compilation.
    """
    row: Row = {
        "variant": variant,
        "envs": problem.num_envs,
        "steps": problem.num_steps,
        "ms": {},
        "compile_s": {},
        "failed": {},
        "wrong": {},
        "remarks": [],
        "share of peak": None,
    }
    engines: dict[str, Callable[[int], Run]] = {
        "xla": lambda steps: jax_run(variant, problem, steps),
        "command buffers": lambda steps: jax_run(variant, problem, steps, **COMMAND_BUFFERS),
        "fuselane": lambda steps: fused_run(variant, problem, steps, row["remarks"]),
    }
    if variant in CUDA_KERNELS:
        engines["cuda by hand"] = lambda steps: cuda_run(variant, problem, steps)
    runs: dict[str, Run] = {}
    expected = np.asarray(engines["xla"](STEPS_WITHOUT_RESET)()) if is_compared else None
    for name, make in engines.items():
        try:
            if expected is not None:
                off = float(np.abs(np.asarray(make(STEPS_WITHOUT_RESET)()) - expected).max())
                if not off < 1e-5:
                    row["wrong"][name] = off
            start = time.perf_counter()
            runs[name] = make(problem.num_steps)
            row["compile_s"][name] = time.perf_counter() - start
            runs[name]()
        except Exception as error:
            runs.pop(name, None)
            row["failed"][name] = describe_error(error)
    row["ms"] = time_in_turns(runs)
    try:
        row["share of peak"] = share_of_peak(variant, problem, row["ms"])
    except Exception as error:
        row["failed"]["share of peak"] = describe_error(error)
    return row


def share_of_peak(variant: str, problem: Problem, ms: Mapping[str, float]) -> float | None:
    """Returns the share of the card's floating-point operations that Fuselane does of a variant;
    None where it did not run, or not on a card."""
    gpu = describe_card()
    if "fuselane" not in ms or gpu is None:
        return None
    return count_flops(variant, problem) / (ms["fuselane"] / 1e3) / gpu.peak_flops


def describe_card() -> GpuDescription | None:
    """Returns the GPU as Fuselane sees it, None on a CPU."""
    device = jax.devices()[0]
    if device.platform == "cpu":
        return None
    major, _, minor = str(device.compute_capability).partition(".")
    return describe_gpu(device.device_kind, (int(major), int(minor or 0)), int(device.core_count))


def count_flops(variant: str, problem: Problem) -> float:
    """Returns the operations of a run on numbers of any type, sines and the like apart, as many as
    XLA counts in one step of what JAX lowers for a CPU: for a GPU, random numbers are one call."""
    arguments = VARIANTS[variant].get_arguments(problem)
    traced = jax.jit(VARIANTS[variant].make_rollout(1)).trace(*arguments)
    lowered = traced.lower(lowering_platforms=("cpu",))
    proto = lowered.compiler_ir("hlo").as_serialized_hlo_module_proto()
    cost = compute_total(HloModule.from_bytes(proto).entry)
    return cost.flops * problem.num_steps


def time_in_turns(runs: dict[str, Run]) -> dict[str, float]:
    """Returns medians; engines that are slow run less often."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(ROUNDS):
        for name, run in runs.items():
            if sum(times[name]) > SLOW_S * 1e3:
                continue
            start = time.perf_counter()
            run()
            times[name].append((time.perf_counter() - start) * 1e3)
    return {name: statistics.median(found) for name, found in times.items()}


def jax_run(variant: str, problem: Problem, num_steps: int, **options: Any) -> Run:
    """Returns how to run a variant as XLA compiles it."""
    arguments = VARIANTS[variant].get_arguments(problem)
    lowered = jax.jit(VARIANTS[variant].make_rollout(num_steps)).lower(*arguments)
    compiled = lowered.compile(compiler_options=options or None)
    return lambda: compiled(*arguments).block_until_ready()


def fused_run(variant: str, problem: Problem, num_steps: int, remarks: list[str]) -> Run:
    """Returns how to run a variant as one kernel of Fuselane's.

    Where estimates would leave the loop to XLA it is fused all the same, to see whether they are
    right, and a remark says so.
    """
    is_long = num_steps > STEPS_WITHOUT_RESET
    settings: list[dict[str, float]] = [{}, {"min_gain": 0}]
    for setting in settings:
        with fuselane.enabled(gpu=True, **setting):
            before = len(fuselane.decisions().loops)
            run = jax_run(variant, problem, num_steps)
            loops = fuselane.decisions().loops[before:]
        if any(loop.fused for loop in loops) or not is_long:
            return run
        reasons = "; ".join(loop.decision.sentence for loop in loops) or "no loop was seen"
        remarks.append(f"by default left to XLA: {reasons}")
    raise RuntimeError(f"not fused: {reasons}")


def cuda_run(variant: str, problem: Problem, num_steps: int) -> Run:
    """Returns how to run the kernel written by hand that computes what a variant does."""
    device = jax.devices()[0]
    architecture = "compute_" + str(device.compute_capability).replace(".", "")
    ptx = compile_cuda(CUDA_SOURCE.read_text(encoding="utf-8"), architecture)
    gpu = describe_card()
    block_threads = WARP_LANES if gpu is None else choose_block_threads(problem.num_envs, gpu)
    kernel = jax.jit(_ptx_call(ptx, CUDA_KERNELS[variant], problem.num_envs, block_threads))
    arguments = cuda_arguments(variant, problem, num_steps)
    return lambda: kernel(*arguments).block_until_ready()


def cuda_arguments(variant: str, problem: Problem, num_steps: int) -> tuple[jax.Array, ...]:
    """Returns what a variant's kernel by hand reads: its data, and sizes."""
    if variant == PEER_VARIANT:
        sizes = jnp.array([num_steps, problem.pool_rows, problem.num_envs], jnp.int32)
        return problem.state, problem.actions, problem.resets, sizes
    sizes = jnp.array([num_steps, problem.num_envs], jnp.int32)
    return problem.state, jax.random.key_data(problem.key), sizes


def _ptx_call(ptx: str, name: str, num_threads: int, block_threads: int) -> Callable[..., Any]:
    """Returns a JAX function that launches a kernel; its result is like its first argument."""
    primitive = core.Primitive("ptx_call")
    primitive.def_abstract_eval(lambda first, *_: first)  # type: ignore[no-untyped-call]

    def lower(ctx: Any, *operands: Any) -> Any:
        def i32(value: int) -> Any:
            return ir.IntegerAttr.get(ir.IntegerType.get_signless(32), value)

        sizes = dict.fromkeys(("grid_y", "grid_z", "block_y", "block_z"), 1)
        sizes |= {"grid_x": -(-num_threads // block_threads), "block_x": block_threads}
        attributes = {name_: i32(size) for name_, size in (sizes | {"shared_mem_bytes": 0}).items()}
        texts = {"name": name, "kernel_type": "ptx", "kernel_data": ptx}
        attributes |= {key: ir.StringAttr.get(text) for key, text in texts.items()}
        attributes["output_indices"] = ir.ArrayAttr.get([i32(len(operands))])
        del ctx
        return mlir.custom_call(
            PTX_TARGET,
            result_types=[operands[0].type],
            operands=operands,
            backend_config=attributes,
            api_version=4,
        ).results

    mlir.register_lowering(primitive, lower)
    return primitive.bind


if __name__ == "__main__":
    sys.exit(main())
