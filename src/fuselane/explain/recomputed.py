"""What a kernel computes several times: a value that is needed at several places, such as both ends
of a difference, is computed anew at each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final

from fuselane.analysis.fusion_runs import count_runs
from fuselane.analysis.opcodes import ELEMENTWISE_OPCODES
from fuselane.explain.gpu_time import count_operations_of
from fuselane.fusion.opcodes import is_expensive_on_cpu
from fuselane.hlo.instruction import HloInstruction

_MIN_TIMES: Final = 1.5
_EXPENSIVE: Final = 20.0
"""Operations, at least, of what XLA does not like to compute twice."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Recomputed:
    """A value that a kernel computes several times.

    Attributes:
        instruction: What computes it, last of a chain that does.
        times: How often each element is computed, on average.
        num_bytes: Size of the value.
        share: How much of the kernel's work is repetition, 0 to 1.
    """

    instruction: HloInstruction
    times: float
    num_bytes: int
    share: float


def find_recomputed(kernel: HloInstruction) -> Recomputed | None:
    """Returns what of a kernel's work would be saved most of all if it were done once, or None."""
    if kernel.opcode != "fusion" or kernel.fusion_kind == "kCustom":
        return None
    runs = count_runs(kernel.to_apply)
    elementwise = [m for m in runs if m.opcode in ELEMENTWISE_OPCODES and m.shape.is_array]
    work = {m: runs[m] * _count_operations(m) for m in elementwise}
    times = {m: runs[m] / max(1, m.shape.num_elements) for m in elementwise}
    repeated = {m for m in elementwise if times[m] >= _MIN_TIMES}
    ends = [m for m in repeated if not repeated.intersection(m.users)]
    total = sum(work.values())
    if not any(map(is_expensive_on_cpu, repeated)):
        return None
    saved = sum(work[m] * (1 - 1 / times[m]) for m in repeated)
    end = max(ends, key=lambda m: (m.shape.num_elements, m.name))
    return Recomputed(
        instruction=end,
        times=times[end],
        num_bytes=end.shape.byte_size,
        share=saved / total,
    )


def _count_operations(instruction: HloInstruction) -> float:
    counted = count_operations_of(instruction.opcode)
    return max(counted, _EXPENSIVE) if is_expensive_on_cpu(instruction) else counted
