"""Compiles modules with XLA; a program of its own, which may abort without harm.

`python -m fuselane.xla.compiler FOLDER [CUDA_DATA_DIR [LIBRARY]]` compiles the modules `0.*`,
`1.*`, ... of FOLDER, each in one of four forms:

- `*.mlir`: StableHLO as text or bytecode, or a portable artifact of it,
- `*.hlo`: HLO as text,
- `*.pb`: a serialized HloModuleProto,
- `*.fused`: the same of a module that XLA's GPU compiler has optimized as far as its fusion passes
  and somebody else has fused; what XLA does after fusion is done to it.

It does so for the GpuTargetConfigProto in `target.txtpb`, or for this machine's CPU if there is
none, has XLA dump what it does to each into `dump/0`, `dump/1`, ..., and adds a line of JSON to
`results` after each: its seconds and, if it failed, why. HLO that XLA has already optimized is not
compiled again but written to `optimized/0`, `optimized/1`, ... as a serialized HloModuleProto.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any, Final

import jax
import numpy as np
from jax._src import compiler
from jax._src.interpreters import mlir
from jax.experimental import topologies
from jaxlib import _hlo, _jax  # type: ignore[attr-defined]
from jaxlib.mlir import ir

from fuselane.hlo.container import is_optimized
from fuselane.xla.dump_options import dump_options
from fuselane.xla.pjrt import compile_hlo

_BYTECODE: Final = b"ML\xefR"
_PORTABLE: Final = b"StableHLO_v"
"""Found near the start of the bytecode of a portable artifact."""


_AFTER_FUSION: Final = (
    "rename_fusions",
    "fusion-wrapper",
    "autotuner",
    "convert_triton_gemm_config",
    "copy-insertion",
    "sanitize-constant-names",
    "dce",
)
"""The passes of XLA's that code generation for GPUs counts on, from where fusions are made."""


def main(folder: Path, cuda_data_dir: str = "", library: str = "") -> None:
    """Compiles all modules of a folder."""
    target = folder / "target.txtpb"
    config = target.read_text(encoding="utf-8") if target.is_file() else ""
    sources = (path for path in folder.iterdir() if path.stem.isdigit())
    with (folder / "results").open("a", encoding="utf-8") as results:
        for source in sorted(sources, key=lambda path: int(path.stem)):
            start = time.perf_counter()
            error = ""
            try:
                _compile(source, config, cuda_data_dir, library)
            except Exception as caught:
                error = str(caught) or type(caught).__name__
            seconds = time.perf_counter() - start
            results.write(json.dumps({"seconds": seconds, "error": error}) + "\n")
            results.flush()


def _compile(source: Path, config: str, cuda_data_dir: str, library: str) -> None:
    """Compiles one module and throws the result away."""
    data = source.read_bytes()
    overrides: dict[str, Any] = dump_options(source.parent / "dump" / source.stem)
    if config:
        # Tuning would time kernels on the GPU that is not there.
        overrides["xla_gpu_autotune_level"] = 0
    if cuda_data_dir:
        overrides["xla_gpu_cuda_data_dir"] = cuda_data_dir
    if source.suffix == ".fused":
        overrides |= {
            "xla_disable_hlo_passes": "",  # XLA takes one or the other
            "xla_enable_hlo_passes_only": ",".join(_AFTER_FUSION),
            "xla_dump_hlo_pass_re": "",  # the outcome is all that matters
        }
        options = _jax.CompileOptions()
        options.num_replicas = options.num_partitions = 1
        options.env_option_overrides = list(overrides.items())
        _devices(1, config)  # has JAX tell the compiler which libraries may be called
        compile_hlo(Path(library), data, options.SerializeAsString(), config)
        return
    if source.suffix == ".hlo":
        data = _hlo.hlo_module_from_text(data.decode()).as_serialized_hlo_module_proto()
    if source.suffix != ".mlir":
        if is_optimized(data):
            (source.parent / "optimized").mkdir(exist_ok=True)
            (source.parent / "optimized" / source.stem).write_bytes(data)
            return
        data = _jax.mlir.hlo_to_stablehlo(data)
    with mlir.make_ir_context() as context:
        module = _parse(data, context)
        _drop_empty_tilings(module)
        attributes = module.operation.attributes
        num_replicas = _number(attributes, "mhlo.num_replicas")
        num_partitions = _number(attributes, "mhlo.num_partitions")
        devices = _devices(num_replicas * num_partitions, config)
        client: Any = devices[0].client
        options = compiler.get_compile_options(
            num_replicas=num_replicas,
            num_partitions=num_partitions,
            device_assignment=np.array(devices).reshape(num_replicas, num_partitions),
            env_options_overrides=overrides,
            backend=client,
        )
        run = client.compile if config else client.compile_and_load
        run(module, executable_devices=_jax.DeviceList(tuple(devices)), compile_options=options)


def _parse(data: bytes, context: Any) -> Any:
    """Returns an MLIR module from any of its forms."""
    if data.startswith(_BYTECODE) and _PORTABLE in data[:64]:
        data = _jax.mlir.deserialize_portable_artifact(data, context)
        return data if isinstance(data, ir.Module) else ir.Module.parse(data)
    return ir.Module.parse(data)


def _drop_empty_tilings(module: Any) -> None:
    """Makes custom calls say nothing of tilings that they don't have.

    XLA of JAX 0.11 writes them into StableHLO made of HLO, which then suits none of its plug-ins.
    """

    def visit(operation: Any) -> Any:
        attributes = operation.attributes
        for name in ("operand_tilings", "result_tilings"):
            if name in attributes and not any(len(tiling) for tiling in attributes[name]):
                del attributes[name]
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)


def _number(attributes: Any, name: str) -> int:
    return int(attributes[name].value) if name in attributes else 1


def _devices(number: int, config: str) -> list[Any]:
    """Returns so many devices of the kind to compile for."""
    if not config:
        jax.config.update("jax_num_cpu_devices", number)  # type: ignore[no-untyped-call]
        return jax.devices("cpu")[:number]
    return list(
        topologies.get_topology_desc(
            "gpu", platform="cuda", target_config=config, topology=f"1x1x{number}"
        ).devices
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
