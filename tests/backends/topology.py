"""Programs compiled for GPUs that are not there, with the hook in XLA's own GPU compiler.

python -m tests.backends.topology      in a process of its own; prints JSON

A plug-in registers itself once per process, and XLA reads its flags once: hence the process.
"""

from __future__ import annotations

import json
import os
import sys
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
from fuselane.runtime.ptx_call import PTX_TARGET
from fuselane.xla.targets import find_target

MODEL: Final = "h200"
COMMAND_BUFFERS: Final = {"xla_gpu_enable_command_buffer": "FUSION,CUBLAS,WHILE,CONDITIONAL"}


def waves(x: jax.Array, w: jax.Array) -> jax.Array:
    return lax.fori_loop(0, 1000, lambda i, x: jnp.sin(x) * w, x)


def totals(x: jax.Array) -> Any:
    return lax.scan(lambda x, _: (jnp.sin(x), x.sum()), x, None, length=100)


def compiled(program: Any, *arguments: Any, options: Any = None, **jit_options: Any) -> Any:
    """Returns what tells how a program came out."""
    before = len(fuselane.decisions().loops)
    lowered = jax.jit(program, **jit_options).trace(*arguments).lower(lowering_platforms=("cuda",))
    executable = lowered.compile(compiler_options=options)
    text = executable.as_text() or ""
    return {
        "calls": text.count(f'custom_call_target="{PTX_TARGET}"'),
        "loops": text.count(" while("),
        "copies": text.count(" copy("),
        "aliased": executable.memory_analysis().alias_size_in_bytes,
        "lanes": [loop.lanes for loop in fuselane.decisions().loops[before:]],
    }


def main() -> None:
    target = find_target(MODEL)
    vars(hook).update(_call_on_first_gpu=lambda transform, module: transform(target.gpu, module))

    def devices(count: int) -> list[Any]:
        described = topologies.get_topology_desc(
            MODEL, platform="cuda", target_config=target.config, topology=f"1x1x{count}"
        )
        return list(described.devices)

    def struct(size: int, sharding: Any) -> Any:
        describe: Any = jax.ShapeDtypeStruct
        return describe((size,), jnp.float32, sharding=sharding)

    one = struct(100_000, SingleDeviceSharding(devices(1)[0]))
    mesh = Mesh(np.array(devices(4)), ("x",))
    quarter = PartitionSpec("x")
    many = struct(100_000, NamedSharding(mesh, quarter))
    mapped = jax.shard_map(waves, mesh=mesh, in_specs=(quarter, quarter), out_specs=quarter)
    with fuselane.enabled(gpu=True, min_gain=0, cache_mib=0):
        found = {
            "plain": compiled(waves, one, one),
            "donated": compiled(waves, one, one, donate_argnums=0),
            "command buffers": compiled(waves, one, one, options=COMMAND_BUFFERS),
            "sums": compiled(totals, one),
            "sharded": compiled(waves, many, many),
            "shard_map": compiled(mapped, many, many),
        }
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
