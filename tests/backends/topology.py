"""Programs compiled for GPUs that are not there, with the hook in XLA's own GPU compiler.

python -m tests.backends.topology      in a process of its own; prints JSON

A plug-in registers itself once per process, and XLA reads its flags once: hence the process.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
from typing import Any, Final

os.environ.update(
    {
        "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "XLA_FLAGS": "--xla_gpu_autotune_level=0",
    }
)

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

import fuselane
from fuselane.runtime import hook
from fuselane.runtime.launch import table
from fuselane.runtime.ptx_call import LAUNCH_TARGET, PTX_TARGET
from fuselane.xla.targets import find_target

MODEL: Final = "h200"
COMMAND_BUFFERS: Final = {"xla_gpu_enable_command_buffer": "FUSION,CUBLAS,WHILE,CONDITIONAL"}


def waves(x: jax.Array, w: jax.Array) -> jax.Array:
    return lax.fori_loop(0, 1000, lambda i, x: jnp.sin(x) * w, x)


def totals(x: jax.Array) -> Any:
    return lax.scan(lambda x, _: (jnp.sin(x), x.sum()), x, None, length=100)


def clipped(x: jax.Array) -> Any:
    """A loop that starts from zeros, which what comes behind it compares to as well."""

    def step(_: Any, carry: Any) -> Any:
        x, total = carry
        return jnp.sin(x), total + x

    return jnp.maximum(lax.fori_loop(0, 1000, step, (x, jnp.zeros_like(x)))[1], 0.0)


def compiled(program: Any, *arguments: Any, options: Any = None, **jit_options: Any) -> Any:
    """Returns what tells how a program came out."""
    before = len(fuselane.decisions().loops)
    lowered = jax.jit(program, **jit_options).trace(*arguments).lower(lowering_platforms=("cuda",))
    executable = lowered.compile(compiler_options=options)
    text = executable.as_text() or ""
    return {
        "calls": text.count(f'custom_call_target="{PTX_TARGET}"'),
        "own calls": text.count(f'custom_call_target="{LAUNCH_TARGET}"'),
        "loops": text.count(" while("),
        "copies": text.count(" copy("),
        "aliased": executable.memory_analysis().alias_size_in_bytes,
        "lanes": [loop.lanes for loop in fuselane.decisions().loops[before:]],
    }


def num_cache_entries(program: Any, *arguments: Any) -> list[int]:
    """Returns how many entries JAX's compilation cache has after compiling with Fuselane, once more
    with it, and without."""
    counts = []
    with tempfile.TemporaryDirectory() as folder:
        jax.config.update("jax_compilation_cache_dir", folder)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
        for is_on in (True, True, False):
            jax.clear_caches()
            chosen = fuselane.enabled(gpu=True, min_gain=0, cache_mib=0)
            with chosen if is_on else contextlib.nullcontext():
                compiled(program, *arguments)
            counts.append(len([name for name in os.listdir(folder) if name.endswith("-cache")]))
        jax.config.update("jax_compilation_cache_dir", None)
    return counts


def hook_without_a_gpu() -> None:
    """Has the hook take the described GPU for the one of this process."""
    gpu = find_target(MODEL).gpu
    vars(hook).update(_call_on_first_gpu=lambda transform, module: transform(gpu, module))


def devices_of(count: int) -> list[Any]:
    """Returns described GPUs that work together."""
    described = topologies.get_topology_desc(
        MODEL, platform="cuda", target_config=find_target(MODEL).config, topology=f"1x1x{count}"
    )
    return list(described.devices)


def struct(sizes: tuple[int, ...], sharding: Any) -> Any:
    """Returns an argument to compile for."""
    describe: Any = jax.ShapeDtypeStruct
    return describe(sizes, jnp.float32, sharding=sharding)


def main() -> None:
    hook_without_a_gpu()
    one = struct((100_000,), SingleDeviceSharding(devices_of(1)[0]))
    mesh = Mesh(np.array(devices_of(4)), ("x",))
    quarter = PartitionSpec("x")
    many = struct((100_000,), NamedSharding(mesh, quarter))
    mapped = jax.shard_map(waves, mesh=mesh, in_specs=(quarter, quarter), out_specs=quarter)
    with fuselane.enabled(gpu=True, min_gain=0, cache_mib=0):
        found = {
            "plain": compiled(waves, one, one),
            "donated": compiled(waves, one, one, donate_argnums=0),
            "command buffers": compiled(waves, one, one, options=COMMAND_BUFFERS),
            "sums": compiled(totals, one),
            "clipped": compiled(clipped, one),
            "sharded": compiled(waves, many, many),
            "shard_map": compiled(mapped, many, many),
        }
    with fuselane.enabled(gpu=True, gpu_launch="fuselane", min_gain=0, cache_mib=0):
        launched = {
            "plain": compiled(waves, one, one),
            "donated": compiled(waves, one, one, donate_argnums=0),
            "command buffers": compiled(waves, one, one, options=COMMAND_BUFFERS),
            "sums": compiled(totals, one),
            "shard_map": compiled(mapped, many, many),
            "resolved": len(table),
        }
    found["launched"] = launched
    found["cache entries"] = num_cache_entries(waves, one, one)
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
