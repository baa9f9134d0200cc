"""What things cost on a machine: the constants that estimates of run times rest on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class MachineCosts:
    """Costs on one machine; the defaults are those of a server core of about 3 GHz.

    `thunk` is XLA:CPU's word for one unit of work of its runtime: a fusion, a copy, a call of a
    library. An operation is one cheap instruction on one vector register (`analysis.cost`).

    Attributes:
        thunk_us: XLA starts a thunk.
        library_us: What a thunk that calls a library (dot, reduce, sort) takes on top of that.
        step_us: XLA goes from one iteration of a loop to the next, besides its thunks.
        task_us: XLA hands part of a thunk to another thread and waits for it.
        call_us: A kernel is called, on one thread.
        wake_us: What a kernel on several threads takes on top of that.
        xla_operation_us: An operation of XLA's code on a register of 256 bits.
        xla_scalar_us: An operation of XLA's code that is not vectorised.
        kernel_operation_us: An operation of a kernel on a vector register of any width.
        kernel_scalar_us: An operation of a kernel on a scalar.
        memory_bytes_per_us: Bandwidth of one core to and from memory beyond its caches.
    """

    thunk_us: float = 0.1
    library_us: float = 1.0
    step_us: float = 0.1
    task_us: float = 3.0
    call_us: float = 1.0
    wake_us: float = 4.0
    xla_operation_us: float = 0.35e-3
    xla_scalar_us: float = 0.6e-3
    kernel_operation_us: float = 0.3e-3
    kernel_scalar_us: float = 0.45e-3
    memory_bytes_per_us: float = 8000.0
