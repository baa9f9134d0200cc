"""What things cost on a machine: the constants that estimates of run times rest on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final

CACHED_BYTES: Final = 1 << 20
"""Arrays of up to so many bytes stay in a core's caches, about."""

FIRST_CACHE_BYTES: Final = 32 << 10
CACHE_WAYS: Final = 8
LINE_BYTES: Final = 64
PAGE_BYTES: Final = 4096
"""A core's first cache: lines whole pages apart compete for one set of so many."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class MachineCosts:
    """Costs on one machine, in microseconds; the defaults are those of a 2.5 GHz server core that
    has AVX2.

    `thunk` is XLA:CPU's word for one unit of work of its runtime: a fusion, a copy, a call of a
    library. An operation is one cheap instruction on one vector register (`analysis.cost`).

    Attributes:
        thunk_us: XLA starts a thunk of a sequence that it runs in order.
        queued_thunk_us: XLA starts a thunk of a sequence in which any may run that is ready.
        library_us: What a thunk that calls a library (dot, large reduce) takes besides.
        task_us: XLA hands parts of a thunk to other threads and waits for them.
        xla_operation_us: An operation of XLA's code on a register of 256 bits.
        xla_scalar_us: An operation of XLA's code that is not vectorised.
        xla_function_us: An exponential of XLA's, one f32 element of many.
        xla_call_us: A sine of XLA's, one f32 element of many.
        library_operation_us: An operation of XLA's libraries on 256 bits of an array.
        library_function_us: An exponential of theirs, one f32 element of many.
        kernel_call_us: A kernel is called, on one thread.
        wake_us: What a kernel on several threads takes besides.
        kernel_cycle_us: A cycle of a core that runs a kernel; see `codegen.vector_time`.
        kernel_operation_us: An operation of a kernel on a vector register, one of a cheap opcode.
        kernel_function_us: One operation of a sequence that an expensive opcode consists of.
        kernel_scalar_us: An operation of a kernel on a scalar that the next one waits for.
        cached_bytes_per_us: What a core reads and writes of arrays that stay in its caches.
        memory_bytes_per_us: The same of arrays that do not.
    """

    thunk_us: float = 0.012
    queued_thunk_us: float = 0.048
    library_us: float = 0.1
    task_us: float = 2.5
    xla_operation_us: float = 0.17e-3
    xla_scalar_us: float = 0.5e-3
    xla_function_us: float = 0.9e-3
    xla_call_us: float = 3.5e-3
    library_operation_us: float = 0.17e-3
    library_function_us: float = 0.9e-3
    kernel_call_us: float = 0.5
    wake_us: float = 4.0
    kernel_cycle_us: float = 0.35e-3
    kernel_operation_us: float = 0.13e-3
    kernel_function_us: float = 0.3e-3
    kernel_scalar_us: float = 0.4e-3
    cached_bytes_per_us: float = 130_000.0
    memory_bytes_per_us: float = 33_000.0

    def moving_us(self, num_bytes: float, footprint: float) -> float:
        """Returns the time in which one core reads or writes so many bytes of arrays that have
        `footprint` bytes together."""
        is_cached = footprint <= CACHED_BYTES
        return num_bytes / (self.cached_bytes_per_us if is_cached else self.memory_bytes_per_us)
