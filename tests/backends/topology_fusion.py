"""Programs fused by strategies for a GPU that is not there, through the hook in XLA's GPU compiler.

python -m tests.backends.topology_fusion      in a process of its own; prints JSON
"""

from __future__ import annotations

import json
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any, Final

from tests.backends.topology import MODEL, devices_of, hook_without_a_gpu, struct

import jax  # isort: skip  # after what tells it that there is no GPU
import jax.numpy as jnp
from jax import lax
from jax.sharding import SingleDeviceSharding

import fuselane
from fuselane import gpu_fusion
from fuselane.fusion import running
from fuselane.fusion.decision import FusionLog
from fuselane.fusion.fuse import LOOP, Fuser
from fuselane.hlo.module import HloModule
from fuselane.runtime.ptx_call import PTX_TARGET
from fuselane.runtime.warning import forget_warnings
from fuselane.xla.dump import read_dump
from fuselane.xla.targets import find_target

STRATEGIES: Final = ("none", "xla-2021", "xla-today-gpu", "xla-today-cpu")


def straight(x: jax.Array) -> Any:
    """Results that share work, a reduction, a transpose, and small ones of several sizes."""
    shared = jnp.sin(x) * jnp.log(jnp.abs(x) + 1)
    small = [jnp.cos(x[0, :size]) * size for size in (3, 5, 7)]
    return shared, shared.sum(0), jnp.exp(shared).T * 2, x + 1, *small


def looped(x: jax.Array) -> Any:
    return lax.fori_loop(0, 1000, lambda i, x: jnp.sin(x) * x, x[0]), jnp.cos(x) + x.sum()


def compiled(program: Any, fusion: str, **options: Any) -> dict[str, Any]:
    """Returns what tells how a program came out under a strategy."""
    (device,) = devices_of(1)
    argument = struct((256, 128), SingleDeviceSharding(device))
    formed: list[gpu_fusion.Formed] = []
    form = gpu_fusion.form

    def remembered(*arguments: Any) -> gpu_fusion.Formed:
        formed.append(form(*arguments))
        return formed[-1]

    forget_warnings()
    vars(gpu_fusion).update(form=remembered)
    jax.clear_caches()
    with (
        tempfile.TemporaryDirectory() as folder,
        fuselane.enabled(fusion=fusion, min_gain=0, cache_mib=0, **options),
        warnings.catch_warnings(record=True) as told,
    ):
        warnings.simplefilter("always")
        traced = jax.jit(program, donate_argnums=0).trace(argument)
        executable = traced.lower(lowering_platforms=("cuda",)).compile(
            compiler_options={"xla_dump_to": folder, "xla_dump_hlo_as_proto": True}
        )
        (module,) = read_dump(Path(folder), find_target(MODEL))
    vars(gpu_fusion).update(form=form)
    text = executable.as_text() or ""
    return {
        "formed": [count_kernels(HloModule.from_bytes(one.data)) for one in formed],
        "is_new": [one.is_new for one in formed],
        "launches": sum(module.parts.values()) - text.count(" copy("),
        "calls": text.count(f'custom_call_target="{PTX_TARGET}"'),
        "loops": text.count(" while("),
        "aliased": executable.memory_analysis().alias_size_in_bytes,
        "told": [str(warning.message) for warning in told],
    }


def make_illegal(module: HloModule, _: FusionLog) -> None:
    """Forms what XLA aborts on: a kernel of a large and a small result."""
    opcodes = {i.opcode: i for i in module.entry.instructions}
    fuser = Fuser(module, module.entry)
    fuser.fuse_siblings(opcodes["sine"], opcodes["cosine"], LOOP)
    fuser.finish()


def count_kernels(module: HloModule) -> int:
    """Returns how many instructions of a module without control flow are kernels."""
    free = {"bitcast", "constant", "get-tuple-element", "parameter", "tuple"}
    return sum(i.opcode not in free for i in module.entry.instructions)


def main() -> None:
    hook_without_a_gpu()
    found = {name: compiled(straight, name, loops=False) for name in ("", *STRATEGIES)}
    found["loops"] = compiled(looped, "none", gpu=True)
    found["for CPUs"] = compiled(straight, "fuselane", loops=False)
    found["late"] = compiled(straight, "none", loops=False, max_compile_s=0.01)
    vars(running).update(make_legal_on_gpu=make_illegal)
    found["aborted"] = compiled(straight, "none", loops=False)
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
