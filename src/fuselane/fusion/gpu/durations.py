"""How long computing and moving bytes takes on a GPU, in quarters of a nanosecond.

XLA's own type for durations counts these, and rounding decides ties.

Source: xla/service/gpu/model/gpu_performance_model_base.cc of 2026.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from functools import lru_cache
from typing import Final, TypeVar, final

from fuselane.fusion.gpu.kernel_cost import round_half_up, to_f32
from fuselane.gpu import GpuDescription

TICKS_PER_S: Final = 4e9
TICKS_PER_US: Final = 4000
LAUNCH: Final = TICKS_PER_US
"""A kernel's launch takes a microsecond."""

_L2_SPEEDUP: Final = 2.5
_L1_SPEEDUP: Final = 8.0
_OVERLAP: Final = 0.95
_L1_BYTES: Final = 2 * 1024
_TRANSACTION_BYTES: Final = 64
_BYTES_PER_CLOCK: Final = 32


_Asked = TypeVar("_Asked", bound=Hashable)


@final
class Ticks(dict[_Asked, int]):
    """A table of durations that grows as it is asked."""

    def __init__(self, compute: Callable[[_Asked], int]) -> None:
        super().__init__()
        self._compute = compute

    def __missing__(self, asked: _Asked) -> int:
        ticks = self[asked] = self._compute(asked)
        return ticks


@final
class Memory:
    """A GPU's memory and caches; what was asked is remembered."""

    def __init__(self, gpu: GpuDescription) -> None:
        self._gpu = gpu
        self._bandwidth = to_f32(gpu.memory_bytes_per_s)
        self._block_bandwidth = to_f32(to_f32(to_f32(gpu.clock_ghz) * 1e9) * _BYTES_PER_CLOCK)
        self._reads = Ticks(self._compute_read_ticks)
        self._writes = Ticks(self._compute_write_ticks)
        self._again = Ticks(self._compute_read_again_ticks)

    def write_ticks(self, num_bytes: int) -> int:
        """Returns the time to write so many bytes."""
        return self._writes[num_bytes]

    def read_ticks(self, size: int, element: int, total: int, blocks: int) -> int:
        """Returns the time to read an array.

        Args:
            size: Of the array in bytes.
            element: Of one of its elements, if neighbouring threads read none that are neighbours;
                else 0.
            total: How many bytes are read, repetitions included.
            blocks: Of threads that read it.
        """
        return self._reads[size, element, total, blocks]

    def cached_read_ticks(self, net: int, total: int, blocks: int) -> int:
        """Returns the time to read `total` bytes of which `net` are different ones, all at the rate
        of the cache they are in, as models until 2024 had it."""
        most = to_f32(blocks * self._block_bandwidth)
        return _ticks_of_s(to_f32(to_f32(total) / min(self._cached(net), most)))

    def read_again_ticks(
        self, num_bytes: int, utilization: float, share: float, blocks: int
    ) -> int:
        """Returns the time to read a share of what a kernel reads of an array, by the same models.

        Args:
            num_bytes: What the kernel reads, repetitions included.
            utilization: How often it reads each element.
            share: How much of that.
            blocks: Of threads that read it.
        """
        return self._again[num_bytes, utilization, share, blocks]

    def _cached(self, net: int) -> float:
        """Returns the bytes per second of the memory that so many stay in."""
        bandwidth = self._bandwidth
        if net < self._gpu.l2_bytes:
            bandwidth = to_f32(bandwidth * _L2_SPEEDUP)
            if net < _L1_BYTES * self._gpu.num_multiprocessors:
                bandwidth = to_f32(bandwidth * _L1_SPEEDUP)
        return bandwidth

    def _compute_write_ticks(self, num_bytes: int) -> int:
        return _ticks_of_s(to_f32(to_f32(num_bytes) / self._bandwidth))

    def _compute_read_again_ticks(self, asked: tuple[int, float, float, int]) -> int:
        num_bytes, utilization, share, blocks = asked
        net = round_half_up(to_f32(num_bytes / max(utilization, 1.0)))
        total = round_half_up(to_f32(num_bytes * share))
        return self.cached_read_ticks(net, total, blocks)

    def _compute_read_ticks(self, asked: tuple[int, int, int, int]) -> int:
        size, element, total, blocks = asked
        gpu = self._gpu
        net = min(size, total)
        share = element / _TRANSACTION_BYTES if element else 1.0
        first = to_f32(gpu.memory_bytes_per_s * share)
        again = self._cached(net)
        if net >= gpu.l2_bytes:
            again = to_f32(again * share)
        most = to_f32(blocks * self._block_bandwidth)
        ticks = _ticks_of_s(to_f32(to_f32(net) / min(first, most)))
        if total > net:
            ticks += _ticks_of_s(to_f32(to_f32(total - net) / min(again, most)))
        return ticks


@lru_cache(maxsize=1 << 16)
def compute_ticks(flops: float, flops_per_ns: int) -> int:
    """Returns the time of so many operations, of which XLA counts whole ones."""
    return _scale(4, to_f32(int(to_f32(flops)) / flops_per_ns))


@lru_cache(maxsize=1 << 16)
def hidden(ticks: int) -> int:
    """Returns how much of the shorter of computation and memory runs beside the other."""
    return _scale(ticks, _OVERLAP)


def overlap(computing: int, memory: int) -> int:
    """Returns the time of a kernel that computes and moves bytes for so long."""
    return computing + memory - hidden(computing if computing < memory else memory)


def _ticks_of_s(seconds: float) -> int:
    """Returns the ticks of a number of seconds, halves rounded up."""
    if seconds < 1.0:
        return math.floor(seconds * TICKS_PER_S + 0.5)
    whole = int(seconds)
    return int(whole * TICKS_PER_S) + round_half_up((seconds - whole) * TICKS_PER_S)


def _scale(ticks: int, factor: float) -> int:
    """Returns a multiple of a duration, by the detour over seconds that XLA's durations take."""
    return _ticks_of_s(ticks * factor / TICKS_PER_S)
