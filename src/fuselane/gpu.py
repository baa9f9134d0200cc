"""What GPUs look like to a compiler: the NVIDIA models that programs can be explained for.

Numbers are of the reference boards. Their sources, by the letters below:

- W: NVIDIA's white papers on the Volta (V100), Turing (TU102), Ampere (A100), Ada (AD102), Hopper
  (H100) and Blackwell architectures: multiprocessors, FP32 units, L2 cache, memory.
- D: NVIDIA's data sheets of the boards (L4, H200, B200): boost clock, memory, bandwidth.
- G: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability": threads, blocks,
  registers and shared memory of a multiprocessor, shared memory of a block.
- X: XLA's own `backends/gpu/target_config/specs`, where the numbers a driver reports differ from
  what data sheets round: clock, bandwidth and L2 cache of V100, A100, H100, H200 and B200.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final, final

KIB: Final = 2**10
MIB: Final = 2**20
GIB: Final = 2**30

WARP_LANES: Final = 32
"""Threads of a warp."""

_REGISTER_UNIT: Final = 256
"""Registers are handed out to warps in multiples of this many (G, CUDA occupancy calculator)."""

_WARP_UNIT: Final = 4
"""Warps get their registers from one of as many equal parts of the register file."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class GpuDescription:
    """A GPU as a target of kernels.

    Attributes:
        name: As its driver calls it.
        compute_capability: Major and minor number.
        num_multiprocessors: Streaming multiprocessors, XLA's cores.
        fp32_units: Additions and multiplications of f32 that a multiprocessor starts per clock.
        clock_ghz: Boost clock.
        memory_bytes: Size of its memory.
        memory_bytes_per_s: Bandwidth of its memory.
        l2_bytes: Size of the L2 cache.
        max_threads: Most resident threads of a multiprocessor.
        max_blocks: Most resident blocks of a multiprocessor.
        registers: 32-bit registers of a multiprocessor.
        shared_bytes: Shared memory of a multiprocessor.
        max_block_shared_bytes: Most shared memory of a block, if it asks for it.
    """

    name: str
    compute_capability: tuple[int, int]
    num_multiprocessors: int
    fp32_units: int
    clock_ghz: float
    memory_bytes: int
    memory_bytes_per_s: int
    l2_bytes: int
    max_threads: int
    max_blocks: int
    registers: int = 65536
    shared_bytes: int
    max_block_shared_bytes: int

    @property
    def peak_flops(self) -> float:
        """Floating-point operations per second in f32, a multiply-add counted as two."""
        return 2 * self.fp32_units * self.num_multiprocessors * self.clock_ghz * 1e9

    @property
    def resident_threads(self) -> int:
        """The most threads that all multiprocessors have at once."""
        return self.max_threads * self.num_multiprocessors

    def occupancy(self, block_threads: int, registers: int, shared_bytes: int) -> float:
        """Returns the share of a multiprocessor's warps that blocks of a kernel fill, 0 to 1.

        0 if not even one block fits. Source: CUDA's occupancy calculator.

        Args:
            block_threads: Threads per block.
            registers: Per thread.
            shared_bytes: Shared memory per block.
        """
        warps = -(-block_threads // WARP_LANES)
        if warps == 0:
            return 0.0
        by_threads = self.max_threads // (warps * WARP_LANES)
        blocks = min(by_threads, self.max_blocks, self._blocks_by_registers(warps, registers))
        has_reserved = self.compute_capability >= (8, 0)  # the system takes 1 KiB per block
        needed = shared_bytes + (KIB if has_reserved else 0)
        if needed:
            blocks = min(blocks, self.shared_bytes // needed)
        return blocks * warps * WARP_LANES / self.max_threads

    def _blocks_by_registers(self, warps: int, registers: int) -> int:
        if registers == 0:
            return self.max_blocks
        per_warp = -(-registers * WARP_LANES // _REGISTER_UNIT) * _REGISTER_UNIT
        resident = self.registers // _WARP_UNIT // per_warp * _WARP_UNIT
        return resident // warps


GPUS: Final = MappingProxyType(
    {
        "v100": GpuDescription(  # SXM2, 16 GB: W, G, X
            name="Tesla V100-SXM2-16GB",
            compute_capability=(7, 0),
            num_multiprocessors=80,
            fp32_units=64,
            clock_ghz=1.53,
            memory_bytes=16 * GIB,
            memory_bytes_per_s=898_048_000_000,
            l2_bytes=6 * MIB,
            max_threads=2048,
            max_blocks=32,
            shared_bytes=96 * KIB,
            max_block_shared_bytes=96 * KIB,
        ),
        "rtx2080ti": GpuDescription(  # reference board: W, G
            name="NVIDIA GeForce RTX 2080 Ti",
            compute_capability=(7, 5),
            num_multiprocessors=68,
            fp32_units=64,
            clock_ghz=1.545,
            memory_bytes=11 * GIB,
            memory_bytes_per_s=616_000_000_000,
            l2_bytes=5632 * KIB,
            max_threads=1024,
            max_blocks=16,
            shared_bytes=64 * KIB,
            max_block_shared_bytes=64 * KIB,
        ),
        "a100": GpuDescription(  # SXM4, 80 GB: W, G, X
            name="NVIDIA A100-SXM4-80GB",
            compute_capability=(8, 0),
            num_multiprocessors=108,
            fp32_units=64,
            clock_ghz=1.41,
            memory_bytes=80 * GIB,
            memory_bytes_per_s=2_039_040_000_000,
            l2_bytes=40 * MIB,
            max_threads=2048,
            max_blocks=32,
            shared_bytes=164 * KIB,
            max_block_shared_bytes=163 * KIB,
        ),
        "l4": GpuDescription(  # W, D, G
            name="NVIDIA L4",
            compute_capability=(8, 9),
            num_multiprocessors=58,
            fp32_units=128,
            clock_ghz=2.04,
            memory_bytes=24 * GIB,
            memory_bytes_per_s=300_000_000_000,
            l2_bytes=48 * MIB,
            max_threads=1536,
            max_blocks=24,
            shared_bytes=100 * KIB,
            max_block_shared_bytes=99 * KIB,
        ),
        "rtx4090": GpuDescription(  # W, G
            name="NVIDIA GeForce RTX 4090",
            compute_capability=(8, 9),
            num_multiprocessors=128,
            fp32_units=128,
            clock_ghz=2.52,
            memory_bytes=24 * GIB,
            memory_bytes_per_s=1_008_000_000_000,
            l2_bytes=72 * MIB,
            max_threads=1536,
            max_blocks=24,
            shared_bytes=100 * KIB,
            max_block_shared_bytes=99 * KIB,
        ),
        "h100": GpuDescription(  # SXM5, 80 GB: W, G, X
            name="NVIDIA H100 80GB HBM3",
            compute_capability=(9, 0),
            num_multiprocessors=132,
            fp32_units=128,
            clock_ghz=1.98,
            memory_bytes=80 * GIB,
            memory_bytes_per_s=3_352_320_000_000,
            l2_bytes=50 * MIB,
            max_threads=2048,
            max_blocks=32,
            shared_bytes=228 * KIB,
            max_block_shared_bytes=227 * KIB,
        ),
        "h200": GpuDescription(  # SXM5: D, G, X
            name="NVIDIA H200",
            compute_capability=(9, 0),
            num_multiprocessors=132,
            fp32_units=128,
            clock_ghz=1.98,
            memory_bytes=141_000_000_000,
            memory_bytes_per_s=4_800_000_000_000,
            l2_bytes=50 * MIB,
            max_threads=2048,
            max_blocks=32,
            shared_bytes=228 * KIB,
            max_block_shared_bytes=227 * KIB,
        ),
        "b200": GpuDescription(  # D, G, X
            name="NVIDIA B200",
            compute_capability=(10, 0),
            num_multiprocessors=148,
            fp32_units=128,
            clock_ghz=1.965,
            memory_bytes=180_000_000_000,
            memory_bytes_per_s=7_672_320_000_000,
            l2_bytes=132_644_864,
            max_threads=2048,
            max_blocks=32,
            shared_bytes=228 * KIB,
            max_block_shared_bytes=227 * KIB,
        ),
    }
)
"""By the names `--target` takes."""


def describe_gpu(
    name: str, compute_capability: tuple[int, int], num_multiprocessors: int
) -> GpuDescription | None:
    """Returns the description of a GPU that is there, or None if it is too old.

    A model not in GPUS is described by the one of them that comes closest: of the newest compute
    capability that is not newer, with as many multiprocessors as it really has.

    Args:
        name: As its driver calls it.
        compute_capability: Major and minor number.
        num_multiprocessors: Streaming multiprocessors.
    """
    for gpu in GPUS.values():
        if gpu.name == name:
            return gpu
    older = [gpu for gpu in GPUS.values() if gpu.compute_capability <= compute_capability]
    if not older:
        return None
    closest = max(older, key=lambda gpu: gpu.compute_capability)
    return replace(closest, name=name, num_multiprocessors=num_multiprocessors)
