"""What it takes to compile for a GPU that is not there: plain XLA:GPU, and with our hook in it.

    python benchmarks/gpu_compile.py --gpu h200 --json docs/data/gpu_compile.json

Each program goes through the real XLA:GPU compiler of this process by both engines in turns, by a
topology. Counted is processor time of all threads and child processes, and for Fuselane ptxas on
top, since XLA leaves a call's PTX to the driver, which assembles it when it is first loaded.

Needs JAX 0.11 or later, whose hook also fires where there is no client, with its CUDA plug-in, and
ptxas: of a CUDA toolkit in $CUDA_HOME, or on the PATH.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

_CUDA: Final = os.environ.get("CUDA_HOME", "")
os.environ.update(
    {
        "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "XLA_FLAGS": f"--xla_gpu_autotune_level=0 --xla_gpu_cuda_data_dir={_CUDA or '.'}",
    }
)

import jax  # noqa: E402
from jax.experimental import topologies  # noqa: E402
from jax.sharding import SingleDeviceSharding  # noqa: E402
from jaxlib.mlir import ir  # noqa: E402

import fuselane  # noqa: E402
from fuselane import config  # noqa: E402
from fuselane.cartpole.problem import make_problem  # noqa: E402
from fuselane.cartpole.variants import VARIANTS  # noqa: E402
from fuselane.runtime import hook  # noqa: E402
from fuselane.runtime.cache import open_cache  # noqa: E402
from fuselane.xla.targets import find_target  # noqa: E402
from programs import PROGRAMS  # noqa: E402

ROUNDS: Final = 3
_CALL: Final = re.compile(r'custom_call_target="__gpu\$xla\.gpu\.ptx".*?backend_config=(\{.*)')

Built = tuple[Callable[..., Any], Sequence[Any]]


def make_parser(documentation: str) -> argparse.ArgumentParser:
    """Returns the options of a measurement of compiling for a GPU."""
    parser = argparse.ArgumentParser(description=documentation.splitlines()[0])
    parser.add_argument("--gpu", default="h200")
    parser.add_argument("--only", nargs="*", default=[], help="programs with a part in their names")
    parser.add_argument("--packages", nargs="*", default=[])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--json", type=Path)
    return parser


def main() -> int:
    """Measures all programs; returns 1 if one cannot be compiled."""
    parser = make_parser(__doc__)
    options = parser.parse_args()
    sys.path.extend(options.packages)
    target = find_target(options.gpu)
    gpu = target.gpu
    if gpu is None:
        parser.error("--gpu has to be a GPU")
    vars(hook).update(_call_on_first_gpu=lambda transform, module: transform(gpu, module))
    topology = topologies.get_topology_desc(
        options.gpu, platform="cuda", target_config=target.config, topology="1x1x1"
    )
    sharding = SingleDeviceSharding(topology.devices[0])
    ptxas = shutil.which("ptxas", path=f"{_CUDA}/bin{os.pathsep}{os.environ['PATH']}")
    rows = []
    for name, x64, build in list_programs(options.only):
        with jax.enable_x64(x64):
            try:
                row = measure(build(), sharding, ptxas, gpu.compute_capability, options)
            except Exception as error:
                row = {"error": f"{type(error).__name__}: {error}"[:300]}
        rows.append({"program": name, **row})
        print(json.dumps(rows[-1]), flush=True)
    ratios = [row["ratio"] for row in rows if "ratio" in row and row["fused"]]
    result = {"gpu": options.gpu, "jax": jax.__version__, "date": time.strftime("%Y-%m-%d")}
    result |= {"rows": rows, "ratios": summarise(ratios)}
    print(json.dumps(result["ratios"]))
    if options.json is not None:
        options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return int(any("error" in row for row in rows))


def summarise(ratios: list[float]) -> dict[str, float]:
    """Returns what is to be said about the ratios of programs in which something is fused."""
    if not ratios:
        return {}
    above = sum(ratio > 1.5 for ratio in ratios)
    return {"median": statistics.median(ratios), "largest": max(ratios), "above 1.5": above}


def list_programs(parts: Sequence[str]) -> list[tuple[str, bool, Callable[[], Built]]]:
    """Returns names, whether they run with 64-bit types, and what builds them."""

    def cartpole(name: str) -> Built:
        problem = make_problem(2048, 10_000)
        return VARIANTS[name].make_rollout(10_000), VARIANTS[name].get_arguments(problem)

    found: list[tuple[str, bool, Callable[[], Built]]] = [
        (f"cartpole/{name}", False, functools.partial(cartpole, name)) for name in VARIANTS
    ]
    found += [
        (p.name, p.x64, functools.partial(p.build, p.full)) for p in PROGRAMS if not p.missing()
    ]
    return [entry for entry in found if not parts or any(part in entry[0] for part in parts)]


def measure(
    built: Built,
    sharding: Any,
    ptxas: str | None,
    capability: tuple[int, int],
    options: argparse.Namespace,
) -> dict[str, Any]:
    """Returns the median seconds of processor time of each engine, and what became of loops."""
    function, arguments = built

    def describe(value: Any) -> Any:
        array = jax.numpy.asarray(value)
        struct: Any = jax.ShapeDtypeStruct
        return struct(array.shape, array.dtype, sharding=sharding)

    shapes = jax.tree.map(describe, arguments)
    times: dict[str, list[float]] = {"xla": [], "fuselane": []}
    before = len(fuselane.decisions().loops)
    text = ""
    compile_once(function, shapes)  # whatever is slow only once
    for _ in range(options.rounds):
        times["xla"].append(compile_once(function, shapes)[0])
        open_cache(config.cache_dir()).forget()  # or kernels of the round before are taken
        with fuselane.enabled(gpu=True, cache_mib=0):
            seconds, text = compile_once(function, shapes)
        times["fuselane"].append(seconds)
    loops = fuselane.decisions().loops[before:]
    kernels = find_kernels(text)
    xla, ours = (statistics.median(values) for values in times.values())
    assembling = sum(assemble(ptxas, kernel, capability) for kernel in kernels)
    return {
        "xla_s": xla,
        "fuselane_s": ours,
        "ptxas_s": assembling,
        "ratio": (ours + assembling) / xla,
        "fused": len(kernels),
        "reasons": sorted({loop.decision.sentence for loop in loops if not loop.fused}),
    }


def compile_once(function: Callable[..., Any], shapes: Sequence[Any]) -> tuple[float, str]:
    """Returns the processor time to compile, and the module."""
    fresh = functools.partial(function)  # which JAX has not compiled anything under
    lowered = jax.jit(fresh).trace(*shapes).lower(lowering_platforms=("cuda",))
    start = processor_s()
    compiled = lowered.compile()
    return processor_s() - start, compiled.as_text() or ""


def processor_s() -> float:
    """Returns the processor time of this process and of those it has started."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def find_kernels(module: str) -> list[str]:
    """Returns the PTX of a module's calls."""
    kernels = []
    with ir.Context():
        for match in _CALL.finditer(module):
            attributes = ir.DictAttr(ir.Attribute.parse(match[1]))
            kernels.append(ir.StringAttr(attributes["kernel_data"]).value)
    return kernels


def assemble(ptxas: str | None, ptx: str, capability: tuple[int, int]) -> float:
    """Returns the processor time ptxas takes."""
    if ptxas is None:
        raise FileNotFoundError("There is no ptxas.")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.ptx"
        path.write_text(ptx, encoding="utf-8")
        start = processor_s()
        command = [ptxas, "--gpu-name", "sm_{}{}".format(*capability), str(path)]
        subprocess.run([*command, "-o", f"{folder}/kernel"], check=True, timeout=300)
        return processor_s() - start


if __name__ == "__main__":
    sys.exit(main())
