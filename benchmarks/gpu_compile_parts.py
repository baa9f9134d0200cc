"""What it takes to compile for a GPU that is not there, with JAX 0.10, whose hook needs a GPU.

    python benchmarks/gpu_compile_parts.py --gpu h200 --only hmc double --json parts.json

As `gpu_compile.py`, which JAX 0.11 can run, but part by part. XLA compiles each program as far as
our hook would be called. From there on, in turns: XLA compiles the module; Fuselane transforms it,
XLA compiles the result, and ptxas assembles the kernels. Counted is the processor time of all
threads and child processes, the least of all rounds.

Needs JAX's CUDA plug-in and ptxas, as of the `gpu` extra.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import jax
import numpy as np
from jax._src import compiler
from jax._src.interpreters import mlir
from jax.experimental import topologies
from jaxlib import _jax
from jaxlib.mlir import ir

from fuselane import config, pipeline
from fuselane.backends import gpu as gpu_backend
from fuselane.codegen.llvm import compile_ptx
from fuselane.config import Options
from fuselane.decisions import DecisionLog
from fuselane.runtime.cache import open_cache
from fuselane.xla.capture import capture, lower
from fuselane.xla.targets import Target, find_target
from fuselane.xla.toolchain import find_toolchain
from gpu_compile import assemble, list_programs, make_parser, processor_s, summarise

PRE_FUSION = ("collective-optimizations", "simplification")
"""Pipelines of XLA's that come in front of the hook."""


def main() -> int:
    """Measures all programs; returns 1 if one cannot be compiled."""
    options = make_parser(__doc__).parse_args()
    sys.path.extend(options.packages)
    target = find_target(options.gpu)
    device = make_device(target)
    rows = []
    for name, x64, build in list_programs(options.only):
        with jax.enable_x64(x64):
            try:
                row = measure(stage_of(build(), options.gpu), target, device, options.rounds)
            except Exception as error:
                row = {"error": f"{type(error).__name__}: {error}"[:300]}
        rows.append({"program": name, **row})
        print(json.dumps(rows[-1]), flush=True)
    ratios = [row["ratio"] for row in rows if row.get("fused")]
    result = {"gpu": options.gpu, "jax": jax.__version__, "date": time.strftime("%Y-%m-%d")}
    result |= {"rows": rows, "ratios": summarise(ratios)}
    print(json.dumps(result["ratios"]))
    if options.json is not None:
        options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return int(any("error" in row for row in rows))


def make_device(target: Target) -> Any:
    """Returns a described GPU."""
    topology = topologies.get_topology_desc(
        "gpu", platform="cuda", target_config=target.config, topology="1x1x1"
    )
    return topology.devices[0]


def stage_of(built: Any, gpu_name: str) -> bytes:
    """Returns the module of a program as the hook would see it."""
    function, arguments = built

    def describe(value: Any) -> Any:
        array = jax.numpy.asarray(value)
        struct: Any = jax.ShapeDtypeStruct
        return struct(array.shape, array.dtype)

    shapes = jax.tree.map(describe, arguments)
    (captured,) = capture(lower(jax.jit(function), gpu_name, *shapes), gpu_name)
    return [stage for stage in captured.stages if stage.pipeline in PRE_FUSION][-1].data


def measure(data: bytes, target: Target, device: Any, rounds: int) -> dict[str, Any]:
    """Returns the seconds of processor time of each part."""
    gpu, toolchain = target.gpu, find_toolchain()
    assert gpu is not None, "a GPU"
    parts: dict[str, list[float]] = {"xla": [], "transform": [], "rest": [], "ptxas": []}
    kernels: list[str] = []

    def compile_and_keep(*arguments: Any) -> str:
        kernels.append(compile_ptx(*arguments))
        return kernels[-1]

    vars(gpu_backend).update(compile_ptx=compile_and_keep)
    compile_once(data, device)  # whatever is slow only once
    settings = Options(cache_mib=0)
    for _ in range(rounds):
        parts["xla"].append(compile_once(data, device))
        kernels.clear()
        open_cache(config.cache_dir()).forget()  # or kernels of the round before are taken
        start = processor_s()
        backend = gpu_backend.GpuBackend(settings, gpu)
        out = pipeline.transform(data, settings, DecisionLog(), backend)
        parts["transform"].append(processor_s() - start)
        parts["rest"].append(compile_once(out or data, device))
        ptxas = str(toolchain.ptxas)
        parts["ptxas"].append(sum(assemble(ptxas, k, gpu.compute_capability) for k in kernels))
    least = {name: min(values) for name, values in parts.items()}
    ours = least["transform"] + least["rest"] + least["ptxas"]
    fused = len(kernels) if out else 0
    return {f"{name}_s": round(value, 3) for name, value in least.items()} | {
        "ratio": ours / least["xla"],
        "fused": fused,
    }


def compile_once(data: bytes, device: Any) -> float:
    """Returns the processor time XLA takes for a module."""
    overrides = {"xla_gpu_cuda_data_dir": str(find_toolchain().data_dir or ".")}
    with mlir.make_ir_context():
        module = ir.Module.parse(_jax.mlir.hlo_to_stablehlo(data))
        options = compiler.get_compile_options(
            num_replicas=1,
            num_partitions=1,
            device_assignment=np.array([[device]]),
            env_options_overrides=overrides,
            backend=device.client,
        )
        devices = _jax.DeviceList((device,))
        start = processor_s()
        device.client.compile(module, executable_devices=devices, compile_options=options)
        return processor_s() - start


if __name__ == "__main__":
    sys.exit(main())
