"""Whether XLA:CPU runs a program in the thread that calls it, or in one of its own.

A call of a program that runs in a thread of XLA's own returns at once, and what it allocates, and
gives back, comes from that thread's memory. XLA runs a program in the caller's if it counts fewer
than 1,000 operations in it: a loop's body once, a custom call as -1.

That also decides how often memory is new. Two arrays of one size, given back by the thread that
other memory of the process is from too, are more than glibc keeps (twice the size of the largest
array so far), so that the next call finds their pages gone; a thread of XLA's own keeps them, just
so. A page that has to be made again takes as long as writing it ten times.

Source: XLA pjrt/cpu/cpu_client.cc; glibc malloc/malloc.c (`systrim`, `heap_trim`).
"""

from __future__ import annotations

from typing import Final

from fuselane.analysis.hlo_cost import compute_cost
from fuselane.hlo.module import HloModule

DISPATCH_MARK: Final = "fuselane_dispatch"
"""The front-end attribute of what `lanes.dispatch` adds; it is no part of the user's program."""

_INLINE_FLOPS: Final = 1000
_LONG_US: Final = 1000.0
"""What is over sooner runs in the caller's thread: another one takes 15 microseconds to wake on an
idle machine and 70 on a busy one."""
_LARGE_BYTES: Final = 2**20
"""Programs that allocate less run in the caller's thread: with two arrays of 160 KiB pages were
never new, with two of 800 KiB at times (jaxlib 0.10.2 with glibc 2.36), with two of 3 MiB always
(jaxlib 0.12.0.1 with glibc 2.41), at 2 microseconds a page."""
_NO_ARRAYS: Final = frozenset(
    {"bitcast", "constant", "get-tuple-element", "parameter", "tuple", "while"}
)


def is_asynchronous(module: HloModule) -> bool:
    """Whether XLA:CPU runs a module in a thread of its own."""
    flops = 0.0
    for instruction in module.entry.instructions:
        flops += compute_cost(instruction, count_trips=False).flops
        if flops >= _INLINE_FLOPS:
            return True
    return False


def needs_thread(module: HloModule, kernel_us: float) -> bool:
    """Whether a module is long, or allocates enough, to run in a thread of XLA's own.

    Args:
        module: With kernels of ours.
        kernel_us: How long these run by estimate.
    """
    if kernel_us >= _LONG_US:
        return True
    made = (i.shape for i in module.entry.instructions if i.opcode not in _NO_ARRAYS)
    return sum(shape.byte_size for shape in made) >= _LARGE_BYTES


def remove_dispatch_mark(module: HloModule) -> None:
    """Removes what `lanes.dispatch` added to a module, if it did; see DISPATCH_MARK."""
    entry = module.entry
    marks = (i for i in entry.instructions if i.opcode == "conditional")
    for mark in [i for i in marks if DISPATCH_MARK in i.frontend_attributes]:
        mark.drop_control_edges()
        for instruction in (mark, *dict.fromkeys(mark.operands)):
            entry.remove(instruction)
        module.remove_unused_computations()
