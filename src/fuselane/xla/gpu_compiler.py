"""Compiles modules with XLA's GPU compiler, for a GPU that need not be there; a program of its own.

`python -m fuselane.xla.gpu_compiler FOLDER CUDA_DATA_DIR` compiles `FOLDER/0.mlir`,
`FOLDER/1.mlir`, ... (StableHLO in any form MLIR reads) for the GpuTargetConfigProto in
`FOLDER/target.txtpb`, has XLA dump what it does to each into `FOLDER/dump/0`, `FOLDER/dump/1`, ...,
and adds a line of JSON to `FOLDER/results` after each: its seconds and, if it failed, why.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any, Final

import numpy as np
from jax._src import compiler
from jax._src.interpreters import mlir
from jax.experimental import topologies
from jaxlib import _jax
from jaxlib.mlir import ir

PLATFORM: Final = "cuda"


def main(folder: Path, cuda_data_dir: str) -> None:
    """Compiles all modules of a folder."""
    target = (folder / "target.txtpb").read_text(encoding="utf-8")
    sources = sorted(folder.glob("*.mlir"), key=lambda path: int(path.stem))
    with (folder / "results").open("a", encoding="utf-8") as results:
        for source in sources:
            start = time.perf_counter()
            error = ""
            try:
                _compile(source, target, folder / "dump" / source.stem, cuda_data_dir)
            except Exception as caught:
                error = f"{type(caught).__name__}: {caught}"
            seconds = time.perf_counter() - start
            results.write(json.dumps({"seconds": seconds, "error": error}) + "\n")
            results.flush()


def _compile(source: Path, target: str, dump: Path, cuda_data_dir: str) -> None:
    """Compiles one module and throws the result away."""
    with mlir.make_ir_context():
        module = ir.Module.parse(source.read_bytes())
        attributes = module.operation.attributes
        num_partitions = _number(attributes, "mhlo.num_partitions")
        num_replicas = _number(attributes, "mhlo.num_replicas")
        topology = topologies.get_topology_desc(
            "gpu",
            platform=PLATFORM,
            target_config=target,
            topology=f"1x1x{num_partitions * num_replicas}",
        )
        devices: Any = topology.devices
        options = compiler.get_compile_options(
            num_replicas=num_replicas,
            num_partitions=num_partitions,
            device_assignment=np.array(devices).reshape(num_replicas, num_partitions),
            env_options_overrides=_options(dump, cuda_data_dir),
            backend=devices[0].client,
        )
        devices[0].client.compile(
            module, executable_devices=_jax.DeviceList(tuple(devices)), compile_options=options
        )


def _number(attributes: Any, name: str) -> int:
    return int(attributes[name].value) if name in attributes else 1


def _options(dump: Path, cuda_data_dir: str) -> dict[str, Any]:
    options = {
        "xla_dump_to": str(dump),
        "xla_dump_hlo_pass_re": ".*",
        "xla_dump_hlo_as_proto": True,
        # It would time kernels on the GPU that is not there.
        "xla_gpu_autotune_level": 0,
    }
    return options | ({"xla_gpu_cuda_data_dir": cuda_data_dir} if cuda_data_dir else {})


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
