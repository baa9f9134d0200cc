"""What programs can be captured for, by name or as a file."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, final

from google.protobuf import text_format

from fuselane.errors import InputError
from fuselane.gpu import GPUS, WARP_LANES, GpuDescription
from fuselane.hlo.proto import Message, make_classes

CPU: Final = "cpu"
NAMES: Final = (CPU, *GPUS)

# Field numbers of xla/stream_executor/device_description.proto as of the CUDA plug-in 0.10.2. Only
# the names matter here: this reads text.
_SCHEMA: Final = """
message CudaComputeCapability { int32 major = 1; int32 minor = 2; }
message GpuDeviceInfo {
  int64 shared_memory_per_core = 4;
  int64 threads_per_core_limit = 5;
  int64 core_count = 6;
  int64 fpus_per_core = 7;
  int64 memory_bandwidth = 11;
  int64 l2_cache_size = 12;
  float clock_rate_ghz = 13;
  int64 device_memory_size = 14;
  int64 shared_memory_per_block_optin = 15;
  CudaComputeCapability cuda_compute_capability = 16;
  int64 registers_per_core_limit = 17;
}
message GpuTargetConfig { GpuDeviceInfo gpu_device_info = 1; string device_description_str = 6; }
"""
_GpuTargetConfig: Final[Message] = make_classes(_SCHEMA, "fuselane.target")["GpuTargetConfig"]

_MAX_FILE_BYTES: Final = 2**20

_MAX_BLOCKS: Final = {(7, 5): 16, (8, 6): 16, (8, 7): 16, (8, 9): 24}
"""Most resident blocks of a multiprocessor where it is not the other capabilities' 32; source G of
`fuselane.gpu`."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What XLA compiles for.

    Attributes:
        name: One of NAMES, or what a file calls its GPU.
        gpu: The GPU; None on a CPU.
        config: XLA's GpuTargetConfigProto as text; "" on a CPU.
    """

    name: str
    gpu: GpuDescription | None = None
    config: str = ""


def find_target(name: str) -> Target:
    """Returns the target of that name.

    Args:
        name: One of NAMES, or the path of a GpuTargetConfigProto as text, such as XLA writes to
            `*.gpu_target_config.pbtxt`.
    Raises:
        InputError: if there is none, or the file describes none.
    """
    if name == CPU:
        return Target(name=CPU)
    if name in GPUS:
        return replace(target_of(GPUS[name]), name=name)
    path = Path(name)
    if path.is_file():
        return _read_target(path)
    raise InputError(
        f"There is no target {name!r}; targets are {', '.join(NAMES)}, or a file that holds a "
        "GpuTargetConfigProto as text."
    )


def target_of(gpu: GpuDescription) -> Target:
    """Returns the target that a GPU is."""
    return Target(name=gpu.name, gpu=gpu, config=config_text(gpu))


def config_text(gpu: GpuDescription) -> str:
    """Returns XLA's GpuTargetConfigProto of a GPU, as text."""
    major, minor = gpu.compute_capability
    return f"""\
gpu_device_info {{
  cuda_compute_capability {{ major: {major} minor: {minor} }}
  threads_per_block_limit: 1024
  threads_per_warp: {WARP_LANES}
  shared_memory_per_block: 49152
  shared_memory_per_block_optin: {gpu.max_block_shared_bytes}
  shared_memory_per_core: {gpu.shared_bytes}
  threads_per_core_limit: {gpu.max_threads}
  core_count: {gpu.num_multiprocessors}
  fpus_per_core: {gpu.fp32_units}
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  memory_bandwidth: {gpu.memory_bytes_per_s}
  l2_cache_size: {gpu.l2_bytes}
  clock_rate_ghz: {gpu.clock_ghz}
  device_memory_size: {gpu.memory_bytes}
  registers_per_core_limit: {gpu.registers}
  registers_per_block_limit: {gpu.registers}
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 10 patch: 2 }}
runtime_version {{ major: 12 minor: 9 patch: 0 }}
device_description_str: "{gpu.name}"
"""


def _read_target(path: Path) -> Target:
    try:
        if path.stat().st_size > _MAX_FILE_BYTES:
            raise InputError(f"{str(path)!r} is too large to describe a GPU.")
        text = path.read_text(encoding="utf-8")
        message = text_format.Parse(text, _GpuTargetConfig(), allow_unknown_field=True)
    except OSError as error:
        raise InputError(f"{str(path)!r} cannot be read: {error.strerror}.") from None
    except (UnicodeDecodeError, text_format.ParseError) as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        raise InputError(f"{str(path)!r} holds no GpuTargetConfigProto: {reason}.") from None
    gpu = _describe(message, path.stem)
    missing = [field for field in _REQUIRED if not getattr(message.gpu_device_info, field)]
    if missing:
        raise InputError(f"The GPU in {str(path)!r} has no {', '.join(missing)}.")
    return Target(name=gpu.name, gpu=gpu, config=text)


_REQUIRED: Final = (
    "core_count",
    "fpus_per_core",
    "clock_rate_ghz",
    "memory_bandwidth",
    "shared_memory_per_core",
    "threads_per_core_limit",
)


def _describe(config: Message, name: str) -> GpuDescription:
    info = config.gpu_device_info
    capability = (info.cuda_compute_capability.major, info.cuda_compute_capability.minor)
    return GpuDescription(
        name=config.device_description_str or name,
        compute_capability=capability,
        num_multiprocessors=info.core_count,
        fp32_units=info.fpus_per_core,
        clock_ghz=info.clock_rate_ghz,
        memory_bytes=info.device_memory_size,
        memory_bytes_per_s=info.memory_bandwidth,
        l2_bytes=info.l2_cache_size,
        max_threads=info.threads_per_core_limit,
        max_blocks=_MAX_BLOCKS.get(capability, 32),
        registers=info.registers_per_core_limit or 65536,
        shared_bytes=info.shared_memory_per_core,
        max_block_shared_bytes=info.shared_memory_per_block_optin,
    )
